"""The processes that torchrun started: their ranks, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Workers:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def join(device: torch.device) -> Workers:
        """Join the process group that torchrun's environment describes; without one, a single process."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return Workers()
        if not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            # The others wait while the main process validates: longer than the default timeout.
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=6))
        return Workers(dist.get_rank(), size)

    @property
    def is_main_process(self) -> bool:
        """True in the process that writes files and messages."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes; a missing gradient counts as 0."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Element-wise sums over all processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return [float(x) for x in tensor]

    def gather(self, values: Tensor, device: torch.device) -> list[Tensor]:
        """The tensors of all processes by rank, on the CPU; shape and dtype must be equal in all."""
        if self.size == 1:
            return [values]
        own = values.to(device)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        return [part.cpu() for part in parts]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()
