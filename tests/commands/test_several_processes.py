"""Processes of torchrun share `decode`, `score` and `prepare`, write what one process writes, and fail together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.workflows import score
from tests.commands.support import Run
from tests.training.test_distribution import ENVIRONMENT, environment_of, free_port

SCRIPT = str(Path(__file__).with_name("several_processes.py"))
Results = list[list[dict[str, Any]]]
"""Of each rank and command: exit code, output, messages."""


def together(commands: Sequence[Any], *, window: int = 3, **environment: str) -> Results:
    """Run command lines in two processes, which end by themselves; a command line is one of both, or one of each."""
    Path("commands.json").write_bytes(json.dumps({"commands": commands, "window": window}).encode())
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, "commands.json", "results"],
            env={**ENVIRONMENT, **environment_of(rank, port), **environment},
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    return [json.loads(Path(f"results-{rank}.json").read_bytes()) for rank in (0, 1)]


def test_two_processes_write_what_one_writes(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, standard output, n-best lists, JSON, a line that is too long, scores; and mistakes, told once."""
    lines = Path("corpus/test.en").read_bytes().decode().split("\n")[:17]
    lines[4], lines[11] = "", " ".join(lines * 4)
    Path("input").write_bytes("\n".join(lines).encode())
    monkeypatch.setattr(score, "WINDOW", 3)
    decode = ["decode", "model", "--window", "3", "--threads", "1", "-i", "input"]
    scored = ["--model", "model", "--threads", "1", "--source", "corpus/test.en", "--json"]
    cases = [
        [*decode, "-o", "plain"],
        [*decode, "--json", "--n-best", "2", "-o", "best"],
        decode,
        ["score", *scored, "-r", "corpus/test.de", "-m", "bleu"],
        ["score", *scored, "--target", "corpus/test.de"],
    ]
    alone = [command(*each) for each in cases]
    files = {name: Path(name).read_bytes() for name in ("plain", "best")}
    for name in files:
        Path(name).unlink()
    mistakes = [
        decode[:-2],
        [*decode[:-1], "missing"],
        [[*decode, "-o", "third"], [*decode[:-1], "missing", "-o", "third"]],
        ["train", "small.yaml", "directory=other", "data.directory=missing"],
        [["train", "small.yaml", "directory=other", f"training.seed={seed}"] for seed in (1, 2)],
    ]
    first, second = together([*cases, *mistakes])
    for one, two, other in zip(alone, first, second, strict=False):
        assert (one.code, one.out.decode()) == (two["code"], two["out"]) and other == {"code": 0, "out": "", "err": ""}
        assert one.err == two["err"]
    assert {name: Path(name).read_bytes() for name in files} == files
    told = [
        "--input: several processes cannot share standard input, a pipe or a device",
        "missing: no such file",
        "missing: no such file",
        "missing: there are no prepared data",
        "2 processes: process 1 has not the training.seed of process 0",
    ]
    for message, *errors in zip(told, first[len(cases) :], second[len(cases) :], strict=True):
        assert [each["code"] for each in errors] == [2, 2], message
        shown = "".join(each["err"] for each in errors)
        assert message in shown and shown.count("error: ") == 1, shown
    assert not Path("third").exists() and not Path("other").exists()
