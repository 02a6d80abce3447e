"""Several processes give the weights that one process gives with the same batches, stopped or not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsenmt.data.dataset import Dataset
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.process import workers
from sparsenmt.process.interrupts import Interrupted, listening
from sparsenmt.process.workers import Launch, Workers
from sparsenmt.recipe.schema import AuxiliaryLoss
from sparsenmt.training.checkpoints import Checkpoint, find_checkpoints
from sparsenmt.training.loop import Trainer
from tests.training.support import DRAWN, EXITS, make_trainer, plan_of, small_model, training_options, write_dataset
from tests.training.threads import Meeting, run_threads

LIMITS = {"max_epochs": 2, "max_updates": 999}


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
    assert len(plan_of(alone).batches(0)) % size, "choose another batch size: this one hides the hard case"
    alone.run()
    together = [trainer("together", 45, 45, workers) for workers in Meeting.of(size)]
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


def test_two_processes_of_one_batch_each_are_one_with_two_in_bf16(tmp_path: Path) -> None:
    """To the last bit: the sum of two gradients has no order. Some parameters are frozen, as under adapters."""
    dataset = write_dataset(tmp_path / "data")

    def trainer(name: str, accumulate_tokens: int, workers: Workers) -> Trainer:
        options = training_options(batch_tokens=45, accumulate_tokens=accumulate_tokens, max_updates=6)
        model = small_model(plan=EXITS, dtype=torch.float32)
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_("encoder" not in parameter_name)
        return make_trainer(tmp_path / name, dataset, options, model=model, workers=workers, dtype=torch.bfloat16)

    alone, together = trainer("alone", 90, Workers()), [trainer("two", 45, workers) for workers in Meeting.of(2)]
    alone.run()
    run_threads(together)
    for other in together:
        for name, value in alone.weights.state().items():
            assert torch.equal(other.weights.state()[name], value), name


@pytest.mark.parametrize(("before", "after", "accumulated"), [(2, 1, 45), (1, 2, 90), (2, 3, 135)])
def test_another_number_of_processes_continues_with_the_same_batches(
    tmp_path: Path, before: int, after: int, accumulated: int
) -> None:
    """In float64, from a checkpoint in the middle of the first epoch."""
    dataset = write_dataset(tmp_path / "data")
    options = training_options(batch_tokens=45, accumulate_tokens=accumulated, save_every=1, keep_last=99, **LIMITS)

    def run(name: str, size: int, start: Checkpoint | None) -> Trainer:
        every = Meeting.of(size) if size > 1 else [Workers()]
        trainers = [
            make_trainer(tmp_path / name, dataset, options, model=small_model(plan=EXITS), workers=workers)
            for workers in every
        ]
        for each in trainers if start is not None else ():
            each.restore(start)
        run_threads(trainers)
        return trainers[0]

    whole = run("whole", before, None)
    start = find_checkpoints(tmp_path / "whole")[0]
    assert start.progress().batches_done > 0 and not start.progress().epoch
    other = run("other", after, start)
    assert other.progress.workers == whole.progress.workers == before
    for field in ("update", "epoch", "batches_done", "target_tokens"):
        assert getattr(other.progress, field) == getattr(whole.progress, field)
    for name, value in whole.weights.state().items():
        torch.testing.assert_close(other.weights.state()[name], value, rtol=1e-6, atol=1e-8)
    moments, same = (find_checkpoints(tmp_path / name)[-1].optimizer() for name in ("other", "whole"))
    for name, value in same.items():
        torch.testing.assert_close(moments[name], value, rtol=1e-6, atol=1e-8)
    states = {name.partition("/")[0] for name in find_checkpoints(tmp_path / "other")[-1].random()}
    assert states == {str(rank) for rank in range(after)}


def test_alone_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    workers = Workers.join(torch.device("cpu"))
    assert workers == Workers() and workers.is_main_process
    assert workers.sum([1.0, 2.0]) == [1.0, 2.0]
    workers.barrier()


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_gets_its_own_random_states_back(tmp_path: Path, rank: int) -> None:
    dataset = write_dataset(tmp_path / "data")
    states = [torch.get_rng_state(), torch.Generator().manual_seed(3).get_state()]

    class First(Workers):
        """The first of two, whose other one is only made up."""

        def gather(self, values: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
            states[0] = values
            return states

        def sum(self, values: list[float]) -> list[float]:
            return values

        def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
            return lambda: None

        def barrier(self) -> None:
            pass

    options = training_options(max_updates=2)
    make_trainer(tmp_path / "model", dataset, options, workers=First(0, 2)).run()
    (checkpoint,) = find_checkpoints(tmp_path / "model")
    saved = checkpoint.random()
    assert saved.keys() == {"0/cpu", "1/cpu"} and not torch.equal(saved["0/cpu"], saved["1/cpu"])
    make_trainer(tmp_path / "model", dataset, options, workers=First(rank, 2)).restore(checkpoint)
    assert torch.equal(torch.get_rng_state(), states[rank])


NEVER = "0:0:TERM"
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


SCRIPT = str(Path(__file__).with_name("distributed_worker.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}


def run_worker(launcher: list[str], *arguments: object) -> str:
    """Run `distributed_worker` to its end; what it printed."""
    command = [sys.executable, *launcher, SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.slow
def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    results = []
    for name, launcher, accumulate in (("one", [], 120), ("two", TWO, 60)):
        run_worker(launcher, tmp_path / "data", tmp_path / name, 60, accumulate, 0, NEVER)
        results.append(load_file(tmp_path / name / "result.safetensors"))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-6, atol=1e-8)
    assert Dataset(tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["0:8:TERM", "1:5:TERM"])
def test_two_processes_that_are_stopped_go_on_as_if_they_were_not(tmp_path: Path, stop: str) -> None:
    """With dropout, of which each has its own; the signal reaches only one of them, inside an accumulation."""
    write_dataset(tmp_path / "data")
    for name, stops in (("whole", [NEVER]), ("stopped", [stop, NEVER])):
        for each in stops:
            printed = run_worker(TWO, tmp_path / "data", tmp_path / name, 45, 90, 0.3, each)
            stopped = sorted(line for line in printed.split("\n") if "stopped" in line)
            assert len(stopped) == (0 if each == NEVER else 2)
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def environment_of(rank: int, port: int) -> dict[str, str]:
    return {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize(
    ("victim", "how"),
    [(1, "KILL"), pytest.param(0, "KILL", marks=pytest.mark.slow), pytest.param(0, "DISK", marks=pytest.mark.slow)],
)
@pytest.mark.thorough
def test_a_process_whose_partner_has_ended_says_so(tmp_path: Path, victim: int, how: str) -> None:
    """It is stopped before its fifth batch; a full disk is noticed when the next line of the log is written."""
    write_dataset(tmp_path / "data")
    port = free_port()
    arguments = [tmp_path / "data", tmp_path / "model", 45, 90, 0, f"{victim}:5:{how}"]
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, arguments)],
            env={**ENVIRONMENT, **environment_of(rank, port)},
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in processes]
    said = errors[1 - victim].rstrip().split("\n")[-2:]
    assert said[0].endswith(
        f"process {1 - victim} of 2: another process of the run has ended, or cannot be reached any more"
    )
    assert said[1].startswith("  Read that process's messages,") and said[1].endswith("; resumable: True")
    assert "Traceback" not in errors[1 - victim]
    if how == "DISK":
        assert "File too large" in errors[0] and str(tmp_path / "model") in errors[0]


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE", "is 'abc', not a whole number of at least 1"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE", "is '', not a whole number"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE", "is '-1', not a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE", "is '0', not a whole number"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE", "is '²', not a whole number"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE", "not a whole number"),
        ({"RANK": "x"}, "RANK", "is 'x', not a whole number from 0 to 1"),
        ({"RANK": "2"}, "RANK", "is '2', not a whole number from 0 to 1"),
        ({"RANK": ""}, "RANK", "is not set, but WORLD_SIZE says"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK", "is 'x', not a whole number"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR", "is not set, but WORLD_SIZE says"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT", "is '70000', not a whole number from 1 to 65535"),
        ({"SPARSENMT_JOIN_SECONDS": "soon"}, "SPARSENMT_JOIN_SECONDS", "is 'soon', not a whole number"),
    ],
)
def test_an_environment_without_meaning(given: dict[str, str], where: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Launch.read({**environment_of(0, 29500), **given})
    assert caught.value.where == where and message in caught.value.message and caught.value.hint


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_environment_without_a_variable(missing: str) -> None:
    given = environment_of(0, 29500)
    del given[missing]
    with pytest.raises(UserError, match=f"{missing}: the environment variable is not set, but WORLD_SIZE says"):
        Launch.read(given)


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Sets the environment of one of two processes, whose other one never comes; returns the port."""
    monkeypatch.setattr(workers, "_QUIET", 0.0)

    def set_up(rank: int) -> int:
        port = free_port()
        for name, value in environment_of(rank, port).items():
            monkeypatch.setenv(name, value)
        return port

    return set_up


@pytest.mark.parametrize(("rank", "missing"), [(0, "1 of 2 processes"), (1, "the process with RANK=0")])
def test_a_process_without_a_partner_waits_for_a_limited_time(
    lonely: Callable[[int], int],
    rank: int,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = lonely(rank)
    monkeypatch.setenv("SPARSENMT_JOIN_SECONDS", "1")
    with pytest.raises(UserError, match=f"127.0.0.1:{port}: {missing} did not join within 1 s"):
        Workers.join(torch.device("cpu"))
    note = f"waiting for {missing} at 127.0.0.1:{port} (up to 1 s, SPARSENMT_JOIN_SECONDS)\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_waits_for_its_partner_hears_signals(
    lonely: Callable[[int], int], rank: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely(rank)
    monkeypatch.setattr(workers, "notify", lambda message: os.kill(os.getpid(), number))
    with listening(), pytest.raises(Interrupted) as caught:
        Workers.join(torch.device("cpu"))
    assert caught.value.number == number


def test_a_port_that_is_in_use(lonely: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    lonely(0)
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        with pytest.raises(UserError, match="cannot be opened for the other processes: Address already in use"):
            Workers.join(torch.device("cpu"))


def test_an_error_of_our_own_is_not_taken_for_a_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(torch.distributed, "barrier", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        Workers(0, 2).barrier()
