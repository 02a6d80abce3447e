"""A kernel is used where the table of choices has it faster than PyTorch; nothing is measured or written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine, NextRules
from sparsenmt.engine.kernel_trials import every_class, measure
from sparsenmt.engine.torch_engine import best_tokens, log_normalizer
from sparsenmt.errors import UserError
from sparsenmt.native import choice
from sparsenmt.native.choice import TABLE, Choices, ChoiceTable, class_parts, read_table
from sparsenmt.native.encoder import EncoderStack
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS
from sparsenmt.native.kernels import Kernels
from sparsenmt.native.library import ALWAYS, SWITCH
from sparsenmt.native.steps import LayerStack
from sparsenmt.sparsity.simplex import newton
from sparsenmt.sparsity.simplex.function import entmax
from tests.model.support import random_model, random_source, random_target
from tests.native.libraries import decoding_kernels, simplex_kernel
from tools.kernel_choices import merge

TOY = ChoiceTable(
    version=1,
    measured={"amx": {}},
    same={"avx512": "amx"},
    columns=["amx 1", "amx 2"],
    ratios={
        "attention 64 1 30": [0.5, 1.5],
        "attention 64 1 80": [0.94, 0.96],
        "attention 64 14 30": [2.0, 0.2],
        "product int8 512 512": [0.3, None],
    },
)


@pytest.fixture(autouse=True)
def _by_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Choices:
    monkeypatch.setattr(choice, "read_table", lambda: TOY)
    return Choices("amx")


@pytest.mark.parametrize(
    ("sizes", "ratio"),
    [
        ((64, 1, 30), 0.5),
        ((64, 1, 48), 0.5),  # 30 is nearer than 80: 48 / 30 < 80 / 48
        ((64, 1, 49), 0.94),
        ((16, 2, 5000), 0.94),
        ((128, 4, 1), 2.0),
    ],
)
def test_the_class_with_the_nearest_sizes_counts(toy: Choices, sizes: tuple[int, ...], ratio: float) -> None:
    assert toy.ratio("attention", *sizes) == ratio
    assert toy.prefers("attention", *sizes) == (ratio < 0.95)


def test_threads_sets_and_words_have_classes_of_their_own(toy: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy.ratio("product", torch.int8, 100, 100) == 0.3
    for threads in (2, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert toy.ratio("attention", 64, 14, 30) == 0.2 and not toy.prefers("attention", 64, 1, 80)
        assert toy.ratio("product", torch.int8, 512, 512) == math.inf, "not measured"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert Choices("avx512").ratio("attention", 64, 1, 30) == 0.5, "of the set whose ratios it takes"
    assert Choices("neon").ratio("attention", 64, 1, 30) == math.inf and not Choices("").prefers("attention", 64, 1, 30)
    for kind, *sizes in (("attention", 64, 1), ("product", torch.float32, 1, 1), ("no such kernel", 64, 1, 30)):
        with pytest.raises(ValueError, match="has no class"):
            toy.ratio(str(kind), *sizes)
    monkeypatch.setenv(SWITCH, ALWAYS)
    assert toy.prefers("attention", 64, 14, 30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 2}', "the table of kernel choices has version 2, and this program reads version 1"),
        ("[]", "has version None"),
        ('{"version": 1, "measured": {}}', "same is missing or of another type"),
        ('{"version": 1, "measured": {}, "same": {}, "columns": [], "ratios": {"a": "b"}}', "ratios.a"),
        ("{", "not valid JSON"),
    ],
)
def test_a_table_of_another_form_is_refused(text: str, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "choices.json").write_text(text)
    monkeypatch.setattr(choice, "TABLE", tmp_path / "choices.json")
    monkeypatch.setattr(choice, "read_table", read_table.__wrapped__)
    with pytest.raises(UserError, match=said) as refused:
        Choices("amx")
    assert "Install sparsenmt again." in str(refused.value)


def test_the_table_has_every_class() -> None:
    """Those of the tool that measures it, one a line, and every instruction set."""
    table = read_table()
    known = {name for name, _ in every_class()}
    assert known <= table.ratios.keys() and (len(known) < 300 or known == table.ratios.keys())
    assert all(len(ratios) == len(table.columns) for ratios in table.ratios.values())
    assert all(ratio is None or ratio > 0 for ratios in table.ratios.values() for ratio in ratios)
    assert {f"{name} {threads}" for name in table.measured for threads in (1, 2)} == {*table.columns}
    assert {*table.measured, *table.same} == {each.name for each in INSTRUCTION_SETS}
    assert {*table.same.values()} <= table.measured.keys()
    assert merge(table, {}, {}) == TABLE.read_bytes().decode(), "as the tool writes it"


def test_new_columns_take_their_places() -> None:
    text = merge(TOY, {"avx2 1": {"attention 64 1 30": 0.25, "attention 64 1 14": 3.0}}, {"torch": "3"})
    written = json.loads(text)
    assert written["columns"] == ["amx 1", "amx 2", "avx2 1"] and written["measured"]["avx2"] == {"torch": "3"}
    assert written["ratios"]["attention 64 1 30"] == [0.5, 1.5, 0.25]
    assert written["ratios"]["attention 64 1 14"] == [None, None, 3.0] and len(written["ratios"]) == 5
    assert written["same"] == {
        **{"avx512_bf16": "amx", "avx512_vnni": "amx", "avx512": "amx"},
        **{"avx_vnni": "avx2", "neon_dotprod": "avx2", "neon": "avx2"},
    }


def test_a_measurement_takes_turns_and_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the two sides move."""
    now, calls = [0.0], []
    ours = iter([9.0, 5.0, 2.0, 4.0, 3.0, 3.0, 3.0, 3.0])  # the first to warm up
    theirs = iter([7.0, 8.0, 9.0, 10.0, 9.0, 9.0, 9.0, 9.0])

    def side(name: str, seconds: Any) -> None:
        calls.append(name)
        now[0] += next(seconds)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert measure(lambda: side("a", ours), lambda: side("b", theirs), 1.0) == 2.0 / 8.0
    assert calls == ["a", "b"] * 8


def test_both_sides_of_a_trial_solve_the_same_problem() -> None:
    """In one small class of every kernel and words."""
    decoding_kernels()
    small = [(name, trials) for name, trials in every_class() if math.prod(class_parts(name)[1]) < 1 << 21]
    for name, trials in {class_parts(name)[0]: (name, trials) for name, trials in small[::-1]}.values():
        if name.startswith(("loss", "window")):  # other results are returned, and the ends of sentences are others
            continue
        for ours, theirs in trials():
            with torch.inference_mode():
                one, other = (_tensors(side()) for side in (ours, theirs))
            if "decoder step" in name:
                other = [torch.nn.functional.layer_norm(each, each.shape[-1:]) for each in other]
            loose = 0.1 if "bfloat16" in name or "int8" in name else 1e-4
            for a, b in zip(one, other, strict=False):
                allowed = loose * max(1.0, float(b.abs().max()))
                torch.testing.assert_close(a.flatten(), b.flatten(), atol=allowed, rtol=0)


def _tensors(result: Any) -> list[torch.Tensor]:
    """The numbers of a result: of continuations the scores, of best tokens the values."""
    if isinstance(result, torch.Tensor):
        return [result.float()]
    return [each.float() for each in result if isinstance(each, torch.Tensor) and each.is_floating_point()]


def searched(engine: Engine) -> list[str]:
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
        cache = engine.new_cache(engine.encode(random_source((7, 12)), compact=True).memory)
        rules = NextRules(torch.empty(4, 0, dtype=torch.long), lambda logits, _: logits, never=(0, 1))
        for token in random_target(4, 3).unbind(1):
            states = engine.step(token[:, None], cache)[:, -1]
            engine.next_tokens(states, torch.zeros(2, 2), cache, rules, 2)
    whole = {"step": step, "encoder": encoder}
    return [*(name for name in names if name in called), *(name for name, each in whole.items() if each.call_count)]


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_slow_kernel_is_not_used(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in attention, nor in the vocabulary, nor in a step."""
    found = decoding_kernels()
    monkeypatch.setattr(Choices, "ratio", lambda *problem: ratio)
    model = random_model(torch.float32, dimension=64, feed_forward=96, heads=4)
    used = searched(build(model))
    if ratio > 1:
        assert used == []
    else:
        assert "step" in used and "encoder" in used and "attend" not in used
    logits = torch.randn(4, 50)
    for name, call in {
        "log_sums": lambda: log_normalizer(logits, found),
        "best": lambda: best_tokens(logits, 2, found),
    }.items():
        with mock.patch.object(Kernels, name, autospec=True, side_effect=getattr(Kernels, name)) as kernel:
            call()
        assert kernel.called == (ratio < 1)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_slow_entmax_kernel_is_not_used(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = simplex_kernel()
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(Choices, "ratio", lambda self, *problem: seen.append(problem) or ratio)
    with (
        mock.patch.object(newton, "weights", side_effect=newton.weights) as forward,
        mock.patch.object(newton, "gradients", side_effect=newton.gradients) as backward,
    ):
        entmax(torch.randn(1, 2, 3, 5, requires_grad=True), 1.5, solver=kernel).sum().backward()
    assert forward.called == backward.called == (ratio > 1)
    assert seen == [("entmax forward", 1.5, 5), ("entmax backward", 1.5, 5)]
