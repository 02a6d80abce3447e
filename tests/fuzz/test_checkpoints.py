"""Damaged runs: each is refused with one message, or gives what an undamaged one gives."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import strategies as st

from tests.commands.support import Result
from tests.fuzz.damages import Damage, damages
from tests.fuzz.support import Files, Lab, below, explore, sizes, train_small_model

WEIGHTS = "model/weights.safetensors"
TRAIN = ["train", "small.yaml"]
COMMANDS = {
    "resume": TRAIN,
    "finished": TRAIN,
    "decode": ["decode", "model", "-i", "corpus/test.en", "-o", "out"],
    "score": ["score", "--model", "model", "--source", "corpus/test.en", "--target", "corpus/test.de"],
    "metrics": ["score", "--model", "model", "--source", "corpus/test.en", "--reference", "corpus/test.de"],
    "average": ["average", "model", "--update", "3", "--update", "4"],
    "average aside": ["average", "model", "--update", "3", "--output", "mean"],
    "prepare": ["prepare", "small.yaml"],
    "start from": ["train", "small.yaml", "--from", "model", "directory=other", "training.max_updates=1"],
}
READS = {
    "resume": r"(model|prepared)/.*",
    "finished": r"(model|prepared)/.*",
    "decode": r"model/(?!checkpoints|metrics).*",
    "score": r"model/(?!checkpoints|metrics).*",
    "metrics": r"model/(?!checkpoints|metrics).*",
    "average": r"model/(?!metrics).*",
    "average aside": r"model/(?!metrics).*",
    "prepare": r"prepared/.*",
    "start from": r"(model/(?!checkpoints|metrics)|prepared/).*",
}


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

    names = {
        name: [file for file, content in found.start.items() if content is not None and re.fullmatch(READS[name], file)]
        for name, found in undisturbed.items()
    }
    cases = st.sampled_from(sorted(COMMANDS)).flatmap(lambda name: st.builds(Case, st.just(name), damages(names[name])))
    explore("checkpoints", lab, count, cases, check)


def _undisturbed(lab: Lab, name: str, world: Files) -> Undisturbed:
    start = world
    if name == "resume":  # killed after the last checkpoint but one
        start = {file: content for file, content in world.items() if "update-00000004" not in file and file != WEIGHTS}
    lab.set(start)
    result = lab.run(*COMMANDS[name])
    assert result.code == 0, result.err
    return Undisturbed(start, result, lab.files())


def _is_the_same(case: Case, sound: Undisturbed, result: Result, after: Files) -> None:
    """The command line gave what it gives on a sound run."""
    said = result.err
    if case.command in ("resume", "finished", "average"):
        assert after.get(WEIGHTS) == sound.after[WEIGHTS], said
    elif case.command == "decode":
        assert after.get("out") == sound.after["out"], said
    elif case.command in ("score", "metrics"):
        assert result.out == sound.result.out, said
    elif case.command == "average aside":
        assert below(after, "mean") == below(sound.after, "mean"), said
    elif case.command == "prepare":
        assert below(after, "prepared") == below(sound.after, "prepared"), said
    elif case.command == "start from":
        assert after.get(f"other/{WEIGHTS[6:]}") == sound.after[f"other/{WEIGHTS[6:]}"], said
    hidden = [
        name for name in after if re.search(r"(^|/)\.[^/]*\.(partial|old|journal)", name) and name not in sound.start
    ]
    assert not [name for name in hidden if ".update-00000003.old" not in name], said


def _is_left_alone(case: Case, before: Files, after: Files) -> None:
    """What was refused left no result behind, complete or not."""
    new = {name for name in after if name not in before and "/damaged-update-" not in name}
    assert not {name for name in new if not name.endswith("/")}, new
    assert after.get(WEIGHTS) == before.get(WEIGHTS)
    assert case.command == "start from" or "out" not in after
