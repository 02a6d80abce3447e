"""The data that the sections of a report share: opened models, texts, translations. All is made when it is needed."""

from __future__ import annotations

import random
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sparsenmt.analysis.pos_rates import tag
from sparsenmt.analysis.session import AnalysisSession, AnalyzedModel
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.model.sites import SiteName
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.page.document import ReportSection
from sparsenmt.workflows.evaluation.compare import CompareRequest, ModelComparison, measure_models
from sparsenmt.workflows.evaluation.evaluate import Evaluation
from sparsenmt.workflows.evaluation.report.report_request import ReportRequest

NO_REFERENCE = UserError("there is no reference translation", where="--reference", hint="Name one with --reference.")


@dataclass(frozen=True)
class SharedSession(AnalysisSession):
    """A session of several reports: a model is opened once, and its gates and translations serve all of them."""

    @cached_property
    def _models(self) -> dict[str, AnalyzedModel]:
        return {}

    def open(
        self, label: str, directory: Path, disabled: Mapping[SiteName, Collection[int]] | None = None, **options: bool
    ) -> AnalyzedModel:
        if disabled:
            return super().open(label, directory, disabled, **options)
        if label not in self._models:
            self._models[label] = super().open(label, directory, None, **options)
        return self._models[label]


class ReportData:
    """The data of one report; ``made``: the sections that are made so far, by name."""

    def __init__(self, request: ReportRequest) -> None:
        self.request = request
        self.made: dict[str, ReportSection] = {}
        self.session = SharedSession(
            request.models,
            request.source,
            request.tags,
            beam_size=request.beam_size if request.target is None else None,
            target=request.target,
            **request.common,
        )
        self.session.check()

    @property
    def labels(self) -> dict[str, Path]:
        """Short name -> path of every model; the first one is the baseline of the others."""
        return self.session.labels

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Short name -> recipe."""
        return {label: read_recipe(directory) for label, directory in self.labels.items()}

    @cached_property
    def sample(self) -> list[int]:
        """The lines that are shown one by one, from 0, rising."""
        lines = [line.number for line in self.session.lines if line.text.strip(" ")]
        count = min(self.request.sentences, len(lines))
        return sorted(random.Random(self.request.test.seed).sample(lines, count))

    @cached_property
    def comparison(self) -> ModelComparison:
        """The evaluation of all models, without their speed; UserError without a reference."""
        return measure_models(self.compare_request)

    @property
    def compare_request(self) -> CompareRequest:
        """The request of `sparsenmt compare` with the same figures, without speed; UserError without a reference."""
        asked = self.request
        if asked.reference is None:
            raise NO_REFERENCE
        return CompareRequest(
            asked.models,
            asked.source,
            asked.reference,
            tags=asked.tags,
            scoring=asked.scoring,
            test=asked.test,
            speed=False,
            speed_lines=asked.speed_lines,
            rounds=asked.rounds,
            beam_size=asked.beam_size,
            **asked.common,
        )

    @property
    def outputs(self) -> dict[str, list[str]]:
        """Short name -> translations of all lines; UserError without a reference."""
        found = self.comparison.found
        return {label: each.lines for label, each in found.items() if isinstance(each, Evaluation)}

    @cached_property
    def references(self) -> list[str]:
        """The reference of every line; UserError without one."""
        text = self.compare_request
        assert text.source is not None and text.reference is not None
        return self.session.read_beside(text.reference, len(self.session.lines), str(text.source))

    @property
    def scoring_settings(self) -> ScoringSettings:
        """The settings of scores by all metrics, with the tokenizer that fits the reference."""
        return self.comparison.experiment.scoring.settings(language=self.target_language)

    @property
    def target_language(self) -> str:
        """The language of the references."""
        asked = self.request
        return asked.scoring.language or asked.target_language or next(iter(self.recipes.values())).data.target_language

    @cached_property
    def tagged(self) -> dict[int, TaggedSentence]:
        """The tagged words of the lines that are shown one by one; UserError if there is no tagger for them."""
        lines = [self.session.lines[i] for i in self.sample]
        given = [line.tags for line in lines if line.tags is not None]
        tagger, language = self.request.tagger, self.session.text_language
        return dict(zip(self.sample, given or tag([line.text for line in lines], tagger, language), strict=True))

    def command(self, name: str, *options: str | Path, models: Collection[Path] = (), reads: Sequence[str] = ()) -> str:
        """Return the command line that prints figures of the report.

        Args:
            name: of the command.
            options: of this command alone.
            models: those that it reads; empty: all.
            reads: the options about texts that it has: source, input, reference, tags, target.
        """
        asked = self.request
        texts = {"source": asked.source, "input": asked.source, "reference": asked.reference}
        texts |= {"tags": asked.tags, "target": asked.target}
        words = ["sparsenmt", *name.split(), *map(str, models or asked.models)]
        for option in reads:
            words += [] if (path := texts[option]) is None else [f"--{option}", str(path)]
        translates = "reference" in reads or ("target" in reads and asked.target is None)
        if translates and asked.beam_size is not None:
            words += ["--beam-size", str(asked.beam_size)]
        if reads or name == "contrast":  # the others read no text
            codes = {"--source-language": asked.source_language, "--target-language": asked.target_language}
            words += [word for option, code in codes.items() if code is not None for word in (option, code)]
        return shlex.join([*words, *map(str, options)])

    @property
    def score_options(self) -> list[str]:
        """The options of scores that differ from the defaults."""
        asked = self.request.scoring
        words = [word for metric in asked.metrics for word in ("-m", metric)]
        words += ["--lowercase"] * asked.lowercase
        words += [] if asked.tokenize is None else ["--tokenize", asked.tokenize]
        return words + ([] if asked.language is None else ["--language", asked.language])

    @property
    def test_options(self) -> list[str]:
        """The options of the significance test that differ from the defaults."""
        own, usual = self.request.test, PairedTest()
        names = {"method": "--significance", "resamples": "--resamples", "seed": "--seed"}
        values = {option: (getattr(own, name), getattr(usual, name)) for name, option in names.items()}
        return [word for option, (value, other) in values.items() if value != other for word in (option, str(value))]


def missing_part(section: ReportSection, error: UserError) -> ReportSection:
    """Return a section with the reason why it has no parts."""
    where = f"{error.where}: " if error.where else ""
    hint = f" {error.hint}" if error.hint else ""
    return replace(section, missing=f"{where}{error.message}.{hint}")
