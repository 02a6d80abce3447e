"""Score translations against references, a model on a test set, or given targets by forced decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsenmt.data.documents import DocumentBlock
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import read_parallel
from sparsenmt.decoding.disabled_heads import read_disabled_heads
from sparsenmt.decoding.documents import pack_pairs, source_lines, translate_aligned
from sparsenmt.decoding.forced_decoding import PairScore, score_pairs
from sparsenmt.decoding.inputs import cut_warning, warn_of_sources, warn_of_unknown_lines
from sparsenmt.decoding.translate import sparsity_rate
from sparsenmt.devices import pick_device, use_threads
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import Score, check_scoring, corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import Comparison, PairedTest, compare
from sparsenmt.evaluation.tokenizer_choice import fit_to_text, warn_of_tokens
from sparsenmt.metric import METRICS
from sparsenmt.progress import notify
from sparsenmt.recipe.schema import Decoding
from sparsenmt.store import Bundle, open_model
from sparsenmt.workflows.decode import report_mismatches
from sparsenmt.workflows.depth_choice import at_depth
from sparsenmt.workflows.input_text import (
    attach,
    check_companion,
    open_tag_file,
    packing_of,
    warn_of_single_lines,
)


@dataclass(frozen=True)
class ScoreOptions(ScoringOptions):
    """The settings of scoring and of the significance test.

    Args:
        documents: file with the document id of every line.
        test: significance test of the difference to a baseline.
    """

    documents: Path | None = None
    test: PairedTest = field(default_factory=PairedTest)

    def checked(self, *, by_model: bool) -> ScoreOptions:
        """Return the options with the default metrics in place of none: with d-BLEU if documents are known.

        Args:
            by_model: True where a model may read documents, too.

        Raises:
            UserError: as for `check_scoring`, or the documents cannot be read.
        """
        usual = [name for name, metric in METRICS.items() if metric.default]
        usual += [name for name, metric in METRICS.items() if metric.needs_documents and self.documents is not None]
        options = self.with_default(usual)
        check_scoring(options, documents=self.documents is not None, reads_documents=by_model)
        check_companion(self.documents, "document ids")
        return options


@dataclass(frozen=True)
class ModelUse:
    """The model to score, and how it runs.

    Args:
        batch_tokens: source tokens in a batch, padding included, times the beam; None: the recipe's.
        beam_size: None: the recipe's.
        threads: CPU threads; None: all cores.
        device: as for `pick_device`.
        tags: part-of-speech tags beside the source.
        disabled_heads: ``SITE:N,N`` values.
        source_language, target_language: of a model of several languages; None: the recipe's.
        encoder_layers, decoder_layers: layers that run; None: the recipe's, or all.
    """

    model: Path
    batch_tokens: int | None = None
    beam_size: int | None = None
    threads: int | None = None
    device: str = "auto"
    tags: Path | None = None
    disabled_heads: tuple[str, ...] = ()
    source_language: str | None = None
    target_language: str | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None

    def read(
        self, files: Sequence[Path], documents: Path | None
    ) -> tuple[list[list[str]], list[InputLine], Bundle, Decoding]:
        """Read line-aligned files, and open the model; returns their columns, the source lines, it and its options.

        Args:
            files: the source, with documents and tags beside it, and others.
        """
        use_threads(self.threads)
        device = pick_device(self.device, "--device")
        # Everything is read before the model is opened: a mistake shows at once.
        columns = _read_columns(files)
        list(attach(columns[0], files[0], documents=documents))
        disabled = read_disabled_heads(self.model, self.disabled_heads)
        languages = self.source_language, self.target_language
        bundle = open_model(self.model, device=device, disabled=disabled, languages=languages)
        decoding = at_depth(bundle.model.plan, bundle.recipe.decoding, self.encoder_layers, self.decoder_layers)
        changes = {"batch_tokens": self.batch_tokens, "beam_size": self.beam_size}
        decoding = decoding.model_copy(update={name: value for name, value in changes.items() if value is not None})
        lines = attach(columns[0], files[0], open_tag_file(self.tags, bundle), documents)
        return columns, list(lines), bundle, decoding


@dataclass(frozen=True)
class ScoreResult:
    """The metrics of one system, and its comparison with a baseline.

    Args:
        sentences: number of lines.
        sparsity: share of source positions whose gate is 0; None where no filter decides.
    """

    scores: list[Score]
    sentences: int
    comparisons: list[Comparison] = field(default_factory=list)
    sparsity: float | None = None


@dataclass(frozen=True)
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


def score_files(
    hypothesis: Path, references: Sequence[Path], baseline: Path | None, options: ScoreOptions
) -> ScoreResult:
    """Score a file of translations."""
    options = options.checked(by_model=False)
    columns = _read_columns([hypothesis, *references, *([baseline] if baseline is not None else [])])
    lines = list(attach(columns[0], hypothesis, documents=options.documents))
    options = fit_to_text(options, columns[1], {})
    warn_of_tokens(columns[0], options, columns[1])
    return _measure(columns[0], columns[1:], len(references), lines, options)


def score_model(
    use: ModelUse, source: Path, references: Sequence[Path], baseline: Path | None, options: ScoreOptions
) -> ScoreResult:
    """Translate a text with a model, by its recipe's decoding options, and score the translations."""
    options = options.checked(by_model=True)
    files = [source, *references, *([baseline] if baseline is not None else [])]
    columns, lines, bundle, decoding = use.read(files, options.documents)
    options = fit_to_text(options, columns[1], {str(use.model): bundle.recipe})
    packing = None if options.documents is None else bundle.recipe.data.documents
    if packing is None:
        warn_of_single_lines(bundle)
    outputs, translations, mismatches = translate_aligned(bundle, lines, decoding, packing)
    report_mismatches(mismatches)
    warn_of_sources(bundle, [each.source for each in translations], str(source), "translated")
    language, sparsity = bundle.recipe.data.target_language, sparsity_rate(translations)
    return _measure(outputs, columns[1:], len(references), lines, options, language, sparsity)


def score_target(use: ModelUse, source: Path, target: Path, documents: Path | None = None) -> TargetScores:
    """Score given translations by forced decoding, line by line or in blocks of documents."""
    check_companion(documents, "document ids")
    (sources, targets), lines, bundle, decoding = use.read([source, target], documents)
    packing = packing_of(bundle, documents)
    blocks = None
    if packing is not None:
        blocks = pack_pairs(bundle, lines, targets, packing)
        lines, targets = source_lines(blocks), [block.texts[1] for block in blocks]
    scores = list(score_pairs(bundle, lines, targets, batch_tokens=decoding.batch_tokens, depth=decoding.depth))
    warn_of_sources(bundle, [scored.source for scored in scores], str(source), "read")
    rows = ((each.source.number, each.ids, text) for each, text in zip(scores, targets, strict=True))
    warn_of_unknown_lines(bundle, rows, str(target), "target")
    for scored in scores:
        if scored.cut:
            name = f"{target}, line {scored.source.number + 1},"
            notify(cut_warning(name, len(scored.tokens) - 1, scored.cut, "scored"))
    return TargetScores(len(sources), scores, blocks)


def _read_columns(files: Sequence[Path]) -> list[list[str]]:
    """Read line-aligned files; UserError if they are empty."""
    rows = list(read_parallel([str(path) for path in files]))
    if not rows:
        hint = "Name the file that was meant: there is nothing to score."
        raise UserError("the file has no lines", where=str(files[0]), hint=hint)
    return [list(column) for column in zip(*rows, strict=True)]


def _measure(
    hypotheses: list[str],
    others: list[list[str]],
    references: int,
    lines: Sequence[InputLine],
    options: ScoreOptions,
    language: str | None = None,
    sparsity: float | None = None,
) -> ScoreResult:
    """Compute the metrics; ``others`` are the columns of the references and, after them, of the baseline."""
    documents = None if options.documents is None else [line.document for line in lines]
    settings = options.settings(language=language, documents=documents)
    scores = corpus_scores(hypotheses, others[:references], settings)
    comparisons = []
    if len(others) > references:
        comparisons = compare(hypotheses, others[references], others[:references], settings, options.test)
    return ScoreResult(scores, len(hypotheses), comparisons, sparsity)
