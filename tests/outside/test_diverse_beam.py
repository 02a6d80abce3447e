"""Diverse beam search against Algorithm 1 in loops, one sentence at a time, without a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import banned, divisor, encode, next_log_probabilities, sources, tiny_model
from tests.outside import diverse_beam
from tests.outside.diverse_beam import STRENGTH, DiverseBeam

Row = tuple[list[int], float]
VOCABULARY = 14


def options_of(**values: Any) -> Decoding:
    return Decoding.model_validate({"beam_size": 4, "length_penalty": "average", "alpha": 0.7, **values})


def naive(model: Transformer, source: Sequence[int], limit: int, options: Decoding) -> list[tuple[list[int], float]]:
    """The tokens and scores of all hypotheses, best first."""
    memory, each = encode(model, [source]), options.beam_size // DiverseBeam.groups
    groups: list[list[Row]] = [[([], 0.0)] for _ in range(DiverseBeam.groups)]
    ended: list[list[Row]] = [[] for _ in groups]
    for _ in range(limit):
        taken: Counter[int] = Counter()
        for g, group in enumerate(groups):
            rows = [
                (score + log_probability - STRENGTH * taken[token], [*tokens, token], score + log_probability)
                for tokens, score in group
                for token, log_probability in enumerate(next_log_probabilities(model, memory, tokens))
                if token not in banned(tokens, VOCABULARY, options)
            ]
            best = [row[1:] for row in sorted(rows, key=lambda row: -row[0])[: 2 * each]]
            ended[g] += [row for row in best[:each] if row[0][-1] == EOS][: each - len(ended[g])]
            going = sorted((row for row in best if row[0][-1] != EOS), key=lambda row: -row[1])[:each]
            groups[g] = going if len(ended[g]) < each else []
            taken.update(tokens[-1] for tokens, _ in groups[g])
        if not any(groups):
            break
    for g, group in enumerate(groups):
        ended[g] += group[: each - len(ended[g])]
    found = [(tokens, score / divisor(len(tokens), options)) for group in ended for tokens, score in group]
    return sorted(found, key=lambda row: -row[1])


def search(
    model: Transformer, rows: list[list[int]], limits: list[int], options: Decoding, **batch: Any
) -> list[list[Hypothesis]]:
    numbers = list(range(len(rows)))
    encoded = EncodedBatch(encode(model, rows), torch.tensor(limits), numbers, numbers, **batch)
    (found,) = DiverseBeam(options).search(TorchEngine(model), [encoded], lambda numbers: nullcontext())
    return [found[number] for number in numbers]


@pytest.mark.parametrize(
    "values", [{}, {"beam_size": 2}, {"beam_size": 6, "min_length": 3}, {"no_repeat_ngram": 1}], ids=str
)
@pytest.mark.parametrize("ending", [0.0, 4.0])
def test_against_loops(ending: float, values: dict[str, Any]) -> None:
    model, options = tiny_model(3, ending=ending), options_of(**values)
    rows, limits = sources(1, [6, 3, 5, 2]), [8, 5, 7, 1]
    found = search(model, rows, limits, options)
    for ours, row, limit in zip(found, rows, limits, strict=True):
        expected = naive(model, row, limit, options)
        assert [each.tokens + [EOS] * each.ended for each in ours] == [tokens for tokens, _ in expected]
        assert [each.score for each in ours] == pytest.approx([score for _, score in expected])


def test_a_large_strength_keeps_groups_apart_from_the_first_token_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverse_beam, "STRENGTH", 50.0)
    model, rows = tiny_model(3), sources(1, [6, 3, 5, 2])
    for first, second in search(model, rows, [8] * 4, options_of(beam_size=2)):
        assert not any(a == b for a, b in zip(first.tokens, second.tokens, strict=False))


def test_a_shortlist_bounds_the_tokens() -> None:
    model, rows = tiny_model(3), sources(1, [6, 3])
    allowed = torch.zeros(2, VOCABULARY, dtype=torch.bool)
    allowed[:, :4] = allowed[0, 5] = allowed[0, 9] = allowed[1, 4] = True
    first, second = search(model, rows, [6, 6], options_of(), allowed=allowed)
    assert {token for each in first for token in each.tokens} <= {UNK, 5, 9}
    assert {token for each in second for token in each.tokens} <= {UNK, 4}


def test_scores_that_are_not_numbers_give_no_hypothesis() -> None:
    model = tiny_model(3)
    with torch.no_grad():
        model.embeddings["output"][5] = torch.nan
    assert search(model, sources(1, [6, 3]), [6, 6], options_of()) == [[], []]


def test_groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(UserError, match="3 hypotheses cannot be divided into 2 groups"):
        search(tiny_model(3), sources(1, [3]), [4], options_of(beam_size=3))
