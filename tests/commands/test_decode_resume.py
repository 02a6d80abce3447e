"""`sparsenmt decode --input FILE --output FILE`, stopped at any point, goes on to the bytes of an undisturbed run."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.model_directory import WEIGHTS
from sparsenmt.decoding import translate
from sparsenmt.engine import numerics as numerics_module
from sparsenmt.native.kernels import kernels
from sparsenmt.native.library import SWITCH
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.storage.resumable_output import resumable_output
from sparsenmt.storage.tensors import load_tensors, save_tensors
from tests.commands.support import Result, Run, program
from tests.examples import examples

LINES = 20  # of corpus/test.en
DECODE = ("decode", "model", "-i", "corpus/test.en", "-o", "out", "--window", "4", "--method", "greedy")

Stopping = Callable[[BaseException, int], None]


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Stopping:
    """Let the search of the batch that holds a line, by its number, end with an error, once."""

    def stop(error: BaseException, line: int) -> None:
        search = translate.encoded_batch

        def stopped(bundle: Any, memory: Any, numbers: Any, batch: Any, *rest: Any) -> Any:
            if any(each.number == line for each in batch):
                monkeypatch.setattr(translate, "encoded_batch", search)
                raise error
            return search(bundle, memory, numbers, batch, *rest)

        monkeypatch.setattr(translate, "encoded_batch", stopped)

    return stop


def remains(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


WAYS: list[tuple[list[str], Callable[[], BaseException]]] = [
    (["--method", "greedy"], lambda: Interrupted(signal.SIGINT)),
    (["--method", "sample", "--seed", "3"], lambda: Interrupted(signal.SIGTERM)),
    (["--method", "beam", "--beam-size", "3", "--n-best", "2"], KeyboardInterrupt),
    (["--beam-size", "2", "--json"], lambda: RuntimeError("a bug")),
    (["--dtype", "bf16", "--batch-tokens", "30"], lambda: OSError(errno.EIO, "Input/output error")),
]


@pytest.mark.parametrize(("options", "error"), WAYS)
@examples("window", [1, 6])
def test_goes_on(
    command: Run,
    workspace: Path,
    stopping: Stopping,
    options: list[str],
    error: Callable[[], BaseException],
    window: int,
) -> None:
    arguments = ["decode", "model", "-i", "corpus/test.en", "--window", str(window), *options]
    assert command(*arguments, "-o", "whole").code == 0
    for line in (0, 8, LINES - 1):
        stopping(error(), line)
        stopped = command(*arguments, "-o", "out")
        assert stopped.code != 0 and "Traceback" not in stopped.err
        assert not (workspace / "out").exists()
        kept = line // window * window
        assert ("is kept up to" in stopped.err) == (kept > 0)
        assert not kept or f"out is kept up to line {kept}" in stopped.err
    result = command(*arguments, "-o", "out")
    assert result.code == 0 and f"out: resumes after line {kept}" in result.err
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()
    assert remains(workspace) == []


def test_an_interrupt_names_the_command_that_goes_on(command: Run, workspace: Path, stopping: Stopping) -> None:
    stopping(Interrupted(signal.SIGTERM), 9)
    result = command(*DECODE)
    assert result.code == 143
    assert result.err == (
        "\nterminated; out is kept up to line 8\n"
        "  Resume with: sparsenmt decode model -i corpus/test.en -o out --window 4 --method greedy\n"
    )
    stopping(Interrupted(signal.SIGINT), 0)
    again = command(*DECODE)
    assert again.code == 0, "line 0 is done"


@pytest.mark.thorough
def test_killed(command: Run, workspace: Path) -> None:
    arguments = ["decode", "model", "-i", "corpus/train.en", "--window", "10", "--method", "greedy", "--threads", "1"]
    assert command(*arguments, "-o", "whole").code == 0
    process = program(*arguments, "-o", "out")
    while not (workspace / ".out.journal").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert not (workspace / "out").exists()
    result = command(*arguments, "-o", "out")
    assert result.code == 0 and "out: resumes after line" in result.err
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()
    assert remains(workspace) == []


def change_weights(workspace: Path) -> None:
    path = workspace / "model" / WEIGHTS
    weights = load_tensors(path, hint="")
    save_tensors(path, {name: tensor * 1.01 for name, tensor in weights.items()})


def change_input(workspace: Path) -> None:
    lines = (workspace / "corpus/test.en").read_text(encoding="utf-8").split("\n")
    lines[2] = lines[3]
    (workspace / "corpus/test.en").write_text("\n".join(lines), encoding="utf-8", newline="\n")


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        (["--window", "2"], None, "window is 2 instead of 4"),
        (["--min-length", "3"], None, "decoding.min_length is 3 instead of 0"),
        (["--unknown", "copy"], None, 'decoding.unknown is "copy" instead of null'),
        (["--batch-tokens", "9"], None, "decoding.batch_tokens is 9 instead of 2048"),
        (["--json"], None, "json is true instead of false"),
        (["--dtype", "bf16"], None, 'dtype is "bf16" instead of "fp32"'),
        ([], change_weights, "the model has changed"),
        ([], change_input, "the input has changed"),
    ],
)
def test_another_translation_starts_again(
    command: Run, workspace: Path, stopping: Stopping, options: list[str], change: Any, reason: str
) -> None:
    stopping(KeyboardInterrupt(), 9)
    assert command(*DECODE).code == 130
    if change is not None:
        change(workspace)
    result = command(*DECODE, *options)
    assert (result.code, result.err) == (0, f"out: starts again: {reason}\n")
    assert command(*DECODE, *options, "-o", "whole").code == 0
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()


def without_kernels(patch: pytest.MonkeyPatch) -> None:
    if kernels() is None:
        pytest.skip("no compiler")
    patch.setenv(SWITCH, "0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda patch: torch.set_num_threads(2), "threads is 2 instead of 1"),
        (without_kernels, "compiled kernels are not in use now"),
        (lambda patch: patch.setenv(SWITCH, "1"), "the choices between kernels and PyTorch are others"),
        (lambda patch: patch.setattr(torch, "__version__", "3.0"), 'torch is "3.0" instead of "'),
        (
            lambda patch: patch.setattr(numerics_module, "processor_name", lambda: "another"),
            'processor is "another" instead of "',
        ),
    ],
)
def test_other_numerics_are_refused_unless_they_may_be_mixed(
    command: Run,
    workspace: Path,
    stopping: Stopping,
    change: Callable[[pytest.MonkeyPatch], object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command(*DECODE, "-o", "whole").code == 0
    stopping(KeyboardInterrupt(), 9)
    assert command(*DECODE).code == 130
    kept = (workspace / ".out.partial").read_bytes()
    with monkeypatch.context() as patch:
        change(patch)
        refused = command(*DECODE)
        assert refused.code == 2 and refused.out == b"" and not (workspace / "out").exists()
        start = f"error: out: it was begun with other numerics, which change last digits: {said}"
        assert refused.err.startswith(start) and "allow both in one file with --mix-numerics" in refused.err
        assert (workspace / ".out.partial").read_bytes() == kept, "nothing is lost"
        stopping(KeyboardInterrupt(), 13)
        mixed = command(*DECODE, "--mix-numerics")
        assert mixed.code == 130 and f"warning: out: its last digits are of different numerics now: {said}" in mixed.err
        assert "resumes after line 12" in command(*DECODE).err, "the journal has the new numerics"
    torch.set_num_threads(1)
    assert (workspace / "out").read_bytes().startswith(kept)
    stopping(KeyboardInterrupt(), 9)
    (workspace / "out").unlink()
    assert command(*DECODE).code == 130 and command(*DECODE).code == 0
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()


def test_a_journal_of_an_earlier_version_is_not_used(command: Run, workspace: Path, stopping: Stopping) -> None:
    stopping(KeyboardInterrupt(), 9)
    assert command(*DECODE).code == 130
    journal = read_sealed(workspace / ".out.journal")
    journal["work"] |= journal.pop("numerics")
    write_sealed(workspace / ".out.journal", journal)
    assert command(*DECODE).err == "out: starts again: its journal is of an earlier version of the program\n"


def test_text_from_a_pipe_is_complete_or_not_there(command: Run, workspace: Path, stopping: Stopping) -> None:
    given = (workspace / "corpus/test.en").read_bytes()
    stopping(KeyboardInterrupt(), 9)
    assert command("decode", "model", "-o", "out", "--window", "4", stdin=given).err == (
        "\ninterrupted\n  No file is half-written: the same command begins again, and uses what is complete.\n"
    )
    assert not (workspace / "out").exists() and remains(workspace) == []
    assert command("decode", "model", "-o", "out", "--window", "4", stdin=given).code == 0
    assert command("decode", "model", "-i", "corpus/test.en", "-o", "whole", "--window", "4").code == 0
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()


def test_two_at_once(command: Run, workspace: Path) -> None:
    with resumable_output(workspace / "out", None) as file:
        for arguments in (DECODE, ("decode", "model", "-o", "out")):
            result = command(*arguments, stdin=b"a\n")
            assert result.code == 2 and "out: another process is writing this output" in result.err
        file.write(["mine"])
        file.finish(1)
    assert (workspace / "out").read_bytes() == b"mine\n"


def test_text_that_changes_meanwhile(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = translate.encoded_batch

    def meddling(bundle: Any, memory: Any, numbers: Any, batch: Any, *rest: Any) -> Any:
        if any(each.number == 9 for each in batch):
            with (workspace / "corpus/test.en").open("ab") as stream:
                stream.write(b"one more\n")
        return search(bundle, memory, numbers, batch, *rest)

    monkeypatch.setattr(translate, "encoded_batch", meddling)
    result = command(*DECODE)
    assert result.code == 2 and "corpus/test.en: the text changed while it was translated" in result.err
    assert not (workspace / "out").exists()
    monkeypatch.setattr(translate, "encoded_batch", search)
    assert command(*DECODE).err == "out: starts again: the input has changed\n"


def test_a_full_disk(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(*DECODE, "-o", "whole").code == 0
    fsync, calls = os.fsync, list[int]()

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = command(*DECODE)
    assert result.code == 2 and "error: out: cannot be written: No space left on device" in result.err
    assert "out is kept up to line" in result.err and not (workspace / "out").exists()
    assert "resumes after line" in command(*DECODE).err
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()
    assert remains(workspace) == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_out_of_memory(command: Run, stopping: Stopping, error: BaseException) -> None:
    def run(*options: str) -> Result:
        stopping(error, 0)
        result = command("decode", "model", "-i", "corpus/test.en", "--beam-size", "3", *options)
        assert (result.code, result.out) == (2, b"")
        return result

    assert "out of memory on a batch of 19 sentences, " in run().err
    assert " source tokens long, beam 3\n  Lower decoding.batch_tokens" in run().err
    alone = run("--batch-tokens", "1")
    assert ": out of memory on a batch of 1 sentence, " in alone.err and "--beam-size" in alone.err
    stopping(error, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on address space")
@pytest.mark.skipif(torch.version.cuda is not None, reason="CUDA's libraries alone take more address space")
@pytest.mark.thorough
def test_more_memory_than_there_is(workspace: Path) -> None:
    """PyTorch's own error, in a process that may not have more."""
    import resource

    limit = 3 * 2**30

    def confined() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    (workspace / "many").write_bytes(b"a b c d e f g h\n" * 4096)
    process = program(
        *("decode", "model", "-i", "many", "--beam-size", "1000", "--batch-tokens", "99999999"), preexec_fn=confined
    )
    out, err = process.communicate()
    assert (process.returncode, out) == (2, b""), err
    assert b"out of memory on a batch of 4,096 sentences" in err and b"--batch-tokens" in err
