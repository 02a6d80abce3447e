"""The table of mutants fits the sources."""

from __future__ import annotations

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_one_place_and_has_tests(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests and all((ROOT / test).is_file() for test in mutant.tests)


def test_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
