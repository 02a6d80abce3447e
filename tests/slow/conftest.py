"""Models and sentences of Multi30k that the slow tests share.

`make test-slow` trains the models, in a few minutes and once for all processes. SPARSENMT_MODEL names the directory of
a model to test instead: one with several layers on each side, and for the tests of compaction with a filter.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.cli import run
from sparsenmt.data.text import read_lines

SENTENCES = 500
RECIPE = Path(__file__).parents[2] / "recipes" / "multi30k-en-de.yaml"
SHORT = (
    "model.preset=tiny",
    "training.max_updates=400",
    "training.warmup_updates=100",
    "training.validation.every=400",
    "training.save_every=400",
    "training.average_last=0",
    "training.compute_dtype=fp32",
)
# A share of gates that closes within so few updates: they begin near their threshold.
GATED = ("--target", "0.5", "--updates", "100", "model.memory.0.init_log_alpha=-1")


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Make a folder by a function, or wait until another process of this run has made it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared / name
        with open(shared / f"{name}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a test process that was ended
                folder.mkdir()
                make(folder)
                (folder / "made").touch()
        return folder

    return once


@pytest.fixture(scope="session")
def model_directory(make_once: Callable[[str, Callable[[Path], None]], Path], real_data: Path) -> Path:
    """A dense model with two layers on each side, or the one that SPARSENMT_MODEL names."""
    if named := os.environ.get("SPARSENMT_MODEL"):
        return Path(named)

    def make(folder: Path) -> None:
        os.environ["SPARSENMT_DATA"] = str(real_data)
        places = [f"directory={folder / 'model'}", f"data.directory={folder / 'data'}"]
        assert run(["prepare", str(RECIPE), *places, *SHORT]) == 0
        assert run(["train", str(RECIPE), *places, *SHORT]) == 0

    return make_once("dense", make) / "model"


@pytest.fixture(scope="session")
def gated(make_once: Callable[[str, Callable[[Path], None]], Path], model_directory: Path) -> Path:
    """A model whose filter drops positions exactly: the dense one with gates, unless it has some."""
    if open_model(model_directory).model.compacts:
        return model_directory

    def make(folder: Path) -> None:
        assert run(["finetune-l0", str(model_directory), *GATED, "-o", str(folder / "model")]) == 0

    found = make_once("gated", make) / "model"
    assert open_model(found).model.compacts
    return found


@pytest.fixture(scope="session")
def sentences(real_data: Path) -> tuple[list[str], list[str]]:
    """Sentences of Multi30k's test set of 2016, and their references."""
    folder = real_data / "multi30k"
    both = [list(read_lines(folder / f"test_2016_flickr.{language}.gz"))[:SENTENCES] for language in ("en", "de")]
    assert len(both[0]) == len(both[1]) == SENTENCES
    return both[0], both[1]
