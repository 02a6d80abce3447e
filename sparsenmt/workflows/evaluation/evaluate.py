"""The evaluation of a translation model on a text: translations, scores, attention. Results are kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import torch

from sparsenmt.analysis.density import DensityCounter
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import TargetLine, observe
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.long_lines import recorded_division
from sparsenmt.assemble.model_directory import ModelIdentity, model_identity, parameter_count, read_recipe
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import StrPath
from sparsenmt.decoding.documents import pack_pairs, source_lines, translate_aligned
from sparsenmt.decoding.inputs import read_sources, warn_of_unusual_sources
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.decoding.translate import TranslatedLine, sparsity_rate, translate_lines
from sparsenmt.engine.numerics import numerics
from sparsenmt.evaluation.metrics import check_scoring, corpus_scores
from sparsenmt.evaluation.rouge import is_outdated
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import BOOTSTRAP, Comparison, PairedTest, compare
from sparsenmt.evaluation.tokenizer_choice import fit_to_text
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.model_use import with_given, with_languages
from sparsenmt.recipe.schema import Decoding, Recipe
from sparsenmt.workflows.decoding.input_text import attach, open_tag_file
from sparsenmt.workflows.evaluation.evaluation_file import (
    KeptEvaluation,
    SiteAttention,
    evaluation_key,
    evaluation_path,
    site_attention,
)
from sparsenmt.workflows.evaluation.reference_texts import TestText, shared_text

_DEFAULTS = ScoringOptions()


@dataclass(kw_only=True)
class Evaluation(KeptEvaluation):
    """One translation model on one text.

    Args:
        lines: the translations.
        sparsity: share of source positions that filters drop; None without a filter.
        scores: `ScoringOptions.key` -> value; the key is the name of the metric where settings are the default ones.
        signatures: `ScoringOptions.key` -> signature.
    """

    lines: list[str]
    sparsity: float | None
    scores: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items())
        return f"Evaluation({values}; {self.size}, sparsity {self.sparsity})"

    @property
    def sentences(self) -> int:
        """Number of lines."""
        return len(self.lines)

    @property
    def size(self) -> str:
        """The size of the text, for titles, such as "60 sentences"."""
        return f"{self.sentences:,} sentence{'s' if self.sentences != 1 else ''}"

    def against(
        self,
        other: Evaluation,
        metric: str,
        text: TestText,
        language: str,
        scoring: ScoringOptions = _DEFAULTS,
        test: PairedTest = BOOTSTRAP,
    ) -> dict[str, float]:
        """Test the difference to another model by a metric; returns it with its interval and p-value, by name."""

        def make() -> Comparison:
            sources, references = text.read()
            settings = scoring.settings(language=language, documents=text.ids(sources), only=[metric])
            (found,) = compare(self.lines, other.lines, [references], settings, test)
            return found

        return self.keep_test(scoring.key(metric), "\n".join(other.lines), test, make)

    def is_same(self, kept: Self) -> bool:
        return kept.lines == self.lines

    def add(self, kept: Self) -> None:
        super().add(kept)
        self.scores = kept.scores | self.scores
        self.signatures = kept.signatures | self.signatures


@dataclass(frozen=True, kw_only=True)
class ModelRun(ModelOptions):
    """The device that models run on, and changes to the decoding options of their recipes; None: no change.

    Args:
        batch_tokens: source tokens in a batch, padding included, times the beam; kept results do not depend on it.
    """

    beam_size: int | None = None
    batch_tokens: int | None = None

    def options(self, recipe: Recipe) -> Decoding:
        """Return the decoding options that decide about the translations of a recipe's model."""
        plain = with_languages(recipe, *self.languages).decoding
        changed = with_given(plain, beam_size=self.beam_size)
        return plain if strategy_of(changed).width == strategy_of(plain).width else changed

    def open(self, directory: Path, dtype: torch.dtype | None = torch.float32) -> Bundle:
        """Open a model; its recipe has the changed options. ``dtype`` is that of `open_model`."""
        bundle = open_model(directory, device=self.device, dtype=dtype, languages=self.languages)
        changed = with_given(self.options(bundle.recipe), batch_tokens=self.batch_tokens)
        return replace(bundle, recipe=bundle.recipe.model_copy(update={"decoding": changed}))

    def record(self) -> dict[str, Any]:
        """Return option -> changed value, for a report; empty if translations are those of the recipes."""
        names = ("source_language", "target_language", "beam_size")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


AS_IN_RECIPE = ModelRun()


def evaluate(
    directory: StrPath,
    text: TestText | Literal["test", "dev"] = "test",
    scoring: ScoringOptions | None = None,
    *,
    attention: bool = True,
    run: ModelRun = AS_IN_RECIPE,
) -> Evaluation:
    """Translate a text with a model by its recipe's options and measure it; kept results are not measured again.

    Args:
        directory: of the model.
        text: or the text of that name in the model's recipe.
        scoring: metrics and their settings; without a tokenizer the text chooses one, and the names of scores hold it
            then; None: BLEU and chrF.
        attention: True to measure the attention along the reference, too.
        run: device and changes to the options.

    Raises:
        UserError: a file or the model is not what it must be.
    """
    directory = Path(directory)
    text = shared_text({directory.name: directory}, text, TestText) if isinstance(text, str) else text
    scoring = scoring or ScoringOptions(("bleu", "chrf"))
    check_metrics_fit(text, scoring)
    identity = model_identity(directory)
    if scoring.unspaced is None:
        scoring = fit_to_text(scoring, text.read()[1], {str(directory): read_recipe(directory)})
    place = _path_and_key(directory, text, identity, run)
    make = partial(_new_evaluation, directory=directory, text=text, place=place)
    attend = partial(_measure_attention, label=directory.name, text=text) if attention else None
    found = Evaluation.of(directory, place, identity, run.open, make, attend)
    _add_scores(found, directory, text, scoring)
    return found


def check_metrics_fit(text: TestText, scoring: ScoringOptions, *, reads_documents: bool = True) -> None:
    """Refuse scoring that a text does not allow; arguments and errors are those of `check_scoring`."""
    hint = "Name its document ids: in the recipe as `documents` beside the text, or with --documents."
    known = text.documents is not None
    check_scoring(scoring, documents=known, reads_documents=reads_documents, where=str(text.source), hint=hint)


def kept_evaluation(
    directory: Path, text: TestText, scoring: ScoringOptions, run: ModelRun = AS_IN_RECIPE
) -> Evaluation | None:
    """Return the kept results of `evaluate` with all scores asked for, or None; nothing is translated."""
    found = Evaluation.read(*_path_and_key(directory, text, model_identity(directory), run))
    if found is not None:
        _add_scores(found, directory, text, scoring)
    return found


def _add_scores(found: Evaluation, directory: Path, text: TestText, scoring: ScoringOptions) -> None:
    """Score the kept translations by the metrics that are missing or of an older formula, and keep the scores."""
    known = {name for name in found.scores if not is_outdated(found.signatures.get(name, ""))} & found.signatures.keys()
    missing = [name for name in scoring.metrics if scoring.key(name) not in known]
    if missing:
        sources, references = text.read()
        language = read_recipe(directory).data.target_language
        settings = scoring.settings(language=language, documents=text.ids(sources), only=missing)
        scores = corpus_scores(found.lines, [references], settings)
        found.scores |= {scoring.key(score.name): score.value for score in scores}
        found.signatures |= {scoring.key(score.name): score.signature for score in scores}
        found.save()


def _path_and_key(
    directory: Path, text: TestText, identity: ModelIdentity, run: ModelRun
) -> tuple[Path, dict[str, Any]]:
    """Return the file of an evaluation, and everything that it depends on."""
    digests, recipe = text.digests(), read_recipe(directory)
    decoding = run.options(recipe)
    suffix = f"-beam{decoding.beam_size}" if decoding != recipe.decoding else ""
    divided = None
    if text.documents is None or recipe.data.documents is None:  # blocks are not divided
        divided = recorded_division(directory, identity, decoding, text.read()[0])
    key = evaluation_key(
        identity, with_given(decoding, long=divided).recorded(), digests, filtered=bool(recipe.model.memory)
    )
    return evaluation_path(directory, text.name, digests, suffix), key


def translate_text(
    bundle: Bundle, text: TestText, sources: Sequence[str], advance: Callable[[int], object] | None = None
) -> tuple[list[str], list[TranslatedLine]]:
    """Translate the first lines of a text by the recipe's options; returns the lines, and the model's outputs."""
    packing = None if text.documents is None else bundle.recipe.data.documents
    given = text_lines(bundle, text, len(sources))
    lines, found = translate_aligned(bundle, given, bundle.recipe.decoding, packing, advance)
    return lines, found


def translate_in_batches(bundle: Bundle, text: TestText, count: int, size: int) -> list[TranslatedLine]:
    """Translate the first lines of a text in batches of ``size`` lines of similar length, for timing."""
    lines = sorted(text_lines(bundle, text, count), key=lambda line: len(line.text))
    options = bundle.recipe.decoding
    options = options.model_copy(update={"batch_tokens": size * options.beam_size * bundle.max_positions})
    return list(translate_lines(bundle, lines, options, window=size))


def text_lines(bundle: Bundle, text: TestText, count: int | None = None) -> list[InputLine]:
    """Return the first lines of a text, or all, with their documents, and with tags if the model reads tags."""
    reads_tags = bundle.features.source_tagger is not None
    tags = open_tag_file(text.tags, bundle) if reads_tags and text.tags is not None else None
    return list(islice(attach(text.read()[0], str(text.source), tags, text.documents), count))


def _new_evaluation(bundle: Bundle, directory: Path, text: TestText, place: tuple[Path, dict[str, Any]]) -> Evaluation:
    """Translate the text; ``place``: file of the evaluation, and everything that it depends on."""
    sources, _ = text.read()
    with progress_bar(f"{directory.name}: {text.name}", len(sources)) as advance:
        lines, found = translate_text(bundle, text, sources, advance)
    warn_of_unusual_sources(bundle, (each.source for each in found), f"{directory.name}: {text.source}")
    parameters, rate = parameter_count(directory), sparsity_rate(found)
    made_by, (path, key) = numerics(bundle.device), place
    return Evaluation(path=path, key=key, lines=lines, parameters=parameters, sparsity=rate, numerics=made_by)


def _measure_attention(bundle: Bundle, label: str, text: TestText) -> dict[str, SiteAttention]:
    """Measure the attention along the references, of lines or blocks of documents; those that are too long are cut."""
    _, references = text.read()
    given, documents = text_lines(bundle, text), bundle.recipe.data.documents
    if documents is not None and text.documents is not None:
        blocks = pack_pairs(bundle, given, references, documents)
        given, references = source_lines(blocks), [block.texts[1] for block in blocks]
    targets = bundle.tokenizers.target.encode_batch(references)
    most, frame = bundle.max_target_length, bundle.frames.target
    read = zip(read_sources(bundle, given), targets, strict=True)
    pairs = [(line, TargetLine(ids[:most], frame=frame)) for line, ids in read if not line.empty]
    counter = DensityCounter()
    with progress_bar(f"{label}: attention", len(pairs)) as advance:
        sources = [source for source, _ in pairs]
        batches = LineBatches(bundle, sources, bundle.recipe.decoding.batch_tokens, advance)
        observe(batches, [target for _, target in pairs], [counter])
    return site_attention(counter.result(label))
