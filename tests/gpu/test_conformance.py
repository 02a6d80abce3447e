"""Every registered method on a GPU: the same states, gradients and translations as on the CPU, in float64.

Without a CUDA device all is skipped but one case on the CPU, which keeps this file from rotting. Run by `make gpu`, or
with SPARSENMT_TEST_GPU=1: without that variable tests see no device.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import Source
from sparsenmt.recipe.schema import Decoding
from sparsenmt.testing.bench import Bench, build
from sparsenmt.testing.cases import Case
from tests.conformance.cases import alone

CASES = alone()
EXACT = 1e-8  # float64; sums in another order
WITHOUT = "PyTorch finds no CUDA device, or SPARSENMT_TEST_GPU is not set"
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason=WITHOUT)


def moved(bench: Bench, device: torch.device) -> Bench:
    """The case on a device; its model is moved, not copied."""
    source = bench.source
    features = {name: each.to(device) for name, each in source.features.items()}
    there = Source(source.tokens.to(device), source.valid.to(device), features)
    return replace(bench, model=bench.model.to(device), source=there, target=bench.target.to(device))


def outputs(bench: Bench) -> dict[str, Tensor]:
    """Hidden states of all exits, and the gradients of a sum of their squares, on the CPU."""
    bench.model.zero_grad()
    hidden = bench.outputs()
    torch.stack([states.square().sum() for states in hidden.values()]).sum().backward()
    # A copy: moving a model to a device replaces the numbers of its gradients, too.
    gradients = {name: p.grad.cpu().clone() for name, p in bench.model.named_parameters() if p.grad is not None}
    return {**{f"exits {exits}": states.detach().cpu() for exits, states in hidden.items()}, **gradients}


def translations(bench: Bench, method: str) -> Results:
    last = bench.model.plan.encoder_exits[-1]
    with torch.inference_mode():
        memory = bench.model.encode(bench.source, exits=(last,), compact=True).memories[last]
    rows = len(bench.source.tokens)
    limits, numbers = torch.full((rows,), 8, device=memory.valid.device), list(range(rows))
    strategy, found = strategy_of(Decoding(method=method, beam_size=3)), dict[int, object]()
    for results in strategy.search(
        TorchEngine(bench.model), [EncodedBatch(memory, limits, numbers, numbers)], lambda _: nullcontext()
    ):
        found |= results
    return {number: hypotheses for number, hypotheses in found.items()}  # type: ignore[misc]


def check_device(case: Case, device: torch.device) -> None:
    """Compare a device with the CPU."""
    try:
        bench = build(case)
    except UserError as error:
        pytest.skip(f"refused: {error}")
    expected, chosen = outputs(bench), {name: translations(bench, name) for name in ("beam", "greedy", "sample")}
    there = moved(bench, device)
    found = outputs(there)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, atol=EXACT, rtol=EXACT, msg=lambda text, n=name: f"{n}: {text}")
    for name, results in chosen.items():
        tokens = {number: [each.tokens for each in some] for number, some in results.items()}
        again = {number: [each.tokens for each in some] for number, some in translations(there, name).items()}
        assert again == tokens, name


@CUDA
@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_a_device_and_the_cpu_agree(case: Case) -> None:
    check_device(case, torch.device("cuda"))


def test_the_comparison_itself_on_the_cpu() -> None:
    check_device(CASES[0], torch.device("cpu"))


@CUDA
def test_memory_and_name_of_the_device() -> None:
    from sparsenmt.process.devices import device_memory

    assert (device_memory(torch.device("cuda", 0)) or 0) > 2**30
