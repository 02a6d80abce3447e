"""The git revision of this program."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> str | None:
    """The git revision of the source; None unless the program runs from a checkout."""
    file = Path(__file__).resolve()
    git = ["git", "-C", str(file.parent)]
    try:
        # An installed copy may lie inside another checkout: only one that tracks this file counts.
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, timeout=5, check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode().strip()
