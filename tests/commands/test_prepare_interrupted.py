"""`sparsenmt prepare` that is interrupted or killed: the same command goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.commands.support import Run, program
from tests.examples import examples

PREPARE = ("prepare", "small.yaml", "data.directory=new")


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def large(workspace: Path) -> Path:
    """So much text that there is time for a signal."""
    for language in ("en", "de"):
        path = workspace / f"corpus/train.{language}"
        path.write_bytes(path.read_bytes() * 2**8)
    return workspace


@examples("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.thorough
def test_goes_on(command: Run, large: Path, number: signal.Signals) -> None:
    partial = large / ".new.partial"
    process = program(*PREPARE)
    deadline = time.monotonic() + 120
    while not (partial / "train-0").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert not (large / "new").exists()
    assert (partial / "tokenizers" / "shared.model").exists(), "a stage that was finished"
    if number == signal.SIGKILL:
        assert process.returncode == -9
    else:
        assert process.returncode == 128 + number
        said = "interrupted" if number == signal.SIGINT else "terminated"
        shown = f"{said}; the stages that were finished are kept\n  Resume with: sparsenmt {' '.join(PREPARE)}\n"
        assert errors.decode().lstrip("\n") == shown  # click ends the line that a terminal shows ^C on
    made = (partial / "tokenizers" / "shared.model").stat().st_mtime_ns

    process = program(*PREPARE)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"") and b"51,200 of 51,200 pairs kept" in output
    assert (large / "new/tokenizers/shared.model").stat().st_mtime_ns == made, "it was not made again"
    assert not partial.exists()
    assert command("prepare", "small.yaml", "data.directory=other").code == 0
    assert contents(large / "new") == contents(large / "other")
