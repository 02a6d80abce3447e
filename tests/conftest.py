"""Fixtures that tests of all folders share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Kernels are tested, not timed: those that are right are used. Processes that tests start inherit it.
os.environ.setdefault("SPARSENMT_NATIVE", "always")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side: PyTorch gets one thread. Tests that do not use PyTorch do not wait for its import."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real corpora: $SPARSENMT_DATA, or a `data` folder in or beside the checkout; without one, skip."""
    root, named = Path(__file__).resolve().parents[1], os.environ.get("SPARSENMT_DATA")
    near = [root / "data", root.parent / "data", *sorted(root.parent.glob("*/data"))]
    folder = Path(named) if named else next((each for each in near if (each / "multi30k").is_dir()), near[0])
    if not (folder / "multi30k" / "train.en.gz").is_file():
        pytest.skip("no real corpora: name their folder in SPARSENMT_DATA")
    return folder
