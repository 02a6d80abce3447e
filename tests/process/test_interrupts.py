"""Signals: the first asks to stop in good order, a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.process import interrupts
from sparsenmt.process.interrupts import Interrupted, listening

ROOT = Path(__file__).resolve().parents[1]
ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever happens in a test, what heard the signals before hears them afterwards."""
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    after = {number: signal.getsignal(number) for number in ALL}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_raises(number: int, code: int) -> None:
    with pytest.raises(Interrupted) as caught, listening() as signals:
        send(number)
        pytest.fail("the signal was not heard")
    assert (caught.value.number, caught.value.exit_code, signals.number) == (number, code, number)
    assert not caught.value.resumable and not caught.value.note
    assert isinstance(caught.value, KeyboardInterrupt), "`except Exception` does not swallow it"


@pytest.mark.parametrize("number", ALL)
def test_deferred_it_is_noted(number: int) -> None:
    with listening() as signals, signals.deferred():
        assert signals.number is None
        send(number)
        assert signals.number == number
        send(number)  # at once: a launcher has passed on what the terminal sent to all
    assert signals.number == number


def test_inside_deferred_a_part_may_be_interrupted() -> None:
    with listening() as signals, signals.deferred():
        with signals.raising():
            pass
        with pytest.raises(Interrupted), signals.raising():
            send(signal.SIGTERM)
            pytest.fail("the signal was not heard")
        with pytest.raises(Interrupted), signals.raising():
            pytest.fail("what was noted before raises at once")


def test_after_the_part_it_is_deferred_again() -> None:
    with listening() as signals:
        with signals.deferred():
            with signals.raising():
                pass
            send(signal.SIGINT)
        assert signals.number == signal.SIGINT


def test_after_deferred_it_raises_again() -> None:
    with pytest.raises(Interrupted), listening() as signals:
        with signals.deferred():
            pass
        send(signal.SIGINT)


def test_an_inner_block_hears_instead_of_an_outer_one() -> None:
    with listening() as outer, outer.deferred():
        with pytest.raises(Interrupted), listening() as inner:
            send(signal.SIGTERM)
        assert (outer.number, inner.number) == (None, signal.SIGTERM)
        send(signal.SIGINT)
        assert outer.number == signal.SIGINT


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as signals:
            send(signal.SIGINT)
            assert signals.number is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_a_thread_nothing_is_heard() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with listening() as signals, signals.deferred():
            found.append((signals.number, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(None, before)]


STUBBORN = """
import sys, time
from sparsenmt.errors import UserError
from sparsenmt.process import interrupts
interrupts._GRACE = 0.1
with interrupts.listening() as signals, signals.deferred():
    print("ready", flush=True)
    try:
        while signals.number is None:
            time.sleep(0.01)
        time.sleep(0.2)
        print("heard", flush=True)
        time.sleep(60)
    finally:
        print("tidied up", flush=True)
"""


@pytest.mark.parametrize(("first", "second"), [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_one_ends_the_process_at_once(first: int, second: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(first)
        assert process.stdout.readline() == b"heard\n"
        process.send_signal(second)
        assert process.wait(timeout=30) == 128 + second
        assert process.stdout.read() == b"", "nothing ran any more, not even what tidies up"


def test_within_the_grace_two_count_as_one() -> None:
    code = STUBBORN.replace("_GRACE = 0.1", "_GRACE = 1e9").replace("sleep(60)", "sleep(0.5)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.01)
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == b"heard\ntidied up\n"


def test_a_closed_terminal_may_send_its_signal_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_GRACE", -1.0)
    with listening() as signals, signals.deferred():
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        assert signals.number == signal.SIGTERM


@pytest.mark.thorough
def test_signals_are_heard_where_the_tests_run_in_the_background() -> None:
    """Shells start `pytest &` with SIGINT ignored, which every program that a test starts would inherit."""
    names = ["test_the_first_raises", f"test_a_second_one_ends_the_process_at_once[{signal.SIGINT}-{signal.SIGINT}]"]
    tests = [f"{__file__}::{name}" for name in names]
    pytest_alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
    ignoring = ["sh", "-c", "trap '' INT TERM HUP; exec \"$@\"", "sh"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*ignoring, *pytest_alone], capture_output=True, cwd=ROOT, env=environment, timeout=50)
    assert done.returncode == 0, done.stdout.decode()


def _turned(error: Exception) -> None:
    """Receive a signal inside a library that reports the interrupt as an error of its own."""
    try:
        send(signal.SIGTERM)
        time.sleep(1)
    except KeyboardInterrupt:
        raise error from None


def test_a_library_that_turns_it_into_an_error_loses_nothing() -> None:
    with pytest.raises(Interrupted) as caught, listening(), interrupts.resumable("kept"), listening():
        _turned(ValueError("Error calling function"))
    assert (caught.value.exit_code, caught.value.note, caught.value.resumable) == (143, "kept", True)


@pytest.mark.parametrize("error", [UserError("the disk is full"), OSError(28, "full")])
def test_errors_of_their_own_stay_after_a_signal(error: Exception) -> None:
    with pytest.raises(type(error)), listening(), interrupts.resumable():
        _turned(error)


def test_without_a_signal_errors_stay() -> None:
    with pytest.raises(ValueError, match="of its own"), listening(), interrupts.resumable():
        raise ValueError("of its own")
    assert interrupts.received() is None
