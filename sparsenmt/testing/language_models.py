"""Self-attention in a language model: segments of a text, single steps and one pass are the same.

Each check raises `checks.BrokenRule`.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from sparsenmt.engine import build as engines
from sparsenmt.model.protocol import AttentionSeen, Source
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.transformer import Transformer
from sparsenmt.testing.bench import VOCABULARY, Bench, attention_steps, model_of, randomise
from sparsenmt.testing.cases import Case, language_model_section
from sparsenmt.testing.checks import EXACT, SINGLE, assert_same, check_hidden, check_sums, every_kernel, require

ROWS, LENGTH = 2, 23
_STEPS = (1, 1, 7, 1, 9, 1, 3)  # tokens that are decoded at once
_SEGMENT = 9


def build_text(case: Case) -> tuple[Transformer, Tensor]:
    """The model in float64 with random biases and norms, and a text (B, T)."""
    rng = torch.Generator().manual_seed(case.seed)
    model = randomise(model_of(case, language_model_section, case.seed), rng)
    return model, torch.randint(4, VOCABULARY, (ROWS, LENGTH), generator=rng)


def _depth(model: Transformer) -> int:
    return model.plan.decoder_exits[-1]


def whole(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    return {"states": model.read_segment(text)[0][_depth(model)]}


def in_segments(model: Transformer, text: Tensor, size: int) -> dict[str, Tensor]:
    memory: SegmentMemory | None = None
    parts = []
    for segment in text.split(size, 1):
        hidden, memory = model.read_segment(segment, memory)
        parts.append(hidden[_depth(model)])
    return {"states": torch.cat(parts, 1)}


def decoded(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """The states step by step, with a cache."""
    memory = model.encode(Source.none(ROWS, text.device)).memory
    cache = model.new_cache(memory)
    parts = [model.decode(part, cache.memory, cache=cache)[_depth(model)] for part in text.split(_STEPS, 1)]
    return {"states": torch.cat(parts, 1)}


def check_one_pass(model: Transformer, text: Tensor) -> None:
    """Segments and steps equal one pass."""
    expected, memory = whole(model, text), model.encode(Source.none(ROWS, text.device)).memory
    assert_same(in_segments(model, text, _SEGMENT), expected, "segments = one pass", EXACT)
    assert_same(decoded(model, text), expected, "steps = one pass", EXACT)
    assert_same({"states": model.decode(text, memory)[_depth(model)]}, expected, "decode = read_segment", EXACT)


def check_text_gradients(model: Transformer, text: Tensor) -> None:
    """Gradients of one pass are finite and reach every parameter of a method."""
    model.zero_grad()
    whole(model, text)["states"].square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    still = [name for name in missing if "steps." in name or "weight" in name]
    require(not still, f"parameters of methods that get no gradient: {', '.join(still)}")
    for name, parameter in model.named_parameters():
        finite = parameter.grad is None or bool(parameter.grad.isfinite().all())
        require(finite, f"the gradient of {name} is not finite")
    model.zero_grad()


def check_listeners(model: Transformer, text: Tensor) -> None:
    """Listeners see weights on visible keys, which sum to 1 where they shall, and change nothing."""
    expected, told = whole(model, text), []
    steps = [step for _, step in attention_steps(model)]

    def listen(seen: AttentionSeen) -> None:
        check_hidden(seen, 0)
        if steps[seen.step].transform.normalised:
            check_sums(seen, 0)
        told.append(seen.step)

    with model.listen(listen):
        assert_same(whole(model, text), expected, "listening changes nothing", EXACT)
    require(told == [step.step for step in steps], "a listener is told every step once")


def check_text_single_precision(model: Transformer, text: Tensor) -> None:
    """Steps equal one pass in fp32, packed too. Leaves the model in fp32."""
    model.float()
    expected = whole(model, text)
    assert_same(decoded(model, text), expected, "fp32, steps", SINGLE)
    packed = copy.deepcopy(model)
    with every_kernel():
        engines.build(packed)
    assert_same(decoded(packed, text), expected, "packed, steps", SINGLE)


def check_language_model(case: Case) -> None:
    """All checks of a language model with the plugs of a case."""
    model, text = build_text(case)
    with torch.no_grad():
        check_one_pass(model, text)
        check_listeners(model, text)
    with torch.enable_grad():
        check_text_gradients(model, text)
    with torch.no_grad():
        check_text_single_precision(model, text)


def check_segments(bench: Bench) -> None:
    """`check_language_model` of a case."""
    check_language_model(bench.case)
