"""Checkpoints on disk: ``checkpoints/update-00012000/`` with weights, optimizer, random states and progress.

A checkpoint is written aside and renamed, so that a directory of that name is complete.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.files import make_readable
from sparsenmt.training.state import Progress

_NAME = re.compile(r"update-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path

    @property
    def update(self) -> int:
        found = _NAME.fullmatch(self.path.name)
        assert found is not None
        return int(found.group(1))

    @property
    def weights_file(self) -> Path:
        return self.path / "weights.safetensors"

    def weights(self) -> dict[str, Tensor]:
        return _load(self.weights_file)

    def optimizer(self) -> dict[str, Tensor]:
        return _load(self.path / "optimizer.safetensors")

    def random(self) -> dict[str, Tensor]:
        return _load(self.path / "random.safetensors")

    def progress(self) -> Progress:
        path = self.path / "progress.json"
        try:
            return Progress.from_json(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            raise _damaged(path) from None


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        raise _damaged(file) from None


def _damaged(file: Path) -> UserError:
    hint = f"Remove {file.parent}: the one before it is taken then."
    return UserError("the checkpoint is incomplete or damaged", where=str(file), hint=hint)


def find_checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints of a model directory, oldest first."""
    folder = directory / "checkpoints"
    found = [Checkpoint(p) for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda checkpoint: checkpoint.update)


def write_checkpoint(
    directory: Path,
    progress: Progress,
    *,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    random: Mapping[str, Tensor],
) -> Checkpoint:
    """Write a checkpoint beside the others; one of the same update is replaced."""
    final = directory / "checkpoints" / f"update-{progress.update:08d}"
    aside = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, tensors in (("weights", weights), ("optimizer", optimizer), ("random", random)):
        save_file({key: value.contiguous() for key, value in tensors.items()}, aside / f"{name}.safetensors")
        make_readable(aside / f"{name}.safetensors")
    (aside / "progress.json").write_text(progress.to_json(), encoding="utf-8", newline="\n")
    shutil.rmtree(final, ignore_errors=True)
    aside.rename(final)
    return Checkpoint(final)


def prune(directory: Path, *, keep_last: int, keep: Collection[int]) -> None:
    """Remove all checkpoints but the newest ``keep_last`` and those of the updates in ``keep``."""
    checkpoints = find_checkpoints(directory)
    for checkpoint in checkpoints[: max(len(checkpoints) - keep_last, 0)]:
        if checkpoint.update not in keep:
            shutil.rmtree(checkpoint.path)


def average_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several weight files (Vaswani et al. 2017, 6.1), accumulated in float64."""
    sums: dict[str, Tensor] = {}
    for file in files:
        tensors = _load(file)
        if sums and {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in sums.items()}:
            raise UserError("the weights are of another shape than the first file's", where=str(file))
        for name, tensor in tensors.items():
            sums[name] = tensor.double() if name not in sums else sums[name] + tensor.double()
    return {name: (total / len(files)).to(torch.float32) for name, total in sums.items()}
