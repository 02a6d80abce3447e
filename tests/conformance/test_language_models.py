"""Every method of self-attention in a language model, alone and in pairs: segments, steps and one pass are the same.

A method joins by being registered, as in `cases`.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.engine import build as engines
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.transformer import Transformer
from tests.conformance.cases import VOCABULARY, Case, accepted, norm_of, plugs
from tests.conformance.checks import EXACT, SINGLE, assert_same
from tests.conformance.support import language_model_section
from tests.no_source import no_source
from tests.toys import registered

ROWS, LENGTH = 2, 23
SITE = "decoder_self."
OWN = [plug for plug in accepted(plugs()) if plug.place.startswith((SITE, "recurrence")) and not plug.method.requires]
# Patterns by absolute positions and transforms by features of a source are tried; fixed heads know the end of a text.
TRIED = [plug for plug in OWN if plug.method.socket not in ("heads",)]
FIRST = [plug for plug in TRIED if plug.options == plug.method.examples[0]]
PAIRS = [
    (a, b)
    for a, b in itertools.combinations(FIRST, 2)
    if a.place != b.place and {a.method.socket, b.method.socket} & {"position", "span"}
]
CASES = [Case(chosen, norm_of(*chosen)) for chosen in [(), *((plug,) for plug in TRIED), *PAIRS]]


def marks(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    if len(case.plugs) > 1 and any(plug.method.socket == "pattern" for plug in case.plugs):
        return (pytest.mark.slow,)
    return () if len(case.plugs) < 2 and case.has_first_examples else (pytest.mark.thorough,)


def build(case: Case) -> tuple[Transformer, Tensor]:
    """The model in float64 with random biases and norms, and a text."""
    with registered():
        model = build_model(
            language_model_section(case), source_size=VOCABULARY, target_size=VOCABULARY, seed=case.seed
        )
    rng = torch.Generator().manual_seed(case.seed)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    return model, torch.randint(4, VOCABULARY, (ROWS, LENGTH), generator=rng)


def whole(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    return {"states": model.read_segment(text)[0][2]}


def in_segments(model: Transformer, text: Tensor, size: int) -> dict[str, Tensor]:
    memory: SegmentMemory | None = None
    parts = []
    for segment in text.split(size, 1):
        hidden, memory = model.read_segment(segment, memory)
        parts.append(hidden[2])
    return {"states": torch.cat(parts, 1)}


def in_steps(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    cache = model.new_cache(no_source(model, ROWS))
    parts = [model.decode(part, cache.memory, cache=cache)[2] for part in text.split([1, 1, 7, 1, 9, 1, 3], 1)]
    return {"states": torch.cat(parts, 1)}


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=marks(case)) for case in CASES])
def test_all_checks(case: Case) -> None:
    model, text = build(case)
    with torch.no_grad():
        check_one_pass(model, text)
        check_listening(model, text, recurrent=case.has("recurrence"))
    check_gradients(model, text)
    with torch.no_grad():
        check_single_precision(model, text)


def check_one_pass(model: Transformer, text: Tensor) -> None:
    """Segments and steps equal one pass."""
    expected = whole(model, text)
    assert_same(in_segments(model, text, 9), expected, "segments = one pass", EXACT)
    assert_same(in_steps(model, text), expected, "steps = one pass", EXACT)
    assert_same(
        {"states": model.decode(text, no_source(model, ROWS))[2]},
        expected,
        "decode = read_segment",
        EXACT,
    )


def check_gradients(model: Transformer, text: Tensor) -> None:
    """Gradients of one pass are finite and reach every parameter of a method."""
    model.read_segment(text)[0][2].square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not [name for name in missing if "steps." in name or "weight" in name], missing
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name
    model.zero_grad()


def check_listening(model: Transformer, text: Tensor, *, recurrent: bool) -> None:
    """Listeners see weights that sum to 1 over visible keys, and change nothing."""
    expected, seen = whole(model, text), []

    def listen(found: Any) -> None:
        visible = found.keys.visible().expand(found.weights.shape)
        assert not bool((found.weights[~visible] != 0).any())
        sums, some = found.weights.sum(-1), visible.any(-1)
        torch.testing.assert_close(sums[some], torch.ones_like(sums[some]), atol=EXACT, rtol=0)
        seen.append(found.step)

    with model.listen(listen):
        assert_same(whole(model, text), expected, "listening changes nothing", EXACT)
    assert seen == ([] if recurrent else [0, 1])


def check_single_precision(model: Transformer, text: Tensor) -> None:
    """Steps equal one pass in fp32, packed too. Leaves the model in fp32."""
    model.float()
    expected = whole(model, text)
    assert_same(in_steps(model, text), expected, "fp32, steps", SINGLE)
    packed = copy.deepcopy(model)
    engines.build(packed)
    assert_same(in_steps(packed, text), expected, "packed, steps", SINGLE)
