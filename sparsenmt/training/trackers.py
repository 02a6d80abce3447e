"""Programs that get the numbers of a training run beside its log: TensorBoard, Weights & Biases, MLflow and Trackio.

All are optional packages with settings of their own, which they read from their own environment variables: where a
server is, and whether they are offline (`WANDB_MODE=offline`; Trackio keeps its database on this machine unless it is
told otherwise). A tracker that fails is left out with a warning: it never stops training. A run that resumes continues
its run there, by the id that ``trackers.json`` in the model directory holds.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.storage.files import read_json, write_json

IDS_FILE = "trackers.json"
_AT_ONCE, _LONGEST = 100, 500  # parameters in a call, and characters of one, that every server of MLflow takes


@dataclass(frozen=True)
class TrackedRun:
    """The run of a model directory, as a tracker begins or continues it.

    Args:
        update: number of updates that are done.
        id: of the run there; None: it begins.
    """

    directory: Path
    update: int
    id: str | None

    @property
    def name(self) -> str:
        """The name of the run there."""
        return self.directory.resolve().name

    def settings(self) -> dict[str, Any]:
        """The recipe, as plain values."""
        return read_recipe(self.directory).model_dump(mode="json", by_alias=True)


class Tracker(Protocol):
    """One program that gets the numbers of a run.

    Its class is called with a `TrackedRun`.
    """

    @property
    def id(self) -> str | None:
        """The id by which the run continues; None: the directory is enough."""

    def log(self, values: Mapping[str, float], update: int) -> None:
        """Send the numbers after an update, by names such as ``train/loss``."""

    def close(self) -> None:
        """Send what is left, and end the run or interrupt it."""


class TensorBoard:
    """Event files in ``tensorboard/`` of the model directory."""

    id = None

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was logged after the checkpoint that a run resumes from is repeated.
        purged = {"purge_step": run.update + 1} if run.update else {}
        self._writer: Any = SummaryWriter(str(run.directory / "tensorboard"), **purged)

    def log(self, values: Mapping[str, float], update: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of the project that WANDB_PROJECT names; its files are in ``wandb/`` of the model directory."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.id = run.id or secrets.token_hex(4)
        quiet = wandb.Settings(console="off", silent=True)  # it would put itself before the standard streams
        options = {"id": self.id, "resume": "allow", "name": run.name, "config": run.settings(), "settings": quiet}
        self._run: Any = wandb.init(dir=str(run.directory), project=_project("WANDB_PROJECT"), **options)
        # Its own steps must rise, and a run that resumes repeats updates.
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def log(self, values: Mapping[str, float], update: int) -> None:
        self._run.log({**values, "update": update})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of the experiment that MLFLOW_EXPERIMENT_NAME names, at the place that MLFLOW_TRACKING_URI names."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        if run.id is not None:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        name = _project("MLFLOW_EXPERIMENT_NAME")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self.id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in _flat(run.settings())]
        for first in range(0, len(settings), _AT_ONCE):
            self._client.log_batch(self.id, params=settings[first : first + _AT_ONCE])

    def log(self, values: Mapping[str, float], update: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.id, [self._metric(name, value, now, update) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self.id)


class Trackio:
    """A run of the project that TRACKIO_PROJECT names, in the database of TRACKIO_DIR on this machine."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self.id = run.id or f"{run.name}-{secrets.token_hex(4)}"  # runs continue by their names
        options = {"resume": "allow", "config": run.settings(), "embed": False}
        self._run: Any = trackio.init(project=_project("TRACKIO_PROJECT"), name=self.id, **options)

    def log(self, values: Mapping[str, float], update: int) -> None:
        self._run.log(dict(values), step=update)

    def close(self) -> None:
        self._run.finish()


def _project(variable: str) -> str:
    """The name of a project: of an environment variable, or that of this program."""
    return os.environ.get(variable) or "sparsenmt"


def _flat(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield key path and value of plain values."""
    if not isinstance(values, dict | list) or not values:
        yield path, values
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield from _flat(value, f"{path}.{key}" if path else str(key))


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""By the names in recipes, which are those of the packages that must be installed."""


def check_installed(names: Sequence[str] | None) -> None:
    """Check that the packages of trackers are installed.

    Raises:
        UserError: one is not.
    """
    for name in names or ():
        if find_spec(name) is None:
            raise UserError(
                f"{name} is not installed",
                where="training.trackers",
                hint=f"Install it, `pip install 'sparsenmt[{name}]'`, or leave it out.",
            )


class Trackers:
    """The trackers of a run; what one of them raises becomes a warning, and the run goes on without it.

    Args:
        names: of the recipe; None: TensorBoard, if it is installed.
        update: number of updates that are done.
    """

    def __init__(self, directory: Path, names: Sequence[str] | None, update: int) -> None:
        self._open: dict[str, Tracker] = {}
        if names is None:
            names = ["tensorboard"] if find_spec("tensorboard") else []
        ids = self._read_ids(directory) if names else {}
        for name in names:
            with self._left_out_on_failure(name):
                tracker = TRACKERS[name](TrackedRun(directory, update, ids.get(name) if update else None))
                self._open[name] = tracker
                if tracker.id is not None and ids.get(name) != tracker.id:
                    ids[name] = tracker.id
                    write_json(directory / IDS_FILE, ids)

    @property
    def names(self) -> list[str]:
        """Names of the trackers that get the numbers."""
        return list(self._open)

    @staticmethod
    def _read_ids(directory: Path) -> dict[str, str]:
        """The ids of the run, by tracker; a file that cannot be read counts as none."""
        with suppress(UserError, OSError):
            found = read_json(directory / IDS_FILE)
            if isinstance(found, dict):
                return {name: each for name, each in found.items() if name in TRACKERS and isinstance(each, str)}
        return {}

    @contextmanager
    def _left_out_on_failure(self, name: str) -> Iterator[None]:
        """Warn of what a tracker raises in the block, and leave it out; what it prints goes to stderr."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:  # whatever a package of others raises
            self._open.pop(name, None)
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            notify(f"warning: {name} gets no more of this run, which goes on without it: {reason}", needed=True)

    def log(self, kind: str, update: int, values: Mapping[str, Any]) -> None:
        """Send the numbers of a line of the log to all trackers; those that are not finite are left out."""
        numbers = {
            f"{kind}/{name}": float(each)
            for name, each in values.items()
            if isinstance(each, int | float) and math.isfinite(each)
        }
        for name, tracker in list(self._open.items()) if numbers else ():
            with self._left_out_on_failure(name):
                tracker.log(numbers, update)

    def close(self) -> None:
        """Close all."""
        for name, tracker in list(self._open.items()):
            with self._left_out_on_failure(name):
                tracker.close()
        self._open.clear()
