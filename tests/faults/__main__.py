"""``python -m tests.faults [PATTERN] [--sample N]``: try all faults, and print what became of them as tables.

PATTERN chooses situations by a part of their names; --sample takes N seeded cases of each instead of all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import shim
from tests.faults.damage import USES, Damage
from tests.faults.points import SCENARIOS, Faults
from tests.faults.reports import Report, table
from tests.faults.server import Server
from tests.faults.world import World


def main() -> int:
    """Returns the exit code: 1 if anything was lost, wrong, or otherwise not as promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if reason := shim.unavailable():
        print(reason, file=sys.stderr)
        return 1
    began = time.monotonic()
    points: list[Report] = []
    damage: list[Report] = []
    with tempfile.TemporaryDirectory(dir=shim.fast_folder()) as name, Server(Path(name) / "server") as server:
        world = World.make(Path(name) / "world", server)
        for kind, situations, reports in ((Faults, SCENARIOS, points), (Damage, USES, damage)):
            for situation in situations:
                if arguments.pattern not in situation.name:
                    continue
                tried = kind(world, situation)
                cases = tried.cases()
                if arguments.sample is not None and arguments.sample < len(cases):
                    cases = tried.sample(arguments.sample, arguments.seed)
                reports.append(tried.try_all(cases))
                for failure in reports[-1].failures:
                    print(failure, file=sys.stderr, flush=True)
    print(f"{table('a fault at a call', 'calls', points)}\n\n{table('damage at rest, then', 'files', damage)}\n")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(report.failures for report in (*points, *damage)) else 0


if __name__ == "__main__":
    sys.exit(main())
