"""A kernel is used where it was measured faster than PyTorch, and what was measured is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from sparsenmt.decoding import scores
from sparsenmt.model.transformer import Transformer
from sparsenmt.native import cache, choice, trials
from sparsenmt.native.build import SWITCH
from sparsenmt.native.choice import Choice, Trial, measure
from sparsenmt.native.encoder import EncoderStack
from sparsenmt.native.kernels import Kernels, kernels
from sparsenmt.native.steps import LayerStack
from sparsenmt.sparsity.simplex import native as simplex_module
from sparsenmt.sparsity.simplex import newton
from sparsenmt.sparsity.simplex.function import entmax
from sparsenmt.sparsity.simplex.native import SimplexKernel, native, trial
from tests.model.support import random_model, random_source, random_target


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SWITCH, "1")


@pytest.fixture(scope="module")
def simplex() -> SimplexKernel:
    kernel = native(torch.zeros(1))
    if kernel is None:
        pytest.skip("no compiler")
    return kernel


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fake(monkeypatch: pytest.MonkeyPatch, ratio: float) -> list[Trial]:
    """Let every measurement find this ratio; returns the trials that were measured."""
    seen: list[Trial] = []

    def measured(*trial: Callable[[], object]) -> float:
        seen.append((trial[0], trial[1]))
        return ratio

    monkeypatch.setattr(choice, "measure", measured)
    return seen


def nothing() -> Trial:
    return (lambda: None), (lambda: None)


@pytest.mark.usefixtures("empty_cache")
def test_a_class_is_measured_once_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake(monkeypatch, 0.5)
    first = Choice("kernels-0")
    assert first.faster("a", nothing) and first.faster("a", nothing) and len(seen) == 1
    fake(monkeypatch, 2.0)
    again = Choice("kernels-0")
    assert again.faster("a", nothing), "it is kept"
    assert not again.faster("b", nothing) and not first.faster("b", nothing)
    assert Choice("kernels-0").ratios == {"a": 0.5, "b": 2.0}
    assert not Choice("kernels-1").faster("a", nothing), "another library is measured anew"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert not Choice("kernels-0").faster("a", nothing), "as with another number of threads"


@pytest.mark.usefixtures("empty_cache")
def test_what_another_process_measured_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Choice("kernels-0"), Choice("kernels-0")
    fake(monkeypatch, 0.5)
    assert ours.ratios == {} and theirs.faster("a", nothing) and theirs.faster("b", nothing)
    fake(monkeypatch, 3.0)
    assert ours.faster("a", nothing) and Choice("kernels-0").ratios == {"a": 0.5, "b": 0.5}


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    "record",
    [
        {},
        {"ratios": None},
        {"ratios": [0.5]},
        *({"ratios": {"a": each}} for each in ("0.5", True, -1.0, 0.0, [])),
    ],
)
def test_a_record_of_another_form_is_measured_anew(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake(monkeypatch, 2.0)
    name = Choice("kernels-0")._record(torch.get_num_threads())
    assert cache.write_record(name, record)
    assert not Choice("kernels-0").faster("a", nothing) and len(seen) == 1
    assert cache.read_record(name) == {"ratios": {"a": 2.0}}


@pytest.mark.usefixtures("empty_cache")
def test_a_forged_record_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake(monkeypatch, 2.0)
    name = Choice("kernels-0")._record(torch.get_num_threads())
    assert cache.write_record(name, {"ratios": {"a": 2.0}})
    path = cache.folder() / name
    forged = path.read_bytes().replace(b"2.0", b"0.2")
    path.write_bytes(forged)
    assert b"0.2" in forged and not Choice("kernels-0").faster("a", nothing) and len(seen) == 1


def test_without_a_cache_a_process_measures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake(monkeypatch, 0.5)
    monkeypatch.setattr(cache, "read_record", lambda name: None)
    monkeypatch.setattr(cache, "write_record", lambda name, value: False)
    one = Choice("kernels-0")
    assert one.faster("a", nothing) and one.faster("b", nothing) and one.faster("a", nothing) and len(seen) == 2


@pytest.mark.usefixtures("empty_cache")
def test_as_fast_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio, faster in ((0.9, True), (0.97, False), (1.0, False), (1.02, False)):
        fake(monkeypatch, ratio)
        assert Choice(f"kernels-{ratio}").faster("a", nothing) == faster
    monkeypatch.setenv(SWITCH, choice.ALWAYS)
    assert Choice("kernels-1.02").faster("a", nothing)


def test_a_measurement_takes_turns_and_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the two sides move."""
    now, calls = [0.0], []
    ours = iter([9.0, 5.0, 2.0, 4.0, 3.0, 3.0, 3.0, 3.0])  # the first to warm up
    theirs = iter([7.0, 8.0, 9.0, 10.0, 9.0, 9.0, 9.0, 9.0])

    def side(name: str, seconds: Any) -> None:
        calls.append(name)
        now[0] += next(seconds)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert measure(lambda: side("a", ours), lambda: side("b", theirs)) == 2.0 / 8.0
    assert calls == ["a", "b"] * 8


@pytest.fixture(scope="module")
def found() -> Kernels:
    library = kernels()
    if library is None:
        pytest.skip("no compiler")
    return library


SIZES: dict[str, tuple[Any, ...]] = {
    "attention": (64, 30, 30),
    "attention to slots": (64, 15, False),
    "log sums": (8000,),
    "best tokens": (8000,),
    "candidates": (8000,),
    "product": (torch.float32, 64, 32),
    "packed product": (torch.float32, 64, 32),
    "next tokens": (torch.float32, 8000, 32),
    "next listed tokens": (torch.float32, 32),
    "decoder step": (torch.float32, 64, 96, 4),
    "recurrent decoder step": (torch.float32, 64, 96, 4),
    "encoder": (torch.float32, 64, 96, 4, False),
}


@pytest.mark.parametrize("kind", SIZES)
def test_both_sides_of_a_trial_solve_the_same_problem(found: Kernels, kind: str) -> None:
    if (
        kind.endswith(("product", "next tokens", "listed tokens", "decoder step", "encoder"))
        and torch.float32 not in found.layout.dtypes
    ):
        pytest.skip("no such instructions")
    for sizes in trials.TRIALS[kind].classes(*SIZES[kind]):
        with torch.inference_mode():
            ours, theirs = (side() for side in trials.TRIALS[kind].trial(found, *sizes))
        if isinstance(ours, tuple):  # continuations: scores; best: values
            assert isinstance(theirs, tuple)
            ours, theirs = ours[0], theirs[0]
        if kind.endswith("decoder step"):
            theirs = torch.nn.functional.layer_norm(theirs, theirs.shape[-1:])
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_every_kind_is_in_the_table() -> None:
    assert SIZES.keys() == trials.TRIALS.keys()
    assert trials.TRIALS["attention"].classes(64, 1, 20) == [(64, 1, 14)]
    assert trials.TRIALS["attention"].classes(64, 8, 21) == [(64, 4, 30)]
    assert trials.TRIALS["attention"].classes(64, 9, 400) == [(64, 14, 256)]


def searched(model: Transformer) -> list[str]:
    """The kernels that an encoder and two steps of a search have called."""
    names = ("attend", "next", "product")
    called: list[str] = []

    def spy(name: str) -> Any:
        inner = getattr(Kernels, name)

        def run(self: Kernels, *arguments: Any, **keys: Any) -> Any:
            called.append(name)
            return inner(self, *arguments, **keys)

        return mock.patch.object(Kernels, name, run)

    run = mock.patch.object(LayerStack, "run", autospec=True, side_effect=LayerStack.run)
    layers = mock.patch.object(EncoderStack, "run", autospec=True, side_effect=EncoderStack.run)
    with torch.inference_mode(), spy("attend"), spy("next"), spy("product"), run as step, layers as encoder:
        memory = next(iter(model.encode(random_source((7, 12)), compact=True).memories.values()))
        cache_of_search = model.new_cache(memory)
        for token in random_target(4, 3).unbind(1):
            states = model.decode(token[:, None], memory, cache=cache_of_search)
            model.continuations(next(iter(states.values()))[:, -1], torch.zeros(2, 2), (0, 1), 2)
    whole = {"step": step, "encoder": encoder}
    return [*(name for name in names if name in called), *(name for name, each in whole.items() if each.call_count)]


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_slow_kernel_is_not_used(found: Kernels, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in attention, nor in the vocabulary, nor in a step."""
    monkeypatch.setattr(found, "choice", Choice("kernels-0"))
    fake(monkeypatch, ratio)
    model = random_model(torch.float32, dimension=64, feed_forward=96, heads=4)
    model.pack(torch.float32)
    used = searched(model)
    if ratio > 1:
        assert used == []
    else:
        multiplies = torch.float32 in found.layout.dtypes
        assert ("step" in used) == ("encoder" in used) == multiplies and ("attend" in used) != multiplies
    logits = torch.randn(4, 50)
    for name, call in {
        "log_sums": lambda: scores.log_normalizer(logits),
        "best": lambda: scores.best_tokens(logits, 2),
    }.items():
        with mock.patch.object(Kernels, name, autospec=True, side_effect=getattr(Kernels, name)) as kernel:
            call()
        assert kernel.called == (ratio < 1)


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_slow_entmax_kernel_is_not_used(
    simplex: SimplexKernel, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simplex_module, "_found", lambda: simplex)
    monkeypatch.setattr(simplex, "choice", Choice("simplex-0"))
    seen = fake(monkeypatch, ratio)
    with (
        mock.patch.object(newton, "weights", side_effect=newton.weights) as forward,
        mock.patch.object(newton, "gradients", side_effect=newton.gradients) as backward,
    ):
        entmax(torch.randn(1, 2, 3, 5, requires_grad=True), 1.5).sum().backward()
    assert forward.called == backward.called == (ratio > 1) and len(seen) == 2
    assert list(simplex.choice.ratios) == ["entmax forward 14 1.5", "entmax backward 14 1.5"]


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("alpha", [1.5, 2.0, None])
def test_both_sides_of_an_entmax_trial_solve_the_same_problem(
    simplex: SimplexKernel, way: Any, alpha: float | None
) -> None:
    ours, theirs = (side() for side in trial(simplex, way, 14, alpha))
    pairs = [(ours, theirs)] if way == "forward" else zip(ours, theirs, strict=True)
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.flatten(), other.flatten(), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("empty_cache")
def test_the_record_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, 0.25)
    Choice("kernels-0").faster("attention 64 30 30", nothing)
    (path,) = cache.folder().glob("kernels-0-*-speed-*.json")
    assert json.loads(path.read_bytes())["ratios"] == {"attention 64 30 30": 0.25}
