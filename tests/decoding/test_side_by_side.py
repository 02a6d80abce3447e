"""Searches side by side: the same translations, whoever has them; errors and interruptions end all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.side_by_side import deal, divide_threads, run_side_by_side
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.contract import Searches
from sparsenmt.engine.native_engine import NativeEngine
from tests.decoding.support import invented_lines, packed, tiny_bundle
from tests.decoding.test_beam import options
from tests.native.libraries import decoding_kernels


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before, threads = set(threading.enumerate()), torch.get_num_threads()
    yield
    assert set(threading.enumerate()) <= before and torch.get_num_threads() == threads


def squares(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        yield number * number


def test_shares_are_alike() -> None:
    assert deal("abcdefg", 3) == [["a", "f", "g"], ["b", "e"], ["c", "d"]]
    assert deal([], 2) == [[], []]


@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_all_results_come(count: int, size: int) -> None:
    assert sorted(run_side_by_side(range(size), count, squares)) == [n * n for n in range(size)]


def test_threads_of_torch_are_divided() -> None:
    assert (divide_threads(5, 2), divide_threads(4, 2), divide_threads(1, 2)) == ([3, 2], [2, 2], [1, 1])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(5)

        def threads(items: Iterable[int]) -> Iterator[int]:
            yield from (torch.get_num_threads() for _ in items)

        assert sorted(run_side_by_side(range(4), 2, threads)) == [2, 2, 3, 3]
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


def endless(numbers: Iterable[int]) -> Iterator[int]:
    """Raises for 0; otherwise does not end."""
    for number in numbers:
        if number == 0:
            raise ValueError("number 0")
        while True:
            time.sleep(0.01)
            yield number


def test_an_error_ends_the_others() -> None:
    with pytest.raises(ValueError, match="number 0"):
        for _ in run_side_by_side(range(3), 3, endless):
            pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_whoever_stops_waiting_ends_the_threads(error: type[BaseException]) -> None:
    running = run_side_by_side([1, 2], 2, endless)
    assert next(running) in (1, 2)
    with pytest.raises(error):
        running.throw(error)


def test_translations_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches and more of a compiled decoder, of which remainders are merged."""
    decoding_kernels(torch.float32)
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    bundle = packed(tiny_bundle(dtype=torch.float32), torch.float32)
    lines, chosen, found = invented_lines(20, 3), options(beam_size=3, batch_tokens=100), []
    for count in (1, 2, 3):
        monkeypatch.setattr(NativeEngine, "searches", Searches(at_once=count))
        found.append([each.hypotheses for each in translate_lines(bundle, input_lines(lines), chosen)])  # type: ignore[arg-type]
    assert found[0] == found[1] == found[2]
