"""The plan against an exhaustive grid: its time, and how far its choice is from the best point of the grid.

    python benchmarks/planner.py --model runs/tied --model runs/l0drop --source dev.en --reference dev.de
        [--within "bleu -0.5"] [--corpus train.en train.de] [--axis NAME ...] [--test test.en test.de] [--folder DIR]

`sparsenmt plan` searches by successive halving, then `plan --exhaustive` measures every combination on the whole text,
each in a process of its own. `plan_time_over_grid` is the time of the former over that of the latter, at most 0.2.
`dominated_by` is the greatest speed of a point of the grid that is at least as good as the plan's choice, over the
choice's own speed there, at most 1.05. With --test the choice is compared with the first model by its recipe on
another text: difference with its interval, and the gain in speed. A stopped run resumes in the same --folder, but its
times are then those of the rest. Ends with one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import command_line, parse, verdict

BARS = {"plan_time_over_grid": 0.2, "dominated_by": 1.05}
WORK: dict[str, Any] = {"threads": 2, "rounds": 3}


def timed_plan(folder: Path, options: list[str], *more: str) -> tuple[float, dict[str, Any]]:
    """Run a plan in a process of its own; returns its seconds and its report."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "sparsenmt", "plan", *options, "-o", str(folder), *more]
    done = subprocess.run(command, check=False)
    if done.returncode not in (0, 1):  # 1: nothing meets the budget
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads((folder / "plan.json").read_bytes())
    return time.perf_counter() - began, found


def dominated_by(grid: dict[str, Any], chosen: str) -> tuple[float, str]:
    """Return the greatest speed of a point at least as good as the choice, over the choice's, and its name."""
    metric, rows = grid["settings"]["metrics"][0], grid["tables"]["pareto"]
    sign = -1 if metric == "ter" else 1
    own = next(row for row in rows if row["candidate"] == chosen)
    better = [row for row in rows if sign * row[metric] >= sign * own[metric]]
    best = max(better, key=lambda row: row["speed"])
    return best["speed"] / own["speed"], best["candidate"]


def on_test(folder: Path, models: list[str], text: list[str], threads: int) -> None:
    """Print quality and speed of the choice and of the first model, each by its recipe, on another text."""
    options = ["--source", text[0], "--reference", text[1]]  # not --threads: the choice may have a number of its own
    os.environ["OMP_NUM_THREADS"] = str(threads)
    timed_plan(folder, [*models, *options, "--axis", "vocabulary"])  # of no corpus: there is nothing to try


def main() -> int:
    parser = command_line(__doc__, 1)
    parser.add_argument("--model", action="append", required=True, help="model directory, or a folder of such")
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--within", default="bleu -0.5")
    parser.add_argument("--corpus", nargs=2, action="append", default=[], metavar=("SOURCE", "TARGET"))
    parser.add_argument("--axis", action="append", default=[])
    parser.add_argument("--test", nargs=2, metavar=("SOURCE", "REFERENCE"))
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    arguments, changes = parse(parser, ["planner"])
    work = WORK | changes
    options = [*arguments.model, "--source", arguments.source, "--reference", arguments.reference]
    options += ["--within", arguments.within, "--threads", str(work["threads"]), "--rounds", str(work["rounds"])]
    options += [word for pair in arguments.corpus for word in ("--corpus", *pair)]
    options += [word for axis in arguments.axis for word in ("--axis", axis)]
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        seconds, plan = timed_plan(folder / "plan", options)
        grid_seconds, grid = timed_plan(folder / "grid", options, "--exhaustive")
        chosen = plan["settings"]["chosen"]
        ratio, best = dominated_by(grid, chosen)
        points = len(grid["tables"]["pareto"])
        print(f"plan: {seconds:.1f} s; grid of {points} points: {grid_seconds:.1f} s", flush=True)
        print(f"chosen: {chosen}; of the grid, at least as good and fastest: {best}, {ratio:.3f} times", flush=True)
        if arguments.test and (folder / "plan" / "model").is_dir():
            models = [arguments.model[0], str(folder / "plan" / "model")]
            on_test(folder / "test", models, arguments.test, work["threads"])
    ratios = {"plan_time_over_grid": seconds / grid_seconds, "dominated_by": ratio}
    result = verdict("planner", ratios, {} if changes else BARS, most=BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
