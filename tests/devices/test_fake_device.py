"""Every registered method on a fake CUDA device: tensors are made there, and the processor seldom waits for it.

The five parts are encode, decode, loss, backward with optimizer, and search (beam, greedy, sampling). `ALLOWED` of
`sparsenmt.testing.device` says which function may read from the device, copy to it, or make a tensor on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from sparsenmt.engine.contract import NextRules
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device
from sparsenmt.testing import device
from sparsenmt.testing.cases import Case, Plug, accepted, fits_language_model
from sparsenmt.testing.device import (
    ALLOWED,
    PARTS,
    Allowed,
    DeviceRun,
    prepare,
    run_parts,
    run_segments,
    without_kernels,
)
from sparsenmt.testing.fake_device import CUDA, FakeDevice, Kind, WrongDeviceError
from tests.conformance.cases import plugs
from tests.conformance.support import each
from tests.toys import tag_filter

TOY = str(tag_filter.__file__)
KNOWN: Allowed = {
    **ALLOWED,
    ("read", f"{TOY}: forward"): (6, "a toy"),
    ("upload", f"{TOY}: _is_any"): (6, "a toy"),
    ("read", "model/first_batch.py: _holds"): (48, "results of a plugin's method, on the first batch"),
}
MET: set[tuple[Kind, str]] = set()
"""What was read, copied or made in the parts that ran in this process."""


def first_places() -> list[Plug]:
    """Every method with every example, at one place each: the places of a socket take turns."""
    found: dict[tuple[str, str], list[Plug]] = {}
    for plug in accepted(plugs()):
        found.setdefault((plug.method.name, str(plug.options)), []).append(plug)
    return [each[number % len(each)] for number, each in enumerate(found.values())]


CASES = [Case((), "pre"), *(Case((plug,), "pre") for plug in first_places())]
FIRST = list({tuple(plug.method.socket for plug in case.plugs): case for case in reversed(CASES)}.values())
"""One case for each socket, and that without a method."""
TEXT_CASES = [case for case in CASES if not case.plugs or fits_language_model(case)]


def undeclared(found: Sequence[tuple[str, device.Counts]]) -> list[str]:
    """Return what is not allowed; all that there was stands in `MET`."""
    MET.update(key for _, counts in found for key in counts)
    return [line for part, counts in found for line in device.undeclared(counts, part, KNOWN)]


@each(CASES, fast=lambda case: case in FIRST)
def test_every_method(case: Case) -> None:
    try:
        assert not undeclared(run_parts(case))
    except UserError as error:
        pytest.skip(f"refused: {error}")


@pytest.mark.slow
def test_what_is_allowed_happens() -> None:
    """A read that no part of any method needs any more is not allowed for ever."""
    for case in CASES:
        with suppress(UserError):
            undeclared(run_parts(case))
    for case in TEXT_CASES:
        undeclared(run_segments(case))
    assert sorted(KNOWN.keys() - MET) == []


PLANTS: Mapping[str, tuple[type, str]] = {
    "encode": (Transformer, "encode"),
    "decode": (Transformer, "decode"),
    "loss": (Transformer, "project"),
    "update": (AdamW, "step"),
    "search": (TorchEngine, "_logits"),
}
"""Part -> the method that is damaged in it."""


def a_copy_to_the_cpu(run: DeviceRun) -> None:
    run.target.cpu()


def a_tensor_of_the_cpu(run: DeviceRun) -> None:
    run.target + torch.ones(run.target.shape[1], dtype=torch.long)


@pytest.mark.parametrize("damage", [a_copy_to_the_cpu, a_tensor_of_the_cpu])
@pytest.mark.parametrize("part", PARTS)
def test_plants_are_found(part: str, damage: Callable[[DeviceRun], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice()
    move = prepare(Case((), "pre"), fake)
    with without_kernels(), fake.running():
        run = move()
        owner, name = PLANTS[part]
        plain = getattr(owner, name)

        def damaged(*args: Any, **kwargs: Any) -> Any:
            if not fake.quiet:
                damage(run)
            return plain(*args, **kwargs)

        fake.events.clear()
        monkeypatch.setattr(owner, name, damaged)
        if damage is a_tensor_of_the_cpu:
            with pytest.raises(WrongDeviceError, match="a_tensor_of_the_cpu"):
                PARTS[part](run)
        else:
            PARTS[part](run)
            assert any("a_copy_to_the_cpu" in line for line in undeclared([(part, fake.counts())]))


def test_logits_that_are_not_finite_are_not_read() -> None:
    """Some token is picked, and no sentence has a score."""
    fake = FakeDevice()
    move = prepare(Case((), "pre"), fake)
    with without_kernels(), fake.running():
        engine = TorchEngine(move().model.eval())
        logits, scores = torch.zeros(2, 9, device=CUDA), torch.zeros(2, 1, device=CUDA)
        logits[1, 3] = torch.nan
        rules = NextRules(torch.zeros(2, 0, dtype=torch.long, device=CUDA), lambda values, _: values)
        fake.events.clear()
        totals, _, tokens = engine._picked(logits, scores, rules, lambda values: values.argmax(1))
        assert not fake.counts()
        with fake.unrecorded():
            assert totals.isnan().all() and tokens.tolist() == [[0], [0]]


def test_cudnn_is_not_asked_for_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make a plan for the shapes of every step."""
    asked: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    run_parts(CASES[0], ("encode", "decode"))
    assert asked and not any(asked)
    asked.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    pick_device("auto")
    assert asked == [False]


@pytest.mark.parametrize("case", TEXT_CASES, ids=map(str, TEXT_CASES))
def test_language_models_with_segment_memory(case: Case) -> None:
    assert not undeclared(run_segments(case))
