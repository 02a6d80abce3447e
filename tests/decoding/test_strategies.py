"""The table of decoding strategies, and a new one: a class and a line in the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.single_hypothesis import Pick, SingleHypothesisSearch
from sparsenmt.decoding.strategies import EncodedBatch, Results, Strategy, strategy_of
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.recipe.schema import Decoding
from sparsenmt.strategy import STRATEGIES, register_strategy
from tests.decoding.support import invented_lines, tiny_bundle


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_its_name_and_width(name: str) -> None:
    strategy = strategy_of(Decoding.model_validate({"method": name, "beam_size": 3}))
    assert (strategy.name, strategy.width) == (name, 3 if name == "beam" else 1)
    assert strategy.label == ("beam 3" if name == "beam" else name)


class WorstSearch(SingleHypothesisSearch):
    """The least probable token, step by step."""

    name = "worst"

    def picker(self, batch: EncodedBatch) -> Pick:
        return lambda logits, rows, step: logits.masked_fill(logits == -float("inf"), float("inf")).argmin(-1)


class EmptySearch(Strategy):
    """No token for any sentence."""

    name = "empty"

    def search(self, model: Any, batches: Iterable[EncodedBatch], naming: Any) -> Iterator[Results]:
        for batch in batches:
            yield {number: [Hypothesis([], 0.0, 0.0, True)] for number in batch.numbers}


@pytest.mark.parametrize("strategy", [WorstSearch, EmptySearch])
def test_a_new_strategy(strategy: type[Strategy]) -> None:
    with STRATEGIES.scope():
        register_strategy(strategy.name)(strategy)
        _translates(strategy)


def _translates(strategy: type[Strategy]) -> None:
    options = Decoding.model_validate({"max_length_factor": 1.0, "max_length_offset": 0})
    lines = input_lines(invented_lines(10, 1))
    found = list(translate_lines(tiny_bundle(), lines, options.model_copy(update={"method": strategy.name})))
    assert [each.source.number for each in found] == list(range(10))
    greedy = list(translate_lines(tiny_bundle(), lines, options.model_copy(update={"method": "greedy"})))
    assert [each.text for each in found] != [each.text for each in greedy]
