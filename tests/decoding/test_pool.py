"""Searches that are suspended and merged: the results are those of each sentence alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding import beam as module
from sparsenmt.decoding.beam import Beam, SearchPool, beam_search
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch, Results
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.build import build
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import encode, invented_lines, naive_beam, sources, tiny_bundle, tiny_model
from tests.decoding.test_beam import assert_same, options
from tests.examples import examples
from tests.model.support import random_model
from tests.native.libraries import decoding_kernels

Rows = list[list[int]]


@contextmanager
def merging() -> Iterator[list[int]]:
    """Caches of small models in float64 are merged, too; gives the numbers of searches that were merged each time."""
    counts, merge = list[int](), Beam.merge

    def counted(beam: Beam, others: Sequence[Beam]) -> Beam:
        counts.append(1 + len(others))
        return merge(beam, others)

    with mock.patch.object(KVCache, "can_merge", True), mock.patch.object(Beam, "merge", counted):
        yield counts


def beam_of(engine: TorchEngine, rows: Rows, limits: list[int], numbers: list[int], chosen: Decoding) -> Beam:
    return Beam(engine, EncodedBatch(encode(engine.model, rows), torch.tensor(limits), numbers, numbers), chosen)


def search(engine: TorchEngine, batches: list[Rows], limits: list[list[int]], chosen: Decoding) -> Results:
    """Over batches, one after the other; sentences are numbered through, from 100."""
    pool, found, number = SearchPool(lambda numbers: nullcontext()), Results(), 100
    for rows, own in zip(batches, limits, strict=True):
        numbers = list(range(number, number := number + len(rows)))
        now = pool.run(beam_of(engine, rows, own, numbers, chosen))
        assert not now.keys() & found.keys() and len(pool.waiting) <= max(map(len, batches))
        found |= now
        assert sorted([*found, *pool.waiting]) == list(range(100, number))
    found |= pool.finish()
    assert not pool.waiting and not pool.finish() and sorted(found) == list(range(100, number))
    return found


@examples("seed", range(16), fast=4)
@pytest.mark.parametrize("share", [2, 4])
def test_equals_plain_loops_with_all_options_drawn(seed: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE", share)
    draw = random.Random(seed)
    chosen = options(
        beam_size=draw.randint(1, 4),
        length_penalty=draw.choice(["gnmt", "average", "none"]),
        alpha=draw.choice([0.0, 0.6, 1.0]),
        min_length=draw.choice([0, 0, 3]),
        no_repeat_ngram=draw.choice([0, 0, 1, 2]),
        unknown=draw.choice(["allow", "forbid"]),
    )
    batches = [sources(seed, [draw.randint(2, 9) for _ in range(draw.randint(1, 8))]) for _ in range(4)]
    limits = [[draw.randint(chosen.min_length + 1, 14) for _ in rows] for rows in batches]
    model = tiny_model(seed, ending=draw.choice([-2.0, 1.0, 2.5]))
    with merging() as counts:
        found = search(TorchEngine(model), batches, limits, chosen)
    rows, most = ([each for batch in parts for each in batch] for parts in (batches, limits))
    for number, (row, limit) in enumerate(zip(rows, most, strict=True), 100):
        assert_same(found[number], naive_beam(model, row, limit, chosen))
    if share == 2 and not chosen.min_length:  # with forbidden n-grams, too
        assert max(counts) > 1


def test_with_the_compiled_step() -> None:
    decoding_kernels(torch.float32)
    model = random_model(torch.float32, dimension=64, feed_forward=96)
    engine = build(model)
    assert isinstance(engine, NativeEngine)
    chosen, draw = options(beam_size=3, length_penalty="average"), random.Random(1)
    batches = [sources(seed, [draw.randint(2, 9) for _ in range(20)]) for seed in range(3)]
    limits = [[draw.randint(2, 30) for _ in rows] for rows in batches]
    with mock.patch.object(Beam, "merge", autospec=True, side_effect=Beam.merge) as merge:
        found = search(engine, batches, limits, chosen)
    assert max(1 + len(call.args[1]) for call in merge.call_args_list) == 3
    for b, (rows, own) in enumerate(zip(batches, limits, strict=True)):
        alone = beam_search(engine, encode(model, rows), torch.tensor(own), chosen)
        for i, expected in enumerate(alone):
            mine: list[Hypothesis] = found[100 + 20 * b + i]
            assert [each.tokens for each in mine] == [each.tokens for each in expected]
            assert [each.score for each in mine] == pytest.approx([each.score for each in expected], abs=1e-4)


def test_searches_that_cannot_merge_are_finished_at_once() -> None:
    """Layer by layer nothing is merged: each batch is finished when it was searched."""
    engine, chosen = TorchEngine(tiny_model(3, ending=1.0)), options(beam_size=2)
    pool = SearchPool(lambda numbers: nullcontext())
    rows = sources(3, [4] * 16)
    assert sorted(pool.run(beam_of(engine, rows, [9] * 16, list(range(16)), chosen))) == list(range(16))
    assert not pool.waiting


def test_lines_come_in_order_and_are_told_when_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE", 2)
    bundle, lines, told = tiny_bundle(2), invented_lines(60, 3), list[int]()
    chosen = Decoding.model_validate({"beam_size": 3, "batch_tokens": 400})
    expected = list(translate_lines(bundle, input_lines(lines), chosen))
    with merging() as counts:
        found = list(translate_lines(bundle, input_lines(lines), chosen, advance=told.append))
    assert max(counts) > 1 and sum(told) == len(lines)
    assert [each.source for each in found] == [each.source for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.tokens for each in mine.hypotheses] == [each.tokens for each in theirs.hypotheses]
        assert [each.score for each in mine.hypotheses] == pytest.approx([each.score for each in theirs.hypotheses])


def test_long_ones_are_not_kept_beside_many_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on together needs no more room, padding included, than a batch has needed."""
    monkeypatch.setattr(module, "SHARE", 2)
    model, chosen = tiny_model(3, ending=-3.0, max_positions=100), options(beam_size=2)
    lengths = [40] * 4, [30] * 5, [8] * 20, [7] * 22, [3] * 50, [3] * 50
    batches = [sources(seed, own) for seed, own in enumerate(lengths)]
    limits = [[2 * own[0] - (i % 2) * own[0] for i in range(len(own))] for own in lengths]
    merged, merge = [], Beam.merge

    def noted(beam: Beam, others: Sequence[Beam]) -> Beam:
        made = merge(beam, others)
        merged.append((1 + len(others), len(made), *made.size))
        return made

    with merging():
        monkeypatch.setattr(Beam, "merge", noted)
        found = search(TorchEngine(model), batches, limits, chosen)
    assert len(found) == sum(map(len, batches))
    most = max(len(rows) * max(map(len, rows)) for rows in batches)
    assert max(count for count, *_ in merged) > 1
    assert all(sentences * width <= most for _, sentences, width, _ in merged)


def test_whoever_runs_out_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE", 2)
    engine, chosen, named = TorchEngine(tiny_model(3, ending=-3.0)), options(beam_size=2), list[list[int]]()

    @contextmanager
    def naming(numbers: list[int]) -> Iterator[None]:
        try:
            yield
        except MemoryError:
            named.append(numbers)
            raise

    def fail(beam: Beam, others: Sequence[Beam]) -> Beam:
        raise MemoryError

    pool = SearchPool(naming)
    with merging():
        for first in (0, 4):
            numbers = list(range(first, first + 4))
            found = pool.run(beam_of(engine, sources(1, [4] * 4), [20, 3, 20, 3], numbers, chosen))
            assert not found.keys() & {0, 2}
        monkeypatch.setattr(Beam, "merge", fail)
        with pytest.raises(MemoryError):
            pool.finish()
    assert named == [[0, 2, 4, 6]]
