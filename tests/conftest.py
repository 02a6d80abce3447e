"""Fixtures that tests of all folders share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.native.build import build_here
from sparsenmt.native.library import wanted

# Kernels are tested, not timed: those that are right are used. Processes that tests start inherit it.
os.environ.setdefault("SPARSENMT_NATIVE", "always")
# Expected values are a CPU's. `make gpu` sets the variable for the tests that compare a GPU with the CPU.
if not os.environ.get("SPARSENMT_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_configure(config: pytest.Config) -> None:
    """Restore the handlers of signals, and build the compiled kernels once, before any process of the tests begins."""
    _restore_handlers()
    if not hasattr(config, "workerinput") and wanted():
        with suppress(UserError):  # without GCC their tests are skipped
            build_here(lambda line: print(line, flush=True))


def _restore_handlers() -> None:
    """Restore the handlers of signals that are ignored where the tests run in the background (`nohup ... &`).

    Otherwise every program that a test starts would ignore them, too, and the test would wait for its end for ever.
    """
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        # Programs that are started get the default; the tests themselves outlive the terminal.
        getattr(signal, "SIGHUP", None): lambda number, frame: None,
    }
    for number, handler in handlers.items():
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Tests run side by side: PyTorch gets one thread; random numbers do not depend on the tests before.

    Tests that do not use PyTorch do not wait for its import.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files that tests write need not outlive a loss of power. Programs that tests start do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real corpora: $SPARSENMT_DATA, or a `data` folder in or beside the checkout; without one, skip."""
    root, named = Path(__file__).resolve().parents[1], os.environ.get("SPARSENMT_DATA")
    near = [root / "data", root.parent / "data", *sorted(root.parent.glob("*/data"))]
    folder = Path(named) if named else next((each for each in near if (each / "multi30k").is_dir()), near[0])
    if not (folder / "multi30k" / "train.en.gz").is_file():
        pytest.skip(f"there is no {folder}/multi30k/train.en.gz: name the folder of the corpora in SPARSENMT_DATA")
    return folder
