"""Packing sentences of documents into blocks, and getting the lines back: properties, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenmt.data.documents import (
    BlockPacker,
    BlockSentence,
    DocumentBlock,
    fit_to_line_count,
    read_document_ids,
    separator_id,
    split_block,
)
from sparsenmt.data.input_line import attach_documents, input_lines
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import write_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.data.conftest import invented_lines

SEPARATOR = "<sep>"
KINDS = ("bpe", "unigram", "char", "word")


def trained(kind: str, symbols: Sequence[str] = (SEPARATOR,), seed: int = 0) -> Tokenizer:
    size = 1000 if kind == "word" else 70
    options = schema.TokenizerSection(kind=kind, vocabulary_size=size, user_symbols=list(symbols))  # type: ignore[arg-type]
    return train_tokenizer(options, invented_lines(200, seed))


TOKENIZERS = {kind: (trained(kind), trained(kind, seed=1)) for kind in KINDS}
WORDS = sorted({word for line in invented_lines(50) for word in line.split()})
LINES = st.lists(st.sampled_from(["", " ", *WORDS, "x"]), max_size=9).map(" ".join)
CORPORA = st.lists(st.tuples(LINES, LINES, st.booleans()), max_size=30)
patient = settings(deadline=None)  # the time that an example takes says nothing here


def sentences(kind: str, corpus: Sequence[tuple[str, str, bool]]) -> list[BlockSentence]:
    """A corpus of source, target and whether a document begins."""
    found, document = [], 0
    for number, (source, target, begins) in enumerate(corpus):
        document += begins
        texts = (source, target)
        ids = tuple(tokenizer.encode(text) for tokenizer, text in zip(TOKENIZERS[kind], texts, strict=True))
        found.append(BlockSentence(number, document, texts, ids))
    return found


def packed(kind: str, given: Sequence[BlockSentence], limit: int) -> list[DocumentBlock]:
    return list(BlockPacker(TOKENIZERS[kind], SEPARATOR, limit).blocks(given))


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(corpus=CORPORA, limit=st.integers(1, 80))
def test_blocks_are_whole_documents_cut_at_sentences(
    kind: str, corpus: list[tuple[str, str, bool]], limit: int
) -> None:
    given_sentences = sentences(kind, corpus)
    blocks = packed(kind, given_sentences, limit)
    assert [each for block in blocks for each in block.sentences] == given_sentences, "all of them, in order"
    for block in blocks:
        assert len({sentence.document for sentence in block.sentences}) == 1
        for side, tokenizer in enumerate(TOKENIZERS[kind]):
            assert block.texts[side] == f" {SEPARATOR} ".join(each.texts[side] for each in block.sentences)
            assert block.ids[side] == tokenizer.encode(block.texts[side]) or len(block.sentences) == 1
            assert len(block.ids[side]) + 1 <= limit or len(block.sentences) == 1
        assert len(block.sentences) == 1 or not any(each.is_blank for each in block.sentences)


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(corpus=CORPORA, limit=st.integers(1, 80))
def test_no_block_could_take_the_next_sentence(kind: str, corpus: list[tuple[str, str, bool]], limit: int) -> None:
    blocks = packed(kind, sentences(kind, corpus), limit)
    for block, after in pairwise(blocks):
        first, last = after.sentences[0], block.sentences[-1]
        if first.document != last.document or first.is_blank or last.is_blank:
            continue
        texts = [f"{block.texts[side]} {SEPARATOR} {first.texts[side]}" for side in (0, 1)]
        lengths = [len(TOKENIZERS[kind][side].encode(texts[side])) + 1 for side in (0, 1)]
        assert max(lengths) > limit


@pytest.mark.parametrize("kind", KINDS)
@patient
@given(corpus=CORPORA, limit=st.integers(1, 80))
def test_a_block_that_is_translated_into_its_target_gives_the_lines_back(
    kind: str, corpus: list[tuple[str, str, bool]], limit: int
) -> None:
    tokenizer = TOKENIZERS[kind][1]
    restored = []
    for block in packed(kind, sentences(kind, corpus), limit):
        texts = split_block(block.ids[1], tokenizer, separator_id(tokenizer, SEPARATOR))
        assert len(texts) == len(block.sentences)
        restored += fit_to_line_count(texts, len(block.sentences))
    assert restored == [tokenizer.decode(tokenizer.encode(target)).strip(" ") for _, target, _ in corpus]


@patient
@given(corpus=CORPORA, limit=st.integers(1, 60), stop=st.integers(0, 30))
def test_packing_goes_on_after_any_block(corpus: list[tuple[str, str, bool]], limit: int, stop: int) -> None:
    blocks = packed("bpe", sentences("bpe", corpus), limit)
    first = sum(len(block.sentences) for block in blocks[:stop])
    assert packed("bpe", sentences("bpe", corpus)[first:], limit) == blocks[stop:]


def test_a_block_by_hand() -> None:
    lines = ["a b", "c", "d e f", "", "g", "h", "i i i i i i i i"]
    tokenizer = train_tokenizer(
        schema.TokenizerSection(kind="word", vocabulary_size=50, user_symbols=["|"]), iter(lines)
    )
    given_sentences = [
        BlockSentence(number, number == 5, (line,), (tokenizer.encode(line),)) for number, line in enumerate(lines)
    ]
    blocks = list(BlockPacker([tokenizer], "|", 5).blocks(given_sentences))
    # "a b | c" and </s> are 5; "d e f" would make 8; blank lines stand alone; h is of another document than g and i.
    assert [block.texts[0] for block in blocks] == ["a b | c", "d e f", "", "g", "h", "i i i i i i i i"]


class Fickle:
    """Cuts words into two pieces more often in long lines than in short ones."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner

    def encode(self, line: str) -> list[int]:
        ids = self._inner.encode(line)
        return ids + ids[:1] if len(ids) > 4 else ids


def test_the_limit_holds_where_a_line_is_cut_otherwise_in_company() -> None:
    words = trained("word")
    given_sentences = [BlockSentence(number, 0, (line,), (words.encode(line),)) for number, line in enumerate("abcdef")]
    blocks = list(BlockPacker([Fickle(words)], SEPARATOR, 6).blocks(given_sentences))  # type: ignore[list-item]
    assert [len(block.sentences) for block in blocks] == [2, 2, 2]
    assert all(len(block.ids[0]) < 6 for block in blocks)


def test_tags_of_a_block_are_those_of_its_words() -> None:
    words = trained("word")
    tags = [
        TaggedSentence(("a",), ("DT",), 1, tagset="penn"),
        TaggedSentence(("b", "c"), ("NN", "."), 2, tagset="penn"),
    ]
    given_sentences = [
        BlockSentence(number, 0, (" ".join(each.words),), (words.encode(" ".join(each.words)),), each)
        for number, each in enumerate(tags)
    ]
    (block,) = BlockPacker([words], SEPARATOR, 50).blocks(given_sentences)
    assert block.tags is not None
    assert block.tags.words == ("a", SEPARATOR, "b", "c") and block.tags.tags == ("DT", SEPARATOR, "NN", ".")
    assert block.tags.tagset == "penn"


@pytest.mark.parametrize(
    ("texts", "count", "lines"),
    [
        (["a", "b"], 2, ["a", "b"]),
        ([""], 1, [""]),
        (["a"], 3, ["a", "", ""]),
        (["a", "b", "c", "d"], 2, ["a", "b c d"]),
        (["a", "", "", "d"], 2, ["a", "d"]),
        (["a", "b"], 1, ["a b"]),
    ],
)
def test_missing_lines_are_empty_and_those_left_over_are_joined(texts: list[str], count: int, lines: list[str]) -> None:
    assert fit_to_line_count(texts, count) == lines


def test_a_vocabulary_without_the_separator_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(UserError, match="the separator '<sep>' is not a single token"):
            BlockPacker([trained(kind, symbols=())], SEPARATOR, 10)


def test_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    write_lines(path, ["0", " 0", "1", "one more "])
    assert list(read_document_ids(path)) == ["0", "0", "1", "one more"]
    attached = attach_documents(input_lines(["c", "d"], first=2), path, "text", first=2)
    assert [(line.text, line.document) for line in attached] == [("c", "1"), ("d", "one more")]


@pytest.mark.parametrize(
    ("ids", "message", "place"),
    [
        (["1", "", "2"], "the document id is missing", "line 2"),
        (["1", "2", "2", "1"], "document '1', which begins in line 1, continues after another document", "line 4"),
    ],
)
def test_ids_that_are_refused(tmp_path: Path, ids: list[str], message: str, place: str) -> None:
    path = tmp_path / "ids"
    write_lines(path, ids)
    with pytest.raises(UserError, match=message) as caught:
        list(read_document_ids(path))
    assert caught.value.where == f"{path}, {place}"


@pytest.mark.parametrize(("count", "line"), [(2, 3), (4, 4)])
def test_ids_of_another_number_than_lines(tmp_path: Path, count: int, line: int) -> None:
    path = tmp_path / "ids"
    write_lines(path, ["7"] * count)
    with pytest.raises(UserError, match=f"{count} document ids, but text has 3 lines") as caught:
        list(attach_documents(input_lines(list("abc")), path, "text"))
    assert caught.value.where == f"{path}, line {line}"
