"""Forced scores equal the log-softmax of the full model."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding import forced_decoding
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import Source
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle

SOURCES, TARGETS = invented_lines(12, 5), invented_lines(12, 6)


def naive(bundle: TinyBundle, source: str, target: str) -> list[float]:
    """Of every piece and EOS, from one sentence alone, all positions at once."""
    ids = [*bundle.tokenizers.source.encode(source), EOS]
    wanted = [*bundle.tokenizers.target.encode(target), EOS]
    (memory,) = bundle.model.encode(
        Source(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    ).memories.values()
    (hidden,) = bundle.model.decode(torch.tensor([[BOS, *wanted[:-1]]]), memory).values()
    values = bundle.model.project(hidden)[0].log_softmax(-1)
    return [float(values[i, piece].detach()) for i, piece in enumerate(wanted)]


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
@pytest.mark.parametrize("rows", [3, 1024])
def test_equals_the_full_model(batch_tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_decoding, "_ROWS", rows)
    bundle = tiny_bundle()
    told: list[int] = []
    found = list(score_pairs(bundle, input_lines(SOURCES), TARGETS, batch_tokens=batch_tokens, advance=told.append))
    assert sum(told) == len(found) == len(SOURCES)
    for score, source, target in zip(found, SOURCES, TARGETS, strict=True):
        expected = naive(bundle, source, target)
        assert score.token_log_probabilities == pytest.approx(expected, abs=1e-9)
        assert score.log_probability == pytest.approx(sum(expected), abs=1e-9)
        assert len(score.tokens) == len(expected)


def test_empty_and_long_texts() -> None:
    bundle = tiny_bundle(max_positions=12)
    empty, long, both = score_pairs(
        bundle, input_lines(["", "alte Haus", "steht " * 9]), ["Fluss", "am Fluss " * 9, ""]
    )
    assert empty.token_log_probabilities == pytest.approx(naive(bundle, "", "Fluss"), abs=1e-9)
    assert len(long.token_log_probabilities) == 12  # cut to 11 pieces and EOS
    assert len(both.token_log_probabilities) == 1
    pieces = bundle.tokenizers.target.encode("am Fluss " * 9), bundle.tokenizers.source.encode("steht " * 9)
    assert [(each.source.cut, each.cut) for each in (empty, long, both)] == [
        (0, 0),
        (0, len(pieces[0]) - 11),
        (len(pieces[1]) - 11, 0),
    ]


def test_scores_that_are_not_numbers_are_reported() -> None:
    bundle = tiny_bundle()
    with torch.no_grad():
        bundle.model.embeddings["output"].fill_(float("nan"))
    with pytest.raises(UserError, match=r"line \d+: the model's scores are not finite numbers"):
        list(score_pairs(bundle, input_lines(SOURCES), TARGETS))


def test_no_graph_is_built() -> None:
    bundle = tiny_bundle()
    assert next(bundle.model.parameters()).requires_grad
    seen = []
    project = bundle.model.project
    bundle.model.project = lambda hidden: seen.append(hidden.requires_grad) or project(hidden)  # type: ignore
    list(score_pairs(bundle, input_lines(SOURCES), TARGETS))
    assert seen and not any(seen)
