"""Frames around sentences: searches, forced decoding and copies beside the plainest loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.analysis.observe import TargetLine
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.frame import Frame, FramePair
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.forced_decoding import score_alternatives, score_pairs
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.scores import length_penalty
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import TinyBundle, encode, invented_lines, tiny_bundle

LIKE_M2M = FramePair(Frame((5,)), Frame((6,)))
LIKE_MBART = FramePair(Frame((), (5,)), Frame((), start=6))
BOTH = FramePair(Frame((5, 7), (8,)), Frame((6, 9), start=10))
METHODS = [{"method": "greedy"}, {"method": "beam", "beam_size": 3, "length_penalty": "average", "alpha": 1.0}]


def framed_bundle(frames: FramePair, ending: float = 1.0) -> TinyBundle:
    return replace(tiny_bundle(3, ending=ending), frames=frames)


@torch.inference_mode()
def log_probability(model: Transformer, source: list[int], given: list[int], target: list[int]) -> float:
    """The log-probability of a target after what the decoder is given, the whole at once."""
    memory = encode(model, [source])
    (states,) = model.decode(torch.tensor([[*given, *target[:-1]]]), memory).values()
    values = model.project(states)[0].log_softmax(-1)
    return sum(float(values[len(given) - 1 + t, token]) for t, token in enumerate(target))


@pytest.mark.parametrize("frames", [LIKE_M2M, LIKE_MBART, BOTH])
@pytest.mark.parametrize("method", METHODS)
def test_step_by_step_equals_at_once(frames: FramePair, method: dict[str, Any]) -> None:
    bundle = framed_bundle(frames)
    options = Decoding.model_validate({**method, "max_length_offset": 6})
    texts = invented_lines(12, 5)
    for line in translate_lines(bundle, input_lines(texts), options):
        ids = bundle.tokenizers.source.encode(texts[line.source.number])
        source = [*frames.source.prefix, *ids, EOS, *frames.source.suffix]
        given = [frames.target.start, *frames.target.prefix]
        for each in line.hypotheses:
            target = [*each.tokens, EOS] if each.ended else each.tokens
            expected = log_probability(bundle.model, source, given, target)
            assert each.log_probability == pytest.approx(expected, abs=1e-9)
            # As in Hugging Face's beam search: what is given counts in the length, and has no probability.
            length = len(target) + len(frames.target.prefix)
            assert each.score == pytest.approx(expected / length_penalty(float(length), options), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_company_does_not_matter(method: dict[str, Any]) -> None:
    bundle, texts = framed_bundle(BOTH), invented_lines(16, 8)
    options = Decoding.model_validate({**method, "max_length_offset": 4, "batch_tokens": 400})
    together = [each.hypotheses for each in translate_lines(bundle, input_lines(texts), options)]
    alone = [next(iter(translate_lines(bundle, input_lines([text]), options))).hypotheses for text in texts]
    assert [[each.tokens for each in own] for own in together] == [[each.tokens for each in own] for own in alone]


def test_a_given_prefix_counts_in_no_length() -> None:
    options = Decoding.model_validate({"method": "greedy", "min_length": 4, "max_length_factor": 0.0})
    bundle = framed_bundle(BOTH, ending=9.0)
    assert {len(each.hypotheses[0].tokens) for each in translate_lines(bundle, input_lines(["am Haus"]), options)} == {
        4
    }
    long = "Haus " * 30
    (source,) = read_sources(bundle, input_lines([long]))
    assert len(source.ids) == bundle.max_positions
    assert source.ids[:2] == [5, 7] and source.ids[-2:] == [EOS, 8]
    assert source.kept == bundle.max_positions - 4
    (empty,) = read_sources(bundle, input_lines([" "]))
    assert empty.empty and empty.plain_ids == [EOS, EOS, EOS, EOS]


def test_forced_scores_are_those_of_the_sentence() -> None:
    bundle, sources, targets = framed_bundle(BOTH), invented_lines(7, 2), invented_lines(7, 3)
    frames, encode_line = bundle.frames, bundle.tokenizers.source.encode
    expected = [
        log_probability(
            bundle.model,
            frames.source.around([*encode_line(source), EOS]),
            list(frames.target.given),
            [*encode_line(target), EOS],
        )
        for source, target in zip(sources, targets, strict=True)
    ]
    scored = list(score_pairs(bundle, input_lines(sources), targets))
    assert [each.log_probability for each in scored] == pytest.approx(expected, abs=1e-9)
    assert [len(each.tokens) for each in scored] == [len(encode_line(target)) + 1 for target in targets]
    several = score_alternatives(bundle, input_lines(sources), [[target, "am Fluss"] for target in targets])
    assert [each.targets[0].log_probability for each in several] == pytest.approx(expected, abs=1e-9)


def test_copies_are_not_shifted() -> None:
    """A frame that the model cannot see: copies are those without one."""
    plain = tiny_bundle(3)
    options = Decoding.model_validate({"method": "beam", "beam_size": 2, "unknown": "copy", "max_length_offset": 4})
    framed = replace(plain, frames=FramePair(Frame((5, 7)), Frame((6,))))
    for each in translate_lines(framed, input_lines(["zwei Katzen am Fluss"]), options):
        for hypothesis in each.hypotheses:
            assert len(hypothesis.copied) == hypothesis.tokens.count(1)
            assert all(text in each.source.text or text == "\u2047" for text in hypothesis.copied)


def test_reports_read_along_all_positions() -> None:
    target = TargetLine([11, 12], frame=BOTH.target)
    assert target.inputs == [10, 6, 9, 11, 12]
    assert target.ids == [6, 9, 11, 12, EOS]
