"""Code that the benchmarks share: worker processes, alternating timings, and the verdict.

A ratio is valid only within one run on one machine: both sides do the same work in turns (A B A B ...), never at the
same time, and the fastest of several repeats counts, because every disturbance makes a timing longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

Name = TypeVar("Name")

FOLDER = Path(__file__).resolve().parent
# Idle threads of OpenMP keep spinning for a while after their work, which would slow down the other side.
PAUSE_SECONDS = 0.5
TRIES, KEPT = 2, 2  # of a peer's settings: turns of each, and how many of them are timed beside ours


@dataclass(frozen=True)
class Side:
    """One of the two compared programs: a script, relative to ``benchmarks/``, and its Python interpreter.

    ``work`` overrides the case's work, and ``environment`` adds variables, where the sides are one program with
    different settings.
    """

    script: str
    python: Callable[[], str | Path] = lambda: sys.executable
    work: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One ratio: the work of both sides, and the bar that the ratio must reach.

    ``prepare`` makes files that both sides read, and adds them to the work. ``other_settings`` are the peer with other
    settings: each is tried, the fastest ones take turns with ours, and the fastest of these counts.
    """

    name: str
    ours: Side
    peer: Side
    work: dict[str, Any]
    bar: float | None = None
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict
    other_settings: tuple[Side, ...] = ()


@dataclass(frozen=True)
class Timing:
    """The repeats of one side."""

    what: str
    units: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The excess time of the slowest repeat, as a share of the fastest."""
        return max(self.seconds) / self.best - 1

    @property
    def rate(self) -> float:
        """Units per second in the fastest repeat."""
        return self.units / self.best


def peak_megabytes(status: str) -> int:
    """Return the peak resident memory of a process, from its `/proc/PID/status`."""
    return next(int(line.split()[1]) // 1024 for line in status.split("\n") if line.startswith("VmHWM:"))


class Worker:
    """A process that builds its model once, and does the work once for each request."""

    def __init__(self, side: Side, work: dict[str, Any]) -> None:
        threads = str(work["threads"])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parent)]),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            **({} if work.get("device", "cpu") != "cpu" else {"CUDA_VISIBLE_DEVICES": ""}),
            **side.environment,
        }
        self.script = side.script
        self._process = subprocess.Popen(
            [str(side.python()), str(FOLDER / side.script), json.dumps({**work, **side.work})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        ready = self._reply()
        self.what, self.units = str(ready["what"]), int(ready["units"])

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.script} ended with exit code {self._process.wait()}; its message is above")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def repeat(self) -> float:
        """Do the work once; returns seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"{}\n")
        self._process.stdin.flush()
        return float(self._reply()["seconds"])

    def peak(self) -> int:
        """Return the process's peak memory so far in megabytes (Linux)."""
        return peak_megabytes(Path(f"/proc/{self._process.pid}/status").read_bytes().decode())

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def interleave(workers: Sequence[Worker], repeats: int, *, pause: float | None = None) -> list[Timing]:
    """Run the workers in turns, ``repeats`` times each, with ``pause`` seconds before each turn.

    Every second time the order is reversed: a place in it is worth up to 3%.
    """
    seconds: list[list[float]] = [[] for _ in workers]
    order = list(zip(workers, seconds, strict=True))
    for turn in range(repeats):
        for worker, taken in order[:: -1 if turn % 2 else 1]:
            time.sleep(PAUSE_SECONDS if pause is None else pause)
            taken.append(worker.repeat())
    return [Timing(w.what, w.units, tuple(s)) for w, s in zip(workers, seconds, strict=True)]


def take_turns(
    sides: Mapping[Name, Callable[[], float]], repeats: int, *, units: int = 1, pause: float = 0.0
) -> dict[Name, Timing]:
    """Run functions in turns in this process; each does its work once and returns seconds. The first turn warms up.
    Every second time the order is reversed.

    Args:
        pause: seconds before each turn.
    """
    for once in sides.values():
        once()
    seconds: dict[Name, list[float]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name, once in list(sides.items())[:: -1 if turn % 2 else 1]:
            time.sleep(pause)
            seconds[name].append(once())
    return {name: Timing(str(name), units, tuple(taken)) for name, taken in seconds.items()}


def fastest_sides(sides: Sequence[Side], work: dict[str, Any], count: int) -> list[Side]:
    """Try each side twice, one after the other, and print its rate; returns the ``count`` fastest ones."""
    if len(sides) <= count:
        return list(sides)
    rates = []
    for side in sides:
        with Worker(side, work) as worker:
            (timing,) = interleave([worker], TRIES)
        print(f"  tried: {timing.what:<70} {timing.rate:>9.1f} /s", flush=True)
        rates.append(timing.rate)
    return [sides[i] for i in sorted(sorted(range(len(sides)), key=lambda i: -rates[i])[:count])]


def show(timings: Sequence[Timing], unit: str) -> None:
    """Print a line for each side."""
    width = max(len(timing.what) for timing in timings)
    for timing in timings:
        every = " ".join(f"{s:.3f}" for s in timing.seconds)
        print(f"  {timing.what:<{width}} {timing.rate:>9.1f} {unit}/s  spread {timing.spread:5.1%}  seconds: {every}")


def compare(case: Case, repeats: int) -> float:
    """Time a case, print both sides, and return our units per second over the peer's."""
    work = case.prepare(case.work)
    print(f"\n{case.name}")
    peers = fastest_sides([case.peer, *case.other_settings], work, KEPT)
    with ExitStack() as stack:
        ours, *others = (stack.enter_context(Worker(side, work)) for side in (case.ours, *peers))
        for peer in others:
            if ours.units != peer.units:
                raise SystemExit(f"{case.name}: the sides do different work ({ours.units} and {peer.units} tokens)")
        timings = interleave([ours, *others], repeats)
    print(f"{case.name}: {timings[0].units} target tokens a repeat, fastest of {repeats}, taking turns")
    show(timings, "tokens")
    ratio = timings[0].rate / max(timing.rate for timing in timings[1:])
    print(f"  ratio {ratio:.3f}" + (f", bar {case.bar}" if case.bar is not None else ""), flush=True)
    return ratio


def verdict(
    name: str, ratios: Mapping[str, float], bars: Mapping[str, float], *, most: Collection[str] = ()
) -> dict[str, Any]:
    """Return the last line of a benchmark; ``ok`` is true if every ratio with a bar reaches it.

    Args:
        most: ratios whose bar is the most that they may be, not the least.
    """
    ok = all(ratios[case] <= bar if case in most else ratios[case] >= bar for case, bar in bars.items())
    return {"name": name, "ratios": {case: round(ratio, 4) for case, ratio in ratios.items()}, "bars": bars, "ok": ok}


def run(name: str, description: str, cases: Sequence[Case], *, repeats: int) -> int:
    """Run a benchmark from the command line. Prints one JSON line at the end; returns 0 if every bar was reached."""
    return report(name, command_line(description, repeats), cases)


def report(name: str, parser: argparse.ArgumentParser, cases: Sequence[Case]) -> int:
    """Run the cases that the command line chooses; as `run`, with a parser of the script's own."""
    arguments, changes = parse(parser, [case.name for case in cases])
    chosen = [case for case in cases if not arguments.cases or case.name in arguments.cases]
    if changes:
        chosen = [replace(case, work=case.work | changes, bar=None) for case in chosen]
    ratios = {case.name: compare(case, arguments.repeats) for case in chosen}
    result = verdict(name, ratios, {case.name: case.bar for case in chosen if case.bar is not None})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def command_line(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark; a script may add its own before `parse`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases to run (default: all)")
    parser.add_argument("--repeats", type=int, default=repeats, help="repeats of each side (default: %(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the script's table of cases, for a quick look; the bars do not apply then",
    )
    return parser


def parse(
    parser: argparse.ArgumentParser, names: Sequence[str], arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the command line; returns the arguments, and the changes of the work."""
    given = parser.parse_args(arguments)
    if unknown := set(given.cases) - set(names):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    return given, dict(_assignment(item, parser) for item in given.set)


def _assignment(text: str, parser: argparse.ArgumentParser) -> tuple[str, Any]:
    """Parse ``steps=2`` as ("steps", 2); the value is JSON or a plain string."""
    key, equals, value = text.partition("=")
    if not equals:
        parser.error(f"--set {text}: expected KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
