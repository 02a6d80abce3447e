"""Word alignments by cross-attention along outputs: a loop over single sentences, words of tokens, batches, heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsenmt.data.batching import pad
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.vocabulary import BOS
from sparsenmt.data.word_links import WordPlaces, places_of_spans, token_links
from sparsenmt.decoding.alignment import AlignedPair, AttentionHeads, ReadTarget, align_targets, attention_along
from sparsenmt.decoding.inputs import make_source
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.ensemble import EnsembleEngine, Member
from sparsenmt.errors import UserError
from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sockets import Keys
from sparsenmt.recipe.schema import Decoding
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.workflows.decoding.aligned_output import OutputAligner
from tests.decoding.support import invented_lines, tiny_bundle
from tests.decoding.test_ahead import gated_bundle


class UnevenHeads(Softmax):
    """A softmax whose second head has a hundredth of the weights."""

    normalised = False
    fusable = False

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        weights = super().forward(scores, keys)
        return weights * torch.tensor([1.0, 0.01], dtype=weights.dtype)[:, None, None]


OPTIONS = Decoding(beam_size=2, max_length_factor=1, max_length_offset=3)


def translated(bundle: Any, lines: list[str]) -> list[TranslatedLine]:
    return [each for each in translate_lines(bundle, input_lines(lines), OPTIONS) if each.hypotheses[0].tokens]


def read(found: list[TranslatedLine]) -> list[ReadTarget]:
    assert found
    return [ReadTarget(each.source, each.hypotheses[0].tokens, each.text) for each in found]


@torch.inference_mode()
def naive(bundle: Any, target: ReadTarget, layer: int, heads: list[int]) -> np.ndarray[Any, Any]:
    """(T, S) attention of one sentence alone, without a cache: of one prefix after the other."""
    memory, rows = bundle.model.encode(make_source(bundle, [target.source])).memory, []
    for length in range(len(target.tokens)):
        seen: list[AttentionSeen] = []
        inputs, _ = pad([[BOS, *target.tokens[:length]]])
        with bundle.model.listen(seen.append):
            bundle.model.decode(inputs, memory)
        (own,) = [each.weights for each in seen if each.site == "cross" and each.step == layer - 1]
        rows.append(own[0, heads, -1].mean(0).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("heads", "layer", "chosen"), [("2", 2, [0, 1]), ("1", 1, [0, 1]), ("1.2", 1, [1])])
def test_attention_is_that_of_each_prefix_alone(heads: str, layer: int, chosen: list[int]) -> None:
    bundle = tiny_bundle(5)
    targets = read(translated(bundle, invented_lines(3, 6)))
    for i, weights, closed in attention_along(bundle, targets, OPTIONS, AttentionHeads.parse(heads, "")):
        assert weights == pytest.approx(naive(bundle, targets[i], layer, chosen), abs=1e-9)
        assert not closed.any() and weights.sum(1) == pytest.approx(np.ones(len(weights)))


def test_heads_whose_weights_need_not_sum_to_one_count_alike() -> None:
    bundle = tiny_bundle(5)
    for module in bundle.model.modules():
        if isinstance(module, AttentionStep) and module.site == "cross":
            module.transform = UnevenHeads()
    targets = read(translated(tiny_bundle(5), invented_lines(3, 6)))
    for i, weights, _ in attention_along(bundle, targets, OPTIONS):
        assert weights.sum(1) == pytest.approx(np.ones(len(weights)))
        own = [
            next(iter(attention_along(bundle, targets[i : i + 1], OPTIONS, AttentionHeads((2,), (head,)))))[1]
            for head in (1, 2)
        ]
        assert weights == pytest.approx(np.mean(own, axis=0), abs=1e-9)


def test_links_do_not_depend_on_the_batch() -> None:
    bundle = tiny_bundle(5)
    targets = read(translated(bundle, invented_lines(4, 12)))
    together = align_targets(bundle, targets, OPTIONS)
    alone = [align_targets(bundle, [each], OPTIONS)[0] for each in targets]
    assert [each.alignment for each in together] == [each.alignment for each in alone]
    for a, b in zip(together, alone, strict=True):
        assert a.weights == pytest.approx(b.weights, abs=1e-12)


def pair(**changes: Any) -> AlignedPair:
    """Three source tokens of two words and `</s>`, of which the third is closed; three target tokens of two words."""
    values = {
        "weights": np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.0, 0.3], [0.1, 0.1, 0.7, 0.1]]),
        "closed": np.array([False, False, True, False]),
        "source": WordPlaces(("a", "bc"), (0, 1, 1, -1)),
        "target": WordPlaces(("xy", "z"), (0, 0, 1)),
    }
    return AlignedPair(**{**values, **changes})


def test_words_are_linked_by_their_tokens_and_dropped_ones_never() -> None:
    assert list(pair().alignment) == [(0, 0), (0, 1), (1, 0)]  # z attends to what is closed: then the first of equals
    assert list(pair(closed=np.zeros(4, dtype=bool)).alignment) == [(0, 0), (1, 0), (1, 1)]
    assert list(pair(weights=np.array([[0.0, 0, 0, 1]] * 3)).alignment) == []


def test_weights_of_words_tell_stand_ins_and_the_end_apart() -> None:
    found = pair().word_weights()
    assert found.weights == pytest.approx(np.array([[0.3, 0.4], [0.1, 0.1]]))
    assert found.dropped == pytest.approx([0.1, 0.7]) and found.outside == pytest.approx([0.2, 0.1])
    halves = pair(weights=pair().weights / 2).word_weights()  # weights that sum to 1/2 are shares, too
    assert halves.weights == pytest.approx(found.weights)


def test_each_token_of_a_word_is_linked_with_each_of_the_other() -> None:
    source, target = places_of_spans("a bc", [(0, 1), (1, 3), (3, 4)]), WordPlaces(("x", "y"), (0, 1, 1))
    assert source == WordPlaces(("a", "bc"), (0, 1, 1))
    assert token_links([(1, 1), (1, 1), (5, 0)], source, target).tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]


def test_the_words_of_tokens_that_the_text_would_not_be_divided_into() -> None:
    bundle = tiny_bundle(7, kind="char")
    (line,) = translated(bundle, invented_lines(3, 3))[:1]
    text = line.text
    (found,) = align_targets(bundle, [ReadTarget(line.source, line.hypotheses[0].tokens, text)], OPTIONS)
    assert found.target.words == tuple(text.split())


@pytest.mark.parametrize("text", ["", "0", "a", "1.0", "1.2.3", "1.", "-1", "٣"])
def test_a_text_that_names_no_head(text: str) -> None:
    with pytest.raises(UserError, match=r"^--alignment-head: '.*' names no head"):
        AttentionHeads.parse(text, "--alignment-head")


def test_the_first_member_of_an_ensemble_is_read_with_its_filter() -> None:
    """An ensemble's engine drops what a filter closes; weights lie on all positions of the source all the same."""
    bundle = gated_bundle()
    engine = EnsembleEngine([Member(bundle.engine, 0.5, 16), Member(bundle.engine, 0.5, 16)], "log")
    joined = replace(bundle, others=(bundle,), built=engine)  # type: ignore[arg-type]
    targets = read(translated(bundle, invented_lines(4, 6)))
    assert any(closed.any() for _, _, closed in attention_along(bundle, targets, OPTIONS))
    for own, other in zip(
        align_targets(bundle, targets, OPTIONS), align_targets(joined, targets, OPTIONS), strict=True
    ):
        assert own.weights == pytest.approx(other.weights, abs=1e-12) and own.alignment == other.alignment


def test_a_head_must_run_at_every_depth_that_lines_may_have() -> None:
    """A line at one decoder layer has no attention of the second."""
    bundle: Any = tiny_bundle(5)
    assert OutputAligner.of(bundle, OPTIONS, "2", 9, [(2, 2)]).heads == AttentionHeads((2,))
    with pytest.raises(UserError, match=r"^--alignment-head: decoder layer 2 does not .* run: the last one is 1"):
        OutputAligner.of(bundle, OPTIONS, "2", 9, [(2, 2), (1, 1)])
