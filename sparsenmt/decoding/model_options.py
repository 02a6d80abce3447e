"""The options of every command that opens trained models: languages, threads and device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsenmt.process.devices import pick_device, use_threads


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The languages of models of several ones, and the processors.

    Args:
        source_language, target_language: codes; None: the recipe's.
        threads: CPU threads; None: all cores.
        device: as for `pick_device`.
    """

    source_language: str | None = None
    target_language: str | None = None
    threads: int | None = None
    device: str = "auto"

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The codes of source and target, as for `open_model`."""
        return self.source_language, self.target_language

    def use_processors(self) -> torch.device:
        """Set the number of threads; returns the device. UserError if there is no such device."""
        use_threads(self.threads)
        return pick_device(self.device, "--device")
