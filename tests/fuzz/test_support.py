"""The fuzz tests would notice: how many cases they have, and what makes a command line fail them."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.fuzz import recipe_texts
from tests.fuzz.support import CASES, Lab


def test_there_are_as_many_cases_as_promised() -> None:
    fast, thorough, slow = (sum(count) for count in zip(*CASES.values(), strict=True))
    assert fast >= 80 and thorough >= 500 and slow >= 10_000


@pytest.mark.parametrize(
    "done",
    [
        mock.Mock(side_effect=ValueError("a mistake of the program")),
        mock.Mock(side_effect=OSError(5, "Input/output error")),  # without a place, but with a remedy
        mock.Mock(side_effect=KeyboardInterrupt),
    ],
    ids=["a traceback", "refused", "interrupted"],
)
def test_what_ends_otherwise_than_promised(lab: Lab, done: mock.Mock) -> None:
    (lab.folder / "recipe.yaml").write_text(recipe_texts.SMALL, encoding="utf-8", newline="\n")
    with mock.patch("sparsenmt.assemble.checks.load_recipe", done):
        if isinstance(done.side_effect, OSError):
            assert lab.run("prepare", "recipe.yaml", "--dump-config").code == 2
            return
        with pytest.raises(AssertionError):
            lab.run("prepare", "recipe.yaml", "--dump-config")


@pytest.mark.parametrize(
    "said", ["", "error: a\\n  do\\nerror: b\\n  do\\n", "error: a\\n", "error: \\x1b[0m\\n  do\\n"]
)
def test_what_is_said_otherwise_than_promised(lab: Lab, said: str) -> None:
    def refuse(_words: list[str]) -> int:
        import sys

        sys.stderr.write(said.encode().decode("unicode_escape"))
        return 2

    with mock.patch("tests.fuzz.support.run", refuse), pytest.raises(AssertionError):
        lab.run("prepare")
