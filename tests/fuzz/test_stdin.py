"""Texts of any kind to translate and to score: an output line for every line, in order, or one message."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from tests.commands.support import Result
from tests.fuzz import corpus_texts
from tests.fuzz.support import Lab, changed, explore, report, sizes, train_small_model

POSITIONS = 24
"""Of the model: lines with as many pieces or more are cut."""

_CUT = re.compile(r"^warning: (?:(.+), )?line (\d+),? is too long: (\d+) of (\d+) tokens are (\w+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Decode:
    """A text to translate."""

    text: bytes
    options: dict[str, str]
    flags: list[str]
    source: str
    """Where it comes from: stdin, file, gzip."""
    to_file: bool


@dataclasses.dataclass(frozen=True)
class Score:
    """Two texts to score; without a model, two references of the first."""

    texts: list[bytes]
    model: bool
    flags: list[str]


_WHOLE = [0, 1, 2, 3, 10, 10**4, 2**31, 2**63 - 1, 2**63, 10**30]
_REAL = ["0", "0.5", "1", "1e-9", "1e-300", "5e-324", "1e300", "1.7976931348623157e308"]
# Values of the options of `decode`: some that are allowed, some that are not.
_OPTIONS: dict[str, tuple[Sequence[object], Sequence[object]]] = {
    "--method": (["beam", "greedy", "sample", "sample"], ["Beam", ""]),
    "--beam-size": ([1, 1, 2, 3, 5, 9], [0, -1, 10**6, "x"]),
    "--length-penalty": (["gnmt", "average", "none"], ["x"]),
    "--alpha": (["0", "0.6", "1e-300", "10"], ["-1", "nan", "inf", "1e300", "x"]),
    "--max-length-factor": (_REAL, ["-1", "nan", "inf", "-inf", ""]),
    "--max-length-offset": (_WHOLE, [-1, "1.5"]),
    "--min-length": (_WHOLE, [-1]),
    "--no-repeat-ngram": (_WHOLE, [-1]),
    "--unknown": (["allow", "forbid", "copy"], ["Copy"]),
    "--temperature": (_REAL[1:], ["0", "nan", "-inf"]),
    "--top-k": (_WHOLE, [-1]),
    "--top-p": (["1", "0.5", "1e-9", "5e-324"], ["0", "1.1", "nan"]),
    "--seed": ([0, 1, 2**32 - 1], [2**32, 10**30, -1]),
    "--batch-tokens": (_WHOLE[1:], [0]),
    "--n-best": ([1, 1, 2], [0, 7, 10**30]),
    "--dtype": (["fp32", "bf16"], ["fp8", "fp16"]),
    "--threads": ([1, 2, 10**9, 10**30], [0]),
    "--long": (["split", "cut"], ["Cut"]),
    "--window": ([1, 2, 3, 2**31], [0, 2**31 + 1]),
}


@st.composite
def _options(draw: st.DrawFn) -> dict[str, str]:
    names = draw(st.lists(st.sampled_from(sorted(_OPTIONS)), max_size=5, unique=True))
    wrong = names[:1] if not draw(st.integers(0, 4)) else []
    return {name: str(draw(st.sampled_from(_OPTIONS[name][name in wrong]))) for name in names}


decodes = st.builds(
    Decode,
    text=corpus_texts.raw(max_size=7),
    options=_options(),
    flags=st.sampled_from([[], [], ["--json"]]),
    source=st.sampled_from(["stdin", "stdin", "file", "gzip"]),
    to_file=st.booleans(),
)


@st.composite
def scores(draw: st.DrawFn) -> Score:
    """Texts to score, mostly of as many lines."""
    if draw(st.integers(0, 3)):
        rows = draw(
            st.lists(st.tuples(corpus_texts.lines, corpus_texts.lines, corpus_texts.lines), min_size=1, max_size=6)
        )
        texts = [corpus_texts.joined([row[side] for row in rows], True) for side in range(3)]
    else:
        texts = [draw(corpus_texts.raw()) for _ in range(3)]
    model = draw(st.booleans())
    some = (
        ["--json", "--batch-tokens=1"] if model else ["--json", "--lowercase", "-mchrf", "-mrougeL", "-mbleu", "-mter"]
    )
    some += [] if model else ["--tokenize=char", "--tokenize=none", "--tokenize=x", "--language=de", "--language=\x1b"]
    return Score(texts, model, draw(st.lists(st.sampled_from(some), max_size=3, unique=True)))


@pytest.mark.parametrize("count", sizes("stdin"))
def test_stdin(lab: Lab, count: int) -> None:
    world = train_small_model(lab)
    tokenizers = Tokenizers.load(Path("model/tokenizers"))
    model = {name: content for name, content in world.items() if re.match("model/(?!checkpoints)", name)}
    lab.set(model)

    def check(case: Decode | Score) -> None:
        for name in changed(model, lab.files()):
            (lab.folder / name).unlink()
        if isinstance(case, Decode):
            _decodes(lab, tokenizers, case)
        else:
            _scores(lab, tokenizers, case)
        torch.set_num_threads(1)

    explore("stdin: decode", lab, count * 2 // 3, decodes, check)
    explore("stdin: score", lab, count - count * 2 // 3, scores(), check)
    report("stdin", lab, count)


def _decodes(lab: Lab, tokenizers: Tokenizers, case: Decode) -> None:
    words = ["decode", "model", *(f"{name}={value}" for name, value in case.options.items()), *case.flags]
    if case.source != "stdin":
        (lab.folder / "in.gz").write_bytes(gzip.compress(case.text) if case.source == "gzip" else case.text)
        if case.source == "file":
            (lab.folder / "in.gz").rename(lab.folder / "in")
        words += ["--input", "in.gz" if case.source == "gzip" else "in"]
    words += ["--output", "out"] if case.to_file else []
    before = lab.files()
    result = lab.run(*words, stdin=case.text if case.source == "stdin" else b"")
    lines = corpus_texts.lines_of(case.text)
    after = lab.files()
    if result.code:
        assert after == before, changed(before, after)
        assert not result.out or result.out.endswith(b"\n")
        if not _ERRORS_OF_OPTIONS.search(result.err):
            assert lines is None, result.err
            assert f"line {_first_bad_line(case.text)}: invalid UTF-8" in result.err
        return
    assert lines is not None, "it is not UTF-8"
    assert changed(before, after) == (["out"] if case.to_file else [])
    assert not (case.to_file and result.out)
    written = (after["out"] if case.to_file else result.out) or b""
    assert not written or written.endswith(b"\n")
    _one_for_each(case, lines, written.decode("utf-8").split("\n")[:-1])
    read = lines if case.options.get("--long") == "cut" else []  # others are translated in parts
    _all_cuts_are_told(
        result, {"translated": [len(tokenizers.source.encode(line)) if line.strip(" ") else 0 for line in read]}
    )


_ERRORS_OF_OPTIONS = re.compile(r"^(Usage: |error: (--|decoding\.))", re.MULTILINE)


def _first_bad_line(text: bytes) -> int:
    return next(n for n, line in enumerate(text.split(b"\n"), start=1) if corpus_texts.lines_of(line) is None)


def _one_for_each(case: Decode, lines: list[str], written: list[str]) -> None:
    """Every input line has its output, in its place."""
    n_best = int(case.options.get("--n-best", "1"))
    if case.flags:
        found = [json.loads(line) for line in written]
        assert [(each["line"], each["source"]) for each in found] == list(enumerate(lines, start=1))
        assert all(1 <= len(each["hypotheses"]) <= n_best for each in found)
    elif n_best > 1:
        numbers = [int(line.split(" ||| ")[0]) for line in written]
        assert sorted(numbers) == numbers and set(numbers) == set(range(len(lines)))
        assert max((numbers.count(number) for number in set(numbers)), default=1) <= n_best
        assert all(len(line.split(" ||| ")) >= 3 for line in written)
    else:
        assert len(written) == len(lines)
        assert all(not out for line, out in zip(lines, written, strict=True) if not line.strip(" "))


def _all_cuts_are_told(result: Result, pieces: dict[str, list[int]]) -> None:
    """There is a warning for every line that is longer than the model's positions, and for no other.

    Args:
        pieces: of every line, by what is done with them.
    """
    most = POSITIONS - 1
    told = [(done, int(line), int(kept), int(total)) for _, line, kept, total, done in _CUT.findall(result.err)]
    wanted = [(done, n, most, size) for done, every in pieces.items() for n, size in enumerate(every, 1) if size > most]
    assert sorted(told) == sorted(wanted)
    others = [line for line in result.err.split("\n") if "mostly unknown" not in line]
    assert sum("warning: " in line for line in others) == len(told), result.err


def _scores(lab: Lab, tokenizers: Tokenizers, case: Score) -> None:
    names = ["a", "b", "c"]
    for name, text in zip(names, case.texts, strict=True):
        (lab.folder / name).write_bytes(text)
    before = lab.files()
    read = [corpus_texts.lines_of(text) for text in case.texts[: 2 if case.model else 3]]
    if case.model:
        result = lab.run("score", "--model", "model", "--source", "a", "--target", "b", *case.flags)
    else:
        result = lab.run("score", "a", "-r", "b", "-r", "c", *case.flags)
    assert lab.files() == before
    sound = None not in read and len({len(lines or ()) for lines in read}) == 1 and bool(read[0])
    if result.code:
        assert not sound or re.search("--tokenize|--language|too long for TER", result.err), result.err
        assert not result.out
        return
    assert sound
    if case.model:
        _every_pair_has_its_score(tokenizers, case, result, [lines or [] for lines in read])


def _every_pair_has_its_score(tokenizers: Tokenizers, case: Score, result: Result, read: list[list[str]]) -> None:
    assert len(result.lines) == len(read[0])
    sizes_of = [
        [len(tokenizers.source.encode(line)) if line.strip(" ") else 0 for line in read[0]],
        [len(tokenizers.target.encode(line)) for line in read[1]],
    ]
    for line, size in zip(result.lines, sizes_of[1], strict=True):
        count = len(json.loads(line)["tokens"]) if "--json" in case.flags else len(line.partition("\t")[2].split(" "))
        assert count == min(size, POSITIONS - 1) + 1
    _all_cuts_are_told(result, {"read": sizes_of[0], "scored": sizes_of[1]})
