"""Design rule 3 on real sentences: decoding with counts gives what zeros in place of dropped positions give.

The model, with filters that drop something, is that of `conftest`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import TranslatedLine, sparsity_rate, translate_lines
from tests.slow.test_batch_invariance import NEAR_TIE, RELATIVE, SHARE, score, wide

pytestmark = pytest.mark.slow

EXACT = 1e-9  # relative, of forced log-probabilities in float64


def single(directory: Path) -> Bundle:
    return open_model(directory, device=torch.device("cpu"))


def translate(bundle: Bundle, lines: list[str], *, compact: bool) -> list[TranslatedLine]:
    return list(translate_lines(bundle, input_lines(lines), bundle.recipe.decoding, compact=compact))


def force(bundle: Bundle, sources: list[str], targets: list[str], *, compact: bool) -> list[float]:
    return [each.log_probability for each in score_pairs(bundle, input_lines(sources), targets, compact=compact)]


def texts(translations: list[TranslatedLine]) -> list[str]:
    return [each.text for each in translations]


def worst(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def test_float64_translations_are_identical(gated: Path, sentences: tuple[list[str], list[str]]) -> None:
    bundle = wide(gated)
    compacted, dense = (translate(bundle, sentences[0], compact=compact) for compact in (True, False))
    rate = sparsity_rate(compacted)
    assert rate is not None and rate > 0, "nothing was dropped"
    print(f"\nfloat64, beam: {len(dense)} sentences, {rate:.1%} dropped")
    assert texts(compacted) == texts(dense)
    assert [each.closed for each in compacted] == [each.closed for each in dense]


def test_float64_forced_log_probabilities_are_the_same(gated: Path, sentences: tuple[list[str], list[str]]) -> None:
    bundle = wide(gated)
    largest = worst(*(force(bundle, *sentences, compact=compact) for compact in (True, False)))
    print(f"\nfloat64, forced: largest relative difference {largest:.1e}")
    assert largest < EXACT


def test_fp32_forced_log_probabilities_agree(gated: Path, sentences: tuple[list[str], list[str]]) -> None:
    bundle = single(gated)
    largest = worst(*(force(bundle, *sentences, compact=compact) for compact in (True, False)))
    print(f"\nfp32, forced: largest relative difference {largest:.1e}")
    assert largest < RELATIVE


def test_fp32_translations_differ_only_at_near_ties(gated: Path, sentences: tuple[list[str], list[str]]) -> None:
    exact, sources = wide(gated), sentences[0]
    compacted, dense = (texts(translate(single(gated), sources, compact=compact)) for compact in (True, False))
    differing = [i for i, (a, b) in enumerate(zip(compacted, dense, strict=True)) if a != b]
    print(f"\nfp32, beam: {len(differing)} of {len(sources)} translations differ")
    for i in differing:
        gap = abs(score(exact, sources[i], compacted[i]) - score(exact, sources[i], dense[i]))
        print(f"line {i + 1}: {compacted[i]!r}, with zeros {dense[i]!r}, score gap {gap:.1e}")
        assert gap < NEAR_TIE
    assert len(differing) <= SHARE * len(sources)
