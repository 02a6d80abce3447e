"""A run that was stopped, however often and by whatever means, is the run that was not: to the last bit, on real text.

Real processes, real signals, Multi30k; dropout 0.3, three batches accumulated an update, fp32 and bf16. Compared are
the losses in metrics.jsonl, the final weights, the last checkpoint's optimizer and random states, and which checkpoints
stay.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.storage.files import sha256_file
from tests.commands.support import program

pytestmark = pytest.mark.slow

RECIPE = """\
name: resume
directory: unset
model: {{preset: {preset}, dropout: {{residual: 0.3, attention: 0.3, activation: 0.3}}}}
data:
  directory: prepared
  train: [{{name: multi30k, source: {data}/multi30k/train.en.gz, target: {data}/multi30k/train.de.gz}}]
  dev: {{source: {data}/multi30k/val.en.gz, target: {data}/multi30k/val.de.gz}}
  tokenizer: {{vocabulary_size: 4000}}
training:
  device: cpu
  threads: 1
  max_updates: 60
  batch_tokens: 512
  accumulate_tokens: 1536
  learning_rate: 1e-3
  warmup_updates: 20
  validation: {{every: 20, metric: bleu, beam_size: 2, max_sentences: 8}}
  log_every: 3
  save_every: 10
  keep_last: 3
  average_last: 3
decoding: {{max_length_factor: 0.5, max_length_offset: 5}}
"""
UPDATES, MOMENTS, CHAIN = 60, 20, 10


class Runs:
    """Starts training in one folder, and keeps what an undisturbed run gives."""

    def __init__(self, folder: Path, preset: str, data: Path) -> None:
        self.folder, self.recipe = folder, folder / f"{preset}.yaml"
        self.recipe.write_text(RECIPE.format(preset=preset, data=data), encoding="utf-8", newline="\n")
        self._undisturbed: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        assert program("prepare", str(self.recipe), cwd=folder).wait() == 0

    def start(self, name: str, dtype: str) -> subprocess.Popen[bytes]:
        options = [f"directory={name}", f"training.compute_dtype={dtype}"]
        return program("train", str(self.recipe), *options, cwd=self.folder)

    def finish(self, name: str, dtype: str) -> dict[str, Any]:
        """Go on until the run's end; what it left."""
        process = self.start(name, dtype)
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        return self.result(name)

    def undisturbed(self, dtype: str) -> dict[str, Any]:
        if dtype not in self._undisturbed:
            began = time.monotonic()
            self._undisturbed[dtype] = self.finish(f"{self.recipe.stem}-{dtype}", dtype)
            self.seconds[dtype] = time.monotonic() - began
            losses = self._undisturbed[dtype]["lines"]
            assert sum(line["kind"] == "train" for line in losses) == UPDATES // 3
        return self._undisturbed[dtype]

    def result(self, name: str) -> dict[str, Any]:
        directory = self.folder / name
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        clocks = ("time", "seconds", "training_seconds", "tokens_per_second")
        last = directory / "checkpoints" / f"update-{UPDATES:08d}"
        return {
            "lines": [{key: value for key, value in line.items() if key not in clocks} for line in lines],
            "weights": sha256_file(directory / "weights.safetensors"),
            "states": {name: sha256_file(last / f"{name}.safetensors") for name in ("weights", "optimizer", "random")},
            "checkpoints": sorted(path.name for path in (directory / "checkpoints").iterdir()),
        }

    def updates(self, name: str) -> int:
        """The newest checkpoint's update; 0 without one."""
        found = sorted((self.folder / name / "checkpoints").glob("update-*"))
        return int(found[-1].name.split("-")[1]) if found else 0

    def stop(self, process: subprocess.Popen[bytes], number: signal.Signals) -> int:
        """Send a signal; the exit code."""
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        if process.returncode == 128 + number:
            assert b"Resume with: sparsenmt train" in errors or b"interrupted" in errors or b"terminated" in errors
        assert b"Traceback" not in errors, errors.decode()
        return process.returncode


@pytest.fixture(scope="module")
def make_runs(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Callable[[str], Runs]:
    made: dict[str, Runs] = {}

    def make(preset: str) -> Runs:
        if preset not in made:
            made[preset] = Runs(tmp_path_factory.mktemp(preset), preset, real_data)
        return made[preset]

    return make


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_kill_9(make_runs: Callable[[str], Runs], dtype: str) -> None:
    runs = make_runs("small")
    name = f"killed-{dtype}"
    process = runs.start(name, dtype)
    metrics = runs.folder / name / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and b'"update": 24' in metrics.read_bytes(), process)
    time.sleep(0.3)  # somewhere in update 25 or after
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert runs.updates(name) == 20
    assert runs.finish(name, dtype) == runs.undisturbed(dtype)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_sigterm_at_a_random_moment(make_runs: Callable[[str], Runs], moment: int) -> None:
    runs, dtype = make_runs("tiny"), ("fp32", "bf16")[moment % 2]
    expected = runs.undisturbed(dtype)
    name = f"terminated-{moment}"
    process = runs.start(name, dtype)
    time.sleep(random.Random(moment).uniform(0.5, 1.0) * runs.seconds[dtype])
    code = runs.stop(process, signal.SIGTERM)
    print(f"moment {moment}, {dtype}: exit code {code}, newest checkpoint {runs.updates(name)}")
    assert code in (0, 143, -signal.SIGTERM)  # 0: it was at its end; the last: before the program had begun
    assert runs.finish(name, dtype) == expected


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_chain_of_stops(make_runs: Callable[[str], Runs], dtype: str) -> None:
    runs = make_runs("tiny")
    expected, draw, name = runs.undisturbed(dtype), random.Random(dtype), f"chain-{dtype}"
    stops = []
    for number in range(CHAIN):
        process = runs.start(name, dtype)
        before, wanted = runs.updates(name), (number + 1) * UPDATES // (CHAIN + 1)
        metrics = runs.folder / name / "metrics.jsonl"
        wait_for(lambda m=metrics, w=wanted: m.exists() and last_update(m) >= w - 3, process)  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.4))
        kind = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        runs.stop(process, kind)
        stops.append((kind.name, before, runs.updates(name)))
    print(f"{dtype}: {stops}")
    assert runs.finish(name, dtype) == expected


def last_update(metrics: Path) -> int:
    complete = metrics.read_bytes().rpartition(b"\n")[0]
    return max((json.loads(line)["update"] for line in complete.split(b"\n") if line), default=0)
