"""Batches on their way to a device: the next one is copied on the side, while the present one is computed."""

from __future__ import annotations

import torch

from sparsenmt.data.batching import Batch


class Uploads:
    """The copy of the next batch; there is none on a CPU, where batches stay as they are."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begun: tuple[Batch, Batch] | None = None  # a batch, and its copy

    def begin(self, batch: Batch) -> None:
        """Begin to copy a batch, which will be taken next."""
        if self._side is not None:
            with torch.cuda.stream(self._side):
                self._begun = batch, batch.to(self._device)

    def take(self, batch: Batch) -> Batch:
        """Return a batch on the device; what is computed with it waits for its copy."""
        begun, self._begun = self._begun, None
        if self._side is None or begun is None or begun[0] is not batch:
            return batch.to(self._device)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._side)
        for tensor in begun[1].tensors():
            tensor.record_stream(computing)  # its memory serves no other copy before it was read
        return begun[1]
