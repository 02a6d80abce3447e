"""The reference of all recipe keys, docs/reference/recipes.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sparsenmt.recipe.key_paths import all_keys
from tests.recipe.support import METHODS
from tools.recipe_docs import recipe_reference

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_up_to_date() -> None:
    # Another process: methods that other tests register do not belong to the reference.
    environment = {name: value for name, value in os.environ.items() if name != "SPARSENMT_PLUGINS"}
    command = [sys.executable, "-m", "tools.recipe_docs"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    committed = (ROOT / "docs" / "reference" / "recipes.md").read_bytes()
    assert result.stdout == committed, "run: make docs"


def test_the_reference_names_every_key_with_a_description() -> None:
    lines = recipe_reference(METHODS).split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    assert all(row[-1] for row in rows), "a key without a description"
    named = {row[0].strip("`") for row in rows}
    assert {path[-1] for path in all_keys()} - {"0", "name"} <= named
    assert {"k", "ties", "rate"} <= named
    text = "\n".join(lines)
    assert "| `k` | whole number > 0 | `8` | Keys kept. |" in text
    assert "| `rate` | number >= 0, <= 1 | required | Share that is dropped. |" in text
    assert "| `ties` | `keep`, `first` | `keep` | What happens to ties. |" in text
