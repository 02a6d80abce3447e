"""Damaged runs, finished and interrupted: each is refused with one message, or gives what an undamaged one gives."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any
from unittest import mock

import pytest
import safetensors.torch
from hypothesis import strategies as st

from tests.commands.support import Result
from tests.fuzz.damages import WEIGHTS, Damage, damages
from tests.fuzz.support import Files, Lab, below, explore, report, sizes, train_small_model

TRAIN = ["train", "small.yaml"]
COMMANDS = {
    "resume": TRAIN,
    "finished": TRAIN,
    "decode": ["decode", "model", "-i", "corpus/test.en", "-o", "out"],
    "half decoded": ["decode", "model", "-i", "corpus/test.en", "-o", "out", "--window", "1"],
    "score": ["score", "--model", "model", "--source", "corpus/test.en", "--target", "corpus/test.de"],
    "metrics": ["score", "--model", "model", "--source", "corpus/test.en", "--reference", "corpus/test.de"],
    "average": ["average", "model", "--update", "3", "--update", "4"],
    "average aside": ["average", "model", "--update", "3", "--output", "mean"],
    "prepare": ["prepare", "small.yaml"],
    "half prepared": ["prepare", "small.yaml"],
    "start from": ["train", "small.yaml", "--from", "model", "directory=other", "training.max_updates=1"],
}
READS = {
    "resume": r"(model|prepared)/.*",
    "finished": r"(model|prepared)/.*",
    "decode": r"model/(?!checkpoints|metrics).*",
    "half decoded": r"\.out.*",
    "score": r"model/(?!checkpoints|metrics).*",
    "metrics": r"model/(?!checkpoints|metrics).*",
    "average": r"model/(?!metrics).*",
    "average aside": r"model/(?!metrics).*",
    "prepare": r"prepared/.*",
    "half prepared": r"\.prepared.*",
    "start from": r"(model/(?!checkpoints|metrics)|prepared/).*",
}


# One name of this kind is a damage: see `damages`.
_HALF_MADE = re.compile(r"(^|/)\.(?!update-00000003\.old)[^/]*\.(partial|old|journal)(/|$)")


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line on a run in which something is broken."""

    command: str
    damages: list[Damage]


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """What a command line finds, and what it gives."""

    start: Files
    result: Result
    after: Files


@pytest.mark.parametrize("count", sizes("checkpoints"))
def test_checkpoints(lab: Lab, count: int) -> None:
    world = train_small_model(lab)
    undisturbed = {name: _undisturbed(lab, name, world) for name in COMMANDS}
    lab.tally.codes.clear()

    def check(case: Case) -> None:
        sound = undisturbed[case.command]
        files = sound.start
        for damage in case.damages:
            files = damage.apply(files)
        lab.set(files)
        result = lab.run(*COMMANDS[case.command])
        if result.code == 0:
            _is_the_same(case, sound, result, lab.files())
        else:
            _is_left_alone(case, files, lab.files())

    for name, found in undisturbed.items():
        files = [
            file for file, content in found.start.items() if content is not None and re.fullmatch(READS[name], file)
        ]
        cases = st.builds(Case, st.just(name), damages(files))
        explore(f"checkpoints: {name}", lab, -(-count // len(COMMANDS)), cases, check)
    report("checkpoints", lab, count)


LAST_STEPS = {
    "half decoded": "sparsenmt.storage.resumable_output.ResumableOutput.finish",
    "half prepared": "sparsenmt.data.prepare.pipeline.write_manifest",
}
"""Where the work is stopped that a command line finds half done."""


def _undisturbed(lab: Lab, name: str, world: Files) -> Undisturbed:
    start = world
    if name == "resume":  # killed after the last checkpoint but one
        start = {file: content for file, content in world.items() if "update-00000004" not in file and file != WEIGHTS}
    if name == "half prepared":
        start = {file: content for file, content in world.items() if not file.startswith("prepared/")}
    lab.set(start)
    if name in LAST_STEPS:
        with mock.patch(LAST_STEPS[name], side_effect=KeyboardInterrupt):
            lab.run(*COMMANDS[name], codes=(130,))
        start = lab.files()
    result = lab.run(*COMMANDS[name])
    assert result.code == 0, result.err
    return Undisturbed(start, result, lab.files())


def _is_the_same(case: Case, sound: Undisturbed, result: Result, after: Files) -> None:
    """The command line gave what it gives on a sound run."""
    said = result.err
    if case.command in ("resume", "finished"):
        assert after.get(WEIGHTS) == sound.after[WEIGHTS], said
    elif case.command == "average":
        assert _tensors(after.get(WEIGHTS)) == _tensors(sound.after[WEIGHTS]), said
    elif case.command in ("decode", "half decoded"):
        assert after.get("out") == sound.after["out"], said
    elif case.command in ("score", "metrics"):
        assert result.out == sound.result.out, said
    elif case.command == "average aside":
        means = [_tensors(files["mean/weights.safetensors"]) for files in (after, sound.after)]
        assert means[0] == means[1], said
        others = [{**below(files, "mean"), "weights.safetensors": b""} for files in (after, sound.after)]
        assert others[0] == others[1], said
    elif case.command in ("prepare", "half prepared"):
        assert _prepared(after) == _prepared(sound.after), said
    elif case.command == "start from":
        assert after.get(f"other/{WEIGHTS[6:]}") == sound.after[f"other/{WEIGHTS[6:]}"], said
    half_made = [name for name in after if _HALF_MADE.search(name) and name not in sound.after]
    assert not half_made, f"{half_made}\n{said}"


def _prepared(files: Files) -> dict[str, Any]:
    """The prepared data; their manifest without the times of the texts, which are written anew for each case."""
    found: dict[str, Any] = dict(below(files, "prepared"))
    manifest = json.loads(found["manifest.json"])
    inputs = [{key: value for key, value in each.items() if key != "stamp"} for each in manifest["inputs"]]
    return {**found, "manifest.json": {**manifest, "inputs": inputs, "seal": None}}


def _tensors(content: bytes | None) -> dict[str, list[float]]:
    """What a file of weights holds, without its notes: they name the newest checkpoint, which may have moved."""
    return {name: tensor.flatten().tolist() for name, tensor in safetensors.torch.load(content or b"").items()}


def _is_left_alone(case: Case, before: Files, after: Files) -> None:
    """What was refused left no result behind, complete or not."""
    new = {name for name in after if name not in before and "/damaged-update-" not in name}
    assert not {name for name in new if not name.endswith("/")}, new
    assert after.get(WEIGHTS) == before.get(WEIGHTS)
    assert case.command == "start from" or "out" not in after
