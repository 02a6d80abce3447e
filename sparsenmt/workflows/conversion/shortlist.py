"""Make a vocabulary shortlist for a model from parallel text, and measure what decoding gains and changes by it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.text import bounded_batches, check_readable, read_lines, read_parallel
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.translation_table import aligned_table, most_frequent, translation_table
from sparsenmt.data.vocabulary import EOS
from sparsenmt.data.word_links import parse_links
from sparsenmt.decoding.decoding_time import time_decoding
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.recipe.choices import NO_SHORTLIST
from sparsenmt.report.output_files import check_outputs

_LINES = 1000  # that are tokenized together
_COUNTED = 10_000  # sentences of the corpora whose shortlists are counted
Pair = tuple[Sequence[int], Sequence[int]]
"""Source and target token ids."""
Places = Sequence[tuple[int, int]]
"""Places of a source token and of a target token that are aligned."""


@dataclass(frozen=True)
class ShortlistRequest(ModelOptions):
    """The arguments of `make_shortlist`.

    Args:
        model: whose tokens the shortlist is of.
        corpora: pairs of a source and a target text.
        output: the file that is written.
        alignments: for each corpus, the alignment of its tokens (`0-0 1-2`), line by line; none: they are estimated.
        first: most frequent tokens, which always may come out.
        best: most translations of a source token.
        test: a text to translate with and without the shortlist.
        rounds: turns of both.
    """

    model: Path
    corpora: Sequence[tuple[Path, Path]]
    output: Path
    alignments: Sequence[Path] = ()
    first: int = 100
    best: int = 100
    test: Path | None = None
    rounds: int = 3


def make_shortlist(request: ShortlistRequest) -> None:
    """Write a shortlist.

    Raises:
        UserError: a file is missing or does not fit the others, or there is no text.
    """
    inputs = [*(path for pair in request.corpora for path in pair), *request.alignments]
    if request.alignments and len(request.alignments) != len(request.corpora):
        raise UserError(
            f"{len(request.alignments)} files of alignments for {len(request.corpora)} corpora",
            where="--alignments",
            hint="Give one for each corpus, in the same order, or none.",
        )
    check_outputs({"--output": request.output}, [*inputs, request.test])
    for path in (*inputs, *([request.test] if request.test else [])):
        check_readable(path)
    device = request.use_processors()
    bundle = open_model(request.model, device=device, dtype="recipe", languages=request.languages)
    tokenizers = bundle.tokenizers
    pairs, alignments = _read(request, tokenizers)
    if not any(source and target for source, target in pairs):
        raise UserError("there is no text to learn from", where=str(inputs[0]), hint="Name the files of a corpus.")
    size = tokenizers.target.size
    table = aligned_table(pairs, alignments, size) if request.alignments else translation_table(pairs, size)
    always = most_frequent((target for _, target in pairs), size, request.first)
    best = table.best(request.best, tokenizers.source.size)
    shortlist = Shortlist.of(always, best, tokenizers.source, tokenizers.target)
    shortlist.save(request.output)
    known = sum(map(bool, best))
    notify(
        f"{request.output}: {len(shortlist.tokens):,} translations of {known:,} source tokens, "
        f"{request.output.stat().st_size / 1e6:.1f} MB"
    )
    shown = list(read_lines(request.test)) if request.test is not None else None
    _tell_rows(shortlist, shown, tokenizers, pairs)
    if shown is not None:
        _compare(bundle, request, shown)


def _read(request: ShortlistRequest, tokenizers: Tokenizers) -> tuple[list[Pair], list[Places]]:
    """Return the token ids of all pairs of the corpora, without `</s>`, and their alignments if they are given."""
    pairs: list[Pair] = []
    alignments: list[Places] = []
    for number, corpus in enumerate(request.corpora):
        files, before = [*corpus, *request.alignments[number : number + 1]], len(alignments)
        for rows in bounded_batches(read_parallel(files), lambda row: sum(map(len, row)), most=_LINES):
            first = len(pairs)
            sides = zip(
                (tokenizers.source, tokenizers.target), zip(*(row[:2] for row in rows), strict=True), strict=True
            )
            source, target = ([array("i", ids) for ids in each.encode_batch(lines)] for each, lines in sides)
            pairs += zip(source, target, strict=True)
            for row, pair in zip(rows, pairs[first:], strict=True) if request.alignments else ():
                where, sizes = f"{files[2]}, line {len(alignments) - before + 1}", (len(pair[0]), len(pair[1]))
                alignments.append(parse_links(row[2], where, sizes, "tokens").sure)
    return pairs, alignments


def _tell_rows(shortlist: Shortlist, test: list[str] | None, tokenizers: Tokenizers, pairs: Sequence[Pair]) -> None:
    """Report the mean number of tokens that may come out of a sentence of the test text, or of the corpora."""
    ids: Iterable[Sequence[int]] = [source for source, _ in pairs[:_COUNTED]]
    if test is not None:
        ids = tokenizers.source.encode_batch(test)
    counts = [
        count
        for rows in bounded_batches(([*each, EOS] for each in ids), len, most=_LINES)
        for count in shortlist.allowed(rows).sum(1).tolist()
    ]
    mean = sum(counts) / max(len(counts), 1)
    text = "the test text" if test is not None else "the corpora"
    size = tokenizers.target.size
    notify(f"a sentence of {text} has {mean:,.0f} of {size:,} target tokens on average ({mean / size:.1%})")


def _compare(bundle: Bundle, request: ShortlistRequest, lines: Sequence[str]) -> None:
    """Report the translations that a shortlist changes, and the time that it saves."""
    usual = bundle.recipe.decoding
    ways = {
        name: partial(translate_texts, bundle, options=usual.model_copy(update={"shortlist": value}))
        for name, value in (("without", NO_SHORTLIST), ("with", str(request.output)))
    }

    times = time_decoding(ways.items, lines, rounds=request.rounds)
    before, after = times["without"], times["with"]
    changed = sum(a != b for a, b in zip(before.result, after.result, strict=True))
    notify(f"{changed:,} of {len(lines):,} translations change ({changed / max(len(lines), 1):.1%})")
    seconds = f"{before.seconds:.2f} s without it, {after.seconds:.2f} s with it"
    faster, compared = before.seconds / after.seconds, after.against(before)
    within = "; equal, as their turns overlap" * (compared == "equal")
    notify(f"decoding takes {seconds} ({faster:.2f} times as fast), in turns{within}")
