"""Twenty silent mistakes in methods: the kit finds each, and names it by its rule."""

from __future__ import annotations

import pytest

from sparsenmt.testing import Case, Plug, check_method
from sparsenmt.testing.bench import build
from sparsenmt.testing.rules import RULES, broken
from sparsenmt.testing.smallest_case import failure
from tests.testing.planted import MISTAKES, Mistake, Sound, planted


def name(mistake: Mistake) -> str:
    return mistake.name


@pytest.mark.parametrize("mistake", MISTAKES, ids=name)
def test_each_breaks_its_rule(mistake: Mistake) -> None:
    (rule,) = [rule for rule in RULES if rule.name == mistake.rule]
    with planted(mistake) as method:
        assert failure(rule, Case((Plug(mistake.place, method, {}),))) is not None


def test_a_method_without_a_mistake_keeps_all_rules() -> None:
    with planted(Mistake(Sound, "", "cross.transform")) as method:
        bench = build(Case((Plug("cross.transform", method, {}),)))
        found = {rule.name: broken(rule, bench) for rule in RULES}
    assert {rule: message for rule, (_, message) in found.items() if message is not None} == {}
    assert {rule for rule, (applies, _) in found.items() if not applies} == {"reach", "segments", "examples"}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=name)
def test_the_whole_kit_names_each(mistake: Mistake) -> None:
    """Rules that are about single properties come first: the first that does not hold is the mistake's own."""
    with planted(mistake) as method:
        result = check_method(method)
    assert not result.holds and result.broken[0].rule.name == mistake.rule
