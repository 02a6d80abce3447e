"""Batches that are encoded ahead and regrouped by kept length: the same outputs, in narrower memories."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding import ahead
from sparsenmt.decoding.ahead import concatenate_compacted, encode_ahead, regroup
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import TranslatedLine, sparsity_rate, translate_lines
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import DIMENSION, TinyBundle, invented_lines, packed, sources, tiny_bundle, tiny_model
from tests.examples import examples
from tests.toys.faint_filter import FaintFilter, FaintOptions

METHODS = [{"method": "beam", "beam_size": 3}, {"method": "greedy"}, {"method": "sample", "seed": 5}]
LINES = invented_lines(24, 3)
TARGETS = invented_lines(24, 4)


def faint(closed: str = "zero", seed: int = 1) -> FaintFilter:
    """Closes about half of the positions, of some sentences many and of others few."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FaintFilter(FaintOptions.model_validate({"closed": closed}), DIMENSION)


def gated_bundle(closed: str = "zero", place: str = "output", dtype: torch.dtype = torch.float64) -> TinyBundle:
    bundle = tiny_bundle(2, dtype=dtype)
    if place == "output":
        bundle.model.memory.output.append(faint(closed))
    else:
        bundle.model.memory.between.append(nn.ModuleList([faint(closed)]))
    bundle.model.to(dtype)
    assert bundle.model.compacts
    return bundle


def translate(bundle: TinyBundle, lines: Sequence[str], compact: bool = True, **values: object) -> list[TranslatedLine]:
    options = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, "batch_tokens": 200, **values})
    return list(translate_lines(bundle, input_lines(lines), options, compact=compact))


def all_texts(translations: Sequence[TranslatedLine]) -> list[list[str]]:
    return [each.best_texts(len(each.hypotheses)) for each in translations]


def assert_same(found: Sequence[TranslatedLine], expected: Sequence[TranslatedLine]) -> None:
    assert all_texts(found) == all_texts(expected)
    assert [each.closed for each in found] == [each.closed for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for a, b in zip(mine.hypotheses, theirs.hypotheses, strict=True):
            assert a.tokens == b.tokens
            assert a.score == pytest.approx(b.score, abs=1e-9)


@pytest.mark.parametrize("place", ["output", "between"])
@examples("closed", ["mask", "zero"])
@pytest.mark.parametrize("method", METHODS)
def test_company_and_compaction_do_not_matter(
    method: dict[str, Any], closed: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64: regrouped, in the batches of the encoder, with zeros in place, alone, shuffled."""
    bundle = gated_bundle(closed, place)
    if closed == "zero":
        bundle = packed(bundle, torch.float64)
    together = translate(bundle, LINES, **method)
    rate = sparsity_rate(together)
    assert rate is not None and 0.2 < rate < 0.8
    assert_same(translate(bundle, LINES, compact=False, **method), together)
    if method["method"] != "sample":
        order = random.Random(1).sample(range(len(LINES)), len(LINES))
        assert_same(translate(bundle, [LINES[i] for i in order], **method), [together[i] for i in order])
        assert_same([translate(bundle, [line], **method)[0] for line in LINES[:10]], together[:10])
    monkeypatch.setattr(ahead, "AHEAD", 1)
    assert_same(translate(bundle, LINES, **method), together)


@pytest.mark.parametrize("closed", ["zero", "mask"])
def test_forced_scores_do_not_depend_on_the_grouping(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = gated_bundle(closed)

    def scores(**keys: Any) -> torch.Tensor:
        found = score_pairs(bundle, input_lines(LINES), TARGETS, **{"batch_tokens": 120, **keys})
        return torch.tensor([each.log_probability for each in found], dtype=torch.float64)

    expected = scores(batch_tokens=1)
    for keys in ({}, {"compact": False}, {"batch_tokens": 10_000}):
        torch.testing.assert_close(scores(**keys), expected, atol=1e-9, rtol=0)
    monkeypatch.setattr(ahead, "AHEAD", 1)
    torch.testing.assert_close(scores(), expected, atol=1e-9, rtol=0)


@examples("method", METHODS)
def test_goes_on_after_whole_windows(method: dict[str, Any]) -> None:
    """In fp32 too, to the last bit: the same sentences are regrouped with the same."""
    bundle = gated_bundle(dtype=torch.float32)
    options = Decoding.model_validate({"max_length_factor": 0.5, "batch_tokens": 100, **method})
    whole = list(translate_lines(bundle, input_lines(LINES), options, window=8))
    for first in (8, 16):
        assert (
            list(translate_lines(bundle, input_lines(LINES[first:], first=first), options, window=8)) == whole[first:]
        )


ROWS = sources(1, [20] * 9 + [19] * 9 + [18] * 9 + [9] * 9 + [8] * 4 + [2])


class Encoding:
    """`encode_ahead` on rows of pieces; counts the batches that were encoded."""

    def __init__(self, *, gated: bool, batch_tokens: int = 60) -> None:
        self.model = tiny_model(1)
        if gated:
            self.model.memory.output.append(faint().double())
        self.limit = batch_tokens
        self.encoded = 0

    def read(self, chosen: list[int]) -> Source:
        self.encoded += 1
        return Source(*pad([ROWS[i] for i in chosen]))

    def run(self) -> Iterator[tuple[list[int], Memory]]:
        lengths = [len(row) for row in ROWS]
        self.batches = length_batches(lengths, self.limit)
        return encode_ahead(
            TorchEngine(self.model),
            self.batches,
            lengths,
            self.limit,
            read=self.read,
            naming=lambda chosen: nullcontext(),
            compact=self.model.compacts,
        )


def test_a_dense_model_keeps_its_batches_and_is_encoded_as_it_goes() -> None:
    encoding = Encoding(gated=False)
    for number, (batch, memory) in enumerate(encoding.run(), start=1):
        assert encoding.encoded == number and batch == encoding.batches[number - 1]
        assert memory.states.shape[:2] == (len(batch), max(len(ROWS[i]) for i in batch))


def test_regrouped_batches_are_narrow_and_no_larger_than_before() -> None:
    encoding = Encoding(gated=True)
    found = list(encoding.run())
    assert sorted(i for batch, _ in found for i in batch) == list(range(len(ROWS)))
    assert encoding.encoded == len(encoding.batches) > ahead.AHEAD
    assert len(found) <= len(encoding.batches)
    read = kept = 0
    for batch, memory in found:
        assert memory.gates is not None
        each = (memory.gates != 0).sum(1)
        assert each.tolist() == [int((memory.gates[row, : len(ROWS[i])] != 0).sum()) for row, i in enumerate(batch)]
        assert memory.valid.shape[1] <= int(each.max()) + 1
        assert len(batch) == 1 or memory.valid.numel() <= encoding.limit
        longest = [max(len(ROWS[i]) for i in each) for each in encoding.batches if set(each) & set(batch)]
        assert max(longest) <= min(longest) * (1 + ahead.ALIKE), "other lengths have other outputs"
        read, kept = read + memory.valid.numel(), kept + int((each + 1).sum())
    as_encoded = sum(
        memory.valid.numel() for batch in encoding.batches for _, memory in regroup([encode(encoding, batch)], 10**6)
    )
    assert kept <= read < as_encoded


def encode(encoding: Encoding, batch: list[int]) -> tuple[list[int], Memory]:
    with torch.inference_mode():
        (memory,) = encoding.model.encode(encoding.read(batch), compact=True).memories.values()
    return batch, memory


def test_no_more_batches_are_held_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AHEAD", 2)
    encoding = Encoding(gated=True)
    done = 0
    for batch, _ in encoding.run():
        done += len(batch)
        waiting = sum(map(len, encoding.batches[: encoding.encoded])) - done
        assert waiting <= 2 * max(map(len, encoding.batches))


def seen(memory: Memory, sentence: int) -> set[tuple[int, float, tuple[float, ...]]]:
    """What readers of a sentence see, in no order: position, count, state."""
    assert memory.counts is not None
    return {
        (
            int(memory.positions[sentence, i]),
            float(memory.counts[sentence, i]),
            tuple(memory.states[sentence, i].tolist()),
        )
        for i in memory.valid[sentence].nonzero().squeeze(1).tolist()
    }


def test_joined_memories_hold_what_each_held() -> None:
    encoding = Encoding(gated=True)
    parts = [encode(encoding, batch)[1] for batch in ([0, 1, 2], [30, 31], [40])]
    joined = concatenate_compacted(parts)
    assert joined.valid.shape[0] == 6 and joined.gates is not None and joined.entries is not None
    row = 0
    for part in parts:
        assert part.gates is not None and part.counts is not None
        for sentence in range(part.valid.shape[0]):
            assert seen(joined, row) == seen(part, sentence)
            real = len(ROWS[[0, 1, 2, 30, 31, 40][row]])
            assert joined.gates[row, :real].tolist() == part.gates[sentence, :real].tolist()
            for position in range(real):  # the entry that stands for a position is the position's own, or a stand-in
                entry = int(joined.entries[row, position])
                at = position if joined.gates[row, position] != 0 else -1
                assert bool(joined.valid[row, entry]) and int(joined.positions[row, entry]) == at
            row += 1


class Fixed(MemoryFilter):
    """Keeps the first positions, the same number of every sentence."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, memory: Memory) -> Gates:
        return Gates((memory.positions < self.kept).to(memory.states.dtype))


def test_everything_or_nothing_dropped_beside_others() -> None:
    """One who keeps nothing has a stand-in alone, one who keeps everything has none, and the outputs stay theirs."""
    encoding = Encoding(gated=True)
    held, expected = [], []
    target = torch.tensor([[2, 5, 6, 7]])
    for kept, batch in ((0, [30]), (99, [31]), (4, [32, 33])):
        encoding.model.memory.output[0] = Fixed(kept)
        held.append(encode(encoding, batch))
        with torch.inference_mode():
            hidden = encoding.model.decode(target.expand(len(batch), -1), held[-1][1])
        expected += list(zip(batch, hidden[2], strict=True))
    (batch, _), *more = regroup(held, 1000)
    assert len(batch) == 2 and more, "no batch has more sentences than there were"
    joined = concatenate_compacted([memory for _, memory in held])
    assert joined.valid.sum(1).tolist() == [1, 9, 5, 5] and joined.valid.shape[1] == 9
    with torch.inference_mode():
        found = encoding.model.decode(target.expand(4, -1), joined)[2]
    torch.testing.assert_close(found, torch.stack([hidden for _, hidden in expected]), atol=1e-10, rtol=0)


def test_where_memory_ends_the_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = gated_bundle()
    encode = bundle.model.encode

    def failing(source: Source, **keys: Any) -> object:
        if source.tokens.shape[1] < 20:
            raise torch.OutOfMemoryError("out of memory")
        return encode(source, **keys)

    monkeypatch.setattr(bundle.model, "encode", failing)
    with pytest.raises(UserError, match=r"out of memory on a batch of .* source tokens long, beam 3") as caught:
        translate(bundle, LINES, beam_size=3)
    assert "--batch-tokens" in str(caught.value.hint)
