"""Resident memory of `train`, `decode` and `prepare` over a long time, as a curve.

    python benchmarks/long_runs.py [train] [decode] [prepare] [--minutes 60] [--threads 2]

Runs each command as users do, in a process of its own, on Multi30k (`SPARSENMT_DATA`), and reads the resident memory
of it and its children every few seconds (/proc/PID/status; Linux only): all of it (VmRSS), and the anonymous part
(RssAnon), which is what the program has allocated, without the files that it maps. A command that has not ended after
``--minutes`` gets SIGTERM.

    train     recipes/multi30k-en-de.yaml, with its validations and checkpoints
    decode    lines of one to six sentences of Multi30k in any order, so that shapes differ from batch to batch, with
              the model of the preset `tiny` after ``--updates`` updates, or with ``--model``
    prepare   ``--pairs`` pairs of synthetic text (`synthetic.py`)

A ratio is the median of the memory in the last twelfth of the time (of an hour: five minutes) over that in the second
twelfth; the bar of training and of decoding is 1.05. The stages of `prepare` differ, so it has none: `scale.py`
compares its memory for corpora of two sizes. The curves are printed, written as JSON to ``--folder``, and drawn there
where matplotlib is installed. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import verdict
from multi30k import ROOT, corpus
from synthetic import write_corpus

BAR = 1.05
PARTS = 12  # of the time: the first is not counted
LINES, SENTENCES = 600_000, 6  # of the text to translate: lines, and most sentences of a line
_SAVED = 12  # readings
COLUMNS = 60  # width of a printed curve
RECIPE = ROOT / "recipes" / "multi30k-en-de.yaml"
SYNTHETIC = """\
name: long
directory: none
model: {{preset: small}}
data:
  directory: none
  train: [{{name: synthetic, source: {train[0]}, target: {train[1]}}}]
  dev: {{source: {dev[0]}, target: {dev[1]}}}
  tokenizer: {{vocabulary_size: 32000}}
"""


@dataclass
class Curve:
    """Resident memory of a command: seconds since its start, all megabytes, and the anonymous ones."""

    name: str
    seconds: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    anonymous: list[float] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write the readings as JSON."""
        (folder / f"{self.name}.json").write_text(json.dumps(self.__dict__), encoding="utf-8", newline="\n")

    def part(self, values: Sequence[float], number: int) -> list[float]:
        """Return the values of one of the `PARTS` of the time, numbered from 0."""
        share = self.seconds[-1] / PARTS
        return [v for s, v in zip(self.seconds, values, strict=True) if number * share <= s <= (number + 1) * share]

    def growth(self, values: Sequence[float]) -> float:
        """Return the median of the last part over that of the second part."""
        return statistics.median(self.part(values, PARTS - 1)) / statistics.median(self.part(values, 1))

    def print(self) -> None:
        """Print the median and the largest value of each part, with bars for the medians."""
        print(
            f"\n{self.name}: {self.seconds[-1] / 60:.1f} minutes, {len(self.seconds)} readings; median and maximum, MB"
        )
        scale = COLUMNS / max(max(self.resident), 1)
        print("  minutes      resident        anonymous")
        for number in range(PARTS):
            end = self.seconds[-1] / 60 * (number + 1) / PARTS
            all_, own = self.part(self.resident, number), self.part(self.anonymous, number)
            if all_:
                bar = "#" * round(statistics.median(own) * scale)
                bar += "." * (round(statistics.median(all_) * scale) - len(bar))
                print(
                    f"  to {end:5.1f} {statistics.median(all_):8.0f} {max(all_):6.0f}"
                    f" {statistics.median(own):9.0f} {max(own):6.0f}  {bar}"
                )
        print(f"  last twelfth over the second: {self.growth(self.resident):.3f}", end="")
        print(f", anonymous {self.growth(self.anonymous):.3f}", flush=True)


def memory(pid: int) -> tuple[float, float]:
    """Return the resident and the anonymous megabytes of a process and its children."""
    found = {"VmRSS": 0.0, "RssAnon": 0.0}
    for line in Path(f"/proc/{pid}/status").read_bytes().decode().split("\n"):
        key = line.partition(":")[0]
        if key in found:
            found[key] += int(line.split()[1]) / 1024
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_bytes().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                resident, anonymous = memory(int(child))
                found["VmRSS"] += resident
                found["RssAnon"] += anonymous
    return found["VmRSS"], found["RssAnon"]


def watch(name: str, command: list[str], minutes: float, every: float, folder: Path) -> Curve:
    """Run a command for some minutes, or until it ends; returns the curve of its memory, which is saved meanwhile."""
    print(f"{name}: {' '.join(command)}", flush=True)
    curve, began = Curve(name), time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment())
    try:
        while process.poll() is None and time.perf_counter() - began < minutes * 60:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                resident, anonymous = memory(process.pid)
                if resident:
                    curve.seconds.append(time.perf_counter() - began)
                    curve.resident.append(resident)
                    curve.anonymous.append(anonymous)
            if len(curve.seconds) % _SAVED == 0:
                curve.save(folder)
            time.sleep(every)
        if process.poll() is None:
            process.terminate()
        if process.wait() not in (0, 128 + signal.SIGTERM):
            raise SystemExit(f"{name}: exit code {process.returncode}; its message is above")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return curve


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "SPARSENMT_DATA": str(corpus().parent)}


def sparsenmt(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "sparsenmt", *map(str, arguments)]


class Commands:
    """The commands that are watched, with what they need in a folder."""

    def __init__(self, folder: Path, threads: int, updates: int, model: Path | None, pairs: int) -> None:
        self.folder, self.threads, self.updates, self.model, self.pairs = folder, threads, updates, model, pairs
        folder.mkdir(parents=True, exist_ok=True)

    def _prepared(self) -> Path:
        directory = self.folder / "data"
        subprocess.run(sparsenmt("prepare", RECIPE, f"data.directory={directory}"), env=environment(), check=True)
        return directory

    def _fresh(self, name: str) -> Path:
        directory = self.folder / name
        shutil.rmtree(directory, ignore_errors=True)
        return directory

    def train(self) -> list[str]:
        data, run = f"data.directory={self._prepared()}", f"directory={self._fresh('train')}"
        limit = "training.max_updates=1000000000"
        return sparsenmt("train", RECIPE, data, run, limit, "--threads", str(self.threads))

    def decode(self) -> list[str]:
        output = self.folder / "output.txt"
        for left in self.folder.glob(f"*{output.name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        options = ("-i", self._text(), "-o", output, "--threads", str(self.threads))
        return sparsenmt("decode", self.model or self._tiny(), *options)

    def _tiny(self) -> Path:
        """Train a model for a few updates; returns its directory."""
        run = self.folder / "tiny"
        changes = [f"data.directory={self._prepared()}", f"directory={run}", "model.preset=tiny"]
        changes += [f"training.max_updates={self.updates}", "training.warmup_updates=100"]
        subprocess.run(
            sparsenmt("train", RECIPE, *changes, "--threads", str(self.threads)), env=environment(), check=True
        )
        return run

    def _text(self) -> Path:
        """Write the text to translate."""
        from sparsenmt.data.text import read_lines

        draw, sentences = random.Random(0), list(read_lines(corpus() / "train.en.gz"))
        path = self.folder / "text.en"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for _ in range(LINES):
                file.write(" ".join(draw.choices(sentences, k=draw.randint(1, SENTENCES))) + "\n")
        return path

    def prepare(self) -> list[str]:
        text = self.folder / "text"
        train, dev = write_corpus(text, self.pairs), write_corpus(text, 1000)
        recipe = self.folder / "prepare.yaml"
        filled = SYNTHETIC.format(train=train, dev=dev)
        recipe.write_text(filled, encoding="utf-8", newline="\n")
        return sparsenmt("prepare", recipe, f"data.directory={self._fresh('prepared')}")


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        minutes = [second / 60 for second in curve.seconds]
        axes.plot(minutes, curve.resident, color=f"C{number}", label=f"{curve.name}, resident")
        axes.plot(minutes, curve.anonymous, color=f"C{number}", linestyle=":", label=f"{curve.name}, anonymous")
    axes.set(xlabel="minutes", ylabel="MB", ylim=(0, None))
    axes.legend()
    figure.savefig(path)
    print(f"\nplot: {path}")


def main() -> int:
    names = ("train", "decode", "prepare")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--minutes", type=float, default=60, help="of each command (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of training and decoding (default: %(default)s)")
    parser.add_argument("--every", type=float, default=5, help="seconds between readings (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=300, help="of the model that decodes (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="model that decodes (default: one of the preset tiny is trained)")
    parser.add_argument("--pairs", type=int, default=4_500_000, help="that are prepared (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "benchmarks" / "long")
    given = parser.parse_args()
    if unknown := set(given.commands) - set(names):
        parser.error(f"unknown command {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    folder = given.folder.resolve()
    commands = Commands(folder, given.threads, given.updates, given.model, given.pairs)
    curves = []
    for name in names:
        if not given.commands or name in given.commands:
            curve = watch(name, getattr(commands, name)(), given.minutes, given.every, folder)
            curve.print()
            curve.save(folder)
            plot([curve], folder / f"{name}.png")
            curves.append(curve)
    ratios = {each.name: each.growth(each.resident) for each in curves}
    ratios |= {f"{each.name}_anonymous": each.growth(each.anonymous) for each in curves}
    bars = {name: BAR for name in ratios if not name.startswith("prepare")}
    result = verdict("long_runs", ratios, bars, most=bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
