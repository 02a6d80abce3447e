"""Checkpoints on disk: ``checkpoints/update-00012000/`` with weights, optimizer, random states and progress.

Those of a language model hold the memory of its streams, too.

A checkpoint is written under a temporary name, flushed to disk and renamed, so a directory of that name is complete.
Its ``manifest.json``, written last, holds the hashes of all files and of itself, so that later damage is detected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.storage.files import (
    DamagedFileError,
    emptied,
    locked_partial,
    name_file_in_errors,
    partial_path,
    publish_directory,
    read_json,
    read_sealed,
    recover_directory,
    remove_tree,
    write_sealed,
    write_text,
)
from sparsenmt.storage.records import check_file_entries, check_no_links, file_entries, file_entries_of, typed
from sparsenmt.storage.tensors import Shapes, load_tensors, save_tensors
from sparsenmt.training.merge import has_adapters, merge_adapters
from sparsenmt.training.state import Progress

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"update-(\d{8})")
_LEFTOVER = re.compile(r"\.update-\d{8}\.(partial|old)")
_DAMAGED = "damaged-"
_FOLDER = "checkpoints"
_LINK_HINT = "Put the folder itself there. The model directory as a whole may be a link."
_FILES = r"[\w.]+"
_HINT = "Remove the checkpoint, or start the training again: it renames damaged checkpoints."


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path

    @property
    def update(self) -> int:
        found = _NAME.fullmatch(self.path.name)
        assert found is not None
        return int(found.group(1))

    @property
    def interim(self) -> bool:
        """True if it was written because of a signal and not on schedule: it is removed when there is a newer one."""
        try:
            return bool(read_sealed(self.path / MANIFEST, hint=_HINT).get("interim"))
        except UserError:
            return False

    def weights(self, shapes: Shapes | None = None) -> dict[str, Tensor]:
        """The weights by name; UserError if they are damaged, or have other names or shapes than ``shapes``."""
        return self._tensors("weights", shapes)

    def weights_within(self, shapes: Shapes, *, merged: bool) -> dict[str, Tensor]:
        """The weights by name, for a model that may have more; UserError if the model does not have one of them."""
        found = merge_adapters(self.weights()) if merged else self.weights()
        if foreign := [name for name, each in found.items() if shapes.get(name) != tuple(each.shape)]:
            raise UserError(
                f"not of this model: {foreign[0]}" + (f" and {len(foreign) - 1} more" if foreign[1:] else ""),
                where=str(self.path),
                hint="The recipes may differ in filters and losses only; the rest of the model must be the same."
                if not has_adapters({foreign[0]: found[foreign[0]]})
                else "Give the `training.lora` of its run, or null; or begin with its final weights, which are merged.",
            )
        return found

    def optimizer(self) -> dict[str, Tensor]:
        return self._tensors("optimizer")

    def random(self) -> dict[str, Tensor]:
        return self._tensors("random")

    def streams(self) -> dict[str, Tensor]:
        """Return the state of the training task between two updates; empty if it has none."""
        return self._tensors("streams") if (self.path / "streams.safetensors").exists() else {}

    def progress(self) -> Progress:
        path = self.path / "progress.json"
        return typed(read_json(path, hint=_HINT), Progress, path, hint=_HINT)

    def check(self, *only: str) -> None:
        """Compare the files, all or only some, with the manifest; UserError if one has changed."""
        manifest = read_sealed(self.path / MANIFEST, hint=_HINT)
        if manifest.get("format") != FORMAT or manifest.get("update") != self.update:
            raise DamagedFileError("not a checkpoint of this version of the program", where=str(self.path), hint=_HINT)
        files = file_entries_of(manifest, self.path / MANIFEST, names=_FILES, hint=_HINT)
        if missing := [name for name in only if name not in files]:
            raise DamagedFileError(
                f"the manifest does not list {missing[0]}", where=str(self.path / MANIFEST), hint=_HINT
            )
        check_file_entries(self.path, {name: files[name] for name in only or files}, hint=_HINT)

    def _tensors(self, name: str, shapes: Shapes | None = None) -> dict[str, Tensor]:
        path = self.path / f"{name}.safetensors"
        try:
            return load_tensors(path, hint=_HINT, shapes=shapes)
        except ValueError as error:
            raise UserError(f"not of this model: {error}", where=str(path), hint=_HINT) from None


def find_checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints of a model directory, oldest first, without a check for damage."""
    names = [name for name in _listing(directory) if _NAME.fullmatch(name)]
    for name in names:
        check_no_links(directory, f"{_FOLDER}/{name}", _LINK_HINT)
    return sorted((Checkpoint(directory / _FOLDER / name) for name in names), key=lambda checkpoint: checkpoint.update)


def _listing(directory: Path) -> list[str]:
    """The names in the folder of checkpoints; UserError if it is a symbolic link, through which others' files lie."""
    folder = directory / _FOLDER
    check_no_links(directory, _FOLDER, _LINK_HINT)
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def clean_checkpoints(directory: Path) -> list[str]:
    """Remove incomplete checkpoints and rename damaged ones, before a run resumes.

    A damaged checkpoint is not removed because parts of it may still be useful.

    Returns:
        a message for each damaged checkpoint.
    """
    folder = directory / _FOLDER
    for leftover in filter(_LEFTOVER.fullmatch, _listing(directory)):
        name = leftover[1:].rpartition(".")[0]
        if leftover.endswith(".old"):
            recover_directory(folder / name)
        else:
            remove_tree(folder / leftover)
    messages = []
    for checkpoint in find_checkpoints(directory):
        try:
            checkpoint.check()
        except UserError as error:
            kept = checkpoint.path.with_name(f"{_DAMAGED}{checkpoint.path.name}")
            remove_tree(kept)
            checkpoint.path.rename(kept)
            messages.append(f"{error.where}: {error.message}; the checkpoint is renamed to {kept.name}")
    return messages


def damaged_among(directory: Path, last: int, others: Collection[int] = ()) -> list[int]:
    """The updates of damaged checkpoints that would be among the newest ``last``, or are among ``others``."""
    found = {checkpoint.update for checkpoint in find_checkpoints(directory)}
    renamed = (directory / _FOLDER / name for name in _listing(directory) if name.startswith(_DAMAGED))
    names = ((path, _NAME.fullmatch(path.name.removeprefix(_DAMAGED))) for path in renamed)
    damaged = {int(name[1]) for path, name in names if name is not None and not Checkpoint(path).interim} - found
    newest = sorted(found | damaged)[-last:] if last else []
    return sorted(damaged & {*newest, *others})


def write_checkpoint(
    directory: Path,
    progress: Progress,
    *,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    random: Mapping[str, Tensor],
    streams: Mapping[str, Tensor] | None = None,
    interim: bool = False,
) -> Checkpoint:
    """Write a checkpoint; one of the same update is replaced.

    Args:
        streams: see `Checkpoint.streams`.
        interim: see `Checkpoint.interim`.

    Raises:
        OSError: the disk is full or broken; incomplete files are removed.
    """
    final = directory / _FOLDER / f"update-{progress.update:08d}"
    with name_file_in_errors(final), locked_partial(final, "writes this checkpoint") as partial, emptied(partial):
        for name, tensors in (("weights", weights), ("optimizer", optimizer), ("random", random)):
            save_tensors(partial / f"{name}.safetensors", tensors)
        if streams:
            save_tensors(partial / "streams.safetensors", streams)
        write_text(partial / "progress.json", progress.to_json() + "\n")
        manifest = {"format": FORMAT, "update": progress.update, "interim": interim, "files": file_entries(partial)}
        write_sealed(partial / MANIFEST, manifest)
        publish_directory(partial, final)
    return Checkpoint(final)


def prune_checkpoints(directory: Path, *, keep_last: int, keep: Collection[int]) -> None:
    """Remove all checkpoints except the newest ``keep_last`` and those of the updates in ``keep``.

    Interim checkpoints do not count, so that an interrupted run keeps the same checkpoints as one without
    interruption; they are removed, except the newest of all. A checkpoint is renamed before it is removed, so that
    none is ever seen with some of its files only.
    """
    checkpoints = find_checkpoints(directory)
    regular = [checkpoint for checkpoint in checkpoints if not checkpoint.interim]
    kept = {checkpoint.update for checkpoint in (*checkpoints[-1:], *regular[-keep_last:])} | set(keep)
    for checkpoint in checkpoints:
        if checkpoint.update not in kept:
            doomed = partial_path(checkpoint.path)
            remove_tree(doomed)
            checkpoint.path.rename(doomed)
            remove_tree(doomed)


def average_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights (Vaswani et al. 2017, 6.1), accumulated in float64.

    Adapters are merged before.

    Raises:
        UserError: a checkpoint's weights are not those that its manifest records.
    """
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        checkpoint.check("weights.safetensors")
        tensors = merge_adapters(checkpoint.weights())
        if sums and {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in sums.items()}:
            raise UserError(
                "the weights have other shapes than those of the first checkpoint",
                where=str(checkpoint.path),
                hint="Average checkpoints of one run only.",
            )
        for name, tensor in tensors.items():
            sums[name] = tensor.double() if name not in sums else sums[name] + tensor.double()
    return {name: (total / len(checkpoints)).to(torch.float32) for name, total in sums.items()}
