"""``sparsenmt completion``: the scripts are those of click, and the shells of this machine run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.support import Run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str, command: Run, tmp_path: Path) -> None:
    script = command("completion", shell)
    assert script.code == 0 and b"_SPARSENMT_COMPLETE" in script.out and not script.err
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_bytes(script.out)
        assert subprocess.run([shell, "-n", file], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "offered"),
    [("sparsenmt recipe-", "recipe-schema"), ("sparsenmt decode --beam", "--beam-size")],
)
def test_what_is_offered(words: str, offered: str) -> None:
    typed = words.split()
    variables = {"_SPARSENMT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(typed) - 1)}
    result = subprocess.run([sys.executable, "-m", "sparsenmt"], env={**os.environ, **variables}, capture_output=True)
    assert f"plain,{offered}" in result.stdout.decode().split("\n")


def test_another_shell_is_refused(command: Run) -> None:
    assert command("completion", "tcsh").code == 2
    missing = command("completion")
    assert missing.code == 2 and "    bash" in missing.err and "\\t" not in missing.err


@pytest.mark.parametrize("name", [".", "none/recipe.schema.json"])
def test_a_schema_goes_to_a_file_in_a_folder_that_exists(name: str, command: Run) -> None:
    refused = command("recipe-schema", "-o", name)
    assert refused.code == 2 and "directory" in refused.err, refused.err
