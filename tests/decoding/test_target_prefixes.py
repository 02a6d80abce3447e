"""Outputs begin with the prefixes that they are given, in every search, and score as forced decoding does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.decoding.beam import BeamSearch
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.build import build
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from sparsenmt.strategy import STRATEGIES, register_strategy
from tests.decoding.support import (
    banned,
    encode,
    finished,
    invented_lines,
    next_log_probabilities,
    packed,
    sources,
    tiny_bundle,
    tiny_model,
)
from tests.decoding.test_strategies import EmptySearch

PREFIXES = [(5, 7, 4), (), (9,), (6, 6, 8, 10, 4)]
METHODS = [{"method": "beam", "beam_size": 3}, {"method": "greedy"}, {"method": "sample", "seed": 5}]


def naive(model: Transformer, source: list[int], limit: int, prefix: Sequence[int], options: Decoding) -> Any:
    """Beam search in plain loops in which, while the prefix lasts, there is one continuation."""
    memory, k = encode(model, [source]), options.beam_size
    beam: list[tuple[list[int], float]] = [([], 0.0)]
    ended = []
    for step in range(limit):
        candidates = []
        for tokens, score in beam:
            values = next_log_probabilities(model, memory, tokens)
            free = set(range(len(values))) - banned(tokens, len(values), options)
            candidates += [([*tokens, t], score + values[t]) for t in (free if step >= len(prefix) else [prefix[step]])]
        candidates.sort(key=lambda each: -each[1])
        ended += [finished(tokens, score, options) for tokens, score in candidates[:k] if tokens[-1] == 3]
        beam = [each for each in candidates if each[0][-1] != 3][:k]
        if len(ended) >= k or not beam:
            break
    else:
        ended.sort(key=lambda each: -each.score)
        return (ended + [finished(*each, options) for each in beam])[:k]
    return sorted(ended, key=lambda each: -each.score)[:k]


def search(
    model: Transformer,
    options: Decoding,
    limits: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    native: bool = False,
) -> list[list[Hypothesis]]:
    rows = sources(3, (4, 8, 2, 6))[: len(limits)]
    longest = max(map(len, prefixes))
    required = torch.tensor([[*each, *[-1] * (longest - len(each))] for each in prefixes])
    numbers = list(range(len(limits)))
    batch = EncodedBatch(encode(model, rows), torch.tensor(limits), numbers, numbers, required=required)
    engine = build(model) if native else TorchEngine(model)
    results: dict[int, list[Hypothesis]] = {}
    for found in strategy_of(options).search(engine, [batch], lambda sentences: nullcontext()):
        results |= found
    return [results[number] for number in numbers]


@pytest.mark.parametrize("extra", [{}, {"min_length": 4}, {"no_repeat_ngram": 1}, {"length_penalty": "average"}])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_a_beam_equals_plain_loops(beam_size: int, extra: dict[str, Any]) -> None:
    model, options = tiny_model(4, ending=2.0), Decoding.model_validate({"beam_size": beam_size, **extra})
    limits = [9, 7, 5, 8]
    for number, found in enumerate(search(model, options, limits, PREFIXES)):
        row = sources(3, (4, 8, 2, 6))[number]
        expected = naive(model, row, limits[number], PREFIXES[number], options)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.score == pytest.approx(theirs.score, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_both_engines_begin_alike(method: dict[str, Any]) -> None:
    options = Decoding.model_validate(method)
    ours, native = (
        search(tiny_model(4, ending=2.0, vocabulary=300, dtype=torch.float32), options, [9, 7, 5, 8], PREFIXES, own)
        for own in (False, True)
    )
    assert [[each.tokens for each in row] for row in ours] == [[each.tokens for each in row] for row in native]
    for row, prefix in zip(ours, PREFIXES, strict=True):
        assert all(tuple(each.tokens[: len(prefix)]) == prefix for each in row)


def prefixed(texts: Sequence[str], bundle: Any) -> list[InputLine]:
    begin = ["am Fluss ", "", "zwei", "alte Katzen spielen"]
    tokens = [tuple(bundle.tokenizers.target.encode(begin[i % 4])) for i in range(len(texts))]
    return [replace(line, prefix=own) for line, own in zip(input_lines(texts), tokens, strict=True)]


def translate(bundle: Any, lines: Sequence[InputLine], **values: Any) -> list[TranslatedLine]:
    options = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, **values})
    return list(translate_lines(bundle, lines, options))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_company_does_not_matter(method: dict[str, Any], native: bool) -> None:
    """Together, where unfinished searches are merged, and alone; of plain lines the outputs stay as they are."""
    bundle = tiny_bundle(2)
    bundle = packed(bundle, torch.float64) if native else bundle
    lines = prefixed(invented_lines(17, 3), bundle)
    together = translate(bundle, lines, **method)
    alone = [translate(bundle, [line], **method)[0] for line in lines]
    assert [[h.tokens for h in each.hypotheses] for each in together] == [
        [h.tokens for h in each.hypotheses] for each in alone
    ]
    for line, found in zip(lines, together, strict=True):
        assert all(tuple(each.tokens[: len(line.prefix)]) == line.prefix for each in found.hypotheses)
        assert all(len(each.tokens) > len(line.prefix) or each.ended for each in found.hypotheses)
    plain = translate(bundle, [replace(line, prefix=()) for line in lines], **method)
    for line, found, free in zip(lines, together, plain, strict=True):
        assert bool(line.prefix) or found.hypotheses[0].tokens == free.hypotheses[0].tokens


def test_log_probabilities_are_those_of_forced_decoding() -> None:
    bundle = tiny_bundle(2)
    lines = prefixed(invented_lines(4, 3), bundle)
    for line, found in zip(lines, translate(bundle, lines, beam_size=3, unknown="forbid"), strict=True):
        best = found.hypotheses[0]
        (forced,) = score_pairs(bundle, [line], [found.text])
        own = forced.token_log_probabilities[: len(best.tokens) + best.ended]
        assert best.log_probability == pytest.approx(math.fsum(own), abs=1e-9)


def test_a_strategy_without_prefixes_is_refused() -> None:
    bundle = tiny_bundle(2)
    with STRATEGIES.scope():
        register_strategy("empty")(EmptySearch)
        with pytest.raises(UserError, match="does not begin outputs"):
            translate(bundle, prefixed(["am", "am"], bundle), method="empty")


def test_the_searches_of_the_package_keep_prefixes() -> None:
    keeps = {name for name in STRATEGIES if strategy_of(Decoding.model_validate({"method": name})).keeps_prefixes}
    assert keeps == set(STRATEGIES) - {"speculative"}
    assert BeamSearch.keeps_prefixes
