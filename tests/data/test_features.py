"""Source features, against naive counts of words."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from sparsenmt.data.dataset import Dataset, DatasetWriter
from sparsenmt.data.features import source_features, word_frequency
from sparsenmt.data.features.feature_set import FeatureSet, need_tags
from sparsenmt.data.features.source_features import FeatureInputs, SourceFeature, register_feature
from sparsenmt.data.tagging.source_tagger import SourceSentences
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError
from sparsenmt.plugins import failure
from sparsenmt.recipe import schema

Lines = Callable[..., list[str]]
NAMES = ("word_id", "frequency_coverage", "frequency_rank")


def stored(directory: Path, tokenizer: Tokenizer, lines: list[str]) -> Dataset:
    with DatasetWriter(directory, name="x", source_size=tokenizer.size, target_size=tokenizer.size) as writer:
        writer.append(tokenizer.encode_batch(lines), [[5]] * len(lines), range(len(lines)))
    return Dataset(directory)


def fitted(directory: Path, kind: str, *corpora: list[str], size: int = 60) -> tuple[Tokenizers, FeatureSet]:
    options = schema.TokenizerSection(kind=kind, vocabulary_size=size)  # type: ignore[arg-type]
    tokenizer = train_tokenizer(options, [line for corpus in corpora for line in corpus])
    tokenizers = Tokenizers(tokenizer, tokenizer, True)
    datasets = [stored(directory / str(number), tokenizer, corpus) for number, corpus in enumerate(corpora)]
    return tokenizers, FeatureSet.fit(NAMES, tokenizers, datasets)


def naive_ranks(corpora: list[list[str]]) -> dict[str, int]:
    """Counter keeps the order in which words were seen first, and sorting keeps the order of ties."""
    counts = Counter(word for corpus in corpora for line in corpus for word in line.split())
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(), start=1)}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_ranks_equal_naive_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lines: Lines) -> None:
    monkeypatch.setattr(word_frequency, "_BLOCK", 100)  # so that many blocks are merged
    corpora = [lines(200), lines(100, seed=1)]
    tokenizers, features = fitted(tmp_path, kind, *corpora, size=60 if kind != "word" else 1000)
    ranks = naive_ranks(corpora)
    for line in [*corpora[0], *lines(50, seed=2)]:
        ids = [*tokenizers.source.encode(line), EOS]
        if UNK in ids:
            continue
        found = features.compute(ids, line)
        words = word_ids(ids, tokenizers.source)
        expected = [ranks.get(word, len(ranks) + 1) for word in line.split()] + [0]
        assert found["frequency_rank"].tolist() == [expected[word] for word in words]
        assert found["word_id"].tolist() == words.tolist()
        assert all(values.dtype == np.int64 for values in found.values())


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_marks_at_the_ends_of_words_are_words(tmp_path: Path, kind: str) -> None:
    """A twin that cuts with an expression what the features cut in pieces."""
    corpus = ["a dog, a cat.", "a t-shirt, dogs and a dog.", "(a cat) cats!", "- it's a dog -"] * 3
    tokenizers, features = fitted(tmp_path, kind, corpus, size=45)
    cut = [re.findall(r"\w+(?:[-']\w+)*|[^\w\s]", line) for line in corpus]
    counts = Counter(word for line in cut for word in line).most_common()
    ranks = {word: rank for rank, (word, _) in enumerate(counts, start=1)}
    total = sum(count for _, count in counts)
    covered = {word: 10_000 * sum(c for _, c in counts[: ranks[word]]) // total for word in ranks}
    for line, words in zip(corpus, cut, strict=True):
        ids = [*tokenizers.source.encode(line), EOS]
        found = features.compute(ids, line)
        pieces = [piece.strip(SPACE) for piece in tokenizers.source.pieces(ids[:-1])]
        taken = 0  # characters of the words that the pieces before have taken
        for piece, rank, coverage in zip(pieces, found["frequency_rank"], found["frequency_coverage"], strict=False):
            number = next(n for n in range(len(words)) if sum(map(len, words[: n + 1])) > taken)
            assert not piece or piece in words[number], "no piece of the test reaches over two words"
            assert (rank, coverage) == (ranks[words[number]], covered[words[number]])
            taken += len(piece)
        assert (found["frequency_rank"][-1], found["frequency_coverage"][-1]) == (0, 0)


def test_coverage_of_what_was_never_seen(tmp_path: Path) -> None:
    tokenizers, features = fitted(tmp_path, "word", ["b a b", "a b c d", "e"], size=7)  # keeps b, a, c
    ids = [*tokenizers.source.encode("a zz b c"), EOS]
    # Words that hold unknown pieces are not counted: b 3, a 2, c 1.
    assert features.compute(ids, "")["frequency_coverage"].tolist() == [8333, 10_000, 5000, 10_000, 0]


def test_a_full_table_keeps_the_most_frequent_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_frequency, "_BLOCK", 100)
    monkeypatch.setattr(word_frequency, "_WORDS", 50)
    generator = random.Random(1)
    corpus = [" ".join(f"w{int(400 ** generator.random())}" for _ in range(10)) for _ in range(500)]
    tokenizers, features = fitted(tmp_path, "word", corpus, size=1000)
    exact = naive_ranks([corpus])
    for word, rank in list(exact.items())[:10]:
        ids = [*tokenizers.source.encode(word), EOS]
        assert features.compute(ids, word)["frequency_rank"].tolist() == [rank, 0]
    last = [*tokenizers.source.encode(list(exact)[-1]), EOS]
    assert features.compute(last, "")["frequency_rank"].tolist() == [51, 0]


def test_unknown_words(tmp_path: Path) -> None:
    tokenizers, features = fitted(tmp_path, "word", ["b a b", "a b c d", "e"], size=7)  # keeps b, a, c
    ids = [*tokenizers.source.encode("a zz b c"), EOS]
    assert features.compute(ids, "")["frequency_rank"].tolist() == [2, 4, 1, 3, 0]


def test_a_sentence_that_is_empty(tmp_path: Path, lines: Lines) -> None:
    _, features = fitted(tmp_path, "bpe", lines(100))
    found = features.compute([EOS], "")
    assert found["word_id"].tolist() == [0]
    assert found["frequency_rank"].tolist() == [0]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_saved_and_loaded(tmp_path: Path, kind: str, lines: Lines) -> None:
    tokenizers, features = fitted(tmp_path, kind, lines(100))
    features.save(tmp_path / "saved")
    loaded = FeatureSet.load(tmp_path / "saved", tokenizers)
    assert loaded.names == features.names == tuple(sorted(NAMES))
    for line in lines(30, seed=3):
        ids = [*tokenizers.source.encode(line), EOS]
        for name in NAMES:
            assert loaded.compute(ids, line)[name].tolist() == features.compute(ids, line)[name].tolist()
    (tmp_path / "saved" / "frequency_rank.bin").unlink()
    with pytest.raises(UserError, match=r"frequency_rank\.bin"):
        FeatureSet.load(tmp_path / "saved", tokenizers)


def test_unknown_feature(tmp_path: Path, lines: Lines) -> None:
    tokenizers, _ = fitted(tmp_path, "bpe", lines(100))
    with pytest.raises(UserError, match="unknown source feature 'mood'") as caught:
        FeatureSet.fit(["mood"], tokenizers, [])
    assert "word_id" in str(caught.value)


def test_words_need_boundaries(tmp_path: Path, lines: Lines) -> None:
    """No kind of tokenizer loses them, but a SentencePiece model without U+2581 would."""
    tokenizers, features = fitted(tmp_path, "bpe", lines(100))
    features.save(tmp_path / "saved")
    tokenizers.source.keeps_word_boundaries = False  # type: ignore[misc]
    for attempt in (
        lambda: FeatureSet.fit(["word_id"], tokenizers, []),
        lambda: FeatureSet.load(tmp_path / "saved", tokenizers),
    ):
        with pytest.raises(UserError, match="keeps no word boundaries") as caught:
            attempt()
        assert caught.value.where == "data.tokenizer" and caught.value.hint


def test_no_features(tmp_path: Path, lines: Lines) -> None:
    tokenizers, _ = fitted(tmp_path, "bpe", lines(100))
    features = FeatureSet.fit([], tokenizers, [])
    assert features.compute([5, EOS], "x") == {}
    features.save(tmp_path / "none")
    assert FeatureSet.load(tmp_path / "none", tokenizers).names == ()


# Features from outside the package


class Letters(SourceFeature):
    """The number of letters of a token, less what the most frequent one has."""

    files = ("letters.bin",)
    wrong: Callable[[np.ndarray], object] | None = None

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Letters:
        return cls(inputs, np.array([1], dtype=np.uint64))

    def compute(self, sources: SourceSentences) -> np.ndarray:
        names = self.inputs.tokenizer.pieces(sources.ids.tolist())
        found = np.array([len(name) for name in names], dtype=np.int64) - int(self.state[0][0])
        return found if self.wrong is None else self.wrong(found)  # type: ignore[return-value]


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> type[Letters]:
    monkeypatch.setitem(source_features.FEATURES, "letters", Letters)
    return Letters


def test_a_feature_from_outside_is_fitted_saved_and_computed(tmp_path: Path, lines: Lines, letters: object) -> None:
    tokenizers, _ = fitted(tmp_path, "word", lines(50), size=200)
    features = FeatureSet.fit(["letters", "word_id"], tokenizers, [])
    features.save(tmp_path / "features")
    line = lines(1, seed=3)[0]
    ids = [*tokenizers.source.encode(line), EOS]
    expected = [len(name) - 1 for name in tokenizers.source.pieces(ids)]
    for each in (features, FeatureSet.load(tmp_path / "features", tokenizers)):
        assert each.names == ("letters", "word_id") and each.compute(ids, line)["letters"].tolist() == expected


def test_names_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_features, "FEATURES", dict(source_features.FEATURES))
    monkeypatch.setattr(failure, "TITLES", {})
    assert register_feature("letters")(Letters) is Letters
    assert register_feature("letters")(Letters) is Letters, "its module may be imported again"
    other = type("Other", (SourceFeature,), {"files": ("other.bin",), "__module__": "elsewhere"})
    taken = type("Other", (SourceFeature,), {"files": ("letters.bin",), "__module__": "elsewhere"})
    for name, feature, message in (
        ("letters", other, "'letters' is registered already, by .*test_features"),
        ("word_id", other, "'word_id' is registered already"),
        ("Word id", other, "is no name of a source feature"),
        ("one", other, "'other.bin' is no file of source feature 'one'"),
        ("letter", taken, "'letters.bin' is no file of source feature 'letter'"),
    ):
        with pytest.raises(ValueError, match=message):
            register_feature(name)(feature)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda found: found[:-1], r"int64 \(2,\), not \(3,\) integers"),
        (lambda found: found / 2, r"float64 \(3,\)"),
        (lambda found: found - 100, r"int64 \(3,\), not \(3,\) integers from 0"),
        (lambda found: found + 2**31, "integers from 0 to 2,147,483,647"),
        (lambda found: found.tolist(), "gives list"),
    ],
)
def test_what_a_feature_gives_is_checked(
    tmp_path: Path, lines: Lines, letters: type[Letters], monkeypatch: pytest.MonkeyPatch, wrong: object, what: str
) -> None:
    tokenizers, _ = fitted(tmp_path, "word", lines(50), size=200)
    features = FeatureSet.fit(["letters"], tokenizers, [])
    monkeypatch.setattr(letters, "wrong", staticmethod(wrong))
    with pytest.raises(UserError, match="the source feature 'letters' .*" + what) as error:
        features.compute([5, 6, EOS], "")
    assert error.value.where == __file__


def test_a_feature_that_is_not_registered_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown source feature 'nothing'") as error:
        need_tags(["nothing"])
    assert "SPARSENMT_PLUGINS" in str(error.value.hint) and "word_id" in str(error.value.hint)
