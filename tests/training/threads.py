"""Workers that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from sparsenmt.process.workers import Workers
from sparsenmt.training.loop import Trainer


@dataclass(frozen=True)
class Meeting:
    """The state that the threads of a run share."""

    size: int
    barrier: threading.Barrier
    values: dict[int, list[float]] = field(default_factory=dict)
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    tensors: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(size: int) -> list[Threads]:
        """Workers that meet each other."""
        shared = Meeting(size, threading.Barrier(size))
        return [Threads(rank, size, shared) for rank in range(size)]


@dataclass(frozen=True)
class Threads(Workers):
    """Workers that are threads of one process."""

    shared: Meeting | None = None

    def _meet(self) -> Meeting:
        assert self.shared is not None
        self.shared.barrier.wait(timeout=30)
        return self.shared

    def sum(self, values: list[float]) -> list[float]:
        assert self.shared is not None
        self.shared.values[self.rank] = values
        shared = self._meet()
        found = [sum(column) for column in zip(*(shared.values[rank] for rank in range(self.size)), strict=True)]
        self._meet()
        return found

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: self.sum_tensors([tensor])  # all threads wait for the same sums in the same order

    def sum_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        own = list(tensors)
        assert self.shared is not None
        self.shared.tensors[self.rank] = [each.clone() for each in own]
        shared = self._meet()
        for i, tensor in enumerate(own):
            tensor.copy_(sum((shared.tensors[rank][i] for rank in range(self.size)), torch.zeros_like(tensor)))
        self._meet()

    def gather(self, values: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
        assert self.shared is not None
        self.shared.gathered[self.rank] = values
        shared = self._meet()
        found = [shared.gathered[rank] for rank in range(self.size)]
        self._meet()
        return found

    def barrier(self) -> None:
        self._meet()


def run_threads(trainers: list[Trainer]) -> None:
    errors: list[BaseException] = []

    def work(trainer: Trainer) -> None:
        try:
            trainer.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)
