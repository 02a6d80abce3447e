"""The evaluation of a trained model on a text: translations, scores, attention. Results are kept beside the model.

A model directory holds a sealed file for each text below ``evaluation/``. It is valid as long as the model, the text
and the decoding options are those that it was made with.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from sparsenmt.analysis.density import DensityCounter
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import TargetLine, observe
from sparsenmt.data.input_line import InputLine
from sparsenmt.decoding.documents import pack_pairs, source_lines, translate_aligned
from sparsenmt.decoding.inputs import SourceLine, read_sources, warn_of_unknown_sources
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.decoding.translate import Translation, sparsity_rate, translate_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_scoring, corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest, compare
from sparsenmt.evaluation.tokenizer_choice import fit_to_text
from sparsenmt.files import directory_lock, make_directories, read_sealed, sha256_text, write_sealed
from sparsenmt.model.sites import SITES
from sparsenmt.progress import notify, progress_bar
from sparsenmt.recipe.schema import Decoding, Recipe
from sparsenmt.records import typed
from sparsenmt.store import (
    Bundle,
    ModelIdentity,
    check_identity,
    model_identity,
    open_model,
    parameter_count,
    read_recipe,
)
from sparsenmt.workflows.input_text import attach, open_tag_file
from sparsenmt.workflows.test_sets import TestText

FOLDER = "evaluation"
_FORMAT = 1
_OLDEST_KEY = {"format", "weights", "model", "decoding", "text"}
"""The entries of the key in files of the first version, which did not look at vocabularies and the source length."""
_AGAIN = "It is measured again."
_DEFAULTS = ScoringOptions()
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class SiteAttention:
    """Means over the heads of one attention site; None if no query saw any position.

    Args:
        attended: positions with weight, per query.
        visible: positions that the pattern allows, per query.
        density: share of the visible positions that have weight.
        queries: of all heads together.
    """

    attended: float | None
    visible: float | None
    density: float | None
    queries: int


@dataclass
class Evaluation:
    """One model on one text, and the file that keeps the results.

    Args:
        key: everything that the results depend on.
        lines: the translations.
        sparsity: share of source positions that filters drop; None without a filter.
        scores: `ScoringOptions.key` -> value; the key is the name of the metric where settings are the default ones.
        signatures: the same, and signatures.
        attention: by site; None: not measured.
        tests: differences to other translations, by `ScoringOptions.key`, hash of those, and `PairedTest.identity`.
    """

    path: Path
    key: Mapping[str, Any]
    lines: list[str]
    parameters: int
    sparsity: float | None
    scores: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    attention: dict[str, SiteAttention] | None = None
    tests: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def sentences(self) -> int:
        """Number of lines."""
        return len(self.lines)

    def overall(self, name: str) -> float | None:
        """Return the mean of an attribute of `SiteAttention` over all heads of the model, weighted by queries."""
        sites = [] if self.attention is None else list(self.attention.values())
        pairs = [(getattr(each, name), each.queries) for each in sites]
        total = sum(queries for value, queries in pairs if value is not None)
        return sum(value * queries for value, queries in pairs if value is not None) / total if total else None

    def against(
        self,
        other: Evaluation,
        metric: str,
        text: TestText,
        language: str,
        scoring: ScoringOptions = _DEFAULTS,
        test: PairedTest | None = None,
    ) -> dict[str, float]:
        """Return ``difference`` to another model, ``low`` and ``high`` (95%), ``p_value`` and, if any, ``sacrebleu_p``.

        Args:
            test: None: the bootstrap.
        """
        test = test or PairedTest()
        key = f"{scoring.key(metric)} {sha256_text(chr(10).join(other.lines))[:16]} {test.identity}"
        if key not in self.tests:
            sources, references = text.read()
            settings = scoring.settings(language=language, documents=text.ids(sources), only=[metric])
            (found,) = compare(self.lines, other.lines, [references], settings, test)
            difference = found.difference
            bounds = {"low": difference.low, "high": difference.high}
            self.tests[key] = {"difference": difference.value, **bounds, "p_value": found.p_value}
            if found.sacrebleu_p is not None:
                self.tests[key]["sacrebleu_p"] = found.sacrebleu_p
            self.save()
        return self.tests[key]

    def save(self) -> None:
        """Write the file beside the model, merged with that of another process; warn if the directory is read-only."""
        try:
            make_directories(self.path.parent)
            with directory_lock(self.path.parent, "writes results here", wait=True):
                self._add(_read(self.path, self.key))
                content = asdict(self)
                del content["path"]
                write_sealed(self.path, content)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            notify(f"warning: {self.path}: the results cannot be saved ({error.strerror})")

    def _add(self, kept: Evaluation | None) -> None:
        """Add the results of another evaluation, if they belong to the same translations."""
        if kept is None or kept.lines != self.lines:
            return
        self.scores = kept.scores | self.scores
        self.signatures = kept.signatures | self.signatures
        self.tests = kept.tests | self.tests
        self.attention = self.attention or kept.attention


@dataclass(frozen=True)
class ModelRun:
    """The device that models run on, and changes to the decoding options of their recipes; None: no change.

    Args:
        device: as for `pick_device`.
        batch_tokens: kept results do not depend on it, nor on the device.
        source_language, target_language: of models of several languages.
    """

    device: str = "auto"
    beam_size: int | None = None
    batch_tokens: int | None = None
    source_language: str | None = None
    target_language: str | None = None

    def options(self, recipe: Recipe) -> Decoding:
        """Return the decoding options that decide about the translations of a recipe's model."""
        plain = recipe.decoding.model_copy(update=self._languages())
        changed = plain.model_copy(update=self.record())
        return plain if strategy_of(changed).width == strategy_of(plain).width else changed

    def open(self, directory: Path) -> Bundle:
        """Open a model; its recipe has the changed options."""
        bundle = open_model(directory, device=self.device, languages=(self.source_language, self.target_language))
        batch = {} if self.batch_tokens is None else {"batch_tokens": self.batch_tokens}
        changed = self.options(bundle.recipe).model_copy(update=batch)
        return replace(bundle, recipe=bundle.recipe.model_copy(update={"decoding": changed}))

    def record(self) -> dict[str, Any]:
        """Return the changes for a report; empty if translations are those of the recipes."""
        return self._languages() | ({} if self.beam_size is None else {"beam_size": self.beam_size})

    def _languages(self) -> dict[str, str]:
        given = {"source_language": self.source_language, "target_language": self.target_language}
        return {key: code for key, code in given.items() if code is not None}


AS_IN_RECIPE = ModelRun()


def metric_of(recipe: Recipe) -> str:
    """Return the metric that judges a recipe's models: the metric of validation, or BLEU if that is the loss."""
    metric = recipe.training.validation.metric
    return "bleu" if metric == "loss" else metric


def evaluate(
    directory: Path,
    text: TestText,
    scoring: ScoringOptions,
    *,
    attention: bool = True,
    run: ModelRun = AS_IN_RECIPE,
) -> Evaluation:
    """Translate a text with a model by its recipe's options and measure it; kept results are not measured again.

    Args:
        scoring: its metrics, and their settings; `fit_to_text` completes them if need be, and the names of scores
            hold the tokenizer then.
        attention: True to measure the attention along the reference, too.
        run: device and changes to the options.

    Raises:
        UserError: a file or the model is not what it must be.
    """
    check_metrics_fit(text, scoring)
    identity = model_identity(directory)
    if scoring.unspaced is None:
        scoring = fit_to_text(scoring, text.read()[1], {str(directory): read_recipe(directory)})
    found = _kept(directory, text, identity, run)
    unseen = attention and (found is None or found.attention is None)
    bundle = run.open(directory) if found is None or unseen else None
    if bundle is not None:
        check_identity(bundle, identity, directory)
    if found is None:
        assert bundle is not None
        found = _new_evaluation(bundle, directory, text, run)
        found.save()  # the translations take longest and survive a failure of later steps
    _add_scores(found, directory, text, scoring)
    if unseen:
        assert bundle is not None
        found.attention = _measure_attention(bundle, directory.name, text)
        found.save()
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
    found = _kept(directory, text, model_identity(directory), run)
    if found is not None:
        _add_scores(found, directory, text, scoring)
    return found


def _add_scores(found: Evaluation, directory: Path, text: TestText, scoring: ScoringOptions) -> None:
    """Score the kept translations by the metrics that are missing, and keep the scores."""
    known = found.scores.keys() & found.signatures.keys()
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
    key = {
        "format": _FORMAT,
        **asdict(identity),
        "decoding": decoding.recorded(),
        "text": digests,
    }
    name = f"{text.name}-{sha256_text(json.dumps(digests, sort_keys=True))[:8]}"
    name += f"-beam{decoding.beam_size}" if decoding != recipe.decoding else ""
    return directory / FOLDER / f"{name}.json", key


def _kept(directory: Path, text: TestText, identity: ModelIdentity, run: ModelRun) -> Evaluation | None:
    """Read the kept evaluation of this model and text; None if there is none, or it is damaged or out of date."""
    return _read(*_path_and_key(directory, text, identity, run))


def _read(path: Path, key: Mapping[str, Any]) -> Evaluation | None:
    """Read an evaluation; None if there is no file, or it is damaged or of another key."""
    if not path.exists():
        return None
    try:
        record = read_sealed(path, hint=_AGAIN)
        found = typed({**record, "path": str(path)}, Evaluation, path, hint=_AGAIN)
    except UserError:
        return None
    if not found.key.keys() >= _OLDEST_KEY or any(key.get(name) != value for name, value in found.key.items()):
        return None
    return replace(found, path=path, key=key)


def translate_text(
    bundle: Bundle, text: TestText, sources: Sequence[str], advance: Callable[[int], object] | None = None
) -> tuple[list[str], list[Translation]]:
    """Translate the first lines of a text by the recipe's options; returns the lines, and the model's outputs."""
    packing = None if text.documents is None else bundle.recipe.data.documents
    given = _input_lines(bundle, text, len(sources))
    lines, found, _ = translate_aligned(bundle, given, bundle.recipe.decoding, packing, advance)
    return lines, found


def translate_in_batches(bundle: Bundle, text: TestText, count: int, size: int) -> list[Translation]:
    """Translate the first lines of a text in batches of ``size`` lines of similar length, for timing."""
    lines = sorted(_input_lines(bundle, text, count), key=lambda line: len(line.text))
    options = bundle.recipe.decoding
    options = options.model_copy(update={"batch_tokens": size * options.beam_size * bundle.max_positions})
    return list(translate_lines(bundle, lines, options, window=size))


def _input_lines(bundle: Bundle, text: TestText, count: int | None = None) -> list[InputLine]:
    """Return the first lines of a text with their documents, and with tags if the model reads tags."""
    reads_tags = bundle.features.source_tagger is not None
    tags = open_tag_file(text.tags, bundle) if reads_tags and text.tags is not None else None
    return list(islice(attach(text.read()[0], str(text.source), tags, text.documents), count))


def _new_evaluation(bundle: Bundle, directory: Path, text: TestText, run: ModelRun) -> Evaluation:
    """Translate the text."""
    path, key = _path_and_key(directory, text, bundle.identity(), run)
    sources, _ = text.read()
    with progress_bar(f"{directory.name}: {text.name}", len(sources)) as advance:
        lines, found = translate_text(bundle, text, sources, advance)
    warn_of_unknown_sources(bundle, (each.source for each in found), f"{directory.name}: {text.source}")
    return Evaluation(path, key, lines, parameter_count(directory), sparsity_rate(found))


def _measure_attention(bundle: Bundle, label: str, text: TestText) -> dict[str, SiteAttention]:
    """Measure the attention along the reference."""
    pairs = [pair for pair in _read_pairs(bundle, text) if not pair[0].empty]
    counter = DensityCounter()
    with progress_bar(f"{label}: attention", len(pairs)) as advance:
        batch_tokens = bundle.recipe.decoding.batch_tokens
        batches = LineBatches(bundle, [source for source, _ in pairs], batch_tokens, advance)
        observe(batches, [output for _, output in pairs], [counter])
    measured = counter.result(label)
    return {
        site: SiteAttention(
            attended=measured.site_mean(site, "attended"),
            visible=measured.site_mean(site, "visible"),
            density=measured.site_mean(site, "density"),
            queries=sum(head.queries for head in heads.values()),
        )
        for site in SITES
        if (heads := measured.at(site))
    }


def _read_pairs(bundle: Bundle, text: TestText) -> list[tuple[SourceLine, TargetLine]]:
    """Read sources and references as lines or blocks of documents; texts that are too long are cut."""
    _, references = text.read()
    given, documents = _input_lines(bundle, text), bundle.recipe.data.documents
    if documents is not None and text.documents is not None:
        blocks = pack_pairs(bundle, given, references, documents)
        given, references = source_lines(blocks), [block.texts[1] for block in blocks]
    targets = bundle.tokenizers.target.encode_batch(references)
    most, frame = bundle.max_target_length, bundle.frames.target
    read = zip(read_sources(bundle, given), targets, strict=True)
    return [(line, TargetLine(ids[:most], frame=frame)) for line, ids in read]
