"""How CPU threads wait for work. Nothing heavy is imported here: it must come before PyTorch."""

from __future__ import annotations

import os

_SPINS = "10000"
"""How often a thread of GNU OpenMP looks for work before it sleeps; its default is 30 times as many.

On cores that nothing else wants, training is as fast with either, and slower where threads sleep at once
(`OMP_WAIT_POLICY=passive`). Where another program wants the cores, threads that look for work are in its way.
"""


def wait_briefly() -> None:
    """Let idle threads sleep soon, unless the environment says how they wait; PyTorch reads it when it is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
