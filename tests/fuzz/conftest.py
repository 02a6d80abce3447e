"""A folder to run cases in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.support import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty folder for cases; it is the working directory."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Lab(folder)
