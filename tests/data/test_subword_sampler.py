"""Random divisions into tokens: SentencePiece's own distributions, and texts that do not change."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import sentencepiece

from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.subword_sampler import SubwordSampler, subword_sampler
from sparsenmt.data.tokenizers.symbol_tokenizers import CharTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import SubwordSampling, TokenizerSection
from tests.examples import examples

SYLLABLES = [a + b + c for a in "bdkst" for b in "aeiou" for c in ("", "n", "r")]
SAMPLES = 12_000


def words(seed: int) -> str:
    generator = random.Random(seed)
    return " ".join("".join(generator.choices(SYLLABLES[:30], k=generator.randint(1, 3))) for _ in range(6))


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, SentencePieceTokenizer]:
    lines = [words(seed) for seed in range(400)]
    found = {}
    for kind in ("bpe", "unigram"):
        options = TokenizerSection.model_validate(
            {"kind": kind, "vocabulary_size": 90, "user_symbols": ["<sep>"], "normalization": "nfkc"}
        )
        made = train_tokenizer(options, iter(lines))
        assert isinstance(made, SentencePieceTokenizer)
        found[kind] = made
    return found


def sampler_of(tokenizer: Tokenizer, **options: Any) -> SubwordSampler:
    return subword_sampler(tokenizer, SubwordSampling(**options), "data.subword_regularization.source")


def samples(sampler: SubwordSampler, ids: Sequence[int]) -> Counter[tuple[int, ...]]:
    draw = random.Random(7).random
    return Counter(tuple(sampler.sample(ids, draw)) for _ in range(SAMPLES))


def chi_square(ours: Counter[tuple[int, ...]], theirs: Counter[tuple[int, ...]]) -> tuple[float, float]:
    """The two-sample statistic, rare divisions together; and its bound, which chance exceeds once in 3 million runs.

    The bound is Wilson and Hilferty's (1931) at five standard deviations.
    """
    assert ours.total() == theirs.total()
    cells: Counter[tuple[int, ...]] = Counter()
    for key in ours | theirs:
        cells[key if ours[key] + theirs[key] >= 20 else ()] += 1
    statistic, used = 0.0, 0
    for key in cells:
        members = [key] if key else [each for each in ours | theirs if ours[each] + theirs[each] < 20]
        a, b = sum(ours[each] for each in members), sum(theirs[each] for each in members)
        statistic, used = statistic + (a - b) ** 2 / (a + b), used + 1
    freedom = max(used - 1, 1)
    return statistic, freedom * (1 - 2 / (9 * freedom) + 5 * math.sqrt(2 / (9 * freedom))) ** 3


@examples(
    ("kind", "options", "own"),
    [
        ("bpe", {"dropout": 0.1}, (-1, 0.1)),
        ("bpe", {"dropout": 0.5}, (-1, 0.5)),
        ("unigram", {"alpha": 0.3}, (-1, 0.3)),
        ("unigram", {"alpha": 0.2, "nbest": 8}, (8, 0.2)),
    ],
    fast=[("bpe", {"dropout": 0.1}, (-1, 0.1)), ("unigram", {"alpha": 0.3}, (-1, 0.3))],
)
def test_divisions_have_the_distribution_of_sentencepiece(
    tokenizers: dict[str, SentencePieceTokenizer], kind: str, options: dict[str, Any], own: tuple[int, float]
) -> None:
    tokenizer, text = tokenizers[kind], "banderka sin"
    model: Any = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = tokenizer.encode(text)
    theirs = Counter(tuple(model.sample_encode_as_ids(text, *own)) for _ in range(SAMPLES))
    statistic, bound = chi_square(samples(sampler_of(tokenizer, **options), ids), theirs)
    assert len(theirs) >= 5 and statistic < bound
    key = "dropout" if kind == "bpe" else "alpha"
    other = sampler_of(tokenizer, **{**options, key: options[key] + 0.15})
    statistic, bound = chi_square(samples(other, ids), theirs)
    assert statistic > bound, "the test would not notice another parameter"


def test_unigram_probabilities_are_those_of_all_divisions(tokenizers: dict[str, SentencePieceTokenizer]) -> None:
    """Kudo (2018), equation 7, over all ways to cut a word, written down naively."""
    tokenizer = tokenizers["unigram"]
    model: Any = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    scores = {model.id_to_piece(i): model.get_score(i) for i in range(tokenizer.size) if not model.is_control(i)}
    text = "\u2581bandir"
    weights = {}
    for size in range(len(text)):
        for cuts in itertools.combinations(range(1, len(text)), size):
            parts = [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]
            if all(part in scores for part in parts):
                weights[tuple(model.piece_to_id(part) for part in parts)] = math.exp(
                    0.4 * sum(scores[p] for p in parts)
                )
    counts = samples(sampler_of(tokenizer, alpha=0.4), tokenizer.encode("bandir"))
    assert set(counts) <= set(weights)
    total = sum(weights.values())
    for ids, weight in weights.items():
        expected = SAMPLES * weight / total
        assert abs(counts[ids] - expected) < 5.5 * math.sqrt(expected) + 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [("bpe", {"dropout": 0.3}), ("unigram", {"alpha": 0.1}), ("unigram", {"alpha": 0.1, "nbest": 20})],
)
def test_the_text_stays_and_so_do_tokens_that_are_no_text(
    tokenizers: dict[str, SentencePieceTokenizer], kind: str, options: dict[str, Any]
) -> None:
    tokenizer = tokenizers[kind]
    sampler = sampler_of(tokenizer, **options)
    symbol = tokenizer.encode("<sep>")
    assert len(symbol) == 1
    changed = 0
    for seed in range(40):
        text = f"{words(seed)} <sep> b\u00e9n zz\u4e2d {words(seed + 1)}"
        ids = tokenizer.encode(text)
        draw = random.Random(seed).random
        drawn = sampler.sample(ids, draw)
        assert tokenizer.decode(drawn) == tokenizer.decode(ids)
        assert [id_ for id_ in drawn if id_ in (UNK, *symbol)] == [id_ for id_ in ids if id_ in (UNK, *symbol)]
        assert drawn == sampler.sample(ids, random.Random(seed).random)
        changed += drawn != ids
    assert UNK in ids and changed > 30
    assert sampler.sample([], random.Random(1).random) == []


def test_the_tokens_of_an_imported_model_are_sampled_by_their_own_numbers(
    tokenizers: dict[str, SentencePieceTokenizer],
) -> None:
    ours = tokenizers["unigram"]
    names = ours.pieces(range(len(SPECIAL_TOKENS), ours.size))
    theirs = PieceTokenizer(ours.model, [*reversed(names), "__fr__"], markers=[ours.size])
    text = words(3)
    drawn = sampler_of(theirs, alpha=0.2).sample(theirs.encode(text), random.Random(1).random)
    assert drawn != theirs.encode(text) and theirs.decode(drawn) == text


def test_a_tokenizer_of_another_kind_is_refused(tokenizers: dict[str, SentencePieceTokenizer]) -> None:
    options = TokenizerSection.model_validate({"kind": "char", "vocabulary_size": 50})
    for tokenizer, wanted in (
        (tokenizers["bpe"], {"alpha": 0.1}),
        (tokenizers["unigram"], {"dropout": 0.1}),
        (CharTokenizer.train(options, iter(["abc"])), {"dropout": 0.1}),
    ):
        with pytest.raises(UserError) as caught:
            sampler_of(tokenizer, **wanted)
        assert caught.value.where == "data.subword_regularization.source" and "no SentencePiece model of" in str(
            caught.value
        )
