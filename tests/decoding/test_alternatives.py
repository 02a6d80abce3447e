"""Several targets a source score as each of them alone, whatever stands beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_alternatives, score_pairs
from sparsenmt.errors import UserError
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle
from tests.decoding.test_ahead import gated_bundle

SOURCES = invented_lines(14, 5)
_RANDOM = random.Random(1)
TARGETS = [invented_lines(_RANDOM.randint(1, 4), 100 + number) for number in range(len(SOURCES))]


def alone(bundle: TinyBundle, sources: Sequence[str], targets: Sequence[Sequence[str]]) -> list[list[float]]:
    """Every pair by itself, by `score_pairs`."""
    return [
        [next(score_pairs(bundle, input_lines([source]), [target], compact=False)).log_probability for target in own]
        for source, own in zip(sources, targets, strict=True)
    ]


def scores(bundle: TinyBundle, targets: Sequence[Sequence[str]] = TARGETS, **keys: Any) -> list[list[float]]:
    return [
        [one.log_probability for one in each.targets]
        for each in score_alternatives(bundle, input_lines(SOURCES), targets, **keys)
    ]


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
@pytest.mark.parametrize("gated", [False, True])
def test_equals_pairs_alone(batch_tokens: int, gated: bool) -> None:
    bundle = gated_bundle() if gated else tiny_bundle()
    told: list[int] = []
    found = scores(bundle, batch_tokens=batch_tokens, advance=told.append)
    assert sum(told) == len(SOURCES)
    for mine, expected in zip(found, alone(bundle, SOURCES, TARGETS), strict=True):
        assert mine == pytest.approx(expected, abs=1e-9)
    for mine, expected in zip(scores(bundle, compact=False), found, strict=True):
        assert mine == pytest.approx(expected, abs=1e-9)


def test_every_source_is_encoded_once() -> None:
    bundle = tiny_bundle()
    encode, seen = bundle.model.encode, []
    bundle.model.encode = lambda source, **keys: seen.append(len(source.tokens)) or encode(source, **keys)  # type: ignore
    scores(bundle)
    assert sum(seen) == len(SOURCES)


def test_the_same_pieces_have_the_same_score_to_the_last_bit() -> None:
    bundle = tiny_bundle(dtype=torch.float32)
    targets = [[f"{own[0]}Ж", f"{own[0]}Я", own[0], f"{own[0]}Ж"] for own in TARGETS]  # letters it does not know
    for own in scores(bundle, targets):
        assert own[0] == own[1] == own[3] != own[2]


def test_long_texts_are_cut_and_counted() -> None:
    bundle = tiny_bundle(max_positions=12)
    long = "am Fluss " * 9
    (found,) = score_alternatives(bundle, input_lines(["steht " * 9]), [["Haus", long, f"{long}Haus"]])
    length = len(bundle.tokenizers.target.encode(long))
    assert found.source.cut > 0
    assert [(one.length, one.cut > 0) for one in found.targets] == [(5, False), (12, True), (12, True)]
    assert found.targets[1].cut == length - 11
    assert found.targets[1].log_probability == found.targets[2].log_probability


def test_scores_that_are_not_numbers_are_reported() -> None:
    bundle = tiny_bundle()
    with torch.no_grad():
        bundle.model.embeddings["output"].fill_(float("nan"))
    with pytest.raises(UserError, match=r"line \d+: the model's scores are not finite numbers"):
        scores(bundle)
