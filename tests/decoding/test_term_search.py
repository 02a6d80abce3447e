"""Terms stand in the output; the search equals one in plain loops, and at full width the best of all outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.data.terminology import Term, WordEdges, stands
from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.scores import Hypothesis, length_penalty
from sparsenmt.decoding.strategies import EncodedBatch
from sparsenmt.decoding.term_search import TermSearch
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.build import build
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import (
    encode,
    invented_lines,
    next_log_probabilities,
    packed,
    sources,
    tiny_bundle,
    tiny_model,
)

V = 14
EDGES = WordEdges(ends=np.arange(V) >= 4, continues=np.isin(np.arange(V), (9, 10)))  # 9 and 10 continue a word


def term(*tokens: int, bonus: float | None = None, edges: WordEdges = EDGES) -> Term:
    return Term("", "", tokens, bonus, edges)


TERMS: list[tuple[Term, ...]] = [(term(5, 7),), (), (term(6), term(8, 9, 4)), (term(5, 5, 6), term(5, 7))]
LIMITS = [9, 7, 10, 12]


def search(
    model: Transformer,
    options: Decoding,
    terms: Sequence[tuple[Term, ...]] = TERMS,
    limits: Sequence[int] = LIMITS,
    required: torch.Tensor | None = None,
    native: bool = False,
    vocabulary: int = V,
) -> list[list[Hypothesis]]:
    rows, numbers = sources(3, (4, 8, 2, 6), vocabulary)[: len(limits)], list(range(len(limits)))
    batch = EncodedBatch(
        encode(model, rows), torch.tensor(limits), numbers, numbers, required=required, terms=tuple(terms)
    )
    engine = build(model) if native else TorchEngine(model)
    (found,) = TermSearch(options).search(engine, [batch], lambda sentences: nullcontext())
    return [found[number] for number in numbers]


def longest_match(tokens: Sequence[int], own: Term) -> int:
    """The tokens of a term that an output has: all if it stands somewhere, otherwise those at its end."""
    size, best = len(own.tokens), 0
    for begin in range(len(tokens)):
        for count in range(1, min(size, len(tokens) - begin) + 1):
            end = begin + count
            if tuple(tokens[begin:end]) != own.tokens[:count]:
                break
            inside = begin > 0 and own.edges.joined(tokens[begin - 1], tokens[begin])
            continued = end < len(tokens) and own.edges.joined(tokens[end - 1], tokens[end])
            if not inside and ((count == size and not continued) or end == len(tokens)):
                best = max(best, count)
    return best


def naive(model: Transformer, source: list[int], limit: int, terms: Sequence[Term], options: Decoding) -> Any:
    """Dynamic beam allocation in plain loops, of one sentence, without cache; what stands is counted anew each time."""
    memory, k = encode(model, [source]), options.beam_size
    total = sum(len(own.tokens) for own in terms)

    def count(tokens: Sequence[int]) -> int:
        return sum(longest_match(tokens, own) for own in terms)

    beam: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended = []
    for _ in range(limit):
        everything, chosen = [], {}
        for tokens, score in beam:
            values = next_log_probabilities(model, memory, tokens)
            own = [((*tokens, t), score + values[t]) for t in range(len(values)) if t not in (PAD, BOS)]
            everything += own
            best = max(own, key=lambda each: each[1])
            chosen[best[0]] = best[1]
            wanted = {each.tokens[n] for each in terms if (n := longest_match(tokens, each)) < len(each.tokens)}
            chosen |= {each: value for each, value in own if each[-1] in wanted}
            if any(tokens[len(tokens) - len(each.tokens) :] == each.tokens for each in terms if tokens):
                leaving = [each for each in own if not EDGES.continues[each[0][-1]]]
                best = max(leaving, key=lambda each: each[1])
                chosen[best[0]] = best[1]
        chosen |= dict(sorted(everything, key=lambda each: -each[1])[: 2 * k])
        candidates = sorted(chosen.items(), key=lambda each: -each[1])
        complete = [each for each in candidates if count(each[0]) == total]
        ended += [each for each in complete[:k] if each[0][-1] == EOS]
        going = [each for each in candidates if each[0][-1] != EOS]
        banks = [[each for each in going if count(each[0]) == n] for n in range(total, -1, -1)]
        turns = [bank[turn] for turn in range(k) for bank in banks if turn < len(bank)][:k]
        beam = sorted(turns, key=lambda each: -each[1])
        if len(ended) >= k or not beam:
            break

    def score(each: tuple[tuple[int, ...], float]) -> float:
        return each[1] / length_penalty(float(len(each[0])), options)

    rest = sorted(beam, key=lambda each: (-count(each[0]), -each[1]))
    return [*sorted(ended, key=lambda each: -score(each)), *rest][:k]


def tokens_of(found: Sequence[Hypothesis]) -> list[tuple[int, ...]]:
    return [(*each.tokens, *([EOS] if each.ended else [])) for each in found]


@pytest.mark.parametrize("ending", [0.0, 2.0, 4.0])
@pytest.mark.parametrize("beam_size", [1, 2, 4, 7])
def test_equals_plain_loops(beam_size: int, ending: float) -> None:
    model, options = tiny_model(4, ending=ending), Decoding.model_validate({"beam_size": beam_size})
    for row, limit, terms, found in zip(sources(3, (4, 8, 2, 6)), LIMITS, TERMS, search(model, options), strict=True):
        expected = naive(model, row, limit, terms, options)
        assert tokens_of(found) == [each for each, _ in expected]
        assert [each.log_probability for each in found] == pytest.approx([score for _, score in expected], abs=1e-9)


@pytest.mark.parametrize("extra", [{}, {"min_length": 4}, {"no_repeat_ngram": 2}, {"length_penalty": "none"}])
def test_without_terms_it_is_beam_search(extra: dict[str, Any]) -> None:
    model, options = tiny_model(4, ending=2.0), Decoding.model_validate({"beam_size": 3, **extra})
    rows = sources(3, (4, 8, 2, 6))
    plain = beam_search(TorchEngine(model), encode(model, rows), torch.tensor(LIMITS), options)
    for mine, theirs in zip(search(model, options, [()] * 4), plain, strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in theirs]
        assert [each.score for each in mine] == pytest.approx([each.score for each in theirs], abs=1e-9)


def test_a_full_beam_finds_the_best_of_all_outputs() -> None:
    """A beam as wide as all outputs of at most four tokens finds the best of those that have the term."""
    options = Decoding.model_validate({"beam_size": 64, "length_penalty": "none"})
    model, own, limit = (
        tiny_model(9, ending=1.0, vocabulary=7),
        term(5, 6, edges=WordEdges(EDGES.ends[:7], EDGES.continues[:7])),
        5,
    )
    (found,) = search(model, options, [(own,)], [limit], vocabulary=7)
    memory = encode(model, sources(3, (4, 8, 2, 6), 7)[:1])
    values: dict[tuple[int, ...], list[float]] = {}

    def value(tokens: tuple[int, ...]) -> float:
        total = 0.0
        for place, token in enumerate(tokens):
            before = tokens[:place]
            values.setdefault(before, next_log_probabilities(model, memory, before))
            total += values[before][token]
        return total

    outputs = ((*body, EOS) for length in range(2, limit) for body in itertools.product((1, 4, 5, 6), repeat=length))
    best = max((each for each in outputs if longest_match(each, own) == 2), key=value)
    assert tokens_of(found)[0] == best and found[0].log_probability == pytest.approx(value(best), abs=1e-9)


@pytest.mark.parametrize("native", [False, True])
def test_terms_stand_in_both_engines(native: bool) -> None:
    model = tiny_model(4, ending=2.0, dtype=torch.float32)
    found = search(model, Decoding.model_validate({"beam_size": 4}), native=native)
    for terms, hypotheses in zip(TERMS, found, strict=True):
        assert all(longest_match([*hypotheses[0].tokens, EOS], own) == len(own.tokens) for own in terms)


def test_a_prefix_counts() -> None:
    model, options = tiny_model(4, ending=2.0), Decoding.model_validate({"beam_size": 4})
    required = torch.tensor([[8, 5], [9, -1], [-1, -1], [5, 5]])
    found = search(model, options, required=required)
    for row, terms, hypotheses in zip(required.tolist(), TERMS, found, strict=True):
        begin = [token for token in row if token >= 0]
        assert all(each.tokens[: len(begin)] == begin for each in hypotheses)
        assert all(longest_match([*hypotheses[0].tokens, EOS], own) == len(own.tokens) for own in terms)


@pytest.mark.parametrize("bonus", [None, 1.0])
def test_a_term_inside_a_prefix_does_not_leave_it(bonus: float | None) -> None:
    """Behind a term the best token that leaves its last word is tried; but not where the prefix has another one."""
    model, options = tiny_model(4, ending=2.0), Decoding.model_validate({"beam_size": 4})
    (found,) = search(model, options, [(term(5, 7, bonus=bonus),)], [9], required=torch.tensor([[5, 7, 9, 11]]))
    assert found and all(each.tokens[:4] == [5, 7, 9, 11] for each in found)


def test_a_bonus_decides_between_nothing_and_everything() -> None:
    model, options = tiny_model(4, ending=2.0), Decoding.model_validate({"beam_size": 4})

    def stand(bonus: float) -> list[int]:
        soft = [tuple(replace(own, bonus=bonus) for own in terms) for terms in TERMS]
        found = search(model, options, soft)
        return [
            sum(longest_match([*each[0].tokens, EOS], own) for own in terms)
            for each, terms in zip(found, TERMS, strict=True)
        ]

    everything = [sum(len(own.tokens) for own in terms) for terms in TERMS]
    assert stand(30.0) == everything
    plain = search(model, options, [()] * 4)
    weak = search(model, options, [tuple(replace(own, bonus=1e-9) for own in terms) for terms in TERMS])
    assert [each[0].tokens for each in weak] == [each[0].tokens for each in plain]
    assert sum(stand(1e-9)) < sum(everything), "a bonus that is nothing is not enough"
    assert all(
        each[0].score * length_penalty(len(each[0].tokens) + 1.0, options) >= each[0].log_probability for each in weak
    )


def test_an_impossible_term_leaves_the_output_open() -> None:
    model = tiny_model(4, ending=2.0)
    (found,) = search(model, Decoding.model_validate({"beam_size": 3}), [(term(5, 7, 5, 7),)], [3])
    assert found and not any(each.ended for each in found) and found[0].tokens == [5, 7, 5]


def test_a_model_whose_scores_are_no_numbers_has_no_hypothesis() -> None:
    model = tiny_model(4)
    with torch.no_grad():
        model.embeddings["output"][5] = math.nan
    assert search(model, Decoding.model_validate({"beam_size": 3})) == [[]] * 4


def line_with_terms(bundle: Any, texts: Sequence[str]) -> list[InputLine]:
    target = bundle.tokenizers.target
    edges, wanted = WordEdges.of(target), (["Katzen"], [], ["am Fluss", "Haus"])
    own = [
        tuple(Term(each, each, tuple(target.encode(each)), None, edges) for each in wanted[i % 3])
        for i in range(len(texts))
    ]
    return [replace(line, terms=terms) for line, terms in zip(input_lines(texts), own, strict=True)]


@pytest.mark.parametrize("native", [False, True])
def test_company_does_not_matter(native: bool) -> None:
    bundle = tiny_bundle(2)
    bundle = packed(bundle, torch.float64) if native else bundle
    lines = line_with_terms(bundle, invented_lines(9, 3))
    options = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 20, "beam_size": 3})

    def found(own: Sequence[InputLine], **values: Any) -> list[TranslatedLine]:
        return list(translate_lines(bundle, own, options.model_copy(update=values)))

    together = found(lines)
    alone = [found([line], batch_tokens=1)[0] for line in lines]
    assert [each.best_texts(3) for each in together] == [each.best_texts(3) for each in alone]
    for line, each in zip(lines, together, strict=True):
        there = [stands(own, each.text, bundle.tokenizers.target) for own in line.terms]
        assert all(there) or not each.hypotheses[0].ended
    plain = found([replace(line, terms=()) for line in lines])
    assert [p.text for p, line in zip(plain, lines, strict=True) if not line.terms] == [
        t.text for t, line in zip(together, lines, strict=True) if not line.terms
    ]
