"""Sums of gradients over several processes: flat buckets, summed while the backward pass still runs.

The gradients of several parameters lie in one flat buffer, a bucket. When the last gradient of a bucket is complete,
its sum over all processes starts in the background, and the backward pass continues with the layers below (Li et al.
2020, "PyTorch Distributed", section 3.2). DistributedDataParallel does the same for modules whose backward pass is one
call; here it is several for each batch: one from every exit, and one through the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from sparsenmt.process.workers import Workers

BUCKET_BYTES = 4 << 20
"""Size of a bucket: large enough that a sum is limited by bandwidth, small enough that the first one starts early."""
_ALIGNMENT = 64  # bytes: of every gradient in its bucket


@dataclass(eq=False)
class _Slot:
    """The place of one parameter in its bucket.

    Args:
        parameter: of the model; it gets the gradients of batches.
        master: its master weight, which the optimizer updates; the same where the model computes in fp32.
        total: the part of the bucket that becomes the gradient of the master weight.
    """

    parameter: nn.Parameter
    master: nn.Parameter
    total: Tensor
    bucket: _Bucket
    at_end: bool
    """True if its gradient is not computed by autograd alone."""
    calls: int = 0
    """Backward passes of the current batch that have reached the parameter."""
    taken: bool = False
    """True if the gradient of this process is in the bucket."""

    def gradients(self) -> list[Tensor]:
        """Return the gradients of this process that are not in the bucket, and forget them."""
        found = [each.grad for each in dict.fromkeys((self.master, self.parameter)) if each.grad is not None]
        self.master.grad = self.parameter.grad = None
        return found


@dataclass(eq=False)
class _Bucket:
    """Gradients that are summed in one operation."""

    flat: Tensor
    slots: list[_Slot] = field(default_factory=list)
    missing: int = 0
    wait: Callable[[], None] | None = None


class GradientBuckets:
    """The gradients of an update in all processes.

    The order of the buckets, and of the parameters in them, depends on the model alone, so that all processes start the
    same sums in the same order. When a gradient is complete is learned: each process counts the backward passes that
    reach a parameter in a batch. A gradient that comes later than that is summed once more, by itself.

    Args:
        trained: (model parameter, master weight) of everything that is trained, in the model's order.
        last: parameters whose gradients autograd does not compute; they are summed last.
    """

    def __init__(
        self, trained: Iterable[tuple[nn.Parameter, nn.Parameter]], workers: Workers, last: Iterable[Tensor] = ()
    ) -> None:
        self._workers = workers
        self._buckets: list[_Bucket] = []
        self._slots: list[_Slot] = []
        self._learned: dict[Hashable, list[int]] = {}
        self._expected: list[int] | None = None
        self._key: Hashable = None
        self._started = 0
        if workers.size > 1:
            at_end = {id(each) for each in last}
            pairs = sorted(reversed(list(trained)), key=lambda pair: id(pair[0]) in at_end)
            for group in _groups(pairs):
                self._add_bucket(group, at_end)
            for number, slot in enumerate(self._slots):
                slot.parameter.register_post_accumulate_grad_hook(partial(self._accumulated, number))

    def _add_bucket(self, pairs: list[tuple[nn.Parameter, nn.Parameter]], at_end: set[int]) -> None:
        first = pairs[0][1]
        sizes = [_aligned(master) for _, master in pairs]
        bucket = _Bucket(torch.zeros(sum(sizes), dtype=first.dtype, device=first.device))
        for (parameter, master), part in zip(pairs, bucket.flat.split(sizes), strict=True):
            total = part[: master.numel()].view_as(master)
            bucket.slots.append(_Slot(parameter, master, total, bucket, id(parameter) in at_end))
        self._buckets.append(bucket)
        self._slots += bucket.slots

    def begin_update(self) -> None:
        """Prepare for the gradients of an update."""
        self._started = 0
        for bucket in self._buckets:
            bucket.missing, bucket.wait = len(bucket.slots), None
        for slot in self._slots:
            slot.taken = False

    def begin_batch(self, key: Hashable, *, last: bool) -> None:
        """Prepare for the gradients of a batch.

        Args:
            key: batches of the same key are expected to have the same backward passes.
            last: True: no gradients of this update come after those of this batch, so that sums may start.
        """
        self._key = key
        self._expected = self._learned.get(key) if last else None
        for number, slot in enumerate(self._slots):
            slot.calls = 0
            if self._expected is not None and not self._expected[number] and not slot.at_end:
                self._take(slot)  # nothing reaches it

    def end_batch(self) -> None:
        """Remember how many backward passes have reached every parameter."""
        self._expected = None
        if self._slots:
            before = self._learned.get(self._key, [0] * len(self._slots))
            self._learned[self._key] = [max(old, slot.calls) for old, slot in zip(before, self._slots, strict=True)]

    def _accumulated(self, number: int, _parameter: Tensor) -> None:
        """Count a backward pass that has reached a parameter; a hook of autograd."""
        slot = self._slots[number]
        slot.calls += 1
        if self._expected is not None and slot.calls == self._expected[number]:
            self._take(slot)

    @torch.no_grad()
    def _take(self, slot: _Slot) -> None:
        """Move the gradient of this process into the bucket; start the sums of the buckets that are complete."""
        _add_up(slot.gradients(), slot.total)
        slot.taken = True
        slot.bucket.missing -= 1
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            bucket = self._buckets[self._started]
            bucket.wait = self._workers.start_sum(bucket.flat)
            self._started += 1

    def start_rest(self) -> bool:
        """Start the sums that have not started; a missing gradient counts as 0.

        Returns:
            True if a gradient came too late for its bucket: then every process must call `finish` with ``late``.
        """
        late = any(
            slot.taken and (slot.master.grad is not None or slot.parameter.grad is not None) for slot in self._slots
        )
        for slot in self._slots:
            if not slot.taken:
                self._take(slot)
        return late

    @torch.no_grad()
    def finish(self, *, late: bool) -> None:
        """Wait for the sums, and make them the gradients of the master weights.

        Args:
            late: True if in any process a gradient came too late: what came is summed, too.
        """
        for bucket in self._buckets:
            assert bucket.wait is not None
            bucket.wait()
            if late:
                rest = torch.zeros_like(bucket.flat)
                sizes = [_aligned(slot.master) for slot in bucket.slots]
                for slot, part in zip(bucket.slots, rest.split(sizes), strict=True):
                    _add_up(slot.gradients(), part[: slot.total.numel()].view_as(slot.total))
                self._workers.start_sum(rest)()
                bucket.flat += rest
            for slot in bucket.slots:
                slot.master.grad = slot.total


def _add_up(gradients: list[Tensor], total: Tensor) -> None:
    """Write the sum of gradients, computed in the dtype of the total; none: 0."""
    if not gradients:
        total.zero_()
        return
    total.copy_(gradients[0])
    for other in gradients[1:]:
        total += other.to(total.dtype)


def _aligned(parameter: Tensor) -> int:
    """Return the elements that a parameter takes in its bucket."""
    step = _ALIGNMENT // parameter.element_size()
    return -(-parameter.numel() // step) * step


def _groups(pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> list[list[tuple[nn.Parameter, nn.Parameter]]]:
    """Divide parameters into buckets of at most `BUCKET_BYTES`, or of one parameter, of one dtype and device each."""
    groups: list[list[tuple[nn.Parameter, nn.Parameter]]] = []
    size = 0
    for pair in pairs:
        master = pair[1]
        place = (master.dtype, master.device)
        fits = groups and place == (groups[-1][0][1].dtype, groups[-1][0][1].device)
        if not fits or size + master.nbytes > BUCKET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(pair)
        size += master.nbytes
    return groups
