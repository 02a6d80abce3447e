"""Killed, out of room, broken or cut at any call, and damaged at rest: nothing complete is lost, nothing wrong used."""

from __future__ import annotations

import pytest

from tests.faults.damage import USES, Damage, Use
from tests.faults.points import SCENARIOS, Faults, Scenario
from tests.faults.world import World

SEED = 1
FAST = ("prepare, half done before", "train, resumed", "decode, half done before")


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.name in FAST], ids=lambda each: each.name)
def test_some_faults_at_calls(world: World, scenario: Scenario) -> None:
    tried = Faults(world, scenario)
    assert tried.try_all(tried.sample(5, SEED)).failures == []


@pytest.mark.thorough
@pytest.mark.parametrize("use", [each for each in USES if each.name in FAST], ids=lambda each: each.name)
def test_some_damage_at_rest(world: World, use: Use) -> None:
    tried = Damage(world, use)
    assert tried.try_all(tried.sample(5, SEED)).failures == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_all_faults_at_calls(world: World, scenario: Scenario) -> None:
    tried = Faults(world, scenario)
    report = tried.try_all(tried.cases())
    assert report.points > 0 and report.cases > report.points
    assert report.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("use", USES, ids=lambda each: each.name)
def test_all_damage_at_rest(world: World, use: Use) -> None:
    tried = Damage(world, use)
    report = tried.try_all(tried.cases())
    assert report.points > 0 and report.cases > report.points
    assert report.failures == []
