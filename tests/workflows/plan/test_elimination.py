"""Successive halving: the known best is found, the nearest is named, and equal ones are told apart by their cost."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from sparsenmt.workflows.plan.elimination import (
    Finding,
    choose,
    climb,
    front,
    halve,
    kept_of,
    rounds_of,
    survivors,
)


def test_each_round_has_five_times_as_many_lines() -> None:
    assert rounds_of(1014) == [40, 202, 1014]
    assert rounds_of(199) == [199]
    assert rounds_of(200) == [40, 200]
    assert rounds_of(1) == [1]


def test_one_in_five_is_kept() -> None:
    assert [kept_of(count) for count in (2, 4, 15, 16, 60)] == [2, 4, 4, 4, 12]


@pytest.mark.parametrize("seed", range(5))
def test_the_known_best_or_its_neighbour_is_found_with_a_fifth_of_the_lines_of_a_grid(seed: int) -> None:
    # Candidate i is 1 + i / 10 times as fast and loses i^2 / 100: within 1.1 the best is 10. Few lines are noisy, and
    # one that is so near to the limit may be dropped: the next one is 5% slower.
    noise, counted = random.Random(seed), []

    def measure(chosen: Sequence[int], lines: int) -> Mapping[int, Finding]:
        counted.append(len(chosen) * lines)
        error = 2.0 / lines**0.5
        return {
            i: Finding(
                tuple((1 + i / 10) * noise.uniform(0.99, 1.01) for _ in range(3)),
                (i**2 / -100) + (noise.gauss(0, error / 4) if lines < 5000 and i else 0.0),
                error,
            )
            for i in chosen
        }

    found = halve(range(60), rounds_of(5000), measure, lambda left, lines: [], allowed=1.1, reference=0)
    chosen, meets = choose(found, 1.1, lambda each: (each,))
    assert meets and chosen in (9, 10)
    assert 0 in found
    assert sum(counted) <= 0.2 * 60 * 5000


def test_a_climb_finds_what_few_lines_have_dropped() -> None:
    """Candidates are (depth, beam); on the first lines every depth but 3 seems far worse than it is."""
    asked: list[tuple[tuple[int, int], int]] = []

    def measure(chosen: Sequence[tuple[int, int]], lines: int) -> Mapping[tuple[int, int], Finding]:
        asked.extend((each, lines) for each in chosen)
        found = {}
        for depth, beam in chosen:
            loss = {3: 0.0, 2: 0.2, 1: 2.0}[depth] + 0.05 * (5 - beam)
            loss += 3.0 * (lines < 100 and depth < 3)
            found[depth, beam] = Finding((10 / depth / beam,) * 3, -loss, 10 / lines)
        return found

    every = [(depth, beam) for depth in (3, 2, 1) for beam in (5, 4, 2, 1)]
    rounds = rounds_of(1000)
    found = halve(every, rounds, measure, lambda left, lines: [], allowed=0.45, reference=every[0])
    assert choose(found, 0.45, lambda each: (0.0,)) == ((3, 1), True)

    def neighbours(own: tuple[int, int]) -> list[tuple[int, int]]:
        return [each for each in every if (each[0] == own[0]) != (each[1] == own[1])]

    tuned: list[tuple[int, int]] = []

    def tune(left: Sequence[tuple[int, int]], lines: int) -> list[tuple[int, int]]:
        tuned.extend(left)
        return []

    found = climb(found, neighbours, rounds, measure, tune, allowed=0.45, reference=every[0])
    assert choose(found, 0.45, lambda each: (0.0,)) == ((2, 1), True) and tuned == [(2, 1)]
    assert ((1, 1), 1000) not in asked, "too bad on 200 lines"


def test_a_climb_without_a_candidate_that_meets_the_budget_tries_nothing() -> None:
    found = {1: Finding((1.0,), -3.0), 2: Finding((2.0,), -4.0)}
    assert climb(found, lambda _: [3], [40], lambda *_: {}, lambda *_: [], allowed=0.5, reference=1) == found


def test_what_is_tuned_joins_the_last_round() -> None:
    asked: list[tuple[list[str], int]] = []

    def measure(chosen: Sequence[str], lines: int) -> Mapping[str, Finding]:
        return {each: Finding((len(each),), 0.0) for each in chosen}

    def tune(left: Sequence[str], lines: int) -> list[str]:
        asked.append((list(left), lines))
        return [f"{max(left, key=len)}+"]

    found = halve(["a", "bb"], [40, 200], measure, tune, allowed=0.5, reference="a")
    assert asked == [(["a", "bb"], 40)]
    assert choose(found, 0.5, lambda each: (0,)) == ("bb+", True)


def test_the_reference_and_the_best_survive_whatever_their_speed() -> None:
    found = {
        "reference": Finding((1.0,), 0.0, 0.1),
        "best": Finding((0.5,), 3.0, 0.1),
        **{f"fast {i}": Finding((2.0 + i,), 0.0, 0.1) for i in range(8)},
    }
    assert survivors(found, 0.5, "reference") == ["reference", "best", "fast 4", "fast 5", "fast 6", "fast 7"]


def test_a_fast_candidate_that_probably_loses_too_much_has_little_merit() -> None:
    bad, good = Finding((5.0,), -3.0, 0.5), Finding((1.5,), -0.1, 0.5)
    assert bad.merit(0.5) < good.merit(0.5)
    assert Finding((1.0,), -0.5, 0.5).probability(0.5) == pytest.approx(0.5)
    assert Finding((1.0,), 0.48, 0.5).probability(0.5) == pytest.approx(0.975, abs=1e-3)
    assert Finding((2.0,), 0.0, 0.1, excesses=(1.0,)).merit(0.5) < Finding((0.1,), 0.0, 0.1).merit(0.5)


def test_of_candidates_whose_turns_overlap_the_simplest_is_chosen() -> None:
    found = {
        "three choices": Finding((2.0, 2.2, 2.1), 0.0),
        "one choice": Finding((1.9, 2.05, 2.0), 0.0),
        "none": Finding((1.0, 1.0, 1.0), 0.0),
        "too bad": Finding((9.0, 9.0, 9.0), -1.0),
    }
    cost = {"three choices": 3.0, "one choice": 1.0, "none": 0.0, "too bad": 1.0}
    assert choose(found, 0.5, lambda each: (cost[each],)) == ("one choice", True)
    found["one choice"] = Finding((1.7, 1.8, 1.9), 0.0)
    assert choose(found, 0.5, lambda each: (cost[each],)) == ("three choices", True)


def test_if_none_meets_the_budget_the_nearest_is_named() -> None:
    found = {
        "far": Finding((9.0,), 0.0, excesses=(0.5,)),
        "near": Finding((1.0,), 0.0, excesses=(0.02,)),
        "loses": Finding((2.0,), -2.0),
    }
    assert choose(found, 0.5, lambda each: (0,)) == ("near", False)
    found["misses two"] = Finding((9.0,), -0.51, excesses=(0.01,))
    assert choose(found, 0.5, lambda each: (0,)) == ("near", False)


def test_the_front_has_what_nothing_dominates() -> None:
    points = {"a": (1, 3), "b": (2, 2), "c": (3, 1), "dominated": (2, 1), "equal to b": (2, 2)}
    assert front(points) == {"a", "b", "c", "equal to b"}
