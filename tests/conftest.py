"""Fixtures that tests of all folders share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side: PyTorch gets one thread. Tests that do not use PyTorch do not wait for its import."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real corpora: $SPARSENMT_DATA, or a folder `shared/data` beside the checkout; without one, skip."""
    named = os.environ.get("SPARSENMT_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "multi30k" / "train.en.gz").is_file():
        pytest.skip("no real corpora: name their folder in SPARSENMT_DATA")
    return folder
