"""The git revision of the source, and whether its files differ from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparsenmt.storage import revision

PROGRAM = "import json, revision; print(json.dumps(revision.git_revision()))"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false")


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_dirty_work_tree_is_marked(tmp_path: Path) -> None:
    package = tmp_path / "package" / "storage"
    package.mkdir(parents=True)
    shutil.copy(revision.__file__, package)

    def found() -> str:
        command = [sys.executable, "-B", "-c", PROGRAM]
        return subprocess.run(command, cwd=package, capture_output=True, text=True, check=True).stdout

    def git(*arguments: str) -> None:
        subprocess.run([*GIT, *arguments], cwd=tmp_path, capture_output=True, check=True)

    git("init", "-q")
    assert found() == '{"git_revision": null, "git_dirty": null}\n'  # not of this repository
    git("add", ".")
    git("commit", "-q", "-m", "x")
    assert found().endswith('"git_dirty": false}\n')
    (tmp_path / "notes.txt").write_text("beside the package", encoding="utf-8")
    assert found().endswith('"git_dirty": false}\n')
    (package / "more.py").write_text("", encoding="utf-8")
    assert found().endswith('"git_dirty": true}\n')
