"""A fork server and a folder to work in, shared by all tests of a process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.server import Server
from tests.faults.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    if reason := shim.unavailable():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="sparsenmt-faults-", dir=shim.fast_folder()))
    try:
        with Server(folder / "server") as server:
            yield World.make(folder / "world", server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
