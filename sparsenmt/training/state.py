"""All state of a training run that is not a tensor, in one place, and the tensors beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparsenmt.training.precision import Weights


@dataclass(frozen=True)
class Validated:
    """One validation: the update after which it ran, and what it gave by metric name."""

    update: int
    values: Mapping[str, float]


@dataclass
class Progress:
    """Where the run stands, always at the boundary of an update."""

    update: int = 0
    epoch: int = 0
    batches_done: int = 0  # of the running epoch, on every rank
    target_tokens: int = 0
    seconds: float = 0.0
    stale: int = 0  # validations since the last best one
    validated: list[Validated] = field(default_factory=list)
    finished: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str | bytes) -> Progress:
        values: dict[str, Any] = json.loads(text)
        values["validated"] = [Validated(**each) for each in values["validated"]]
        return Progress(**values)


def make_optimizer(
    weights: Weights, *, betas: tuple[float, float], epsilon: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015), with decoupled decay on matrices where it is asked for. The loop sets the rate."""
    matrices = [p for p in weights.named.values() if p.dim() >= 2]
    others = [p for p in weights.named.values() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=epsilon, fused=True)


_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def optimizer_tensors(optimizer: torch.optim.Optimizer, weights: Weights) -> dict[str, Tensor]:
    """Adam's moments by parameter name."""
    return {
        f"{name}/{key}": optimizer.state[parameter][key].detach().clone()
        for name, parameter in weights.named.items()
        if parameter in optimizer.state
        for key in _MOMENTS
    }


def load_optimizer(optimizer: torch.optim.Optimizer, weights: Weights, tensors: Mapping[str, Tensor]) -> None:
    """Put Adam's moments back."""
    for name, parameter in weights.named.items():
        if f"{name}/step" in tensors:
            state = {key: tensors[f"{name}/{key}"] for key in _MOMENTS}
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The states of all generators that training draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators' states back."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
