"""List the files that one batch crosses from `train` to the optimizer step, or one sentence from `decode` to its text.

    python -m tools.walk CHECKOUT train RECIPE          (a recipe whose data are prepared, without a model directory)
    python -m tools.walk CHECKOUT decode MODEL_DIR -i TEXT

The command runs in this process with the package of CHECKOUT, so that two revisions can be counted alike. A file counts
if one of its functions is called, or is on the call stack, after the model is open (decode), or between the start of
the training loop and the first optimizer step (train). Files that only load recipes and models are left out. The last
line is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch


class Walk:
    """The files that are entered while the walk is active, in order, with the first function that was entered."""

    def __init__(self, package: Path, command: str) -> None:
        self._prefix, self._command = f"{package}/", command
        self._active = False
        self.files: dict[str, str] = {}

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Record a call; for `sys.setprofile`."""
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if not path.startswith(self._prefix):
            if self._active and self._command == "train" and event == "call" and name == "step" and "optim" in path:
                sys.setprofile(None)
            return
        if self._command == "decode" and name == "open_model" and event == "return":
            self._active = True
        if self._command == "train" and name == "run" and path.endswith("training/loop.py"):
            self._active = True
        caller: FrameType | None = frame if self._active and event == "call" else None
        while caller is not None:
            self._add(caller)
            caller = caller.f_back

    def _add(self, frame: FrameType) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith(self._prefix) and not name.startswith("<") and frame.f_code.co_flags & 2:  # CO_NEWLOCALS
            self.files.setdefault(path.removeprefix(self._prefix), name)


def main(arguments: list[str]) -> int:
    """Run the command, and print the files."""
    checkout, command = Path(arguments[0]).resolve(), arguments[1]
    sys.path.insert(0, str(checkout))
    from sparsenmt.cli import run

    torch.set_num_threads(1)
    walk = Walk(checkout / "sparsenmt", command)
    sys.setprofile(walk.profile)
    code = run(arguments[1:])
    sys.setprofile(None)
    for path, name in walk.files.items():
        print(f"{path}  {name}")
    print(json.dumps({"name": "walk", "command": command, "files": len(walk.files), "ok": code == 0}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
