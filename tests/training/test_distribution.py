"""Several processes give the weights that one process gives with the same batches, stopped or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.data.dataset import Dataset
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.recipe.schema import AuxiliaryLoss
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.distribution import Workers
from sparsenmt.training.loop import Trainer
from tests.training.support import DRAWN, EXITS, make_trainer, small_model, training_options, write_dataset

LIMITS = {"max_epochs": 2, "max_updates": 999}


@dataclass(frozen=True)
class _Shared:
    """What the threads of a run have in common."""

    size: int
    barrier: threading.Barrier
    values: dict[int, list[float]] = field(default_factory=dict)
    gradients: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Threads(Workers):
    """Workers that are threads of one process."""

    shared: _Shared | None = None

    def _meet(self) -> _Shared:
        assert self.shared is not None
        self.shared.barrier.wait(timeout=30)
        return self.shared

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        assert self.shared is not None
        self.shared.values[self.rank] = values
        shared = self._meet()
        found = [sum(column) for column in zip(*(shared.values[rank] for rank in range(self.size)), strict=True)]
        self._meet()
        return found

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        own = list(parameters)
        assert self.shared is not None
        self.shared.gradients[self.rank] = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in own]
        shared = self._meet()
        for i, parameter in enumerate(own):
            parameter.grad = sum((shared.gradients[rank][i] for rank in range(self.size)), torch.zeros_like(parameter))
        self._meet()

    def gather(self, values: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
        assert self.shared is not None
        self.shared.gathered[self.rank] = values
        shared = self._meet()
        found = [shared.gathered[rank] for rank in range(self.size)]
        self._meet()
        return found

    def barrier(self) -> None:
        self._meet()


def run_threads(trainers: list[Trainer]) -> None:
    errors: list[BaseException] = []

    def work(trainer: Trainer) -> None:
        try:
            trainer.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)


def metrics(directory: Path) -> list[dict[str, float]]:
    lines = (directory / "metrics.jsonl").read_bytes().decode().removesuffix("\n").split("\n")
    return [line for line in map(json.loads, lines) if line["kind"] == "train"]


@pytest.mark.parametrize(("size", "plan"), [(2, EXITS), (3, EXITS), (2, DRAWN)])
def test_workers_share_an_update(tmp_path: Path, size: int, plan: DepthPlan) -> None:
    """In float64, over two epochs whose batches do not divide by the number of workers."""
    dataset = write_dataset(tmp_path / "data")
    losses = {name: AuxiliaryLoss(weight=0.3) for name in ("open", "mass")}

    def trainer(name: str, batch_tokens: int, accumulate_tokens: int, workers: Workers) -> Trainer:
        options = training_options(
            batch_tokens=batch_tokens, accumulate_tokens=accumulate_tokens, log_every=1, **LIMITS
        )
        model = small_model(plan=plan, filtered=True)
        made = make_trainer(tmp_path / name, dataset, options, model=model, workers=workers)
        made.losses = losses
        return made

    alone = trainer("alone", 45, 45 * size, Workers())
    assert len(alone.plan.batches(0)) % size, "choose another batch size: this one hides the hard case"
    alone.run()
    shared = _Shared(size, threading.Barrier(size))
    together = [trainer("together", 45, 45, Threads(rank, size, shared)) for rank in range(size)]
    run_threads(together)
    for other in together:
        assert other.progress.update == alone.progress.update
        assert other.progress.target_tokens == alone.progress.target_tokens
        assert (other.progress.epoch, other.progress.batches_done) == (2, 0)
        for name, value in alone.weights.state().items():
            torch.testing.assert_close(other.weights.state()[name], value, rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(metrics(tmp_path / "together"), metrics(tmp_path / "alone"), strict=True):
        for key in ("loss", "nll", "gradient_norm", "open", "mass"):
            assert mine[key] == pytest.approx(theirs[key], rel=1e-6)


def test_alone_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    workers = Workers.join(torch.device("cpu"))
    assert workers == Workers() and workers.is_main_process
    assert workers.sum([1.0, 2.0], torch.device("cpu")) == [1.0, 2.0]
    workers.barrier()
    parameter = torch.nn.Parameter(torch.zeros(2))
    workers.sum_gradients([parameter])
    assert parameter.grad is None


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_gets_its_own_random_states_back(tmp_path: Path, rank: int) -> None:
    dataset = write_dataset(tmp_path / "data")
    states = [torch.get_rng_state(), torch.Generator().manual_seed(3).get_state()]

    class First(Workers):
        """The first of two, whose other one is only made up."""

        def gather(self, values: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
            states[0] = values
            return states

        def sum(self, values: list[float], device: torch.device) -> list[float]:
            return values

        def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
            pass

        def barrier(self) -> None:
            pass

    options = training_options(max_updates=2)
    make_trainer(tmp_path / "model", dataset, options, workers=First(0, 2)).run()
    (checkpoint,) = find_checkpoints(tmp_path / "model")
    saved = checkpoint.random()
    assert saved.keys() == {"0/cpu", "1/cpu"} and not torch.equal(saved["0/cpu"], saved["1/cpu"])
    make_trainer(tmp_path / "model", dataset, options, workers=First(rank, 2)).restore(checkpoint)
    assert torch.equal(torch.get_rng_state(), states[rank])


TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def run_worker(launcher: list[str], *arguments: object) -> str:
    """Run `distributed_worker` to its end; what it printed."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).with_name("distributed_worker.py"))
    command = [sys.executable, *launcher, script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.slow
def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    results = []
    for name, launcher, accumulate in (("one", [], 120), ("two", TWO, 60)):
        run_worker(launcher, tmp_path / "data", tmp_path / name, 60, accumulate, 0, "0:0")
        results.append(load_file(tmp_path / name / "result.safetensors"))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-6, atol=1e-8)
    assert Dataset(tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["0:8", "1:5"])
def test_two_processes_that_are_stopped_go_on_as_if_they_were_not(tmp_path: Path, stop: str) -> None:
    """With dropout, of which each has its own; the signal reaches only one of them, inside an accumulation."""
    write_dataset(tmp_path / "data")
    for name, stops in (("whole", ["0:0"]), ("stopped", [stop, "0:0"])):
        for each in stops:
            printed = run_worker(TWO, tmp_path / "data", tmp_path / name, 45, 90, 0.3, each)
            stopped = sorted(line for line in printed.split("\n") if "stopped" in line)
            assert len(stopped) == (0 if each == "0:0" else 2)
            assert len({line.rpartition(" ")[2] for line in stopped}) <= 1, "both after the same update"
    found = [find_checkpoints(tmp_path / name) for name in ("whole", "stopped")]
    assert [checkpoint.update for checkpoint in found[0]] == [checkpoint.update for checkpoint in found[1]]
    for name in ("weights", "optimizer", "random"):
        files = [(checkpoints[-1].path / f"{name}.safetensors").read_bytes() for checkpoints in found]
        assert files[0] == files[1], name
    assert not any(checkpoint.interim for checkpoint in found[1])
    assert [line["loss"] for line in metrics(tmp_path / "whole")] == [
        line["loss"] for line in metrics(tmp_path / "stopped")
    ]
