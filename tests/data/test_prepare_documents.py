"""`prepare` with documents: blocks in the store, features defined over them, ids kept for validation."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.documents import separator_id
from sparsenmt.data.prepare.pipeline import PreparedData, check_prepared_data, prepare
from sparsenmt.data.tagging import taggers
from sparsenmt.data.tagging.tagsets import TagSet, WordCategory
from sparsenmt.data.text import write_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]
LIMIT = 40
BLOCKS = schema.Documents(max_length=LIMIT)
FEATURES = ("word_id", "frequency_rank", "frequency_coverage")
IDS = [f"doc{number // 6}" for number in range(90)]
DEV_IDS = [str(number // 4) for number in range(20)]


@pytest.fixture
def with_documents(make_data: MakeData, lines: Lines, tmp_path: Path) -> MakeData:
    """Two training corpora, of which the first has documents, and a dev set that has some."""

    def make(*, documents: schema.Documents | None = BLOCKS, **options: object) -> schema.Data:
        corpora = [(lines(90), lines(90, seed=1)), (lines(15, seed=4), lines(15, seed=5))]
        data = make_data(corpora, documents=documents, **options)
        write_lines(tmp_path / "train0.id", IDS)
        write_lines(tmp_path / "dev.id", DEV_IDS)
        train = [data.train[0].model_copy(update={"documents": str(tmp_path / "train0.id")}), data.train[1]]
        dev = data.dev.model_copy(update={"documents": str(tmp_path / "dev.id")})
        return data.model_copy(update={"train": train, "dev": dev})

    return make


def known(line: str, tokenizer: Tokenizer) -> str:
    """The line without the words that the vocabulary does not have."""
    return tokenizer.decode(tokenizer.encode(line))


def sentences_of(dataset: Dataset, data: PreparedData) -> list[tuple[int, list[str], list[str]]]:
    """Of every stored block the line it begins with, and its sentences on both sides."""
    found = []
    for index in range(len(dataset)):
        sides = []
        for ids, tokenizer in (
            (dataset.source(index), data.tokenizers.source),
            (dataset.target(index), data.tokenizers.target),
        ):
            separator = separator_id(tokenizer, "<sep>")
            assert ids[-1] == EOS and EOS not in ids[:-1]
            groups = itertools.groupby(ids[:-1].tolist(), key=lambda id_: id_ == separator)
            sides.append([tokenizer.decode(list(group)).strip(" ") for is_end, group in groups if not is_end])
        found.append((int(dataset.line_numbers[index]), sides[0], sides[1]))
    return found


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
@pytest.mark.parametrize("shared", [True, False])
def test_blocks_hold_the_text(with_documents: MakeData, lines: Lines, kind: str, shared: bool) -> None:
    size = 1000 if kind == "word" else 70
    limit = 200 if kind == "char" else LIMIT
    options = {"kind": kind, "shared": shared, "vocabulary_size": size}
    data = with_documents(tokenizer=options, documents=schema.Documents(max_length=limit))
    report = prepare(data, features=FEATURES)
    one, two = report.corpora
    assert (one.counts.kept, one.documents, two.blocks) == (90, 15, None)
    assert f"90 of 90 pairs kept, packed into {one.blocks} blocks of 15 documents" in report.describe()

    prepared = PreparedData.open(data.directory)
    assert prepared.dev_documents == DEV_IDS and len(prepared.dev_lines) == 20
    first, second = prepared.train
    assert 15 <= len(first) == one.blocks < 90 and len(second) == 15
    for dataset, seeds, ids in ((first, (0, 1), IDS), (prepared.dev, (2, 3), DEV_IDS)):
        tokenizers = (prepared.tokenizers.source, prepared.tokenizers.target)
        sources, targets = (
            [known(line, tokenizer) for line in lines(len(ids), seed=seed)]
            for seed, tokenizer in zip(seeds, tokenizers, strict=True)
        )
        line = 0
        for begins, ours, theirs in sentences_of(dataset, prepared):
            assert begins == line
            assert (ours, theirs) == (sources[line : line + len(ours)], targets[line : line + len(ours)])
            assert len(set(ids[line : line + len(ours)])) == 1
            line += len(ours)
        assert line == len(ids)
        longest = [max(dataset.source_lengths[i], dataset.target_lengths[i]) for i in range(len(dataset))]
        alone = [len(ours) == 1 for _, ours, _ in sentences_of(dataset, prepared)]
        assert all(length <= limit or single for length, single in zip(longest, alone, strict=True))
    for index in range(len(first)):
        ids = first.source(index).astype("int64")
        assert first.feature("word_id", index).tolist() == word_ids(ids, prepared.tokenizers.source).tolist()


def test_the_vocabulary_gets_the_separator_once(with_documents: MakeData) -> None:
    plain = with_documents()
    prepare(plain)
    model = (Path(plain.directory) / "tokenizers" / "shared.model").read_bytes()
    shutil.rmtree(plain.directory)
    # The vocabulary of a model of sentences that knows the separator is the same.
    prepare(with_documents(tokenizer={"user_symbols": ["<sep>"]}, documents=None))
    assert (Path(plain.directory) / "tokenizers" / "shared.model").read_bytes() == model
    shutil.rmtree(plain.directory)
    prepare(with_documents(tokenizer={"user_symbols": ["<sep>"]}))
    assert (Path(plain.directory) / "tokenizers" / "shared.model").read_bytes() == model


def test_filters_look_at_sentences(with_documents: MakeData, lines: Lines, tmp_path: Path) -> None:
    data = with_documents(tokenizer={"kind": "word", "vocabulary_size": 500}, filters=schema.Filters(max_length=10))
    texts = lines(90)
    texts[2], texts[3] = "", "ka " * 11
    write_lines(tmp_path / "train0.s", texts)
    report = prepare(data).corpora[0]
    assert report.counts.removed["empty"] == 1
    dropped = [
        n
        for n, (a, b) in enumerate(zip(texts, lines(90, seed=1), strict=True))
        if not 0 < len(a.split()) <= 10 or len(b.split()) > 10
    ]
    prepared = PreparedData.open(data.directory)
    found = [line for _, ours, _ in sentences_of(prepared.train[0], prepared) for line in ours]
    assert 3 in dropped and report.counts.kept == 90 - len(dropped)
    assert found == [text for number, text in enumerate(texts) if number not in dropped]


def test_up_to_date_changed_and_checked(with_documents: MakeData, tmp_path: Path) -> None:
    data = with_documents()
    fingerprints = [prepare(data).fingerprint]
    assert prepare(data).up_to_date
    check_prepared_data(data, ())
    shorter = data.model_copy(update={"documents": schema.Documents(max_length=30)})
    with pytest.raises(UserError, match=r"prepared with other settings: .*max_length"):
        check_prepared_data(shorter, ())
    fingerprints.append(prepare(shorter).fingerprint)
    unpacked = data.model_copy(update={"documents": None, "tokenizer": data.tokenizer})
    fingerprints.append(prepare(unpacked).fingerprint)
    assert PreparedData.open(data.directory).dev_documents == DEV_IDS, "for a metric"
    write_lines(tmp_path / "train0.id", ["a"] * 90)
    assert prepare(unpacked).up_to_date, "without blocks, nothing reads them"
    fingerprints.append(prepare(data).fingerprint)
    assert len(set(fingerprints)) == 4
    decoding_only = data.model_copy(update={"documents": schema.Documents(max_length=LIMIT, source_length=20)})
    assert prepare(decoding_only).up_to_date


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[1:], "89 document ids, but .*train0.s has 90 lines"),
        ([*IDS, "more"], "91 document ids, but .*train0.s has 90 lines"),
        ([*IDS[:50], "doc0", *IDS[51:]], "document 'doc0', which begins in line 1, continues after another document"),
        ([*IDS[:50], " ", *IDS[51:]], "the document id is missing"),
    ],
)
def test_ids_that_do_not_fit_are_refused(
    with_documents: MakeData, tmp_path: Path, ids: list[str], message: str
) -> None:
    data = with_documents()
    write_lines(tmp_path / "train0.id", ids)
    with pytest.raises(UserError, match=message) as caught:
        prepare(data)
    assert caught.value.where is not None and "train0.id, line " in caught.value.where
    assert not Path(data.directory).exists()


def test_text_with_the_separator_is_refused(with_documents: MakeData, lines: Lines, tmp_path: Path) -> None:
    data = with_documents()
    texts = lines(90)
    texts[7] += " <sep> ka"
    write_lines(tmp_path / "train0.s", texts)
    with pytest.raises(UserError, match="the text contains the separator '<sep>'") as caught:
        prepare(data)
    assert str(caught.value.where).endswith("train0.t, line 8")
    assert not Path(data.directory).exists()
    prepare(data.model_copy(update={"documents": schema.Documents(max_length=LIMIT, separator="<end>")}))


class ByLength:
    """Long words are nouns, short ones are articles; how often a line is tagged is counted."""

    name, version = "hanta", "1"
    tagset: TagSet = "penn"
    longest = 0

    def __init__(self, language: str) -> None:
        self.language = language

    def tokenize(self, line: str) -> list[str]:
        return line.split()

    def tag(self, words: Sequence[str]) -> list[str]:
        ByLength.longest = max(ByLength.longest, len(words))
        return ["NN" if len(word) > 3 else "DT" for word in words]


@pytest.mark.parametrize("given", [False, True])
def test_sentences_of_a_block_are_tagged_one_by_one(
    with_documents: MakeData, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    monkeypatch.setitem(taggers._TAGGERS, "hanta", ByLength)
    ByLength.longest = 0
    data = with_documents(source_language="en", filters=schema.Filters(max_length=25))
    if given:
        tagger = ByLength("en")
        tags = [tagger.tag(line.split()) for line in lines(90)]
        pairs = [zip(line.split(), tag, strict=True) for line, tag in zip(lines(90), tags, strict=True)]
        write_lines(tmp_path / "tags", [" ".join(f"{word}_{tag}" for word, tag in pair) for pair in pairs])
        tagged = data.train[0].model_copy(update={"tags": str(tmp_path / "tags")})
        data = data.model_copy(update={"train": [tagged, data.train[1]]})
    report = prepare(data, features=("pos_category", "later_piece"))
    assert 0 < report.corpora[0].counts.kept < 90
    assert 0 < ByLength.longest <= 12, "a line has at most 12 words"
    prepared = PreparedData.open(data.directory)
    dataset = prepared.train[0]
    tokenizer = prepared.tokenizers.source
    separator = separator_id(tokenizer, "<sep>")
    for index in range(len(dataset)):
        ids, categories = dataset.source(index).tolist(), dataset.feature("pos_category", index).tolist()
        words = word_ids(ids, tokenizer)
        text = tokenizer.decode(ids[:-1]).split()
        for id_, category, word in zip(ids[:-1], categories[:-1], words[:-1].tolist(), strict=True):
            if tokenizer.pieces([id_]) == [SPACE]:  # a piece of no word
                continue
            expected = (
                WordCategory.REST
                if id_ == separator
                else WordCategory.CONTENT
                if len(text[word]) > 3
                else WordCategory.FUNCTION
            )
            assert category == expected
        assert categories[-1] == WordCategory.END
