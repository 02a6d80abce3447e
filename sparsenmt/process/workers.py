"""The processes that torchrun started: how they find each other, their ranks, and sums over all of them."""

from __future__ import annotations

import atexit
import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.process.progress import notify

_JOIN_SECONDS = "SPARSENMT_JOIN_SECONDS"
_QUIET = 2.0  # seconds of waiting without a note: processes do not start at the same moment
_POLL = 0.1  # seconds; signals are handled in between, but not while PyTorch waits
_WAIT_SECONDS = "SPARSENMT_WAIT_SECONDS"
_WAIT = 21600  # seconds: the others wait while the main process validates, which may take hours

_SENT = 8  # tensors, two for each text, that may be on their way

_LOST = ("gloo/transport", "onnection closed", "onnection reset", "roken pipe", "NCCL")
"""Words in the errors of a process whose partner has ended."""


@dataclass(frozen=True)
class Launch:
    """The place of this process among those of a run, as torchrun's environment variables give it."""

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    seconds: int
    """Time limit for the others to join."""
    wait: int
    """Time limit in seconds for the others to take part in an exchange of values."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> Launch | None:
        """Read the environment; None: a single process.

        Raises:
            UserError: a variable is missing or invalid.
        """
        size = _number(environment, "WORLD_SIZE", 1, default=1)
        if size == 1:
            return None
        return Launch(
            rank=_number(environment, "RANK", 0, size - 1),
            size=size,
            local_rank=_number(environment, "LOCAL_RANK", 0, default=0),
            address=_value(environment, "MASTER_ADDR"),
            port=_number(environment, "MASTER_PORT", 1, 65535),
            seconds=_number(environment, _JOIN_SECONDS, 1, default=1800),
            wait=_number(environment, _WAIT_SECONDS, 1, default=_WAIT),
        )

    @property
    def place(self) -> str:
        """Host and port of the store through which the processes find each other."""
        return f"{self.address}:{self.port}"


def _value(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise UserError(
            "the environment variable is not set, but WORLD_SIZE says that there are several processes",
            where=name,
            hint="Start the processes with torchrun, or unset WORLD_SIZE to train in one process.",
        )
    return value


def _number(
    environment: Mapping[str, str], name: str, least: int, most: int | None = None, *, default: int | None = None
) -> int:
    """Read a whole number from an environment variable; without a default it must be set."""
    if default is not None and name not in environment:
        return default
    value = _value(environment, name) if default is None else environment[name]
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1
    if number < least or (most is not None and number > most):
        wanted = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise UserError(
            f"the environment variable is '{value}', not a whole number {wanted}",
            where=name,
            hint="Start the processes with torchrun, or unset the variable.",
        )
    return number


def _meet(launch: Launch) -> Any:
    """Wait until all processes have joined; returns the store through which they find each other.

    The store is polled: while PyTorch itself waits, no signal is handled.

    Raises:
        UserError: the time is over, or the port is in use.
    """
    began, noted = time.monotonic(), False
    names = [f"joined/{rank}" for rank in range(launch.size)]
    store: Any = None  # PyTorch does not export the type
    try:
        while True:
            waited, missing = time.monotonic() - began, "the process with RANK=0"
            to_note, over = waited >= _QUIET and not noted, waited >= launch.seconds
            try:
                if store is None:
                    store = _open_store(launch)
                    if store is not None:
                        store.set(names[launch.rank], "")
                if store is not None and store.check(names):
                    return store
                if store is not None and (to_note or over):
                    missing = f"{sum(not store.check([name]) for name in names)} of {launch.size} processes"
            except dist.DistError:
                store = None  # the first process has ended: it may be started again
            if over:
                raise UserError(
                    f"{missing} did not join within {launch.seconds:,} s",
                    where=launch.place,
                    hint="Start all processes with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset "
                    f"WORLD_SIZE to train in one process. {_JOIN_SECONDS} sets the time limit.",
                )
            if to_note and (launch.rank == 0 or store is None):
                notify(f"waiting for {missing} at {launch.place} (up to {launch.seconds:,} s, {_JOIN_SECONDS})")
                noted = True
            time.sleep(_POLL)
    except BaseException:
        with suppress(RuntimeError):
            if store is not None:
                store.delete_key(names[launch.rank])
        raise


def _leave() -> None:
    """End the connections before the interpreter does: a thread of theirs that still runs then aborts the process."""
    with suppress(RuntimeError, ValueError, AssertionError):
        if dist.is_initialized():
            dist.destroy_process_group()


def _open_store(launch: Launch) -> Any:
    """Open the store of the processes, as PyTorch's `env://` does; None if there is no answer from its address yet."""
    leads = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not leads:
        try:  # PyTorch itself would print a traceback for every failure
            socket.create_connection((launch.address, launch.port), timeout=1).close()
        except OSError:
            return None
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            launch.address,
            launch.port,
            launch.size,
            is_master=leads,
            timeout=timedelta(seconds=10),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistNetworkError as error:
        if not leads:
            return None
        reason = os.strerror(errno.EADDRINUSE) if "EADDRINUSE" in str(error) else str(error).partition("\n")[0]
        raise UserError(
            f"the port cannot be opened for the other processes: {reason}",
            where=launch.place,
            hint="Choose another MASTER_PORT, the same for all processes.",
        ) from None
    store.set_timeout(timedelta(seconds=max(launch.seconds, 60)))  # of later operations: the connection is open
    # After a restart by torchrun, its store holds what the processes before have written.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"sparsenmt/{attempt}", store)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Workers:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def join(device: torch.device, exchange: torch.device | None = None) -> Workers:
        """Join the process group that torchrun's environment describes; without one, a single process.

        Args:
            device: that this process computes on.
            exchange: the type of device whose tensors are exchanged; None: that of ``device``.

        Raises:
            UserError: a variable is missing or invalid, or the other processes do not join.
        """
        launch = Launch.read(os.environ)
        if launch is None:
            return Workers()
        workers = Workers(launch.rank, launch.size)
        if dist.is_initialized():
            return workers
        if device.type == "cuda":
            if device.index is not None:
                raise UserError(
                    f"several processes cannot share {device}: each takes the device of its number",
                    where="training.device",
                    hint="Set it to cuda or auto.",
                )
            if launch.local_rank >= torch.cuda.device_count():
                raise UserError(
                    f"process {launch.local_rank} of this machine has no CUDA device: there are "
                    f"{torch.cuda.device_count()}",
                    where="LOCAL_RANK",
                    hint="Start as many processes as there are devices.",
                )
            torch.cuda.set_device(launch.local_rank)
        store = _meet(launch)
        with workers._connected():
            # Numbers of the processes are exchanged on the CPU: no device is waited for.
            backend = "cpu:gloo,cuda:nccl" if (exchange or device).type == "cuda" else "gloo"
            dist.init_process_group(
                backend, store=store, rank=launch.rank, world_size=launch.size, timeout=timedelta(seconds=launch.wait)
            )
        atexit.register(_leave)
        return workers

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Explain the failure of a block that exchanges values with the other processes."""
        try:
            yield
        except RuntimeError as error:
            lost = isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)
            if is_out_of_memory(error) or not lost:
                raise
            raise UserError(
                "another process of the run has ended, or cannot be reached any more",
                where=f"process {self.rank} of {self.size}",
                hint="Read that process's messages, and start all processes again: completed work is kept.",
                resumable=True,
            ) from error

    @property
    def is_main_process(self) -> bool:
        """True in the process that writes files and messages."""
        return self.rank == 0

    def start_sum(self, tensor: Tensor) -> Callable[[], None]:
        """Start to replace a tensor by its sum over all processes; returns a function that waits for the end."""
        with self._connected():
            work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with self._connected():
                work.wait()

        return wait

    def sum_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Replace every tensor by its sum over all processes, in place."""
        if self.size == 1:
            return
        with self._connected():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sums over all processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        with self._connected():
            dist.all_reduce(tensor)
            return tensor.tolist()

    def gather(self, values: Tensor, device: torch.device) -> list[Tensor]:
        """The tensors of all processes by rank, on the CPU; shape and dtype must be equal in all."""
        if self.size == 1 or not values.numel():
            return [values] * self.size
        own = values.to(device)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(parts, own)
            return [part.cpu() for part in parts]

    def gather_text(self, text: str, device: torch.device) -> list[str]:
        """The texts of all processes by rank."""
        if self.size == 1:
            return [text]
        data = text.encode()
        sizes = [int(each) for each in self.gather(torch.tensor([len(data)]), device)]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
        found = self.gather(own, device)
        return [bytes(each[:size].tolist()).decode() for each, size in zip(found, sizes, strict=True)]

    def receive_text(self, rank: int) -> str:
        """Wait for the next text that a process sends to this one (gloo)."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._connected():
            dist.recv(size, rank)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(data, rank)
        return data.numpy().tobytes().decode()

    @contextmanager
    def sending_text(self) -> Iterator[Callable[[str], None]]:
        """Send texts to the main process (gloo); this process goes on before they are received.

        Yields:
            a function that sends a text; when the block ends, all have been received.
        """
        sent: deque[tuple[Any, Tensor]] = deque()

        def send(text: str) -> None:
            data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
            with self._connected():
                for tensor in (torch.tensor([len(data)]), data):
                    sent.append((dist.isend(tensor, 0), tensor))
                while len(sent) > _SENT:
                    sent.popleft()[0].wait()

        try:
            yield send
        except UserError as error:
            if not error.repeated:
                raise
            self._await(sent)
            raise
        self._await(sent)

    def _await(self, sent: Iterable[tuple[Any, Tensor]]) -> None:
        with self._connected():
            for work, _ in sent:
                work.wait()

    @contextmanager
    def checked_together(self, device: torch.device) -> Iterator[None]:
        """Run checks in every process; an error in one of them ends all, and only one process shows it."""
        error = None
        try:
            yield
        except UserError as found:
            error = found
        if self.size > 1:
            failed = [bool(each) for each in self.gather(torch.tensor([error is not None]), device)]
            if any(failed) and failed.index(True) != self.rank:
                raise UserError(
                    "another process of the run shows what is wrong",
                    where="torchrun",
                    hint="Read its message.",
                    repeated=True,
                ) from error
        if error is not None:
            raise error

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            with self._connected():
                dist.barrier()
