"""Design rule 9 on real sentences: what a sentence is translated to does not depend on its company.

The model is that of `conftest`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines

pytestmark = pytest.mark.slow

RELATIVE = 1e-4  # forced log-probabilities in fp32
NEAR_TIE = 1e-3  # score gap of translations that differ in fp32
SHARE = 0.005  # of sentences that may differ


def wide(directory: Path) -> Bundle:
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None)
    return replace(bundle, model=bundle.model.double())


def translate(bundle: Bundle, lines: list[str], batch_tokens: int) -> list[str]:
    options = bundle.recipe.decoding.model_copy(update={"batch_tokens": batch_tokens})
    return [t.text for t in translate_lines(bundle, input_lines(lines), options)]


def test_float64_translations_are_identical_alone_shuffled_and_batched(
    model_directory: Path, sentences: tuple[list[str], list[str]]
) -> None:
    bundle, (sources, _) = wide(model_directory), sentences
    alone = translate(bundle, sources, 1)
    assert translate(bundle, sources, 2048) == alone
    assert translate(bundle, sources, 16384) == alone
    order = list(range(len(sources)))
    random.Random(1).shuffle(order)
    shuffled = translate(bundle, [sources[i] for i in order], 4096)
    assert [shuffled[order.index(i)] for i in range(len(sources))] == alone


def test_fp32_forced_log_probabilities_agree(model_directory: Path, sentences: tuple[list[str], list[str]]) -> None:
    bundle, (sources, targets) = open_model(model_directory, device=torch.device("cpu")), sentences
    alone = [s.log_probability for s in score_pairs(bundle, input_lines(sources), targets, batch_tokens=1)]
    for batch_tokens in (512, 4096, 32768):
        batched = [
            s.log_probability for s in score_pairs(bundle, input_lines(sources), targets, batch_tokens=batch_tokens)
        ]
        worst = max(abs(a - b) / abs(a) for a, b in zip(alone, batched, strict=True))
        print(f"batches of {batch_tokens}: largest relative difference {worst:.2e}")
        assert worst < RELATIVE


def test_fp32_translations_differ_only_at_near_ties(
    model_directory: Path, sentences: tuple[list[str], list[str]]
) -> None:
    bundle, exact, (sources, _) = (
        open_model(model_directory, device=torch.device("cpu")),
        wide(model_directory),
        sentences,
    )
    alone = translate(bundle, sources, 1)
    for batch_tokens in (512, 4096, 32768):
        batched = translate(bundle, sources, batch_tokens)
        differing = [i for i, (a, b) in enumerate(zip(alone, batched, strict=True)) if a != b]
        for i in differing:
            first, second = (score(exact, sources[i], text) for text in (alone[i], batched[i]))
            print(f"line {i + 1}: {alone[i]!r} {first:.6f}, in a batch {batched[i]!r} {second:.6f}")
            assert abs(first - second) < NEAR_TIE
        assert len(differing) <= SHARE * len(sources)


def score(bundle: Bundle, source: str, target: str) -> float:
    """The score that the search ranks by, in float64."""
    from sparsenmt.decoding.scores import length_penalty

    (pair,) = score_pairs(bundle, input_lines([source]), [target])
    return pair.log_probability / length_penalty(len(pair.tokens), bundle.recipe.decoding)
