"""The arguments of a report on models, and their checks before any model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsenmt.arguments import strings_to_paths
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.data.text import check_readable, read_parallel
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.report.model_labels import check_models
from sparsenmt.report.output_files import check_outputs
from sparsenmt.report.page.html_page import check_page
from sparsenmt.workflows.evaluation.contrast import ContrastRequest, read_suite

_UNNAMED = {"source", "target"}  # the languages of a recipe that names none


@dataclass(frozen=True)
class ReportRequest(ModelOptions):
    """The arguments of `write_model_report`.

    Args:
        source: text that the models read.
        output: the page.
        json: file for the same document as JSON; None: not written.
        reference: reference translation of the source; None: the parts that need it are left out.
        target: translations that the decoders read where attention is shown; None: each model's own.
        tags: part-of-speech tags of the source.
        suites: contrastive test suites.
        sentences: sentences that are shown one by one, drawn at random.
        scoring: as for `CompareRequest`.
        test: significance test of differences; its seed also draws the sentences.
        tagger: tagger for texts without tags.
        speed, speed_lines, rounds: as for `CompareRequest`.
        depths: translate the text at every depth of models with several.
        alignments: align the words of the sentences that are shown.
    """

    models: Sequence[Path]
    source: Path
    output: Path
    json: Path | None = None
    reference: Path | None = None
    target: Path | None = None
    tags: Path | None = None
    suites: Sequence[Path] = ()
    sentences: int = 200
    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    test: PairedTest = field(default_factory=PairedTest)
    beam_size: int | None = None
    batch_tokens: int | None = None
    tagger: str = "hanta"
    speed: bool = True
    speed_lines: int = 200
    rounds: int = 3
    depths: bool = False
    alignments: bool = False

    def __post_init__(self) -> None:
        check_lists(models=self.models, suites=self.suites)
        strings_to_paths(self)

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that the requests of all figures share."""
        names = ("batch_tokens", "source_language", "target_language", "threads", "device")
        return {name: getattr(self, name) for name in names}

    @property
    def inputs(self) -> list[Path]:
        """The text files that are read."""
        return [path for path in (self.source, self.reference, self.target, self.tags) if path is not None]

    def check(self) -> None:
        """Raise UserError for files and models that cannot be used, or not together."""
        check_page()
        check_models(self.models)
        check_outputs({"--output": self.output, "--json": self.json}, [*self.inputs, *self.suites])
        for path in self.inputs:
            check_readable(path)
        if self.source.name.endswith((".conllu", ".conllu.gz")):
            raise UserError("is CoNLL-U", where="--source", hint="Give its text as --source, and the file as --tags.")
        beside = [path for path in (self.source, self.reference, self.target) if path is not None]
        for _ in read_parallel([str(path) for path in beside]):
            pass
        for suite in self.suites:
            asked = ContrastRequest(self.models, suite)
            asked.check()
            read_suite(asked)
        self._check_languages()

    def _check_languages(self) -> None:
        """Raise UserError for models of different directions, and of language models."""
        first: dict[str, tuple[Path, str]] = {}
        for directory in self.models:
            data = read_recipe(directory).data
            if data.is_language_model:
                raise UserError(
                    "this is a language model: it reads no source sentences",
                    where=str(directory),
                    hint="`sparsenmt compare --text` and `sparsenmt analyze density --text` report on it.",
                )
            given = dict(zip(("source", "target"), self.languages, strict=True))
            for side, own in (("source", data.source_language), ("target", data.target_language)):
                named = first.setdefault(side, (directory, own)) if own not in _UNNAMED else (directory, own)
                if given[side] is None and named[1] != own:
                    raise UserError(
                        f"its {side} language is {own}, that of {named[0]} {named[1]}",
                        where=str(directory),
                        hint="Report on models of one direction together.",
                    )
