"""Score translations against references, a model on a test set, or given targets by forced decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from sparsenmt.arguments import strings_to_paths
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.documents import DocumentBlock
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import StrPath, read_parallel, text_windows
from sparsenmt.decoding.disabled_heads import read_disabled_heads
from sparsenmt.decoding.documents import Mismatches, block_windows, pack_pairs, source_lines, translate_blocks
from sparsenmt.decoding.forced_decoding import PairScore, score_pairs
from sparsenmt.decoding.inputs import (
    SourceLine,
    cut_warning,
    line_indices,
    merge_sources,
    read_sources,
    warn_of_sources,
)
from sparsenmt.decoding.translate import WINDOW, translate_lines
from sparsenmt.decoding.unusual_text import warn_of_unusual_lines
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.metrics import Score, check_scoring, corpus_scores, scores_in_words
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import Comparison, PairedTest, compare
from sparsenmt.evaluation.tokenizer_choice import Options, fit_to_text, warn_of_tokens
from sparsenmt.metric import METRICS
from sparsenmt.process.progress import notify
from sparsenmt.recipe.model_use import with_given
from sparsenmt.recipe.schema import Decoding, Documents, Recipe
from sparsenmt.workflows.decoding.decode import report_mismatches
from sparsenmt.workflows.decoding.depth_choice import at_depth
from sparsenmt.workflows.decoding.input_text import (
    attach,
    check_companion,
    open_tag_file,
    packing_of,
    warn_of_single_lines,
)
from sparsenmt.workflows.decoding.shared_windows import CPU, SharedWindows, join_workers
from sparsenmt.workflows.evaluation.evaluate import ModelRun


@dataclass(frozen=True)
class ScoreOptions(ScoringOptions):
    """The settings of scoring and of the significance test.

    Args:
        documents: file with the document id of every line.
        source: file of the source, of translations that no model makes, for metrics that read it.
        test: significance test of the difference to a baseline.
    """

    documents: Path | None = None
    source: Path | None = None
    test: PairedTest = field(default_factory=PairedTest)

    def __post_init__(self) -> None:
        super().__post_init__()
        strings_to_paths(self)

    def checked(self, *, by_model: bool) -> ScoreOptions:
        """Return the options with the default metrics in place of none: with d-BLEU if documents are known.

        Args:
            by_model: True where a model may read documents, too.

        Raises:
            UserError: a setting cannot be used, or changes nothing; or the documents cannot be read.
        """
        options = _with_default(self, documents=self.documents is not None)
        sources = by_model or self.source is not None
        check_scoring(options, documents=self.documents is not None, reads_documents=by_model, sources=sources)
        check_companion(self.documents, "document ids")
        return options


@dataclass(frozen=True, kw_only=True)
class ModelUse(ModelRun):
    """The model to score, and how it runs.

    Args:
        tags: part-of-speech tags beside the source.
        disabled_heads: ``SITE:N,N`` values.
        encoder_layers, decoder_layers: layers that run; None: the recipe's, or all.
    """

    model: Path = field(kw_only=False)
    tags: Path | None = None
    disabled_heads: tuple[str, ...] = ()
    encoder_layers: int | None = None
    decoder_layers: int | None = None

    def __post_init__(self) -> None:
        check_lists(disabled_heads=self.disabled_heads)
        strings_to_paths(self)

    def read(
        self, files: Sequence[StrPath], documents: Path | None, device: torch.device
    ) -> tuple[list[list[str]], list[InputLine], Bundle, Decoding]:
        """Read line-aligned files, and open the model.

        Args:
            files: the source, which has documents and tags beside it, and others.

        Returns:
            the lines of each file; the source lines; the model; its decoding options.
        """
        # Everything is read before the model is opened: a mistake shows at once.
        columns = read_columns(files)
        list(attach(columns[0], str(files[0]), documents=documents))
        disabled = read_disabled_heads(self.model, self.disabled_heads)
        bundle = open_model(self.model, device=device, disabled=disabled, languages=self.languages)
        decoding = at_depth(bundle.model.plan, bundle.recipe.decoding, self.encoder_layers, self.decoder_layers)
        decoding = with_given(decoding, batch_tokens=self.batch_tokens, beam_size=self.beam_size)
        lines = attach(columns[0], str(files[0]), open_tag_file(self.tags, bundle), documents)
        return columns, list(lines), bundle, decoding


@dataclass(frozen=True, repr=False)
class ScoreResult:
    """The metrics of one system, and its comparison with a baseline: ``result["bleu"]`` is the value of BLEU.

    Args:
        scores: each with its name, value and signature.
        sentences: number of lines.
        sparsity: share of source positions whose gate is 0; None where no filter decides.
    """

    scores: list[Score]
    sentences: int
    comparisons: list[Comparison] = field(default_factory=list)
    sparsity: float | None = None

    def __getitem__(self, metric: str) -> float:
        return {score.name: score.value for score in self.scores}[metric]

    def __repr__(self) -> str:
        tests = "".join(f"; {each.name} {each.difference.value:+.2f} to the baseline" for each in self.comparisons)
        return f"ScoreResult({scores_in_words(self.scores)}; {self.sentences:,} sentences{tests})"


@dataclass(frozen=True, repr=False)
class TargetScores:
    """The log-probabilities that a model gives to targets.

    Args:
        pairs: number of line-aligned pairs.
        scores: of every pair, or of every block.
        blocks: the blocks of documents; None where lines are scored one by one.
    """

    pairs: int
    scores: list[PairScore]
    blocks: list[DocumentBlock] | None

    def __repr__(self) -> str:
        total, tokens = sum(each.log_probability for each in self.scores), sum(len(each.tokens) for each in self.scores)
        return f"TargetScores({self.pairs:,} pairs, {tokens:,} tokens, log-probability {total:.4f})"


def score_files(
    hypothesis: StrPath,
    references: Sequence[StrPath],
    baseline: StrPath | None = None,
    options: ScoreOptions | None = None,
) -> ScoreResult:
    """Score a file of translations.

    Args:
        references: files, each line-aligned with the translations.
        baseline: another system's translations, which are compared with these; None: no comparison.
        options: None: the default metrics.

    Raises:
        TypeError: ``references`` is one path.
        UserError: a file or an option is not what it must be.
    """
    check_lists(references=references)
    options = (options or ScoreOptions()).checked(by_model=False)
    others = [path for path in (baseline, options.source) if path is not None]
    columns = read_columns([hypothesis, *references, *others])
    sources = None if options.source is None else columns.pop()
    lines = list(attach(columns[0], str(hypothesis), documents=options.documents))
    _note_empty(references, columns[1:])
    options = fit_to_text(options, columns[1], {})
    warn_of_tokens(columns[0], options, columns[1])
    return _score_columns(columns[0], columns[1:], len(references), lines, options, sources=sources)


def score_model(
    use: ModelUse | StrPath,
    source: StrPath,
    references: Sequence[StrPath],
    baseline: StrPath | None = None,
    options: ScoreOptions | None = None,
) -> ScoreResult:
    """Translate a text with a model, by its recipe's decoding options, and score the translations.

    Processes that torchrun started share the translation. The others than the first one return no scores.

    Args:
        use: the model and how it runs, or its directory.
        source: file to translate.
        references, baseline, options: as for `score_files`.

    Raises:
        TypeError: ``references`` is one path.
        UserError: a file, an option or the model is not what it must be.
    """
    check_lists(references=references)
    use = model_use(use)
    workers, device = join_workers(use)
    with workers.checked_together(CPU):
        options = (options or ScoreOptions()).checked(by_model=True)
        files = [source, *references, *([baseline] if baseline is not None else [])]
        columns, lines, bundle, decoding = use.read(files, options.documents, device)
        _note_empty(references, columns[1:])
        options = fit_to_text(options, columns[1], {str(use.model): bundle.recipe})
        packing = None if options.documents is None else bundle.recipe.data.documents
        if packing is None:
            warn_of_single_lines(bundle)
    translator = _ScoredTranslation(bundle, lines, decoding, packing)
    if not workers.is_main_process:
        SharedWindows(workers).assist(lambda _: translator.windows(), translator.translate)
        return ScoreResult([], len(lines))
    for found in SharedWindows(workers).lead(0, translator.windows(), translator.translate):
        translator.add(found)
    report_mismatches(translator.mismatches)
    warn_of_sources(bundle, translator.sources, str(source), "translated")
    found, recipes = translator.outputs, {str(use.model): bundle.recipe}
    known = {"recipes": recipes, "sparsity": translator.sparsity_rate(), "sources": columns[0]}
    return _score_columns(found, columns[1:], len(references), lines, options, **known)


def model_use(given: ModelUse | StrPath) -> ModelUse:
    """Return how a model runs, of its directory as its recipe says."""
    return given if isinstance(given, ModelUse) else ModelUse(Path(given))


def score_target(
    use: ModelUse | StrPath, source: StrPath, target: StrPath, documents: StrPath | None = None
) -> TargetScores:
    """Score given translations by forced decoding, line by line or in blocks of documents.

    Processes that torchrun started share the work. The others than the first one return no scores.

    Args:
        use: the model and how it runs, or its directory.
        source, target: line-aligned files.
        documents: file with the document id of every line; None: lines are scored one by one.

    Raises:
        UserError: a file or the model is not what it must be.
    """
    use, documents = model_use(use), None if documents is None else Path(documents)
    workers, device = join_workers(use)
    with workers.checked_together(CPU):
        check_companion(documents, "document ids")
        (sources, targets), lines, bundle, decoding = use.read([source, target], documents, device)
        packing = packing_of(bundle, documents)
        blocks = None
        if packing is not None:
            blocks = pack_pairs(bundle, lines, targets, packing)
            lines, targets = source_lines(blocks), [block.texts[1] for block in blocks]

    def score(window: slice) -> list[list[Any]]:
        """Return the attributes of `PairScore` of each pair of a window but the source, as JSON."""
        pairs = score_pairs(
            bundle, lines[window], targets[window], batch_tokens=decoding.batch_tokens, depth=decoding.depth
        )
        return [[each.log_probability, each.token_log_probabilities, each.tokens, each.cut, each.ids] for each in pairs]

    windows = [slice(first, first + WINDOW) for first in range(0, len(lines), WINDOW)]
    if not workers.is_main_process:
        SharedWindows(workers).assist(lambda _: windows, score)
        return TargetScores(len(sources), [], blocks)
    rows_of = chain.from_iterable(SharedWindows(workers).lead(0, windows, score))
    scores = [
        PairScore(total, values, tokens, line, cut, tuple(ids))
        for (total, values, tokens, cut, ids), line in zip(rows_of, read_sources(bundle, lines), strict=True)
    ]
    warn_of_sources(bundle, [scored.source for scored in scores], str(source), "read")
    rows = (
        (each.source.number, each.ids, text, 0 if each.cut else len(each.ids) - 1)
        for each, text in zip(scores, targets, strict=True)
    )
    warn_of_unusual_lines(bundle, rows, str(target), "target")
    for scored in scores:
        if scored.cut:
            name = f"{target}, line {scored.source.number + 1},"
            notify(cut_warning(name, len(scored.tokens) - 1, scored.cut, "scored"))
    return TargetScores(len(sources), scores, blocks)


class _ScoredTranslation:
    """The translation of a text that is scored, window by window, with the closed source positions and mismatches.

    Args:
        packing: how lines are packed into blocks; None: they are translated one by one.
    """

    def __init__(
        self, bundle: Bundle, lines: Sequence[InputLine], decoding: Decoding, packing: Documents | None
    ) -> None:
        self._bundle, self._lines, self._decoding, self._packing = bundle, lines, decoding, packing
        self.outputs: list[str] = []
        self.mismatches = Mismatches()
        self._closed = self._positions = 0  # of lines for which a filter decided

    def windows(self) -> Iterable[list[Any]]:
        """Return the windows: of lines, or of blocks of documents."""
        if self._packing is None:
            return text_windows(self._lines, WINDOW, lambda line: len(line.text))
        return block_windows(self._bundle, self._lines, self._packing)

    def translate(self, window: list[Any]) -> dict[str, Any]:
        """Translate a window; returns its texts and counts as JSON, for `add`."""
        mismatches, texts = Mismatches(), list[str]()
        if self._packing is None:
            found = list(translate_lines(self._bundle, window, self._decoding))
            texts = [each.text for each in found]
        else:
            blocks = list(translate_blocks(self._bundle, window, self._decoding, self._packing))
            found = [block.translation for block in blocks]
            for block in blocks:
                mismatches.add(block)
                texts += block.lines
        decided = [each for each in found if each.closed is not None]
        return {
            "texts": texts,
            "closed": sum(each.closed or 0 for each in decided),
            "positions": sum(len(each.source.ids) for each in decided),
            "mismatches": asdict(mismatches),
        }

    def add(self, found: Mapping[str, Any]) -> None:
        """Add the next window."""
        self.outputs += found["texts"]
        self.mismatches.merge(found["mismatches"])
        self._closed += found["closed"]
        self._positions += found["positions"]

    @property
    def sources(self) -> list[SourceLine]:
        """The lines or blocks that were read."""
        if self._packing is None:
            read = read_sources(self._bundle, self._lines, long=self._bundle.long_lines(self._decoding))
            lines = zip(line_indices(read), read, strict=True)
            return [merge_sources([part for _, part in own]) for _, own in groupby(lines, itemgetter(0))]
        blocks = chain.from_iterable(block_windows(self._bundle, self._lines, self._packing))
        return read_sources(self._bundle, source_lines(list(blocks)))

    def sparsity_rate(self) -> float | None:
        """Return the share of source positions whose gate is 0; None where no filter decided."""
        return self._closed / self._positions if self._positions else None


def read_columns(files: Sequence[StrPath]) -> list[list[str]]:
    """Return the lines of each of several line-aligned files; UserError if they are empty."""
    rows = list(read_parallel([str(path) for path in files]))
    if not rows:
        hint = "Name the file that was meant: there is nothing to score."
        raise UserError("the file has no lines", where=str(files[0]), hint=hint)
    return [list(column) for column in zip(*rows, strict=True)]


def _note_empty(references: Sequence[StrPath], columns: Sequence[Sequence[str]]) -> None:
    """Report that empty lines among several references count; ``columns``: the lines of each, and of others."""
    for path, lines in zip(references, columns, strict=False):
        count = sum(not line.strip() for line in lines)
        if count and len(references) > 1:
            what = "empty line counts as a reference" if count == 1 else "empty lines count as references"
            notify(f"{path}: {count:,} {what}, as in sacrebleu")


def score_texts(
    hypotheses: list[str],
    references: Sequence[list[str]],
    options: ScoringOptions,
    *,
    baseline: list[str] | None = None,
    documents: Sequence[str | None] | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    test: PairedTest | None = None,
    sparsity: float | None = None,
    sources: Sequence[str] | None = None,
) -> ScoreResult:
    """Score translations against references: N lines each.

    Args:
        options: without metrics: the default ones; without a tokenizer: the one that fits the text.
        baseline: another system's, for a test of the difference.
        documents: id of every line's document; None: not known.
        recipes: as for `fit_to_text`; None: no model made the translations.
        test: of the difference; None: the bootstrap.
        sparsity: as in `ScoreResult`.
        sources: the source lines, for metrics that read them; None: not known.

    Raises:
        UserError: there is no such metric, or not as many lines of each.
    """
    recipes = recipes or {}
    if options.unspaced is None:  # not yet chosen for the text
        options = _with_default(options, documents=documents is not None)
        check_scoring(options, documents=documents is not None, sources=sources is not None)
        options = fit_to_text(options, next(iter(references), []), recipes)
    language = next((recipe.data.target_language for recipe in recipes.values()), None)
    settings = replace(options.settings(language=language, documents=documents), sources=sources)
    scores = corpus_scores(hypotheses, references, settings)
    comparisons = []
    if baseline is not None:
        comparisons = compare(hypotheses, baseline, references, settings, test or PairedTest())
    return ScoreResult(scores, len(hypotheses), comparisons, sparsity)


def _score_columns(
    hypotheses: list[str],
    others: Sequence[list[str]],
    references: int,
    lines: Sequence[InputLine],
    options: ScoreOptions,
    **known: Any,
) -> ScoreResult:
    """Score texts of files; ``others`` are the columns of the references and, after them, of the baseline."""
    documents = None if options.documents is None else [line.document for line in lines]
    baseline = others[references] if len(others) > references else None
    beside = {"baseline": baseline, "documents": documents, "test": options.test, **known}
    return score_texts(hypotheses, others[:references], options, **beside)


def _with_default(options: Options, *, documents: bool) -> Options:
    """Return options with the default metrics in place of none: with d-BLEU if documents are known."""
    records = [] if options.metrics else list(METRICS.values())  # a plugin of metrics is loaded where it is needed
    usual = [metric.name for metric in records if metric.default]
    usual += [metric.name for metric in records if metric.needs_documents and documents]
    return options.with_default(usual)
