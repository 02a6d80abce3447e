"""Programs that write files well and badly, to see that faults do what they say, and that the bad are found out."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.faults.invariants import PARTS

CONTENT = b"0123456789"


def plain(arguments: list[str]) -> int:
    """Three files, one after the other: each is opened and written, one write each."""
    try:
        for name in "abc":
            with open(f"case/{name}", "wb", buffering=0) as stream:
                stream.write(CONTENT)
    except OSError as error:
        return error.errno or 1
    return 0


def checkpoint(arguments: list[str]) -> int:
    """A checkpoint, written aside and renamed; brought to the disk only if the first argument says so."""
    synced = arguments == ["synced"]
    folder = Path("case/model/checkpoints")
    partial, final = folder / ".update-00000001.partial", folder / "update-00000001"
    partial.mkdir(parents=True)
    listing = {}
    for name in PARTS:
        content = b'{"validated": []}' if name == "progress.json" else CONTENT
        (partial / name).write_bytes(content)
        listing[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (partial / "manifest.json").write_text(json.dumps({"files": listing}), encoding="utf-8", newline="\n")
    if synced:
        for path in (*partial.iterdir(), partial):
            _sync(path)
    partial.rename(final)
    if synced:
        for path in (folder, folder.parent, folder.parent.parent):
            _sync(path)
    return 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
