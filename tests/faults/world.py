"""A folder with corpora, a recipe and the states of work that faults are tried on.

Everything that the program writes lies in ``case/``, which is set back to a saved state before every case. The folder
is always the same, so that paths in the files that are written are too.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsenmt.data.demo_corpus import write_demo_corpus
from tests.faults.server import Result, Server
from tests.faults.shim import Action, Call

RECIPE = """\
name: faults
directory: case/model
model:
  preset: tiny
  dimension: 8
  feed_forward: 16
  heads: 2
  encoder_layers: 1
  decoder_layers: 1
  memory: [{name: faults_rank}]
data:
  directory: case/prepared
  source_language: en
  target_language: de
  train:
    - {name: one, source: corpus/one.en, target: corpus/one.de}
    - {name: two, source: corpus/two.en, target: corpus/two.de}
  dev: {source: corpus/dev.en, target: corpus/dev.de}
  tokenizer: {vocabulary_size: 120, normalization: identity}
training:
  device: cpu
  compute_dtype: fp32
  threads: 1
  max_updates: 6
  batch_tokens: 256
  learning_rate: 1e-2
  warmup_updates: 2
  validation: {every: 2, metric: loss}
  log_every: 3
  save_every: 2
  keep_last: 2
decoding: {beam_size: 2, min_length: 3, max_length_factor: 0.2, max_length_offset: 3}
"""
PREPARE, TRAIN = ["prepare", "recipe.yaml"], ["train", "recipe.yaml"]
# The best checkpoint is an early one: the rotation has to keep it although only one is to be kept.
BEST = [*TRAIN, "training.keep_last=1", "training.learning_rate=0.5"]
MEAN = [*TRAIN, "training.average_last=2"]
OUTPUT = "case/output/translation.de"
DECODE = ["decode", "case/model", "--input", "corpus/test.en", "--output", OUTPUT, "--window", "4", "--threads", "1"]
OLD_OUTPUT = "an older translation\n"

Files = dict[str, bytes]
"""The files and directories of a tree, by path in it; directories end with ``/`` and hold nothing."""


@dataclass
class World:
    """The folder, the server that runs commands in it, and the states that were saved."""

    folder: Path
    server: Server
    states: dict[str, Files] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, server: Server) -> World:
        """Write corpora and recipe."""
        folder = folder.resolve()
        corpus = folder / "corpus"
        write_demo_corpus(corpus, train=60, dev=8, test=14)
        for side in ("en", "de"):
            lines = (corpus / f"train.{side}").read_bytes().split(b"\n")[:-1]
            for name, part in (("one", lines[:40]), ("two", lines[40:])):
                (corpus / f"{name}.{side}").write_bytes(b"\n".join([*part, b""]))
        (folder / "recipe.yaml").write_bytes(RECIPE.encode())
        world = cls(folder, server)
        world.set({})
        return world

    @property
    def case(self) -> Path:
        return self.folder / "case"

    def set(self, files: Files) -> None:
        """Put ``case/`` into a state."""
        if self.case.exists():
            shutil.rmtree(self.case)
        self.case.mkdir()
        for name, content in sorted(files.items()):
            path = self.case / name
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)

    def files(self) -> Files:
        """What ``case/`` holds."""
        found = {}
        for path in self.case.rglob("*"):
            name = path.relative_to(self.case).as_posix()
            found[f"{name}/" if path.is_dir() else name] = b"" if path.is_dir() else path.read_bytes()
        return found

    def run(self, arguments: list[str], action: Action = Action.LOG, number: int = 0, error: int = 0) -> Result:
        """Run a command line of the program."""
        return self.server.run(arguments, folder=self.folder, root=self.case, action=action, number=number, error=error)

    def succeed(self, arguments: list[str]) -> list[Call]:
        """Run a command line that must end well; returns the calls it made."""
        result = self.run(arguments)
        if result.code != 0:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {result.code}\n{result.err}")
        return result.calls

    def stop(self, arguments: list[str], where: Callable[[list[Call]], int], action: Action = Action.KILL) -> None:
        """Run a command line that is stopped at the call whose number ``where`` finds in the calls of a whole run."""
        before = self.files()
        number = where(self.succeed(arguments))
        self.set(before)
        result = self.run(arguments, action, number)
        if result.code not in (-signal.SIGKILL, 128 + signal.SIGTERM):
            raise RuntimeError(f"{' '.join(arguments)}: exit code {result.code}, though stopped at call {number}")

    def state(self, name: str) -> Files:
        """The state of this name, made on first use."""
        if name not in self.states:
            start, make = STATES[name]
            self.set(self.state(start) if start else {})
            make(self)
            self.states[name] = self.files()
        return self.states[name]


def part(fraction: float) -> Callable[[list[Call]], int]:
    """The number of the call at which this part of all calls is done."""
    return lambda calls: max(int(len(calls) * fraction), 1)


def within_checkpoint(count: int) -> Callable[[list[Call]], int]:
    """The call at which ``count`` checkpoints are there, and the next one is half written."""

    def find(calls: list[Call]) -> int:
        placed = [call.number for call in calls if placed_checkpoint(call) is not None]
        return (placed[count - 1] + placed[count]) // 2

    return find


def at_line(number: int) -> Callable[[list[Call]], int]:
    """The call that writes a line of metrics.jsonl, counted from 1."""
    return lambda calls: [c.number for c in calls if c.name == "write" and c.path.endswith("metrics.jsonl")][number - 1]


def before_weights(calls: list[Call]) -> int:
    """The first call of the final weights: all checkpoints are there."""
    return 1 + max(call.number for call in calls if "/checkpoints" in call.path)


def placed_checkpoint(call: Call) -> int | None:
    """The update of the checkpoint that a call has given its name, if it has."""
    found = re.search(r"/checkpoints/update-(\d{8})$", call.other)
    return int(found[1]) if found and call.name == "rename" and call.error == 0 else None


def _make_output(world: World) -> None:
    (world.case / "output").mkdir()


def _make_old_output(world: World) -> None:
    _make_output(world)
    (world.folder / OUTPUT).write_bytes(OLD_OUTPUT.encode())


def _leave_out_prepared(world: World) -> None:
    shutil.rmtree(world.case / "prepared")


STATES: dict[str, tuple[str, Callable[[World], object]]] = {
    "empty": ("", lambda world: None),
    "prepared": ("empty", lambda world: world.succeed(PREPARE)),
    "prepared otherwise": ("empty", lambda world: world.succeed([*PREPARE, "data.tokenizer.vocabulary_size=100"])),
    "half prepared": ("empty", lambda world: world.stop(PREPARE, part(0.6))),
    "trained": ("prepared", lambda world: world.succeed(TRAIN)),
    "interrupted": ("prepared", lambda world: world.stop(TRAIN, within_checkpoint(2))),
    "signalled": ("prepared", lambda world: world.stop(TRAIN, at_line(2), Action.SIGNAL)),
    "interrupted best": ("prepared", lambda world: world.stop(BEST, within_checkpoint(2))),
    "without weights": ("prepared", lambda world: world.stop(MEAN, before_weights)),
    "model": ("trained", _leave_out_prepared),
    "model and place": ("model", _make_output),
    "model and output": ("model", _make_old_output),
    "half decoded": ("model and place", lambda world: world.stop(DECODE, part(0.6))),
}


# --- comparing -----------------------------------------------------------------------------------------------------

_TIMES = {"time", "seconds", "elapsed", "training_seconds", "tokens_per_second"}


def comparable(files: Files) -> dict[str, Any]:
    """What two runs of the same commands must have in common: all but times, what hashes them, and lock files."""
    return {
        name: _without_times(name, content) for name, content in files.items() if name.rpartition("/")[2] != ".lock"
    }


def digest(files: Files) -> str:
    """The same for all states that are alike, but for times."""
    return _hash(json.dumps(comparable(files), sort_keys=True).encode())


def _without_times(name: str, content: bytes) -> Any:
    file = name.rpartition("/")[2]
    try:
        if file.startswith("metrics.jsonl"):
            return [_strip(json.loads(line)) for line in content.split(b"\n") if line]
        if "checkpoints/" in name and file in ("progress.json", "manifest.json"):
            return _strip(json.loads(content))
        if file.endswith(".safetensors"):  # in the header of a file that is not the program's, the order is random
            size = int.from_bytes(content[:8], "little")
            return json.loads(content[8 : 8 + size]), _hash(content[8 + size :])
    except ValueError:
        pass
    return _hash(content)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _strip(value: Any) -> Any:
    """Without times, without the hash of a file that holds times, and without a seal over them."""
    if isinstance(value, dict):
        left_out = {*_TIMES, "seal", "progress.json"}
        return {key: _strip(each) for key, each in value.items() if key not in left_out}
    return value


def differences(wanted: Files, found: Files) -> list[str]:
    """How a tree differs from what it should be: ``+`` too much, ``-`` missing, ``!`` other contents."""
    old, new = comparable(wanted), comparable(found)
    lines = [f"{'+' if name in new else '-'} {name}" for name in sorted(old.keys() ^ new.keys())]
    return lines + [f"! {name}" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
