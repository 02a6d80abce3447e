"""``sparsenmt score``: score translations against references, a model on a test set, a language model on a text."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.commands.options import (
    PATH,
    PIPE,
    alignment_head_option,
    depth_options,
    disabled_heads_option,
    documents_option,
    evaluation_options,
    language_options,
    processor_options,
    sacrebleu_p_option,
    scoring_options,
    significance_options,
    tags_option,
)
from sparsenmt.commands.output import show, show_json
from sparsenmt.errors import UserError, printable
from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import is_main_process

if TYPE_CHECKING:
    from sparsenmt.evaluation.alignment_error import AlignmentError
    from sparsenmt.evaluation.scorer import ScoringOptions
    from sparsenmt.workflows.evaluation.score import ScoreOptions, ScoreResult, TargetScores

_OF_MODELS = (
    *("beam_size", "batch_tokens", "threads", "device", "tags", "disabled_heads", "source_language", "target_language"),
    *("encoder_layers", "decoder_layers"),
)
"""Fields of `ModelUse` that have options."""
_HINT = "See `sparsenmt score --help` for the ways to call it."


@click.command("score")
@click.argument("hypothesis", metavar="[HYP]", required=False, type=PIPE)
@click.option(
    "--reference", "-r", "references", multiple=True, type=PIPE, help="Reference translation; repeat for more than one."
)
@scoring_options("bleu chrf ter; with --documents, dbleu too; with --text all of language models", texts=True)
@documents_option
@click.option("--baseline", metavar="HYP2", type=PIPE, help="Compare with these translations.")
@significance_options
@sacrebleu_p_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--model", metavar="DIR", type=PATH, help="Model directory: score the model, not a file.")
@click.option("--source", type=PIPE, help="With --model: the source text; also for a metric that reads it.")
@tags_option
@click.option("--target", type=PIPE, help="With --model: print the log-probability of this translation of the source.")
@click.option(
    "--alignments",
    metavar="GOLD",
    type=PIPE,
    help="Word alignments by people, 0-0 1-2 on every line, and 1?2 for links that are only possible: print the "
    "alignment error rate of the alignments in HYP, or of the --model along --target.",
)
@alignment_head_option
@click.option("--text", type=PIPE, help="With the --model of a language model: the text to score.")
@click.option(
    "--segment-length", type=click.IntRange(1), help="With --text: tokens that are read at once. Default: the recipe's."
)
@click.option(
    "--segment-memory",
    type=click.IntRange(min=0),
    help="With --text: positions before a segment to which it attends. Default: the recipe's.",
)
@depth_options
@disabled_heads_option
@language_options
@evaluation_options
@processor_options
def command(
    hypothesis: Path | None,
    references: tuple[Path, ...],
    baseline: Path | None,
    model: Path | None,
    source: Path | None,
    target: Path | None,
    alignments: Path | None,
    alignment_head: str | None,
    text: Path | None,
    segment_length: int | None,
    segment_memory: int | None,
    as_json: bool,
    scoring: ScoringOptions,
    sacrebleu_p: bool,
    **options: Any,
) -> None:
    """Score translations, a model on a test set, or a language model on a text.

    \b
    sparsenmt score HYP --reference REF [--reference REF2] [--baseline HYP2]
        metrics of the translations in HYP
    sparsenmt score --model DIR --source S --reference REF [--baseline HYP2]
        translate S with a model, then the same
    sparsenmt score --model DIR --source S --target T
        log-probability that the model gives to every line and token of T
    sparsenmt score LINKS --alignments GOLD
        alignment error rate (AER) of word alignments, as `decode --alignments`
        writes them
    sparsenmt score --model DIR --source S --target T --alignments GOLD
        AER of a model's cross-attention along the translations in T
    sparsenmt score --model DIR --text FILE
        bits per character and perplexity of a language model on a text

    Files are UTF-8, one sentence per line, plain or gzipped. For ROUGE-Lsum the marker <n> separates sentences of a
    line, between spaces or not.

    With --documents, d-BLEU compares whole documents. A model that was trained on blocks of sentences then reads
    blocks, and its output is split into lines again; with --target, every block gets a log-probability.
    """
    segments = {"segment_length": segment_length, "segment_memory": segment_memory}
    others: dict[str, Any] = {"--reference": references, "--baseline": baseline}
    if text is not None:
        others |= {"HYP": hypothesis, "--source": source, "--target": target}
        _check_text(model, {**others, "--alignments": alignments, "--alignment-head": alignment_head}, options)
        assert model is not None
        chosen = {name: options[name] for name in ("threads", "device", "decoder_layers")}
        _show_text(model, text, segments | chosen, scoring, as_json=as_json)
        return
    _refuse_without("--text", **segments)
    use = {name: options.pop(name) for name in _OF_MODELS}
    if model is None:
        _refuse_without("--model", **use)
    if alignments is None or model is None:
        _refuse_without("--model and --alignments", alignment_head=alignment_head)
    if alignments is not None:
        others |= {"--metric": scoring.metrics, "--documents": options.get("documents"), "--sacrebleu-p": sacrebleu_p}
        of_model = {"--model": model, "--source": source, "--target": target}
        _show_links(_links(hypothesis, of_model, use, alignments, alignment_head, others), as_json=as_json)
        return
    of_metric = model is None and any(METRICS[name].reads_source for name in scoring.metrics if name in METRICS)
    _check_files(hypothesis, references, baseline, model, None if of_metric else source, target)
    if baseline is None:
        _refuse_without("--baseline", sacrebleu_p=sacrebleu_p)

    from sparsenmt.workflows.evaluation.score import ModelUse, ScoreOptions, score_files, score_model, score_target

    settings = ScoreOptions(**vars(scoring), **options, source=source if of_metric else None)
    if model is None:
        assert hypothesis is not None
        found = score_files(hypothesis, references, baseline, settings)
        _show(found, settings, as_json=as_json, sacrebleu_p=sacrebleu_p)
        return
    assert source is not None
    if target is None:
        found = score_model(ModelUse(model, **use), source, references, baseline, settings)
        if is_main_process():
            _show(found, settings, as_json=as_json, sacrebleu_p=sacrebleu_p)
        return
    of_target = score_target(ModelUse(model, **use), source, target, settings.documents)
    if is_main_process():
        _show_target(of_target, as_json=as_json)


def _option(name: str) -> str:
    """Return the option of a parameter."""
    return "--disable-heads" if name == "disabled_heads" else "--" + name.replace("_", "-")


def _check_files(
    hypothesis: Path | None,
    references: tuple[Path, ...],
    baseline: Path | None,
    model: Path | None,
    source: Path | None,
    target: Path | None,
) -> None:
    """Raise UserError if the files fit none of the three uses."""
    for name, value in (("--source", source), ("--target", target)):
        if model is None and value is not None:
            raise UserError("needs --model", where=name, hint=_HINT)
    if model is None and hypothesis is None:
        problem = "there is nothing to score: name a file of translations, or a model with --model"
        raise UserError(problem, where="HYP", hint=_HINT)
    if model is None and not references:
        raise UserError("a reference is missing: give one file or more", where="--reference", hint=_HINT)
    if model is None:
        return
    if hypothesis is not None:
        problem = "is given, but with --model there is no file of translations to score"
        raise UserError(problem, where=f"'{hypothesis}'", hint=_HINT)
    if source is None:
        raise UserError("needs --source", where="--model", hint=_HINT)
    if (target is None) == (not references):
        raise UserError("needs either --target or --reference", where="--model", hint=_HINT)
    if target is not None and baseline is not None:
        raise UserError("needs --reference", where="--baseline", hint=_HINT)


def _links(
    hypothesis: Path | None,
    of_model: dict[str, Any],
    use: dict[str, Any],
    gold: Path,
    head: str | None,
    others: dict[str, Any],
) -> AlignmentError:
    """Score alignments, of a file or a model; UserError if the files, or ``others``, fit neither."""
    from sparsenmt.workflows.evaluation.alignment_score import score_alignments, score_model_alignments
    from sparsenmt.workflows.evaluation.score import ModelUse

    missing = [name for name, value in of_model.items() if value is None]
    if hypothesis is None and missing:
        problem = f"needs a file of alignments; or {', '.join(missing)}, and the model aligns"
        raise UserError(problem, where="--alignments", hint=_HINT)
    given: dict[str, Any] = {**(of_model if hypothesis is not None else {}), **others}
    for name, value in given.items():
        if value:
            raise UserError("has no meaning beside the alignments", where=name, hint=_HINT)
    if hypothesis is not None:
        return score_alignments(hypothesis, gold)
    used = ModelUse(of_model["--model"], **use)
    return score_model_alignments(used, of_model["--source"], of_model["--target"], gold, head)


def _refuse_without(needed: str, **given: Any) -> None:
    """Raise UserError for options that are given, although another one that they need is not."""
    for name, value in given.items():
        if value is not False and value not in (None, (), "auto"):  # 0 is a value
            raise UserError(f"needs {needed}", where=_option(name), hint=_HINT)


def _check_text(model: Path | None, given: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise UserError if options are given that have no meaning for the text of a language model."""
    if model is None:
        raise UserError("needs --model", where="--text", hint=_HINT)
    languages = ("source_language", "target_language")
    for name in ("tags", "documents", "disabled_heads", "encoder_layers", "beam_size", "batch_tokens", *languages):
        given[_option(name)] = options[name]
    for name, value in given.items():
        if value:
            raise UserError("has no meaning with --text: a language model has one text", where=name, hint=_HINT)


def _show_text(model: Path, text: Path, use: dict[str, Any], scoring: ScoringOptions, *, as_json: bool) -> None:
    """Print metrics of a language model on a text, all or those that are named: a table, or a JSON object."""
    from sparsenmt.report.tables import Column, Report, Table
    from sparsenmt.workflows.evaluation.evaluate_text import check_text_metrics
    from sparsenmt.workflows.evaluation.score_text import score_text_file

    check_text_metrics(scoring)
    quality, reading = score_text_file(model, text, **use)
    values = {name: quality.value(name) for name in scoring.metrics or TEXT_METRICS}
    if as_json:
        sizes = dataclasses.asdict(quality.counts)
        how = {"segment_length": reading.segment_length, "segment_memory": reading.segment_memory}
        show_json(json.dumps({**values, "loss": quality.value("loss"), **sizes, **how}))
        return
    rows = [(TEXT_METRICS[name].label, value, f"per {TEXT_METRICS[name].per}") for name, value in values.items()]
    table = Table("score", f"{text}", (Column("metric"), Column("value", "number"), Column("unit")), rows)
    read = quality.counts
    counts = f"{read.tokens:,} tokens, {read.characters:,} characters, {read.bytes:,} bytes, {read.words:,} words"
    segments = f"segments of {reading.segment_length:,} tokens with a memory of {reading.segment_memory:,} positions"
    show(str(Report("score", (table,), (counts, segments))))


def _show_links(found: AlignmentError, *, as_json: bool) -> None:
    """Print the alignment error rate with its parts: a table, or a JSON object."""
    from sparsenmt.report.tables import Column, Report, Table

    values = {"aer": found.rate, "precision": found.precision, "recall": found.recall}
    if as_json:
        show_json(json.dumps({**values, **dataclasses.asdict(found)}))
        return
    rows = [({"aer": "AER"}.get(name, name), 100 * value) for name, value in values.items()]
    table = Table("alignments", "word alignments, in percent", (Column("metric"), Column("value", "number")), rows)
    notes = f"{_count(found.sentences, 'sentence')}, {_count(found.links, 'link')}, {found.sure:,} sure ones by people"
    show(str(Report("alignments", (table,), (notes,))))


def _show(result: ScoreResult, options: ScoreOptions, *, as_json: bool, sacrebleu_p: bool) -> None:
    from sparsenmt.evaluation.score_table import as_json as to_json
    from sparsenmt.evaluation.score_table import table

    notes: list[str] = []
    extra: dict[str, Any] = {}
    if result.comparisons:
        test = options.test
        notes += filter(None, [f"{test}, seed {test.seed}", test.few(one.segments for one in result.comparisons)])
        extra = test.record()
    if result.sparsity is not None:
        notes.append(f"sparsity rate {result.sparsity:.1%}: share of source tokens, </s> included, whose gate is 0")
        extra["sparsity"] = result.sparsity
    if as_json:
        show_json(to_json(result.scores, result.comparisons, sentences=result.sentences, **extra))
    else:
        show(table(result.scores, result.comparisons, note="\n".join(notes), sacrebleu_p=sacrebleu_p))


def _show_target(found: TargetScores, *, as_json: bool) -> None:
    """Print a line for each pair or block: log-probability, tab, ``token:log-probability`` items; or a JSON object.

    The sum over the corpus and the perplexity go to standard error.
    """
    from sparsenmt.workflows.decoding.output_lines import block_place

    total, count = 0.0, 0
    for index, scored in enumerate(found.scores):
        total += scored.log_probability
        count += len(scored.tokens)
        tokens = list(zip(scored.tokens, scored.token_log_probabilities, strict=True))
        if as_json:
            items = [{"piece": piece, "log_probability": value} for piece, value in tokens]
            place: dict[str, Any] = {} if found.blocks is None else block_place(found.blocks[index])
            line = {**place, "log_probability": scored.log_probability, "tokens": items}
            show_json(json.dumps(line, ensure_ascii=False))
        else:
            shown = (f"{printable(piece)}:{value:.4f}" for piece, value in tokens)
            click.echo(f"{scored.log_probability:.4f}\t" + " ".join(shown))
    mean = -total / max(count, 1)
    perplexity = math.exp(mean) if mean < 700 else math.inf  # larger exponents overflow
    packed = "" if found.blocks is None else f" in {_count(len(found.blocks), 'block')}"
    notify(
        f"{_count(found.pairs, 'sentence')}{packed}, {_count(count, 'token')}, log-probability {total:.4f}, "
        f"perplexity {perplexity:.4f}",
        needed=True,
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
