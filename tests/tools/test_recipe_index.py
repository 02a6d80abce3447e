"""The list of recipes is current, and has the first sentence of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.recipe_index import RECIPES, summary, text


def test_the_list_is_current() -> None:
    assert (RECIPES / "README.md").read_text(encoding="utf-8") == text(), "run `make docs`"


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# One thing: another.\n#\n# Run:\n", "One thing: another"),
        ("# Of Roy et al. Two lines\n# of it. More.\nname: x\n", "Of Roy et al. Two lines of it"),
        ("# a | b\n", "a \\| b"),
        ("name: x\n", ""),
    ],
)
def test_summary(tmp_path: Path, comment: str, expected: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(comment, encoding="utf-8", newline="\n")
    assert summary(path) == expected
