"""Runs that are stopped at chosen moments and go on, and what is compared with the run that nobody disturbed."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.model_directory import METRICS_FILE
from sparsenmt.data.corpus_mixture import CorpusMixture
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.schema import Training
from sparsenmt.training import checkpoints, loop, segments, sentence_pairs
from sparsenmt.training.checkpoints import clean_checkpoints, find_checkpoints
from sparsenmt.training.loop import Trainer
from sparsenmt.training.training_log import truncate_log
from tests.training.support import SHALLOW, make_trainer, small_model

_TIMES = ("time", "seconds", "training_seconds", "tokens_per_second")


_TENSORS = ("weights", "optimizer", "random", "streams")


class Killed(BaseException):
    """Stands for a process that ends here, without a chance to save."""


def terminate() -> None:
    """SIGTERM to this process: `Trainer.run` hears it."""
    os.kill(os.getpid(), signal.SIGTERM)


def kill() -> None:
    raise Killed


@dataclass
class Moments:
    """Counts what a run does, and does something at one of these moments.

    Args:
        place: ``batch``: before its forward pass; ``step``: after it; ``validation``; ``save``: before a checkpoint's
            files, ``file``: before each of them; ``rename``: before the checkpoint gets its name.
        number: which, from 1; 0 never.
        act: what happens.
    """

    place: str = ""
    number: int = 0
    act: Callable[[], None] = terminate
    counts: dict[str, int] = field(default_factory=dict)

    def pass_(self, place: str) -> None:
        self.counts[place] = self.counts.get(place, 0) + 1
        if (self.place, self.number) == (place, self.counts[place]):
            self.act()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Look over the shoulders of the loop."""
        for module, name, before, after in (
            (sentence_pairs, "accumulate_gradients", "batch", "step"),
            (segments, "accumulate_segment_gradients", "batch", "step"),
            (loop, "write_checkpoint", "save", "saved"),
            (checkpoints, "save_tensors", "file", "filed"),
            (checkpoints, "publish_directory", "rename", "renamed"),
        ):
            monkeypatch.setattr(module, name, self._around(getattr(module, name), before, after))

    def _around(self, function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.pass_(before)
            result = function(*arguments, **named)
            self.pass_(after)
            return result

        return call

    def validate(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        """Values that depend on the weights to the last bit, go up and down, and cost random numbers."""
        torch.rand(3)
        self.pass_("validation")
        total = sum(float(value.double().sum()) for value in weights.values())
        return {"loss": 2 + math.sin(1e4 * total)}


@dataclass(frozen=True)
class Runs:
    """Starts runs of one recipe, each with its own random beginning: all must come from the checkpoint."""

    dataset: Dataset
    options: Training
    dtype: torch.dtype = torch.float32
    division: SampledDivision | None = None
    mixture: CorpusMixture | None = None

    def trainer(self, directory: Path, moments: Moments, seed: int = 1, **options: object) -> Trainer:
        torch.manual_seed(seed)
        return make_trainer(
            directory,
            self.dataset,
            Training.model_validate({**self.options.model_dump(), **options}),
            model=small_model(seed, plan=SHALLOW, dropout=0.3, dtype=torch.float32),
            validate=moments.validate,
            dtype=self.dtype,
            division=self.division,
            mixture=self.mixture,
        )

    def start(self, directory: Path, moments: Moments | None = None, **options: object) -> Trainer:
        """Begin, or go on, as `sparsenmt train` does; may be stopped at a moment."""
        moments = moments or Moments()
        clean_checkpoints(directory)
        found = find_checkpoints(directory)
        trainer = self.trainer(directory, moments, seed=2 + len(found) if found else 1, **options)
        if found:
            trainer.restore(found[-1])
            truncate_log(directory, trainer.progress)
        else:
            (directory / METRICS_FILE).unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            moments.watch(patch)
            trainer.run()
        return trainer

    def chain(self, directory: Path, stops: Sequence[Moments]) -> tuple[Trainer, int]:
        """Start again and again, stopped once at each of these moments; also how many of them came."""
        stopped = 0
        for moments in stops:
            try:
                self.start(directory, moments)
            except (Interrupted, Killed):
                stopped += 1
        return self.start(directory), stopped


def outcome(directory: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for the clock: tensors as hashes."""
    found = find_checkpoints(directory)
    progress = [json.loads(checkpoint.progress().to_json()) for checkpoint in found]
    for each in progress:
        del each["seconds"], each["elapsed"], each["recent"]["seconds"]
    for checkpoint in found:
        checkpoint.check()
    return {
        "metrics": [
            {key: value for key, value in json.loads(line).items() if key not in _TIMES}
            for line in (directory / METRICS_FILE).read_bytes().split(b"\n")[:-1]
        ],
        "checkpoints": sorted(path.name for path in (directory / "checkpoints").iterdir()),
        "interim": [checkpoint.update for checkpoint in found if checkpoint.interim],
        "progress": progress,
        "tensors": [
            [path.read_bytes() for name in _TENSORS if (path := checkpoint.path / f"{name}.safetensors").exists()]
            for checkpoint in found
        ],
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Part by part, so that a difference can be read."""
    for part in wanted:
        assert found[part] == wanted[part], part
