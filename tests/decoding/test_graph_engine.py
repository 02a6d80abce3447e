"""The engine that repeats recorded steps finds what the engine of PyTorch's operators finds, on a fake device.

A list of operators stands in the place of a CUDA graph: repeated, they read and write the same tensors, and no decision
of Python's is made again.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.fixed_cache import FixedCache
from sparsenmt.engine.graph_engine import GraphEngine, Step
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Decoding
from sparsenmt.testing.cases import Case
from sparsenmt.testing.device import DeviceRun, prepare, without_kernels
from sparsenmt.testing.fake_device import CUDA, FakeDevice
from tests.conformance.support import each
from tests.devices.test_fake_device import first_places

CASES = [Case((), "pre"), Case((), "post"), *(Case((plug,), "pre") for plug in first_places())]
LIMITS = 3, 18, 9, 5, 12
READ = {"sparsemax", "entmax15", "entmax"}
"""Methods that read numbers back in a step: it is not recorded."""


class Operators(TorchDispatchMode):
    """The operators of a step, with the tensors that they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.reads = False
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and id(value) not in self.before:
                self.before[id(value)] = value, value.clone()
        found = function(*args, **kwargs)
        given = any(isinstance(each, Tensor) for each in tree_leaves(args))
        self.reads |= given and any(isinstance(each, int | float) for each in tree_leaves(found))
        self.calls.append((function, args, kwargs, found))
        return found


class Recorder:
    """Records steps as operators; `repeated` counts those that were repeated."""

    def __init__(self) -> None:
        self.repeated = self.recorded = 0

    def __call__(self, step: Step) -> Step | None:
        with Operators() as operators:
            result = step()
        for tensor, before in operators.before.values():  # a graph is recorded, and not run
            tensor.copy_(before)
        if operators.reads:  # that is not permitted while a graph is recorded
            return None
        self.recorded += 1

        def repeat() -> Tensor:
            self.repeated += 1
            for function, args, kwargs, found in operators.calls:
                given = {_address(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and _address(old) not in given:
                        old.copy_(new)
            return result

        return repeat


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def found(engine: Engine, run: DeviceRun, **options: Any) -> Results:
    """The results of a search over the batch, several times as large."""
    model = run.model.eval()
    with torch.inference_mode():
        memory = model.encode(run.source, compact=True).memories[model.plan.encoder_exits[-1]]
        rows = torch.arange(5, device=CUDA) % len(memory.valid)
        limits = torch.tensor(LIMITS, device=CUDA)
        numbers, exits = list(range(5)), model.plan.decoder_exits
        batch = EncodedBatch(memory.select(rows), limits, numbers, numbers, decoder_exits=exits)
        search = strategy_of(Decoding.model_validate({"max_length_factor": 3.0, **options}))
        return {n: each for part in search.search(engine, [batch], lambda _: nullcontext()) for n, each in part.items()}


def assert_same(some: Results, others: Results) -> None:
    assert some.keys() == others.keys()
    for number, hypotheses in some.items():
        assert [each.tokens for each in hypotheses] == [each.tokens for each in others[number]]
        for own, other in zip(hypotheses, others[number], strict=True):
            assert own.log_probability == pytest.approx(other.log_probability, abs=1e-5)


@each(CASES, fast=lambda case: {plug.method.name for plug in case.plugs} == {"ssru"})
def test_every_method(case: Case) -> None:
    fake = FakeDevice()
    try:
        move = prepare(case, fake)
    except UserError as error:
        pytest.skip(f"refused: {error}")
    with without_kernels(), fake.running(), fake.unrecorded():
        run, recorder = move(), Recorder()
        plain, engine = TorchEngine(run.model), GraphEngine(run.model, record=recorder)
        for options in ({"method": "beam", "beam_size": 3}, {"method": "greedy"}):
            assert_same(found(engine, run, **options), found(plain, run, **options))
        before = recorder.recorded
        again = found(engine, run, method="greedy")
        assert_same(again, found(plain, run, method="greedy"))
        assert recorder.recorded == before, "a search of the same sizes records nothing"
        ahead = [plug for plug in case.plugs if plug.place.startswith("decoder") or plug.method.name in READ]
        if all(plug.place.endswith(("heads", "transform")) and plug.method.name not in READ for plug in ahead):
            assert recorder.repeated > recorder.recorded > 0


def test_other_searches() -> None:
    fake = FakeDevice()
    move = prepare(CASES[0], fake)
    with without_kernels(), fake.running(), fake.unrecorded():
        run, recorder = move(), Recorder()
        plain, engine = TorchEngine(run.model), GraphEngine(run.model, record=recorder)
        for method in ("sample", "speculative", "early_exit"):
            options = {"method": method, "seed": 3, "draft_tokens": 2}
            assert_same(found(engine, run, **options), found(plain, run, **options))
        assert recorder.repeated > 0


def test_a_step_that_cannot_be_recorded_is_run() -> None:
    fake = FakeDevice()
    move = prepare(CASES[0], fake)
    with without_kernels(), fake.running(), fake.unrecorded():
        run = move()
        engine = GraphEngine(run.model, record=lambda step: None)
        assert_same(found(engine, run, beam_size=3), found(TorchEngine(run.model), run, beam_size=3))
        assert_same(found(engine, run, beam_size=3), found(TorchEngine(run.model), run, beam_size=3))


def test_tensors_serve_the_next_search_of_their_sizes() -> None:
    fake = FakeDevice()
    move = prepare(CASES[0], fake)
    with without_kernels(), fake.running(), fake.unrecorded():
        run = move()
        with torch.inference_mode():
            check_reuse(run)


def check_reuse(run: DeviceRun) -> None:
    engine, model = GraphEngine(run.model, record=lambda step: None), run.model.eval()
    (memory,) = model.encode(run.source).memories.values()
    tokens, seen = torch.full((len(memory.valid), 1), 2, device=CUDA), []
    for _ in range(2):
        cache = engine.new_cache(memory)
        engine.step(tokens, cache)
        kept = cache.kept
        assert isinstance(kept, FixedCache) and kept.own is not None and kept.fixed is not None
        seen.append((id(kept.own), id(kept.fixed), kept.kept_bytes))
        del cache, kept
    assert seen[0] == seen[1] and seen[0][2] > 0
    cache = engine.new_cache(memory)
    cache.allow_truncation(2)
    engine.step(tokens, cache)
    assert isinstance(cache.kept, FixedCache) and cache.kept.own is None, "positions may be removed again"
