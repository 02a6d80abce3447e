"""A folder to run cases in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fuzz.support import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty folder for cases; it is the working directory."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    torch.set_num_threads(1)  # the commands import it late: the fixture of all tests does not see it
    return Lab(folder)
