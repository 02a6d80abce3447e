"""Corpora of any kind: refused with one message, or prepared, every line of them accounted for."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import yaml
from hypothesis import strategies as st

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.prepared_data import PreparedData
from sparsenmt.data.tokenizers.word_counts import LONGEST_WORD
from sparsenmt.data.vocabulary import EOS, UNKNOWN_SURFACE
from tests.commands.support import Result
from tests.fuzz import corpus_texts
from tests.fuzz.support import Lab, changed, explore, report, sizes

TAIL = " q"
REASONS = ("empty", "max_length", "max_ratio")


@dataclasses.dataclass(frozen=True)
class File:
    """A file: what it holds, and how; see `corpus_texts.contained`."""

    data: bytes
    container: str
    number: int


@dataclasses.dataclass(frozen=True)
class Case:
    """A recipe's data."""

    corpora: list[tuple[File, File]]
    """The last one is the validation text."""
    tokenizer: dict[str, Any]
    filters: dict[str, Any]
    tail: bool
    """Every line ends with `TAIL`."""
    then: str


@st.composite
def _pairs(draw: st.DrawFn, tail: bool) -> tuple[File, File]:
    end, some = TAIL if tail else "", st.sampled_from
    # 7, not 0: hypothesis is fond of nothing.
    if draw(st.integers(0, 11)) != 7:
        rows = draw(
            st.lists(
                st.tuples(corpus_texts.lines, corpus_texts.lines), min_size=draw(some([0, *[1, 2] * 5, 6])), max_size=10
            )
        )
        sides = [
            corpus_texts.joined([row[side] + end for row in rows], bool(end) or draw(some([True, True, False])))
            for side in range(2)
        ]
    else:
        sides = [draw(corpus_texts.raw()) for _ in range(2)]
    kinds = st.sampled_from(corpus_texts.BROKEN if draw(st.integers(0, 15)) == 7 else corpus_texts.SOUND)
    files = [File(side, draw(kinds), draw(st.integers(0, 10_000))) for side in sides]
    return files[0], files[1]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tail = draw(st.booleans())
    kind = draw(st.sampled_from(["char", "word", "bpe", "unigram"]))
    some = st.sampled_from
    tokenizer = {
        "kind": kind,
        "vocabulary_size": draw(
            some([300, 300, 5, 6, 10, 40, 100]) if kind in ("char", "word") else st.integers(20, 120)
        ),
        "shared": draw(st.booleans()),
        "lowercase": draw(some([False, False, True])),
        "character_coverage": draw(
            some([1.0, 1.0, 1.0, 0.98, 0.9] if kind in ("char", "word") else [1.0, 1.0, 1.0, 0.98])
        ),
        "normalization": draw(some(["identity", "identity", "nfkc", "nmt_nfkc"])),
        "max_training_lines": draw(some([100, 100, 100, 3, 1])),
    }
    if tokenizer["vocabulary_size"] > 12:
        tokenizer["user_symbols"] = draw(some([[], [], ["<n>"], ["a", "日", "."]]))
    filters = {
        "max_length": draw(some([256, None, None, 12, 40])),
        "max_ratio": draw(some([None, None, 5, 2, 1, 1e300])),
        "max_source_length": draw(some([None, None, 1, 4])),
    }
    corpora = [draw(_pairs(tail)) for _ in range(draw(some([2, 2, 2, 3])))]
    return Case(corpora, tokenizer, filters, tail, draw(some(["", "again", "again", "train"])))


@pytest.mark.parametrize("count", sizes("corpora"))
def test_corpora(lab: Lab, count: int) -> None:
    def check(case: Case) -> None:
        texts = _write(lab, case)
        before = lab.files()
        prepare = ["prepare", "recipe.yaml"]
        result = lab.run(*prepare)
        # Two vocabularies may have to be of different sizes, which no recipe can ask for.
        if result.code and case.tokenizer["shared"] and (size := re.search(r"possible value is (\d+)", result.err)):
            assert lab.files() == before
            prepare.append(f"data.tokenizer.vocabulary_size={size[1]}")
            result = lab.run(*prepare)
            assert "possible value is" not in result.err, result.err
        if result.code:
            assert not changed(before, lab.files()), f"{changed(before, lab.files())}\n{result.err}"
            _has_a_reason(case, texts, result)
            return
        _accounted_for(case, texts, result)
        _then(lab, case, prepare, result)

    explore("corpora", lab, count, cases(), check)
    report("corpora", lab, count)


def _write(lab: Lab, case: Case) -> list[list[bytes | None]]:
    """Put the files and the recipe into the folder; returns the text of every file."""
    lab.set({})
    texts: list[list[bytes | None]] = []
    corpora = []
    for number, files in enumerate(case.corpora):
        names, held = [], []
        for side, file in zip(("en", "de"), files, strict=True):
            end, data, text = corpus_texts.contained(file.data, file.container, file.number)
            path = lab.folder / f"{number}.{side}{end}"
            if file.container == "directory":
                path.mkdir()
                text = None
            elif file.container == "missing":
                text = None
            else:
                path.write_bytes(data)
            names.append(path.name)
            held.append(file.data if file.container == "flipped" else text)
        texts.append(held)
        corpora.append({"source": names[0], "target": names[1]})
    for number, corpus in enumerate(corpora[:-1]):
        corpus["name"] = f"corpus {number}"
    recipe = {
        "name": "fuzz",
        "directory": "model",
        "model": {"dimension": 8, "feed_forward": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "data": {
            "directory": "prepared",
            "train": corpora[:-1],
            "dev": corpora[-1],
            "tokenizer": case.tokenizer,
            "filters": case.filters,
        },
        "training": {
            **{"device": "cpu", "threads": 1, "max_updates": 2, "batch_tokens": 600},
            "validation": {"every": 1, "metric": "bleu", "beam_size": 2, "max_sentences": 3},
        },
        "decoding": {"max_length_offset": 3},
    }
    if not case.tokenizer["shared"]:
        recipe["model"]["tie_embeddings"] = "target"  # type: ignore[index]
    (lab.folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8", newline="\n")
    return texts


def _accounted_for(case: Case, texts: list[list[bytes | None]], result: Result) -> None:
    """Every line of every file was read, and was stored or counted as left out."""
    data = PreparedData.open("prepared")
    report = result.out.decode("utf-8").split("\n")
    for number, (sides, dataset) in enumerate(zip(texts, [*data.train, data.dev], strict=True)):
        read = [corpus_texts.lines_of(side) if side is not None else None for side in sides]
        sources, targets = read
        assert sources is not None and targets is not None, f"{case.corpora[number]} cannot be read, but was"
        assert len(sources) == len(targets) > 0
        is_dev = dataset is data.dev
        _pieces_are_those_of_the_library(case, data, sources, targets)
        kept, counts = _filtered(case, data, list(zip(sources, targets, strict=True)), is_dev)
        assert dataset.line_numbers.tolist() == [row[0] for row in kept]
        for index, (_, source, target) in enumerate(kept):
            assert dataset.source(index).tolist() == [*source, EOS]
            assert dataset.target(index).tolist() == [*target, EOS]
        words = [f"{len(kept):,} of {len(sources):,} pairs kept"]
        words += [f"{counts[reason]:,} removed by {reason}" for reason in REASONS if counts[reason]]
        words += [f"{counts['cut']:,} sources cut"] if counts["cut"] else []
        name = "dev" if is_dev else f"corpus {number}"
        assert report[number].startswith(f"{name}: {', '.join(words)}, {len(dataset.source_ids):,} source"), report
        if is_dev:
            assert data.dev_lines == list(zip(sources, targets, strict=True))
        else:
            _comes_back(case, data, dataset, sources, targets)
    assert report[-2].endswith(": written"), report


def _has_a_reason(case: Case, texts: list[list[bytes | None]], result: Result) -> None:
    """Text that can be read, with as many lines on both sides, is refused for what is in it only."""
    read = [[corpus_texts.lines_of(side) if side is not None else None for side in sides] for sides in texts]
    if any(None in sides or len(sides[0] or ()) != len(sides[1] or ()) or not sides[0] for sides in read):
        return
    if any(file.container == "flipped" for files in case.corpora for file in files):
        return
    reasons = ["the filters remove all", "there is no text to learn a vocabulary from", "contain the same text"]
    if any(not any(line.strip() for line in side or ()) for side in read[-1]):
        reasons.append("every line of the validation text is blank")
    if case.tokenizer["kind"] in ("bpe", "unigram"):
        reasons.append("data.tokenizer")
    assert any(reason in result.err for reason in reasons), result.err


def _filtered(
    case: Case, data: PreparedData, pairs: list[tuple[str, str]], is_dev: bool
) -> tuple[list[tuple[int, list[int], list[int]]], Counter[str]]:
    """What has to be stored of pairs: line number and pieces; and what has to be counted."""
    counts: Counter[str] = Counter()
    kept = []
    for number, (source, target) in enumerate(pairs):
        ids, wanted = data.tokenizers.source.encode(source), data.tokenizers.target.encode(target)
        cut = ids[: case.filters["max_source_length"]]
        if is_dev:
            kept.append((number, cut, wanted))
            counts["cut"] += len(cut) < len(ids)
            continue
        shorter, longer = sorted([len(cut), len(wanted)])
        if not shorter:
            counts["empty"] += 1
        elif longer > (case.filters["max_length"] or longer):
            counts["max_length"] += 1
        elif longer > (case.filters["max_ratio"] or longer) * shorter:
            counts["max_ratio"] += 1
        else:
            kept.append((number, cut, wanted))
            counts["cut"] += len(cut) < len(ids)
    return kept, counts


def _pieces_are_those_of_the_library(case: Case, data: PreparedData, sources: list[str], targets: list[str]) -> None:
    """A line has the pieces that SentencePiece gives it, whichever way it was encoded."""
    if case.tokenizer["kind"] not in ("bpe", "unigram"):
        return
    if case.tokenizer["character_coverage"] < 1:  # the space may be unknown: then unknown words side by side are one
        return
    stems = ("shared", "shared") if case.tokenizer["shared"] else ("source", "target")
    for stem, tokenizer, lines in zip(
        stems, (data.tokenizers.source, data.tokenizers.target), (sources, targets), strict=True
    ):
        model = Path("prepared/tokenizers", f"{stem}.model").read_bytes()
        library = sentencepiece.SentencePieceProcessor(model_proto=model)
        lines = [line.lower() if case.tokenizer["lowercase"] else line for line in lines]
        for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
            wanted = library.encode(line)
            if case.tokenizer["kind"] == "bpe" and "▁" not in line:
                assert ids == wanted, (line, library.id_to_piece(ids), library.id_to_piece(wanted))
            # Unigram adds scores up: over a long line the sum is rounded, and another choice may be as good.
            texts = [[part for part in library.decode(each).split(" ") if part] for each in (ids, wanted)]
            assert texts[0] == texts[1], line


def _comes_back(case: Case, data: PreparedData, dataset: Dataset, sources: list[str], targets: list[str]) -> None:
    """The pieces of a text are the text, as far as its kind of pieces can tell."""
    limit = case.filters["max_source_length"]
    for index, line in enumerate(dataset.line_numbers.tolist()):
        source, target = dataset.source(index).tolist(), dataset.target(index).tolist()
        sides = [(data.tokenizers.target, target, targets[line])]
        if limit is None or len(source) <= limit:
            sides.append((data.tokenizers.source, source, sources[line]))
        for tokenizer, ids, text in sides:
            decoded = tokenizer.decode(ids)
            complete = case.tokenizer["character_coverage"] == 1 and case.tokenizer["max_training_lines"] == 100
            if case.tokenizer["kind"] in ("char", "word"):
                if complete and case.tokenizer["vocabulary_size"] == 300 and tokenizer.size < 300:
                    assert decoded == _plain(case, text), (decoded, text)
            elif text.endswith(TAIL) and complete:
                assert decoded.endswith(TAIL.strip()), (decoded, text)


def _plain(case: Case, text: str) -> str:
    """A text as a list of characters or words has it; very long words are in no vocabulary."""
    text = text.lower() if case.tokenizer["lowercase"] else text
    if case.tokenizer["kind"] == "char":
        return text.replace("▁", " ")
    return " ".join(word if len(word) <= LONGEST_WORD else UNKNOWN_SURFACE for word in text.split(" ") if word)


def _then(lab: Lab, case: Case, prepare: list[str], first: Result) -> None:
    """Prepared data are found again, and can be trained on."""
    if case.then == "again":
        before = lab.files()
        again = lab.run(*prepare)
        assert again.code == 0 and again.out == first.out.replace(b": written", b": up to date")
        assert lab.files() == before
    elif case.then == "train":
        result = lab.run("train", *prepare[1:])
        assert (lab.folder / "model/weights.safetensors").exists() == (result.code == 0), result.err
        assert not [path for path in Path("model").rglob(".*")]
