"""The state of a training run: progress, optimizer and random number generators."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Optimizer
from sparsenmt.training.precision import MasterWeights


@dataclass(frozen=True)
class ValidationResult:
    """One validation: the update after which it ran, and its values by metric name."""

    update: int
    values: Mapping[str, float]


@dataclass
class RunningSums:
    """Sums over the updates since the last line of the log."""

    updates: int = 0
    tokens: int = 0
    loss: float = 0.0
    nll: float = 0.0
    norm: float = 0.0
    seconds: float = 0.0
    auxiliary: dict[str, float] = field(default_factory=dict)

    def add(
        self, loss: float, nll: float, auxiliary: Mapping[str, float], *, norm: float, tokens: int, seconds: float
    ) -> None:
        """Add an update."""
        self.updates += 1
        self.tokens += tokens
        self.loss += loss
        self.nll += nll
        self.norm += norm
        self.seconds += seconds
        for name, value in auxiliary.items():
            self.auxiliary[name] = self.auxiliary.get(name, 0.0) + value

    def mean_loss(self) -> float:
        return self.loss / max(self.updates, 1)

    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def values(self) -> dict[str, float]:
        """The means, by name."""
        return {
            "loss": self.mean_loss(),
            "nll": self.nll / max(self.tokens, 1),
            "gradient_norm": self.norm / max(self.updates, 1),
            "tokens_per_second": self.tokens_per_second(),
            **{name: value / max(self.updates, 1) for name, value in self.auxiliary.items()},
        }


@dataclass(frozen=True)
class Multiplier:
    """State of a loss with a target: see `training.schedules`."""

    weight: float = 0.0
    integral: float = 0.0
    closed: float | None = None  # share closed, smoothed; None before the first update


@dataclass
class Progress:
    """The progress of a run between two updates. The names of the fields are those in checkpoints."""

    update: int = 0
    epoch: int = 0
    batches_done: int = 0  # of the current epoch, in each of `workers` processes
    target_tokens: int = 0
    seconds: float = 0.0  # of updates
    skipped: int = 0  # updates skipped because the loss or gradient was not finite
    workers: int = 1  # processes that the run began with: an update has their batches
    validated: list[ValidationResult] = field(default_factory=list)
    recent: RunningSums = field(default_factory=RunningSums)
    finished: bool = False
    began: int = 0  # update of the other run that this one continues
    multipliers: dict[str, Multiplier] = field(default_factory=dict)
    tokenizer: str | None = None  # of the validation metric; None: 13a, or the metric has none
    numerics: dict[str, Any] | None = None  # see engine/numerics.py; None in checkpoints of earlier versions
    elapsed: float = 0.0  # seconds of the run before this update: with validations, without interruptions

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)


def make_optimizer(weights: MasterWeights, options: Optimizer) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015) with decoupled weight decay on matrices, or Adagrad (Duchi et al. 2011).

    The training loop sets the learning rate; with Adagrad every parameter is a group and has its own.
    """
    parameters = [parameter for parameter in weights.named.values() if parameter.requires_grad]
    if options.name == "adagrad":
        single = [{"params": [parameter]} for parameter in parameters]
        initial = options.initial_sum
        return torch.optim.Adagrad(single, lr=0.0, initial_accumulator_value=initial, eps=options.epsilon)
    matrices = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    decayed: list[dict[str, Any]] = [{"params": matrices, "weight_decay": options.weight_decay}]
    groups = [group for group in (*decayed, {"params": others, "weight_decay": 0.0}) if group["params"]]
    betas = (options.beta1, options.beta2)
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=options.epsilon, fused=True)
    for parameter in parameters:
        # PyTorch would make them in the first update, between activations: what these leave would stay in parts.
        moments = {key: torch.zeros_like(parameter) for key in _state_keys(optimizer) if key != "step"}
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter] = {"step": step, **moments}
    return optimizer


def _state_keys(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return ("sum", "step") if isinstance(optimizer, torch.optim.Adagrad) else ("exp_avg", "exp_avg_sq", "step")


def optimizer_state(optimizer: torch.optim.Optimizer, weights: MasterWeights) -> dict[str, Tensor]:
    """The optimizer's tensors by parameter name: Adam's moments, Adagrad's sums."""
    return {
        f"{name}/{key}": optimizer.state[parameter][key].detach().clone()
        for name, parameter in weights.named.items()
        if parameter in optimizer.state
        for key in _state_keys(optimizer)
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, weights: MasterWeights, tensors: Mapping[str, Tensor]
) -> None:
    """Restore the optimizer's tensors.

    Raises:
        UserError: they are those of another optimizer.
    """
    keys = _state_keys(optimizer)
    if any(name.rpartition("/")[2] not in keys for name in tensors):
        raise UserError(
            "the checkpoint was written with another optimizer",
            where="training.optimizer.name",
            hint="Name that one, or begin with the weights alone.",
        )
    for name, parameter in weights.named.items():
        if f"{name}/step" in tensors and parameter.requires_grad:
            state = {key: tensors[f"{name}/{key}"] for key in keys}
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the random number generators that training uses, as uint8 tensors on the CPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the generators' states."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
