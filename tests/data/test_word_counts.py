"""Counts of words in bounded memory, and what SentencePiece learns from them."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import pytest
import sentencepiece

from sparsenmt.data.text import read_lines
from sparsenmt.data.tokenizers import sentencepiece_tokenizer, symbol_tokenizers, unigram_seeds
from sparsenmt.data.tokenizers.tokenizer import train_tokenizer
from sparsenmt.data.tokenizers.unigram_seeds import seed_tokens
from sparsenmt.data.tokenizers.word_counts import WordCounts
from sparsenmt.data.vocabulary import UNK
from sparsenmt.recipe import schema

Lines = Callable[..., list[str]]


def counted(text: Iterable[list[str]], words: int, characters: int = 10**9) -> WordCounts:
    counts = WordCounts(words=words, characters=characters)
    for block in text:
        counts.add(block, sum(map(len, block)))
    return counts


def zipfian(blocks: int, seed: int = 0) -> list[list[str]]:
    """Blocks of 1,000 words, some very frequent, most rare."""
    generator = random.Random(seed)
    return [[f"w{int(50_000 ** generator.random())}" for _ in range(1000)] for _ in range(blocks)]


def test_counts_are_exact_while_the_words_fit() -> None:
    text = zipfian(20)
    exact = Counter(chain.from_iterable(text))
    counts = counted(text, words=len(exact), characters=sum(map(len, exact)))
    assert counts.most_frequent_first() == sorted(exact.items(), key=lambda entry: (-entry[1], entry[0]))
    assert counts.threshold == 1 and counts.lost_characters() == []


@pytest.mark.parametrize(("words", "characters"), [(1000, 10**9), (10**9, 5000)])
def test_a_full_table_keeps_frequent_words_and_the_sum(words: int, characters: int) -> None:
    text = zipfian(100)
    exact = Counter(chain.from_iterable(text))
    counts = counted(text, words, characters)
    found = dict(counts.most_frequent_first())
    assert counts.threshold > 1
    assert len(found) <= words and sum(map(len, found)) <= characters
    frequent = [word for word, count in exact.items() if count > 10 * counts.threshold]
    assert len(frequent) > 10
    for word in frequent:
        assert abs(found[word] - exact[word]) <= 2 * counts.threshold
    # Rare words lose what was counted before they were left out for a time: the more, the smaller the table.
    assert 0.75 < sum(found.values()) / 100_000 < 1.05
    again = counted(text, words, characters).most_frequent_first()
    assert dict(again) == found


def test_text_without_repetition_is_sampled_evenly() -> None:
    """As lines without spaces: all are different, and the first are as good as the last."""
    text = [[f"line{block}x{number}" for number in range(500)] for block in range(60)]
    found = counted(text, words=2000).most_frequent_first()
    assert 1500 < len(found) <= 2000
    early = sum(int(word[4:].split("x")[0]) < 30 for word, _ in found)
    assert 0.4 < early / len(found) < 0.6
    assert 25_000 < sum(count for _, count in found) < 35_000


def test_characters_that_were_lost_are_known() -> None:
    text = [[f"{chr(0x4E00 + 20 * block + number % 20)}{number}" for number in range(200)] for block in range(30)]
    counts = counted(text, words=100)
    kept = {letter for word, _ in counts.most_frequent_first() for letter in word}
    lost = counts.lost_characters()
    assert lost and not kept.intersection(lost)
    assert kept.union(lost) == {letter for block in text for word in block for letter in word}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_every_character_stays_coverable(kind: str, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sentencepiece_tokenizer, symbol_tokenizers):
        monkeypatch.setattr(module, "TABLE_WORDS", 60)
    letters = [chr(0x4E00 + number) for number in range(80)]
    text = [*lines(400), *(f"ka {letter}lo{number} mi" for number, letter in enumerate(letters)), *lines(400, seed=1)]
    size = {"word": 700}.get(kind, 300)
    options = schema.TokenizerSection(kind=kind, vocabulary_size=size)  # type: ignore[arg-type]
    tokenizer = train_tokenizer(options, text)
    if kind != "word":
        assert not any(UNK in ids for ids in tokenizer.encode_batch(text))
    assert tokenizer.pieces(range(tokenizer.size)) == train_tokenizer(options, text).pieces(range(tokenizer.size))


def plain(options: schema.TokenizerSection, lines: Iterable[str]) -> sentencepiece.SentencePieceProcessor:
    """What SentencePiece learns from lines of text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=options.kind,
        vocab_size=options.vocabulary_size,
        character_coverage=options.character_coverage,
        normalization_rule_name=options.normalization,
        max_sentence_length=1 << 30,
        hard_vocab_limit=options.kind == "bpe",
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "num_threads": 2, "minloglevel": 3},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces(processor: sentencepiece.SentencePieceProcessor) -> list[tuple[str, float]]:
    return [(processor.id_to_piece(id_), processor.get_score(id_)) for id_ in range(processor.get_piece_size())]


def learned(options: schema.TokenizerSection, lines: Iterable[str], directory: Path) -> list[tuple[str, float]]:
    train_tokenizer(options, lines).save(directory, "x")
    return pieces(sentencepiece.SentencePieceProcessor(model_file=str(directory / "x.model")))


@pytest.mark.parametrize("normalization", ["identity", "nfkc", "nmt_nfkc"])
def test_bpe_learns_the_same_from_counts_as_from_lines(lines: Lines, tmp_path: Path, normalization: str) -> None:
    odd = ["e\u0301 \u0301a", "ﬁ\u00a0ﬁn", "\u3000x  y\u2003z", "ka\u2581lo", "日本語 日本", "a\u200bb", "½ ①"] * 5
    options = schema.TokenizerSection(vocabulary_size=120, normalization=normalization)  # type: ignore[arg-type]
    assert learned(options, lines(400) + odd, tmp_path) == pieces(plain(options, lines(400) + odd))


@pytest.mark.parametrize("coverage", [1.0, 0.9995])
def test_bpe_learns_the_same_on_real_text(real_data: Path, tmp_path: Path, coverage: float) -> None:
    names = ("multi30k/train.en.gz", "multi30k/train.de.gz", "wmt-10k/train.en.gz", "wmt-10k/train.de.gz")
    lines = [line for name in names if (real_data / name).exists() for line in read_lines(real_data / name)]
    options = schema.TokenizerSection(vocabulary_size=8000, character_coverage=coverage)
    assert learned(options, lines, tmp_path) == pieces(plain(options, lines))


@pytest.mark.thorough
def test_unigram_needs_no_more_pieces_than_from_lines(real_data: Path, tmp_path: Path) -> None:
    """The pieces are not the same (SentencePiece starts from others), but no worse for text that was not seen."""
    lines = [line for side in ("en", "de") for line in read_lines(real_data / f"multi30k/train.{side}.gz")]
    unseen = [line for side in ("en", "de") for line in read_lines(real_data / f"multi30k/val.{side}.gz")]
    options = schema.TokenizerSection(kind="unigram", vocabulary_size=8000)
    tokenizer, library = train_tokenizer(options, lines), plain(options, lines)
    names = {name for name, _ in pieces(library)}
    assert len(names.intersection(tokenizer.pieces(range(tokenizer.size)))) > 0.7 * len(names)
    ours, theirs = (sum(map(len, ids)) for ids in (tokenizer.encode_batch(unseen), library.encode(unseen)))
    assert ours < 1.01 * theirs


@pytest.mark.parametrize("longest", [3, 16])
def test_seeds_equal_naive_counts(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram_seeds, "LONGEST_SEED", longest)
    generator = random.Random(1)
    words = sorted({"▁" + "".join(generator.choices("abcé日", k=generator.randint(1, 20))) for _ in range(300)})
    counts = [generator.randint(1, 9) for _ in words]
    parts: Counter[str] = Counter()
    for word, count in zip(words, counts, strict=True):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + longest) + 1):
                parts[word[start:end]] += count
    best_child: Counter[str] = Counter()
    for part, count in parts.items():
        best_child[part[:-1]] = max(best_child[part[:-1]], count)
    wanted = {p: n for p, n in parts.items() if len(p) > 1 and n >= 2 and n > best_child[p]}
    characters = [(p, n) for p, n in parts.items() if len(p) == 1]
    found = list(seed_tokens(words, counts, 10**6))
    assert found[: len(characters)] == sorted(characters, key=lambda entry: (-entry[1], entry[0]))
    assert dict(found[len(characters) :]) == wanted
    scores = [len(piece) * count for piece, count in found[len(characters) :]]
    assert scores == sorted(scores, reverse=True)
    assert list(seed_tokens(words, counts, 10))[len(characters) :] == found[len(characters) :][:10]
