"""What must hold on disk whatever happens to a process, worked out from files and from the log of calls alone.

Nothing here uses the program's own readers, so that a mistake in them cannot hide: `points` asks them besides.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.faults.shim import KILLED, Call
from tests.faults.world import OUTPUT, Files, placed_checkpoint

PARTS = ("weights.safetensors", "optimizer.safetensors", "random.safetensors", "progress.json")
"""What a checkpoint consists of, beside its manifest."""

# Files that are replaced as a whole: at any moment the old one or the new one, never a part.
_WHOLE = (
    "model/manifest.json",
    "model/recipe.yaml",
    "model/weights.safetensors",
    "mean/weights.safetensors",
    OUTPUT.removeprefix("case/"),
)
_WRITES = {"write", "pwrite", "writev", "sendfile", "copy", "truncate", "allocate"}
_LOCK = ".lock"  # a name only: nothing is lost with it


def damaged_parts(files: Files, directory: str) -> list[str]:
    """Files of a directory that are not what its manifest says, or are not there; the manifest, if it is no good."""
    try:
        recorded = json.loads(files[f"{directory}/manifest.json"])["files"]
        return [
            name
            for name, entry in recorded.items()
            if (content := files.get(f"{directory}/{name}")) is None
            or len(content) != entry["bytes"]
            or hashlib.sha256(content).hexdigest() != entry["sha256"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return ["manifest.json"]


def checkpoints(files: Files) -> set[int]:
    """Updates of the complete checkpoints, with those that a stopped replacement left under their old names."""
    found = set()
    for name in files:
        match = re.fullmatch(r"(model/checkpoints/(?:update-(\d{8})|\.update-(\d{8})\.old))/", name)
        if match and not damaged_parts(files, match[1]) and all(f"{match[1]}/{part}" in files for part in PARTS):
            found.add(int(match[2] or match[3]))
    return found


def prepared(files: Files) -> list[str]:
    """Directories that hold complete prepared data."""
    folders = [name[:-1] for name in files if re.fullmatch(r"[^/]*prepared[^/]*/", name)]
    return [folder for folder in folders if f"{folder}/dev/" in files and not damaged_parts(files, folder)]


def lost_checkpoints(start: Files, calls: Sequence[Call], after: Files, *, keep_last: int) -> list[str]:
    """Checkpoints that were complete at some moment, that the rotation had to keep, and that are not there any more."""
    once = checkpoints(start) | {update for call in calls if (update := placed_checkpoint(call)) is not None}
    there = checkpoints(after)
    regular = sorted(once - _interim(start))
    keep = {max(once, default=0), *regular[-keep_last:], *_best(after, there & once)}
    return [f"the checkpoint of update {update} is lost" for update in sorted((keep & once) - there)]


def _interim(files: Files) -> set[int]:
    """Checkpoints that a signal has left: the next one takes their place."""
    manifests = {update: f"model/checkpoints/update-{update:08d}/manifest.json" for update in checkpoints(files)}
    return {update for update, name in manifests.items() if name in files and json.loads(files[name]).get("interim")}


def _best(files: Files, there: set[int]) -> set[int]:
    """The update with the best validation, as the newest complete checkpoint tells it."""
    content = files.get(f"model/checkpoints/update-{max(there, default=0):08d}/progress.json")
    if content is None:
        return set()
    losses = [(each["values"]["loss"], each["update"]) for each in json.loads(content)["validated"]]
    return {update for _, update in sorted((math.inf if math.isnan(loss) else loss, u) for loss, u in losses)[:1]}


def lost_others(start: Files, after: Files, expected: Files) -> list[str]:
    """Prepared data, and files that are replaced as a whole, that were complete and are neither old nor new."""
    lost = []
    if prepared(start) and not prepared(after):
        lost.append("the prepared data are lost")
    for name in _WHOLE:
        if name in start and name not in after:
            lost.append(f"{name} is lost")
        elif name in after and after[name] not in (start.get(name), expected.get(name)):
            lost.append(f"{name} is neither the old nor the new one")
    return lost


# --- what is on the disk -------------------------------------------------------------------------------------------


def sizes(case: Path) -> dict[int, int]:
    """The size of every file, by its inode."""
    return {path.stat().st_ino: path.stat().st_size for path in case.rglob("*") if path.is_file()}


def on_disk(calls: Iterable[Call], before: Mapping[int, int]) -> dict[int, int]:
    """How much of a file the disk has for certain, by inode: only files that were written since are listed.

    Args:
        before: the sizes before the calls, when all was on the disk.
    """
    found: dict[int, int] = {}
    for call in calls:
        if call.name == "open" and call.inode and call.error == 0:  # it empties the file
            found[call.inode] = 0
        elif call.name in _WRITES and call.error in (0, KILLED):
            found.setdefault(call.inode, before.get(call.inode, 0))
        elif call.name == "fsync" and call.error == 0:
            found[call.inode] = call.bytes
    return found


def without_power(case: Path, files: Files, calls: Iterable[Call], before: Mapping[int, int]) -> Files:
    """The files without what was not brought to the disk, as a file system leaves them that keeps names in order."""
    certain = on_disk(calls, before)
    return {
        name: content if name.endswith("/") else content[: certain.get((case / name).stat().st_ino, len(content))]
        for name, content in files.items()
    }


def not_on_disk(case: Path, calls: Sequence[Call]) -> list[str]:
    """After a success: files and names that a loss of power could still take."""
    now, certain = sizes(case), on_disk(calls, {})
    short = {inode for inode, size in now.items() if certain.get(inode, size) < size}
    names = {path for path in case.rglob("*") if path.is_file() and path.stat().st_ino in short}
    left = [f"the contents of {path.relative_to(case)}" for path in sorted(names)]
    folders: set[str] = set()
    for call, path in _moved(calls):
        folder, _, name = path.rpartition("/")
        if call.name == "fsync":
            folders.discard(path)
        elif call.name in ("rename", "mkdir", "open") and name != _LOCK and os.path.lexists(path):
            folders.add(folder)
    return left + [f"the names in {Path(folder).relative_to(case)}" for folder in sorted(folders)]


def _moved(calls: Sequence[Call]) -> list[tuple[Call, str]]:
    """The calls that succeeded, with the path (of a rename: the new one) as it is called after all later renames."""
    found: list[tuple[Call, str]] = []
    later: list[Call] = []  # renames, the last one first
    for call in reversed(calls):
        if call.error == 0:
            found.append((call, _renamed(call.other or call.path, reversed(later))))
        if call.error == 0 and call.name == "rename":
            later.append(call)
    return found[::-1]


def _renamed(path: str, renames: Iterable[Call]) -> str:
    for call in renames:
        if path == call.path or path.startswith(f"{call.path}/"):
            path = call.other + path[len(call.path) :]
    return path


def idle(calls: Sequence[Call]) -> set[Call]:
    """Calls of fsync on files, or directories, that are just as they were at an earlier one."""
    found: set[Call] = set()
    clean: set[str] = set()
    for call in calls:
        if call.name == "fsync" and call.path in clean:
            found.add(call)
        elif call.name == "fsync":
            clean.add(call.path)
        else:
            for path in filter(None, (call.path, call.other)):
                clean -= {path, os.path.dirname(path)}
    return found


def unseen(case: Path, start: Files, calls: Sequence[Call], after: Files) -> list[str]:
    """Files that were written past the library: their bytes are neither in the log, nor were they there before."""
    renames = [call for call in calls if call.name == "rename" and call.error == 0]
    size: dict[str, int] = {}
    for path, number in (
        *((_renamed(str(case / name), renames), len(content)) for name, content in start.items()),
        *((path, call.bytes) for call, path in _moved(calls) if call.name in _WRITES),
    ):
        size[path] = size.get(path, 0) + number
    return sorted(name for name, content in after.items() if size.get(str(case / name), 0) < len(content))
