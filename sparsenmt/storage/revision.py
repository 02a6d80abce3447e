"""The git revision of this program."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> dict[str, str | bool | None]:
    """The git revision of the source, and whether files of the package differ from it; None unless it is a checkout."""
    file = Path(__file__).resolve()
    git = ["git", "-C", str(file.parents[1])]
    try:
        # An installed copy may lie inside another checkout: only one that tracks this file counts.
        subprocess.run([*git, "ls-files", "--error-unmatch", str(file)], capture_output=True, timeout=5, check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {"git_revision": None, "git_dirty": None}
    return {"git_revision": done.stdout.decode().strip(), "git_dirty": bool(changed.stdout.strip())}
