"""The training of a depth selector: translate at every depth, label, search hyperparameters, evaluate.

Each step resumes where an interrupted run stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt import __version__
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.long_lines import recorded_division
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_parallel
from sparsenmt.decoding.inputs import read_sources, warn_of_unusual_sources
from sparsenmt.decoding.kept_translations import KeptTranslations
from sparsenmt.depth_selector.evaluation import (
    QUALITY,
    MeasuredText,
    TrainedClassifier,
    selector_report,
    time_depths,
    timing_steps,
)
from sparsenmt.depth_selector.hyperparameter_search import HyperparameterSearch
from sparsenmt.depth_selector.labels import LabelledSentences, split_text
from sparsenmt.depth_selector.selector import (
    FOLDER,
    RECORD,
    identity_record,
    make_selector,
    open_selector,
    save_selector,
    source_embeddings,
)
from sparsenmt.depth_selector.training import (
    MAX_LAYERS,
    SelectorTrainingSettings,
    TrainedWeights,
    Trial,
    hyperparameter_grid,
    train_classifier,
)
from sparsenmt.errors import UserError
from sparsenmt.evaluation.depth_oracle import oracle_depths, sentence_chrf
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.tokenizer_choice import fit_to_text
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.model_use import with_given
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.storage.files import partial_path, publish_directory, remove_tree, sha256_text, staging_directory
from sparsenmt.storage.kept_work import KeptWork
from sparsenmt.workflows.evaluation.evaluate import ModelRun

TRANSLATIONS = "depths"
"""Subdirectory of a model directory: translations at every depth, by text and decoding options."""

REPORT = "report.txt"

_LEAST = 100  # pairs of sentences
_SEARCH = "search"


@dataclass(frozen=True)
class SelectDepthRequest(ModelRun):
    """The arguments of `select_depth`.

    Args:
        model: model directory with several trained exits.
        source: text to learn from.
        reference: its translation, line by line.
        test_source: text to evaluate on; None: a tenth of the text, held out.
        test_reference: its translation.
        finetune_source: text on which the classifiers are fine-tuned after the search; None: they are not.
        finetune_reference: its translation.
        limit: number of pairs of the text to use, from the first; None: all.
        method: decoding strategy; None: the recipe's.
        layers: numbers of layers of the classifier to try.
        heads: numbers of attention heads to try.
        alphas: exponents of the positive term's weight to try (`loss.selector_loss`).
        betas: values of beta in F_beta to try.
        lambdas: shares of the cross-entropy to try.
        epochs: most epochs of each trial.
        patience: epochs without a lower validation loss after which a trial ends.
        batch_size: sentences of an update.
        learning_rate: of SGD.
        seed: of the classifier's training; None: the recipe's.
        time_lines: number of held-out lines to time, at most.
    """

    model: Path
    source: Path
    reference: Path
    test_source: Path | None = None
    test_reference: Path | None = None
    finetune_source: Path | None = None
    finetune_reference: Path | None = None
    limit: int | None = None
    method: str | None = None
    layers: Sequence[int] = (1, 2)
    heads: Sequence[int] = (4,)
    alphas: Sequence[float] = (0.0, 1.0)
    betas: Sequence[float] = (1.0,)
    lambdas: Sequence[float] = (0.5, 1.0)
    epochs: int = 10
    patience: int = 2
    batch_size: int = 32
    learning_rate: float = 0.05
    seed: int | None = None
    time_lines: int = 200

    def files(self, kind: Literal["test", "finetune"]) -> tuple[Path, Path] | None:
        """Return source and reference to evaluate or fine-tune on, or None; UserError if one of the two is missing."""
        source, reference = getattr(self, f"{kind}_source"), getattr(self, f"{kind}_reference")
        if source is not None and reference is not None:
            return source, reference
        if source is None and reference is None:
            return None
        names = (f"--{kind}-source", f"--{kind}-reference")
        missing, given = names[:: 1 if source is None else -1]
        raise UserError(f"is missing beside {given}", where=missing, hint="Name both files, or neither.")


@dataclass(frozen=True)
class TextPairs:
    """Sources and their references."""

    sources: list[str]
    references: list[str]

    def rows(self, numbers: Sequence[int]) -> TextPairs:
        """Return the pairs with these numbers, from 0, in their order."""
        return TextPairs([self.sources[i] for i in numbers], [self.references[i] for i in numbers])

    def digest(self) -> str:
        """Return the hash of sources and references."""
        return sha256_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs with their translations, for each of K depths a list of lines, and their labels."""

    pairs: TextPairs
    translations: list[list[str]]
    labelled: LabelledSentences

    def rows(self, numbers: Sequence[int]) -> ScoredPairs:
        """Return the pairs with these numbers, from 0, in their order."""
        chosen = [[lines[i] for i in numbers] for lines in self.translations]
        return ScoredPairs(self.pairs.rows(numbers), chosen, self.labelled.rows(numbers))


def select_depth(request: SelectDepthRequest) -> str:
    """Train a depth selector and put it into the model directory, unless it is there; returns the report's text.

    Raises:
        UserError: the model has one depth only, the text is too short, or a file is invalid.
    """
    others = [request.files("test"), request.files("finetune")]
    device = request.use_processors()
    pairs = _read_pairs((request.source, request.reference), request.limit)
    test, finetune = (None if files is None else _read_pairs(files, None) for files in others)
    bundle = open_model(request.model, device=device, languages=request.languages)
    training = _SelectorTraining(request, bundle, pairs, test, finetune)
    training.check()
    folder = request.model / FOLDER
    with staging_directory(folder, "trains a selector for this model") as partial:
        if training.is_done(folder):
            remove_tree(partial)
            notify(f"{folder}: is complete; nothing is left to do")
        else:
            with resumable("the completed steps are kept"):
                training.run(folder)
    return (folder / REPORT).read_bytes().decode("utf-8")


class _SelectorTraining:
    """The steps of `select_depth` for one model and text.

    Args:
        pairs: the text to learn from.
        test: the text to evaluate on; None: a part of ``pairs`` is held out.
        finetune: the text to fine-tune on; None: there is none.
    """

    def __init__(
        self,
        request: SelectDepthRequest,
        bundle: Bundle,
        pairs: TextPairs,
        test: TextPairs | None,
        finetune: TextPairs | None,
    ) -> None:
        self.request, self.bundle, self.pairs, self.test, self.finetune = request, bundle, pairs, test, finetune
        self.depths = bundle.model.plan.depths()
        changes = {"method": request.method, "beam_size": request.beam_size, "batch_tokens": request.batch_tokens}
        self.options = with_given(bundle.recipe.decoding, **changes)
        self.split = split_text(pairs.sources, held_out=test is None)
        self.cells = hyperparameter_grid(request.layers, request.heads, request.alphas, request.betas, request.lambdas)
        self.settings = SelectorTrainingSettings(
            epochs=request.epochs,
            patience=request.patience,
            batch_size=request.batch_size,
            learning_rate=request.learning_rate,
            seed=bundle.recipe.training.seed if request.seed is None else request.seed,
        )

    @cached_property
    def scoring(self) -> ScoringOptions:
        """The settings of BLEU and chrF of the held-out text."""
        references = (self.test or self.pairs).references
        return fit_to_text(ScoringOptions(QUALITY), references, {str(self.request.model): self.bundle.recipe})

    @cached_property
    def task(self) -> dict[str, Any]:
        """The values that every trial depends on: only an interrupted search with the same ones is resumed."""
        return {
            "model": identity_record(self.bundle.identity()),
            "text": self.pairs.digest(),
            "held_out": self.test is None,
            "decoding": self.options.at(None).recorded(),
            "settings": asdict(self.settings),
            "device": self.bundle.device.type,
            "threads": torch.get_num_threads(),
            "sparsenmt": __version__,
            "torch": torch.__version__,
        }

    @cached_property
    def requested(self) -> dict[str, Any]:
        """The values that a finished selector depends on: one with the same values is not trained again."""
        test = None if self.test is None else self.test.digest()
        cells = [asdict(cell) for cell in self.cells]
        finetune = {} if self.finetune is None else {"finetune": self.finetune.digest()}
        return {"task": self.task, "test": test, "cells": cells, "time_lines": self.request.time_lines, **finetune}

    def check(self) -> None:
        """Raise UserError for a model, a grid or a text that is invalid, before anything is translated."""
        where, recipe = str(self.request.model), self.bundle.recipe
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
        for cell in self.cells:
            if cell.layers > MAX_LAYERS:
                raise UserError(
                    f"a classifier of {cell.layers} layers is too deep: the most is {MAX_LAYERS}",
                    where="--layers",
                    hint="Name smaller numbers of layers.",
                )
            if dimension % cell.heads:
                raise UserError(
                    f"{cell.heads} heads do not divide the model's dimension, {dimension}",
                    where="--heads",
                    hint="Name other numbers of heads.",
                )
        self._check_text()
        _ = self.scoring

    def _check_text(self) -> None:
        """Raise UserError for a text that is too short, or has no sentence in one of its parts."""
        request, split = self.request, self.split
        parts = [split.training, split.validation, *([split.held_out] if self.test is None else [])]
        texts = [(request.source, self.pairs, _LEAST, parts)]
        if self.test is not None and request.test_source is not None:
            texts.append((request.test_source, self.test, 1, []))
        if self.finetune is not None and request.finetune_source is not None:
            tuning = split_text(self.finetune.sources, held_out=False)
            texts.append((request.finetune_source, self.finetune, _LEAST, [tuning.training, tuning.validation]))
        for path, pairs, least, parts in texts:
            if len(pairs.sources) < least or not all(parts):
                raise UserError(
                    f"too little text: {len(pairs.sources):,} sentences with a reference, and {least:,} different ones "
                    "are needed",
                    where=str(path),
                    hint="Name a longer text; the classifier learns from thousands of sentences.",
                )

    def is_done(self, folder: Path) -> bool:
        """Return True if the directory holds a valid selector of the same request, with its report."""
        try:
            open_selector(self.request.model, self.bundle)
        except UserError:
            return False
        kept = KeptWork(folder / RECORD, self.requested, dict, key="asked").find()
        return kept is not None and (folder / REPORT).is_file()

    def run(self, folder: Path) -> None:
        """Translate, train and evaluate; the selector is published when everything is done."""
        partial = partial_path(folder)
        text = self._scored(self.pairs, "text")
        held_out = text.rows(self.split.held_out) if self.test is None else self._scored(self.test, "held-out text")
        sizes = {"training": len(self.split.training), "validation": len(self.split.validation)}
        sizes["held_out"] = len(held_out.pairs.sources)
        best = text.labelled.labels.sum(axis=1).mean()
        notify(
            f"{sizes['training']:,} sentences for training, {sizes['validation']:,} for validation, "
            f"{sizes['held_out']:,} held out; {best:.1f} of {len(self.depths)} depths are the best, on average"
        )
        search = HyperparameterSearch(partial / _SEARCH, self.task, self.cells)
        if search.again is not None:
            notify(f"{folder}: the search starts again: {search.again}")
        left = len(self.cells) - len(search.trials)
        embeddings = source_embeddings(self.bundle)
        with progress_bar(f"search: {left} to try", left * self.settings.epochs, unit="epoch") as advance:
            found = search.run(
                self.settings,
                text.labelled.rows(self.split.training),
                text.labelled.rows(self.split.validation),
                embeddings,
                advance=advance,
            )
        tuned = self._fine_tuned(found, embeddings)
        sizes |= {} if self.finetune is None else {"fine_tuning": len(self.finetune.sources)}
        notes = {"asked": self.requested, "sentences": sizes}
        tuned_first = [*((each, True) for each in tuned), *((each, False) for each in found)]
        trial, weights = tuned_first[0][0]
        save_selector(partial, weights, model=self.bundle.identity(), depths=self.depths, cell=trial.cell, notes=notes)
        classifiers = [
            TrainedClassifier(make_selector(own, trial.cell, self.bundle), trial, fine_tuned)
            for (trial, own), fine_tuned in tuned_first
        ]
        self._write_report(partial, classifiers, held_out, search.trials)
        remove_tree(partial / _SEARCH)
        publish_directory(partial, folder)

    def _fine_tuned(self, found: Sequence[TrainedWeights], embeddings: Tensor) -> list[TrainedWeights]:
        """Train the classifiers further on the text to fine-tune on, in their order; empty if there is none."""
        if self.finetune is None:
            return []
        text = self._scored(self.finetune, "fine-tuning text").labelled
        split = split_text(self.finetune.sources, held_out=False)
        parts = (text.rows(split.training), text.rows(split.validation))
        with progress_bar("fine-tuning", len(found) * self.settings.epochs, unit="epoch") as advance:
            return [
                train_classifier(trial.cell, self.settings, *parts, embeddings, start=weights, advance=advance)
                for trial, weights in found
            ]

    def _scored(self, pairs: TextPairs, name: str) -> ScoredPairs:
        """Translate pairs at every depth, unless that is cached, and score them; ``name``: of the text in messages."""
        directory = self.request.model / TRANSLATIONS
        usual = self.bundle.recipe.decoding.batch_tokens
        identity = self.bundle.identity()
        divided = recorded_division(self.request.model, identity, self.options, pairs.sources)
        options = with_given(self.options, long=divided)
        kept = KeptTranslations(directory, identity, pairs.sources, options, usual)
        left = sum(len(pairs.sources) - len(kept.cached(depth)) for depth in self.depths)
        with progress_bar(f"{name}: translate at {len(self.depths)} depths", left) as advance:
            translations = [kept.at(self.bundle, depth, advance=advance) for depth in self.depths]
        with progress_bar(f"{name}: chrF", len(pairs.sources)) as advance:
            scores = sentence_chrf(translations, pairs.references, advance=advance)
        read = read_sources(self.bundle, input_lines(pairs.sources))
        warn_of_unusual_sources(self.bundle, read, name)
        tokens = [source.ids for source in read]
        return ScoredPairs(pairs, translations, LabelledSentences(tokens, scores))

    def _write_report(
        self,
        directory: Path,
        classifiers: Sequence[TrainedClassifier],
        held_out: ScoredPairs,
        trials: Sequence[Trial],
    ) -> None:
        """Measure quality and time of the classifiers on held-out text, and write the report."""
        lines = held_out.pairs.sources[: self.request.time_lines]
        oracle = [self.depths[k] for k in oracle_depths(held_out.labelled.scores)[: len(lines)]]
        selectors = [each.selector for each in classifiers]
        with progress_bar("time", timing_steps(len(lines), len(self.depths))) as advance:
            times = time_depths(self.bundle, selectors, lines, oracle, self.options, advance=advance)
        settings = self.scoring.settings(language=self.bundle.recipe.data.target_language)
        references = held_out.pairs.references
        text = MeasuredText(held_out.translations, references, held_out.labelled, self.depths, times, settings)
        report = selector_report(text, classifiers, trials)
        report = replace(report, settings={**self.task, "time_lines": self.request.time_lines})
        ReportFiles.in_folder(directory, "report").write(report, shown=str(report))


def _read_pairs(files: tuple[Path, Path], limit: int | None) -> TextPairs:
    """Read the pairs of line-aligned files whose two sides have words; of these the first ``limit``, or all."""
    rows = [row for row in read_parallel(files) if all(text.strip() for text in row)][:limit]
    return TextPairs([row[0] for row in rows], [row[1] for row in rows])
