"""Beam search equals a search in plain loops: the same pieces, scores to 1e-9 in float64."""

from __future__ import annotations

import copy
import itertools
import math
import random
from unittest import mock

import pytest
import torch

from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.engine import torch_engine
from sparsenmt.engine.build import build
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import Found, encode, naive_beam, naive_greedy, sources, tiny_model

LENGTHS = (3, 9, 5, 2)


def options(**values: object) -> Decoding:
    return Decoding.model_validate(values)


def search(model: Transformer, rows: list[list[int]], limits: torch.Tensor, chosen: Decoding) -> list[list[Hypothesis]]:
    return beam_search(TorchEngine(model), encode(model, rows), limits, chosen)


def assert_same(found: list[Hypothesis], expected: list[Found], tolerance: float = 1e-9) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.ended for each in found] == [each.ended for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.log_probability == pytest.approx(theirs.log_probability, abs=tolerance, rel=tolerance)
        assert mine.score == pytest.approx(theirs.score, abs=tolerance, rel=tolerance)


def compare(
    seed: int,
    chosen: Decoding,
    limits: list[int],
    *,
    ending: float,
    vocabulary: int = 14,
    dtype: torch.dtype = torch.float64,
) -> list[list[Hypothesis]]:
    """Search a batch at once, and each of its sentences naively."""
    model = tiny_model(seed, ending=ending, vocabulary=vocabulary, dtype=dtype)
    rows = sources(seed, LENGTHS[: len(limits)], vocabulary)
    engine = build(copy.deepcopy(model)) if dtype == torch.float32 else TorchEngine(model)
    found = beam_search(engine, encode(model, rows), torch.tensor(limits), chosen)
    for hypotheses, row, limit in zip(found, rows, limits, strict=True):
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4
        assert_same(hypotheses, naive_beam(model, row, limit, chosen), tolerance)
    return found


@pytest.mark.parametrize("beam_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("penalty", "alpha"),
    [("gnmt", 0.6), ("gnmt", 1.4), ("average", 1.0), ("average", 0.5), ("none", 0.6), ("gnmt", 0.0)],
)
def test_equals_plain_loops(penalty: str, alpha: float, beam_size: int) -> None:
    chosen = options(beam_size=beam_size, length_penalty=penalty, alpha=alpha)
    compare(beam_size, chosen, [6, 11, 8, 5], ending=2.0)


@pytest.mark.parametrize("vocabulary", [14, 300])
@pytest.mark.parametrize("beam_size", [1, 3, 5])
def test_equals_plain_loops_in_fp32(beam_size: int, vocabulary: int) -> None:
    """What the compiled kernel finds, where there is a compiler."""
    chosen = options(beam_size=beam_size)
    compare(20 + beam_size, chosen, [6, 11, 8, 5], ending=2.0, vocabulary=vocabulary, dtype=torch.float32)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_equals_plain_loops_where_logits_are_made_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "_ROWS", rows)
    compare(rows, options(beam_size=3), [6, 11, 8, 5], ending=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sentence_with_what_is_no_number_has_no_hypothesis(dtype: torch.dtype) -> None:
    """Not even those of its hypotheses that are sound: the model is not."""
    model, chosen = tiny_model(5, ending=2.0, dtype=dtype), options(beam_size=3)
    memory, project, steps = encode(model, sources(5, LENGTHS)), model.project, itertools.count()

    def broken(states: torch.Tensor) -> torch.Tensor:
        logits = project(states)
        if next(steps) == 1:
            logits[4] = math.nan  # of the second sentence, the second hypothesis
        return logits

    with mock.patch.object(model, "project", broken):
        found = beam_search(TorchEngine(model), memory, torch.tensor([9] * 4), chosen)
    assert [len(each) for each in found] == [3, 0, 3, 3]


@pytest.mark.parametrize("seed", range(12))
def test_equals_plain_loops_with_all_options_drawn(seed: int) -> None:
    draw = random.Random(seed)
    chosen = options(
        beam_size=draw.randint(1, 5),
        length_penalty=draw.choice(["gnmt", "average", "none"]),
        alpha=draw.choice([0.0, 0.3, 1.0, 2.0]),
        min_length=draw.choice([0, 1, 4]),
        no_repeat_ngram=draw.choice([0, 1, 2, 3]),
        unknown=draw.choice(["allow", "forbid"]),
    )
    limits = [draw.randint(chosen.min_length + 1, 12) for _ in LENGTHS]
    compare(100 + seed, chosen, limits, ending=draw.choice([-2.0, 1.0, 2.5, 4.0]))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_plain_loops_where_ngrams_are_blocked(n: int) -> None:
    found = compare(7, options(beam_size=3, no_repeat_ngram=n), [12, 12, 12], ending=-1.0)
    for hypothesis in itertools.chain(*found):
        ngrams = [tuple(hypothesis.tokens[i : i + n]) for i in range(len(hypothesis.tokens) - n + 1)]
        assert len(ngrams) == len(set(ngrams))


def test_the_test_models_end_at_different_times() -> None:
    """Otherwise the comparisons above would not see what they are for."""
    model = tiny_model(3, ending=2.0)
    found = beam_search(
        TorchEngine(model), encode(model, sources(3, LENGTHS)), torch.tensor([9] * 4), options(beam_size=4)
    )
    lengths = {len(each.tokens) for each in itertools.chain(*found)}
    assert len(lengths) > 3


@pytest.mark.parametrize("ending", [-30.0, 0.0, 2.0, 5.0])
def test_beam_of_one_is_greedy(ending: float) -> None:
    model = tiny_model(11, ending=ending)
    rows, limits = sources(11, LENGTHS), [7, 10, 1, 4]
    for chosen in (options(beam_size=1), options(beam_size=1, min_length=3, no_repeat_ngram=2)):
        found = search(model, rows, torch.tensor(limits), chosen)
        for hypotheses, row, limit in zip(found, rows, limits, strict=True):
            assert_same(hypotheses, [naive_greedy(model, row, limit, chosen)])


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_best_come_first(beam_size: int) -> None:
    model = tiny_model(5, ending=2.0)
    for chosen in (options(beam_size=beam_size), options(beam_size=beam_size, length_penalty="none")):
        for hypotheses in beam_search(
            TorchEngine(model), encode(model, sources(5, LENGTHS)), torch.tensor([8] * 4), chosen
        ):
            keys = [(not each.ended, -each.score) for each in hypotheses]
            assert keys == sorted(keys)
            assert len(hypotheses) <= beam_size
            assert len({(*each.tokens, each.ended) for each in hypotheses}) == len(hypotheses)


def test_open_hypotheses_are_ranked_in_single_precision_too() -> None:
    model = tiny_model(6, ending=-30.0, dtype=torch.float32, sharpness=1.0)
    chosen = options(beam_size=5)
    rows = sources(6, LENGTHS)
    found = search(model, rows, torch.tensor([6] * 4), chosen)
    for hypotheses, row in zip(found, rows, strict=True):
        assert not any(each.ended for each in hypotheses)
        assert_same(hypotheses, naive_beam(model, row, 6, chosen), tolerance=1e-4)


@pytest.mark.parametrize("vocabulary", [4, 5, 6, 9])
@pytest.mark.parametrize("beam_size", [2, 5])
def test_vocabulary_smaller_than_the_beam(vocabulary: int, beam_size: int) -> None:
    model = tiny_model(8, vocabulary=vocabulary, ending=1.0)
    rows = sources(8, [2, 4], 5) if vocabulary > 4 else [[1, 3], [1, 1, 1, 3]]
    for chosen in (options(beam_size=beam_size), options(beam_size=beam_size, min_length=3)):
        found = search(model, rows, torch.tensor([7, 4]), chosen)
        for hypotheses, row, limit in zip(found, rows, [7, 4], strict=True):
            assert_same(hypotheses, naive_beam(model, row, limit, chosen))


@pytest.mark.parametrize("beam_size", [1, 3, 5])
def test_a_hypothesis_with_nowhere_to_go_ends(beam_size: int) -> None:
    """Six pieces, none of them twice, but twenty wanted: after UNK, 4 and 5 only EOS is left."""
    chosen = options(beam_size=beam_size, min_length=20, no_repeat_ngram=1)
    found = compare(9, chosen, [30, 25], ending=0.0, vocabulary=6)
    for hypotheses in found:
        assert hypotheses
        assert all(each.ended and sorted(each.tokens) == [1, 4, 5] for each in hypotheses)


@pytest.mark.parametrize("limit", [1, 2])
def test_shortest_limits(limit: int) -> None:
    for ending in (-5.0, 1.0, 9.0):
        compare(10, options(beam_size=3), [limit, limit + 1], ending=ending)


def test_a_sentence_does_not_see_its_batch() -> None:
    model = tiny_model(12, ending=2.0)
    rows, limits, chosen = sources(12, (4, 9, 6, 2, 7)), [9, 12, 6, 7, 10], options(beam_size=4)
    together = search(model, rows, torch.tensor(limits), chosen)
    order = [3, 0, 4, 2, 1]
    shuffled = beam_search(
        TorchEngine(model), encode(model, [rows[i] for i in order]), torch.tensor([limits[i] for i in order]), chosen
    )
    for place, i in enumerate(order):
        alone = search(model, [rows[i]], torch.tensor([limits[i]]), chosen)[0]
        for other in (alone, shuffled[place]):
            assert_same(together[i], [Found(h.tokens, h.log_probability, h.score, h.ended) for h in other])


def test_forced_length() -> None:
    """Minimum and maximum together fix the number of pieces."""
    model = tiny_model(13, ending=2.0)
    chosen = options(beam_size=4, min_length=6)
    for hypotheses in beam_search(
        TorchEngine(model), encode(model, sources(13, LENGTHS)), torch.tensor([7] * 4), chosen
    ):
        assert [len(each.tokens) for each in hypotheses if each.ended] == [6] * sum(each.ended for each in hypotheses)
        assert all(len(each.tokens) == 7 for each in hypotheses if not each.ended)
