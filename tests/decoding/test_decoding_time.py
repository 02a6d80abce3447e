"""Systems take turns on the same lines; the fastest turn counts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

from sparsenmt.decoding import decoding_time as timing
from sparsenmt.decoding.decoding_time import DecodingTime, time_decoding

LINES = ["a", "b", "c", "d", "e"]


def test_turns_warm_up_and_the_fastest_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], list[tuple[str, int]]()
    durations = iter([5.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def translate(name: str, lines: Sequence[str]) -> int:
        calls.append((name, len(lines)))
        if len(lines) == len(LINES):
            clock[0] += next(durations)
        else:
            clock[0] += 100  # a warm-up does not count
        return len(calls)

    def systems() -> Iterator[tuple[str, Callable[[Sequence[str]], int]]]:
        for name in "xy":
            clock[0] += 1000  # neither does opening a model
            yield name, lambda lines, name=name: translate(name, lines)

    told: list[int] = []
    times = time_decoding(systems, LINES, rounds=2, advance=told.append)
    assert calls == [("x", 4), ("x", 5), ("y", 4), ("y", 5)] * 2
    assert {name: (each.seconds, each.result) for name, each in times.items()} == {"x": (3.0, 6), "y": (2.0, 4)}
    assert {name: each.turns for name, each in times.items()} == {"x": (5.0, 3.0), "y": (2.0, 4.0)}
    assert told == [1] * 4


def test_what_lies_within_the_spread_of_turns_is_equal() -> None:
    slow, near, fast, once = (DecodingTime(turns, None) for turns in ((5.0, 4.0, 6.0), (3.9, 4.1), (3.0, 3.8), (4.0,)))
    assert (slow.seconds, slow.median, slow.spread) == (4.0, 5.0, 0.5) and once.spread is None
    assert (near.against(slow), slow.against(near), fast.against(slow)) == ("equal", "equal", "faster")
    assert slow.against(fast) == "slower" and once.against(slow) is slow.against(once) is None
    assert slow.per(2).turns == (2.5, 2.0, 3.0) and slow.per(2).spread == slow.spread


def test_without_warm_up() -> None:
    seen: list[Sequence[str]] = []
    times = time_decoding(lambda: [("x", seen.append)], LINES, warm_up=0)
    assert seen == [LINES] and times["x"].result is None and times["x"].seconds >= 0


@pytest.mark.thorough
def test_no_more_than_one_model_is_alive() -> None:
    class Model:
        def __call__(self, lines: Sequence[str]) -> None:
            pass

    alive: list[weakref.ref[Model]] = []

    def systems() -> Iterator[tuple[int, Callable[[Sequence[str]], None]]]:
        for name in range(3):
            gc.collect()
            assert all(each() is None for each in alive)
            yield name, _remember(Model(), alive)

    assert set(time_decoding(systems, LINES, rounds=2)) == {0, 1, 2}
    assert len(alive) == 6


def _remember(model: Callable[[Sequence[str]], None], alive: list) -> Callable[[Sequence[str]], None]:  # type: ignore[type-arg]
    alive.append(weakref.ref(model))
    return model
