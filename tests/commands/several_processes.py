"""The program of every process of `test_several_processes`: command lines, one by one, in its working directory.

Arguments: a file with JSON: the command lines, and the lines of a window; and where to write, as JSON, the exit
code, output and messages of each.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import torch

from sparsenmt.cli import run
from sparsenmt.workflows.evaluation import score


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    work = json.loads(Path(sys.argv[1]).read_bytes())
    score.WINDOW = work["window"]  # type: ignore[misc]
    results = []
    for commands in work["commands"]:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
        sys.stderr = io.StringIO()
        code = run(commands[rank] if isinstance(commands[0], list) else commands)
        sys.stdout.flush()
        assert isinstance(sys.stdout.buffer, io.BytesIO) and isinstance(sys.stderr, io.StringIO)
        results.append({"code": code, "out": sys.stdout.buffer.getvalue().decode(), "err": sys.stderr.getvalue()})
    Path(f"{sys.argv[2]}-{rank}.json").write_bytes(json.dumps(results).encode())


if __name__ == "__main__":
    main()
