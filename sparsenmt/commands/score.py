"""``sparsenmt score``: translations against references, or a model on a test set."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.commands import depth as depth_option
from sparsenmt.commands import disabled as disabling
from sparsenmt.commands import documents as document_option
from sparsenmt.commands.cuts import tell_cuts
from sparsenmt.commands.metric_options import metrics_option, resamples_option
from sparsenmt.commands.tags import HELP, read_tags
from sparsenmt.errors import UserError
from sparsenmt.evaluation.names import DEFAULT_METRICS, METRICS, OF_DOCUMENTS

if TYPE_CHECKING:
    from sparsenmt.data.documents import DocumentBlock


@dataclass(frozen=True)
class ScoreOptions:
    """What to measure, and how to show it."""

    metrics: tuple[str, ...]
    lowercase: bool
    tokenize: str
    language: str
    resamples: int
    seed: int
    as_json: bool
    documents: tuple[str, ...] | None = None
    """Of every line the id of its document."""

    @property
    def measuring(self) -> dict[str, Any]:
        """The arguments that all functions of `sparsenmt.evaluation` share."""
        return {
            "metrics": self.metrics,
            "lowercase": self.lowercase,
            "tokenize": self.tokenize,
            "language": self.language,
            "documents": self.documents,
        }


@dataclass(frozen=True)
class Use:
    """How a model is used: what `--model` takes beside the texts."""

    batch_tokens: int | None = None
    tags: str | None = None
    disabled: tuple[str, ...] = ()
    documents: str | None = None
    layers: tuple[int | None, int | None] = (None, None)

    def given(self) -> dict[str, object]:
        """Flags that have no meaning without a model, with their values."""
        return {
            "--batch-tokens": self.batch_tokens,
            "--tags": self.tags,
            disabling.OPTION: self.disabled or None,
            **dict(zip(depth_option.OPTIONS, self.layers, strict=True)),
        }


@click.command("score")
@click.argument("hypothesis", metavar="[HYP]", required=False)
@click.option("--reference", "-r", "references", multiple=True, help="Reference translation; repeat for more than one.")
@metrics_option(METRICS, ".  [default: bleu chrf ter; with --documents, dbleu too]")
@click.option("--documents", help=f"{document_option.HELP} For dbleu, and for models of documents.")
@click.option("--lowercase", "-l", is_flag=True, help="Ignore case in BLEU and chrF (TER and ROUGE always do).")
@click.option("--tokenize", default="13a", show_default=True, help="sacrebleu's tokenizer for BLEU.")
@click.option("--language", help="Language of the text, for ROUGE.  [default: en, or the model's target language]")
@click.option("--baseline", metavar="HYP2", help="Compare HYP with these translations by paired bootstrap.")
@resamples_option
@click.option("--seed", type=click.IntRange(0), default=12345, show_default=True, help="Seed of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--model", metavar="DIR", help="Model directory: score the model, not a file.")
@click.option("--source", help="With --model: the source text.")
@click.option("--tags", help=f"With --model: {HELP[0].lower()}{HELP[1:]}")
@click.option("--target", help="With --model: print the log-probability of this translation of the source.")
@depth_option.options
@disabling.option
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    help="With --model: source tokens in a batch, padding included, times the beam.  [default: the recipe's]",
)
def command(
    hypothesis: str | None,
    references: tuple[str, ...],
    metrics: tuple[str, ...],
    documents: str | None,
    lowercase: bool,
    tokenize: str,
    language: str | None,
    baseline: str | None,
    resamples: int,
    seed: int,
    as_json: bool,
    model: str | None,
    source: str | None,
    tags: str | None,
    target: str | None,
    encoder_layers: int | None,
    decoder_layers: int | None,
    disabled: tuple[str, ...],
    batch_tokens: int | None,
) -> None:
    """Score translations, or a model on a test set.

    \b
    sparsenmt score HYP --reference REF [--reference REF2] [--baseline HYP2]
        metrics of the translations in HYP
    sparsenmt score --model DIR --source S --reference REF [--baseline HYP2]
        translate S with a model, then the same
    sparsenmt score --model DIR --source S --target T
        log-probability that the model gives to every line and piece of T

    Files are UTF-8, one sentence a line, plain or gzipped. For ROUGE-Lsum the marker <n> separates sentences of a line.

    With --documents, d-BLEU compares whole documents. A model that was trained on blocks of sentences then reads
    blocks, and its output is put back into lines; with --target, every block gets a log-probability.
    """
    mode = _mode(hypothesis, references, baseline, model, source, target)
    use = Use(batch_tokens, tags, disabled, documents, (encoder_layers, decoder_layers))
    for name, value in use.given().items():
        if mode == "text" and value is not None:
            raise UserError("needs --model", where=name, hint=_HINT)
    options = ScoreOptions(
        tuple(dict.fromkeys(metrics)) or (DEFAULT_METRICS if documents is None else (*DEFAULT_METRICS, *OF_DOCUMENTS)),
        lowercase,
        tokenize,
        language or "en",
        resamples,
        seed,
        as_json,
    )
    _check_documents(mode, options.metrics, documents)
    if mode == "target":
        score_target(str(model), str(source), str(target), use, as_json=as_json)
    elif mode == "model":
        score_model(str(model), str(source), references, baseline, options, use, keep_language=language is not None)
    else:
        score_text(str(hypothesis), references, baseline, options, documents)


_HINT = "See `sparsenmt score --help` for the three ways to call it."
_EMPTY = "Name the file that was meant: there is nothing to score."


def _mode(
    hypothesis: str | None,
    references: Sequence[str],
    baseline: str | None,
    model: str | None,
    source: str | None,
    target: str | None,
) -> str:
    """Which of the three uses is meant: text, model, target; UserError where the arguments fit none."""
    hint = _HINT
    if model is None:
        for name, value in (("--source", source), ("--target", target)):
            if value is not None:
                raise UserError("needs --model", where=name, hint=hint)
        if hypothesis is None:
            raise UserError(
                "there is nothing to score: name a file of translations, or a model with --model",
                where="HYP",
                hint=hint,
            )
        if not references:
            raise UserError("a reference is missing: give one file or more", where="--reference", hint=hint)
        return "text"
    if hypothesis is not None:
        raise UserError(
            "is given, but with --model there is no file of translations to score", where=f"'{hypothesis}'", hint=hint
        )
    if source is None:
        raise UserError("needs --source", where="--model", hint=hint)
    if (target is None) == (not references):
        raise UserError("needs either --target or --reference", where="--model", hint=hint)
    if target is not None and baseline is not None:
        raise UserError("needs --reference", where="--baseline", hint=hint)
    return "model" if target is None else "target"


def _check_documents(mode: str, metrics: Sequence[str], documents: str | None) -> None:
    """Before any work: what needs documents has some, and what is given is read."""
    compared = any(name in OF_DOCUMENTS for name in metrics)
    if compared and documents is None and mode != "target":
        raise UserError(
            "d-BLEU needs to know where documents end",
            where="--metric",
            hint="Name a file with the document id of every line with --documents.",
        )
    if not compared and documents is not None and mode == "text":
        raise UserError(
            "none of these metrics looks at documents",
            where="--documents",
            hint="Add --metric dbleu, or leave it out.",
        )


def score_text(
    hypothesis: str,
    references: Sequence[str],
    baseline: str | None,
    options: ScoreOptions,
    documents: str | None = None,
) -> None:
    """Metrics of a file of translations."""
    from sparsenmt.data.text import read_parallel

    files = [hypothesis, *references, *([baseline] if baseline is not None else [])]
    rows = list(read_parallel(files))
    if not rows:
        raise UserError("the file has no lines", where=hypothesis, hint=_EMPTY)
    lines = [list(column) for column in zip(*rows, strict=True)]
    options = _with_documents(options, documents, hypothesis, lines[0])
    number = len(references)
    _report(lines[0], lines[1 : 1 + number], lines[1 + number] if baseline is not None else None, options)


def score_model(
    model: str,
    source: str,
    references: Sequence[str],
    baseline: str | None,
    options: ScoreOptions,
    use: Use,
    *,
    keep_language: bool,
) -> None:
    """Translate a file with a model, by its recipe's decoding options; metrics of the translations."""
    from sparsenmt.data.text import read_parallel

    # Read everything before the model translates: a mistake shows at once.
    rows = list(read_parallel([source, *references, *([baseline] if baseline is not None else [])]))
    if not rows:
        raise UserError("the file has no lines", where=source, hint=_EMPTY)
    columns = [list(column) for column in zip(*rows, strict=True)]
    options = _with_documents(options, use.documents, source, columns[0])

    from sparsenmt.decoding.translate import sparsity_rate, translate_lines
    from sparsenmt.store import open_model

    bundle = open_model(model, disabled=disabling.read_disabled(model, use.disabled))
    if not keep_language:
        options = replace(options, language=bundle.recipe.data.target_language)
    decoding = depth_option.at_depth(bundle.model.plan, bundle.recipe.decoding, *use.layers)
    if use.batch_tokens is not None:
        decoding = decoding.model_copy(update={"batch_tokens": use.batch_tokens})
    given = read_tags(use.tags, bundle, source, columns[0])
    if options.documents is not None and bundle.recipe.data.documents is not None:
        outputs, translations = document_option.translate_all(bundle, columns[0], options.documents, decoding, given)
    else:
        document_option.check_single(bundle)
        translations = list(translate_lines(bundle, columns[0], decoding, tags=given))
        outputs = [translation.text for translation in translations]
    tell_cuts(bundle, [each.source for each in translations], source, "translated")
    number = len(references)
    _report(
        outputs,
        columns[1 : 1 + number],
        columns[1 + number] if baseline is not None else None,
        options,
        sparsity=sparsity_rate(translations),
    )


def _with_documents(options: ScoreOptions, path: str | None, text: str, lines: Sequence[str]) -> ScoreOptions:
    """The options with the document id of every line of a text, if a file is given."""
    given = document_option.open_documents(path, text)
    return options if given is None else replace(options, documents=tuple(given.check(lines)))


def _report(
    hypotheses: list[str],
    references: list[list[str]],
    baseline: list[str] | None,
    options: ScoreOptions,
    *,
    sparsity: float | None = None,
) -> None:
    from sparsenmt.evaluation.metrics import corpus_scores
    from sparsenmt.evaluation.score_table import as_json, table
    from sparsenmt.evaluation.significance import Comparison, compare

    scores = corpus_scores(hypotheses, references, **options.measuring)
    comparisons: list[Comparison] = []
    notes: list[str] = []
    extra: dict[str, float] = {}
    if baseline is not None:
        comparisons = compare(
            hypotheses, baseline, references, **options.measuring, resamples=options.resamples, seed=options.seed
        )
        notes.append(f"paired bootstrap, {_count(options.resamples, 'resample')}, seed {options.seed}")
        extra = {"resamples": options.resamples, "seed": options.seed}
    if sparsity is not None:
        notes.append(f"sparsity rate {sparsity:.1%}: share of source pieces, </s> included, whose gate is 0")
        extra["sparsity"] = sparsity
    if options.as_json:
        click.echo(as_json(scores, comparisons, sentences=len(hypotheses), **extra))
    else:
        click.echo(table(scores, comparisons, note="\n".join(notes)))


def score_target(model: str, source: str, target: str, use: Use, *, as_json: bool) -> None:
    """Forced decoding: one output line a sentence pair; with documents, a block, separators included.

    Plain: the log-probability, a tab, and ``piece:log-probability`` items. JSON: an object a line, with documents the
    first line of the block, the number of its lines and the document too. The corpus' sum and its perplexity go to
    standard error.
    """
    from sparsenmt.data.text import read_parallel

    pairs = list(read_parallel([source, target]))
    if not pairs:
        raise UserError("the file has no lines", where=source, hint=_EMPTY)
    columns = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    beside = document_option.open_documents(use.documents, source)
    ids = None if beside is None else beside.check(columns[0])

    from sparsenmt.decoding.forced import score_pairs
    from sparsenmt.decoding.inputs import cut_warning
    from sparsenmt.store import open_model

    bundle = open_model(model, disabled=disabling.read_disabled(model, use.disabled))
    depth = depth_option.at_depth(bundle.model.plan, bundle.recipe.decoding, *use.layers).depth
    total, pieces = 0.0, 0
    given = read_tags(use.tags, bundle, source, columns[0])
    limit = use.batch_tokens or bundle.recipe.decoding.batch_tokens
    blocks: list[DocumentBlock] | None = None
    if ids is None:
        document_option.check_single(bundle)
        found = list(score_pairs(bundle, *columns, tags=given, batch_tokens=limit, depth=depth))
    else:
        blocks, found = document_option.score_blocks(bundle, columns, ids, given, limit, depth)
    tell_cuts(bundle, [scored.source for scored in found], source, "read")
    for index, scored in enumerate(found):
        if scored.cut:
            kept = len(scored.pieces) - 1
            click.echo(cut_warning(f"{target}, line {scored.source.number + 1},", kept, scored.cut, "scored"), err=True)
        total += scored.log_probability
        pieces += len(scored.pieces)
        tokens = list(zip(scored.pieces, scored.token_log_probabilities, strict=True))
        if as_json:
            items = [{"piece": piece, "log_probability": value} for piece, value in tokens]
            place = document_option.place(blocks[index]) if blocks is not None else {}
            line = {**place, "log_probability": scored.log_probability, "tokens": items}
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            click.echo(f"{scored.log_probability:.4f}\t" + " ".join(f"{piece}:{value:.4f}" for piece, value in tokens))
    mean = -total / max(pieces, 1)
    perplexity = math.exp(mean) if mean < 700 else math.inf  # beyond it a float ends
    packed = f" in {_count(len(blocks), 'block')}" if blocks is not None else ""
    click.echo(
        f"{_count(len(pairs), 'sentence')}{packed}, {_count(pieces, 'piece')}, log-probability {total:.4f}, "
        f"perplexity {perplexity:.4f}",
        err=True,
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
