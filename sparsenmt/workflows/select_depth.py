"""The stages of `sparsenmt select-depth`: translate, label, search, measure; each goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.depth_selector.labels import Labelled, Parts
    from sparsenmt.depth_selector.measure import SelectorEvaluation
    from sparsenmt.depth_selector.selector import Selector
    from sparsenmt.depth_selector.training import Hyperparameters, Settings, Trial
    from sparsenmt.model.depth_plan import Depth
    from sparsenmt.recipe.schema import Decoding
    from sparsenmt.store import Bundle

TRANSLATIONS = "depths"
"""Folder of a model directory: translations at every depth, by text and decoding options."""

REPORT = "report.txt"

_LEAST = 100  # pairs of sentences
_SEARCH = "search"


@dataclass(frozen=True)
class SelectDepthRequest:
    """What was asked for.

    Args:
        text: files of sources and references to learn from.
        test: those to measure on; None: a part of the text.
        limit: pairs of the text, at most.
        decoding: what differs from the recipe's settings.
        settings: of the search, from the recipe's seed.
        time_lines: held-out lines that are timed, at most.
    """

    directory: Path
    text: tuple[Path, Path]
    test: tuple[Path, Path] | None
    limit: int | None
    decoding: Mapping[str, Any]
    cells: Sequence[Hyperparameters]
    settings: Callable[[int], Settings]
    time_lines: int


@dataclass(frozen=True)
class TextPairs:
    """Sources and their references."""

    sources: list[str]
    references: list[str]

    def rows(self, numbers: Sequence[int]) -> TextPairs:
        """Some of them."""
        return TextPairs([self.sources[i] for i in numbers], [self.references[i] for i in numbers])


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs with their translations at all depths."""

    pairs: TextPairs
    translations: list[list[str]]
    """K lists."""
    labelled: Labelled

    def rows(self, numbers: Sequence[int]) -> ScoredPairs:
        """Some of them."""
        chosen = [[lines[i] for i in numbers] for lines in self.translations]
        return ScoredPairs(self.pairs.rows(numbers), chosen, self.labelled.rows(numbers))


def run(job: SelectDepthRequest) -> None:
    """Do what is not done yet, and print the report.

    Raises:
        UserError: the model has one depth only; the text is too short; a file is not what it must be.
    """
    from sparsenmt import store
    from sparsenmt.depth_selector.selector import FOLDER
    from sparsenmt.files import directory_lock, make_directories, partial_path, recover_directory
    from sparsenmt.interrupts import Interrupted

    pairs, test = _read(job.text, job.limit), None if job.test is None else _read(job.test, None)
    bundle = store.open_model(job.directory)
    folder = job.directory / FOLDER
    work = SelectDepthStages(job, bundle, pairs, test)
    work.check()
    make_directories(partial_path(folder))
    with directory_lock(partial_path(folder), "trains a selector for this model"):
        recover_directory(folder)
        if work.is_done(folder):
            shutil.rmtree(partial_path(folder), ignore_errors=True)
            click.echo(f"{folder}: is complete; nothing is left to do", err=True)
        else:
            try:
                work.make(folder)
            except Interrupted as stop:
                stop.note, stop.resumable = "what is done is kept", True
                raise
    click.echo((folder / REPORT).read_bytes().decode("utf-8"), nl=False)


@dataclass(frozen=True)
class SelectDepthStages:
    """The stages, for one model and text."""

    job: SelectDepthRequest
    bundle: Bundle
    pairs: TextPairs
    test: TextPairs | None

    @cached_property
    def depths(self) -> list[Depth]:
        return self.bundle.model.plan.depths()

    @cached_property
    def options(self) -> Decoding:
        return self.bundle.recipe.decoding.model_copy(update=dict(self.job.decoding))

    @cached_property
    def parts(self) -> Parts:
        from sparsenmt.depth_selector.labels import parts_of

        return parts_of(self.pairs.sources, held_out=self.test is None)

    @cached_property
    def settings(self) -> Settings:
        return self.job.settings(self.bundle.recipe.training.seed)

    @cached_property
    def task(self) -> dict[str, Any]:
        """What every cell of the search depends on."""
        import torch

        from sparsenmt import __version__
        from sparsenmt.depth_selector.selector import identity
        from sparsenmt.files import sha256_text

        return {
            "model": identity(self.job.directory),
            "text": sha256_text(json.dumps(asdict(self.pairs))),
            "held_out": self.test is None,
            "decoding": self.options.at(None).model_dump(mode="json"),
            "settings": asdict(self.settings),
            "device": self.bundle.device.type,
            "threads": torch.get_num_threads(),
            "sparsenmt": __version__,
            "torch": torch.__version__,
        }

    @cached_property
    def asked(self) -> dict[str, Any]:
        """What a finished selector must be of, so that nothing is left to do."""
        from sparsenmt.files import sha256_text

        test = None if self.test is None else sha256_text(json.dumps(asdict(self.test)))
        cells = [asdict(cell) for cell in self.job.cells]
        return {"task": self.task, "test": test, "cells": cells, "time_lines": self.job.time_lines}

    def check(self) -> None:
        """Find out what is wrong before anything is translated.

        Raises:
            UserError: the model, the grid or the text is not what it must be.
        """
        where, recipe = str(self.job.directory), self.bundle.recipe
        if len(self.depths) == 1:
            raise UserError(
                "the model has one exit on each side: there is no depth to choose",
                where=where,
                hint="Name a model that was trained with several exits; see `model.depth` in its recipe.",
            )
        if recipe.data.documents is not None:
            raise UserError(
                "the model reads blocks of documents; a selector chooses for single sentences",
                where=where,
                hint="Name a model without `data.documents`.",
            )
        dimension = recipe.model.dimension
        for cell in self.job.cells:
            if dimension % cell.heads:
                raise UserError(
                    f"{cell.heads} heads do not divide the model's dimension, {dimension}",
                    where="--heads",
                    hint="Name other numbers of heads.",
                )
        self._check_text()

    def _check_text(self) -> None:
        parts, texts = self.parts, [(self.job.text[0], len(self.pairs.sources), _LEAST)]
        if self.test is not None and self.job.test is not None:
            texts.append((self.job.test[0], len(self.test.sources), 1))
        empty = not parts.training or not parts.validation or (self.test is None and not parts.held_out)
        for path, count, least in texts:
            if count < least or (empty and path == self.job.text[0]):
                raise UserError(
                    f"too little text: {count:,} sentences with a reference, and {least:,} different ones are needed",
                    where=str(path),
                    hint="Name a longer text; the classifier learns from thousands of sentences.",
                )

    def is_done(self, folder: Path) -> bool:
        """Whether a sound selector of the same task stands there, with its report."""
        from sparsenmt.depth_selector.selector import RECORD, open_selector
        from sparsenmt.files import read_sealed

        try:
            record = read_sealed(folder / RECORD)
            open_selector(self.job.directory, self.bundle)
        except (UserError, KeyError):
            return False
        return record.get("asked") == json.loads(json.dumps(self.asked)) and (folder / REPORT).is_file()

    def make(self, folder: Path) -> None:
        """Translate, train and measure; the selector takes its place when all is done."""
        from sparsenmt.depth_selector.search import Search
        from sparsenmt.depth_selector.selector import identity, open_selector, save, source_table
        from sparsenmt.files import partial_path, publish_directory

        partial = partial_path(folder)
        text = self._scored(self.pairs, "text")
        held_out = text.rows(self.parts.held_out) if self.test is None else self._scored(self.test, "held-out text")
        sizes = {"training": len(self.parts.training), "validation": len(self.parts.validation)}
        sizes["held_out"] = len(held_out.pairs.sources)
        best = text.labelled.labels.sum(axis=1).mean()
        click.echo(
            f"{sizes['training']:,} sentences to learn from, {sizes['validation']:,} for validation, "
            f"{sizes['held_out']:,} held out; {best:.1f} of {len(self.depths)} depths are the best, on average",
            err=True,
        )
        search = Search(partial / _SEARCH, self.task, self.job.cells)
        if search.again is not None:
            click.echo(f"{folder}: the search starts again: {search.again}", err=True)
        table = source_table(self.bundle)
        left = len(self.job.cells) - len(search.trials)
        with progress_bar(f"search: {left} to try", left * self.settings.epochs, unit="epoch") as advance:
            trial, weights = search.run(
                self.settings,
                text.labelled.rows(self.parts.training),
                text.labelled.rows(self.parts.validation),
                table,
                advance=advance,
            )
        found = {"asked": self.asked, "sentences": sizes}
        save(partial, weights, model=identity(self.job.directory), depths=self.depths, cell=trial.cell, found=found)
        selector = open_selector(self.job.directory, self.bundle, folder=partial)
        self._write_report(partial, selector, held_out, search.trials)
        shutil.rmtree(partial / _SEARCH)
        publish_directory(partial, folder)

    def _scored(self, pairs: TextPairs, what: str) -> ScoredPairs:
        """Translate at every depth, as far as that was not done before, and score."""
        from sparsenmt.data.input_line import input_lines
        from sparsenmt.decoding.inputs import read_sources
        from sparsenmt.decoding.kept_translations import KeptTranslations
        from sparsenmt.depth_selector.labels import Labelled
        from sparsenmt.evaluation.depth_oracle import sentence_chrf
        from sparsenmt.files import sha256_text

        shape = self.bundle.recipe.model.model_dump(mode="json", by_alias=True)
        model = sha256_text(json.dumps([self.task["model"], shape, self.bundle.max_source_length], sort_keys=True))
        kept = KeptTranslations(self.job.directory / TRANSLATIONS, model, pairs.sources, self.options)
        left = sum(len(pairs.sources) - len(kept.done(depth)) for depth in self.depths)
        with progress_bar(f"{what}: translate at {len(self.depths)} depths", left) as advance:
            translations = [kept.at(self.bundle, depth, advance=advance) for depth in self.depths]
        with progress_bar(f"{what}: chrF", len(pairs.sources)) as advance:
            scores = sentence_chrf(translations, pairs.references, advance=advance)
        pieces = [source.ids for source in read_sources(self.bundle, input_lines(pairs.sources))]
        return ScoredPairs(pairs, translations, Labelled(pieces, scores))

    def _measured(self, selector: Selector, held_out: ScoredPairs) -> SelectorEvaluation:
        """Time and quality of the selector on held-out text."""
        from sparsenmt.depth_selector.measure import measure, time_depths, timing_steps
        from sparsenmt.evaluation.depth_oracle import oracle_depths

        lines = held_out.pairs.sources[: self.job.time_lines]
        oracle = [self.depths[k] for k in oracle_depths(held_out.labelled.scores)[: len(lines)]]
        with progress_bar("time", timing_steps(len(lines), len(self.depths))) as advance:
            timed = time_depths(self.bundle, selector, lines, oracle, self.options, advance=advance)
        return measure(
            held_out.translations,
            held_out.pairs.references,
            held_out.labelled.scores,
            selector.logits(held_out.labelled.pieces),
            self.depths,
            timed,
            language=self.bundle.recipe.data.target_language,
        )

    def _write_report(
        self, directory: Path, selector: Selector, held_out: ScoredPairs, trials: Sequence[Trial]
    ) -> None:
        from sparsenmt.depth_selector.selector_report import report
        from sparsenmt.files import write_text
        from sparsenmt.report.tables import render, write_report

        found = report(self._measured(selector, held_out), held_out.labelled, self.depths, trials)
        settings = {**self.asked["task"], "time_lines": self.job.time_lines}
        write_report(replace(found, settings=settings), json=directory / "report.json", csv=directory / "report.csv")
        write_text(directory / REPORT, f"{render(found)}\n")


def _read(files: tuple[Path, Path], limit: int | None) -> TextPairs:
    """The pairs both sides of which have words.

    Raises:
        UserError: the files cannot be read, or are not line-aligned.
    """
    from sparsenmt.data.text import read_parallel

    rows = [row for row in read_parallel(files) if all(text.strip() for text in row)][:limit]
    return TextPairs([row[0] for row in rows], [row[1] for row in rows])
