"""Processes of torchrun share `decode`, `score` and `prepare`, write what one process writes, and fail together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.workflows.evaluation import score
from tests.commands.support import Run
from tests.process.test_workers import ENVIRONMENT, environment_of, free_port

SCRIPT = str(Path(__file__).with_name("several_processes.py"))
Results = list[list[dict[str, Any]]]
"""Exit code, output and messages of each rank and command."""


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


@pytest.mark.thorough
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
        "2 processes: process 1 has another training.seed than process 0",
    ]
    for message, *errors in zip(told, first[len(cases) :], second[len(cases) :], strict=True):
        assert [each["code"] for each in errors] == [2, 2], message
        shown = "".join(each["err"] for each in errors)
        assert message in shown and shown.count("error: ") == 1, shown
    assert not Path("third").exists() and not Path("other").exists()


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one_and_the_other_way_round(command: Run) -> None:
    """Without dropout: the same weights but for rounding, wherever the number changes; `prepare` in between."""
    common = ["small.yaml", "model.dropout.residual=0", "model.dropout.attention=0"]
    common += ["training.save_every=4", "training.keep_last=9", "training.average_last=1", "training.threads=1"]
    train = ["train", *common]
    first = [*train, "training.batch_tokens=512", "training.max_updates=4"]
    rest = [*train, "training.batch_tokens=512", "training.max_updates=8"]
    grown = "training.accumulate_tokens=1024"
    found, _ = together(
        [
            ["prepare", "small.yaml", "data.directory=again"],
            [*rest, "directory=two"],
            [*first, "directory=two-one"],
            [*first, grown, "directory=four"],
        ]
    )
    assert [each["code"] for each in found] == [0] * 4, found
    for name in ("source.bin", "target.bin", "lines.bin"):
        (one,), (other,) = (list(Path(each).rglob(f"train-0/{name}")) for each in ("prepared", "again"))
        assert one.read_bytes() == other.read_bytes()
    assert command(*rest, grown, "directory=one").code == 0
    assert command(*first, grown, "directory=one-two").code == 0
    resumed = command(*rest, "directory=two-one")
    assert resumed.code == 0 and "it began with 2 processes and continues with 1" in resumed.err
    found, _ = together([[*rest, grown, "directory=one-two"]])
    assert found[0]["code"] == 0 and "it began with 1 processes and continues with 2" in found[0]["err"], found
    weights = {each: load_file(f"{each}/weights.safetensors") for each in ("two", "one", "two-one", "one-two")}
    for name, value in weights["two"].items():
        if name.endswith(".k.bias"):
            continue  # its gradient is 0 but for rounding, which Adam scales up
        for other in ("one", "two-one", "one-two"):
            torch.testing.assert_close(weights[other][name], value, rtol=1e-5, atol=1e-5, msg=name)
