"""Streams of a text: every token once, in order, whatever the epoch and the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.streams import Segment, StreamPlan
from sparsenmt.data.text_dataset import TextDataset, TextWriter, encode_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.errors import UserError
from sparsenmt.metric import TextCounts
from sparsenmt.recipe import schema

STREAMS, LENGTH = 4, 5


class Numbers:
    """A tokenizer whose tokens are numbers, so that every token of a test's text is another one."""

    size = 70_000

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in lines]


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str, int, int], TextDataset]:
    """Makes the dataset of a line of successive numbers; with EOS it has one token more."""

    def make(name: str, first: int, count: int) -> TextDataset:
        tokenizer: Tokenizer = Numbers()  # type: ignore[assignment]
        with TextWriter(tmp_path / name, name=name, tokenizer=tokenizer) as writer:
            writer.append([LinePart(" ".join(str(number) for number in range(first, first + count)))])
        return TextDataset(tmp_path / name)

    return make


def rows(segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
    """(B, L) inputs and targets of whole streams."""
    inputs, targets = zip(*(segment.read() for segment in segments), strict=True)
    return torch.cat(inputs, 1), torch.cat(targets, 1)


def test_every_token_once_but_the_remainder(text: Callable[..., TextDataset]) -> None:
    dataset = text("a", 100, 212)
    plan = StreamPlan([dataset], [1.0], STREAMS, LENGTH, seed=1)
    assert plan.segments == 213 // (STREAMS * LENGTH) == len(plan.batches(0))
    left_out = set()
    for epoch in range(5):
        inputs, targets = rows(plan.batches(epoch))
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.shape == targets.shape == (STREAMS, plan.segments * LENGTH)
        seen = targets.flatten().tolist()
        assert len(set(seen)) == len(seen)
        missing = set(dataset.ids.tolist()) - set(seen)
        assert len(missing) == 213 - len(seen) < STREAMS * LENGTH
        left_out.add(frozenset(missing))
    assert len(left_out) > 1


def test_streams_are_contiguous(text: Callable[..., TextDataset]) -> None:
    ids = (dataset := text("a", 100, 212)).ids.tolist()
    after = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    plan = StreamPlan([dataset], [1.0], STREAMS, LENGTH, seed=1)
    for epoch in range(30):
        inputs, targets = rows(plan.batches(epoch))
        assert (inputs[:, 1:] == targets[:, :-1]).all()
        assert [after[token] for token in targets[:, :-1].flatten().tolist()] == targets[:, 1:].flatten().tolist()
        # The token before a stream is that of the text, also of another stream; the text's first has none.
        for before, first in zip(inputs[:, 0].tolist(), targets[:, 0].tolist(), strict=True):
            assert before == EOS if first == ids[0] else after[before] == first


def test_nothing_stands_before_the_first_token(
    text: Callable[..., TextDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = text("a", 100, 39)
    plan = StreamPlan([dataset], [1.0], STREAMS, LENGTH, seed=1)
    ids = dataset.ids.tolist()
    for offset, expected in ((0, [EOS, ids[9], ids[19], ids[29]]), (35, [ids[34], ids[4], ids[14], ids[24]])):
        parts = plan._parts

        class Offset:
            def integers(self, size: int, offset: int = offset) -> int:
                return offset

            def permutation(self, count: int) -> list[int]:
                return list(range(count))

        monkeypatch.setattr(np.random, "default_rng", lambda key, made=Offset: made())
        inputs, targets = rows(plan.batches(0))
        assert inputs[:, 0].tolist() == expected and plan._parts == parts
        # At offset 35 the first stream's second segment begins with the text's first token, after its last.
        assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert targets[0, 5] == ids[0] and inputs[0, 5] == EOS


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_share_the_streams(text: Callable[..., TextDataset], size: int) -> None:
    plan = StreamPlan([text("a", 100, 212), text("b", 500, 100)], [1.0, 1.5], STREAMS, LENGTH, seed=3)
    whole = rows(plan.batches(1))
    for rank in range(size):
        share = plan.batches(1, rank, size)
        assert len(share) == plan.segments and share[0].rows == STREAMS // size
        for mine, every in zip(rows(share), whole, strict=True):
            assert torch.equal(mine, every[rank::size])
    with pytest.raises(UserError, match="4 streams cannot be divided among 3 processes"):
        plan.batches(1, 0, 3)


def test_an_epoch_is_a_function_of_the_seed_and_its_number(text: Callable[..., TextDataset]) -> None:
    datasets = [text("a", 100, 212), text("b", 500, 100)]

    def tokens(seed: int, epoch: int) -> list[int]:
        plan = StreamPlan(datasets, [1.0, 0.5], STREAMS, LENGTH, seed)
        return [int(token) for token in rows(plan.batches(epoch))[1].flatten()]

    assert tokens(1, 7) == tokens(1, 7)
    assert len({tuple(tokens(seed, epoch)) for seed in (1, 2) for epoch in range(5)}) == 10


def test_weights_of_corpora(text: Callable[..., TextDataset]) -> None:
    datasets = [text("a", 100, 199), text("b", 500, 99), text("c", 1000, 99)]
    plan = StreamPlan(datasets, [1.0, 2.0, 0.5], 1, 1, seed=1)
    assert plan.segments == 200 + 200 + 50
    halves, orders = set(), set()
    for epoch in range(8):
        targets = rows(plan.batches(epoch))[1].flatten().tolist()
        counts = {name: [targets.count(token) for token in range(first, last)] for name, first, last in RANGES}
        assert set(counts["a"]) == {1} and set(counts["b"]) == {2}
        half = [token for token in targets if token >= 1000]
        assert len(half) in (49, 50) and len(set(half)) == len(half)  # EOS may be among the 50
        halves.add(frozenset(half))
        orders.add(tuple(dict.fromkeys(token // 500 + (token >= 1000) for token in targets if token != EOS)))
    assert len(halves) > 4 and len(orders) > 1


RANGES = (("a", 100, 299), ("b", 500, 599))


def test_rows_of_a_segment(text: Callable[..., TextDataset]) -> None:
    segments = StreamPlan([text("a", 100, 212)], [1.0], STREAMS, LENGTH, seed=1).batches(0)
    segment = segments[3]
    assert (segment.rows, segment.length, segment.tokens) == (STREAMS, LENGTH, STREAMS * LENGTH)
    for first, last in ((0, 2), (2, 4), (3, 99)):
        for some, every in zip(segment.read(first, last), segment.read(), strict=True):
            assert torch.equal(some, every[first:last]) and some.is_contiguous()
    assert [each.read()[1].tolist() for each in segments[2:4]] == [segments[n].read()[1].tolist() for n in (2, 3)]
    assert torch.equal(segments[-1].read()[0], segments[len(segments) - 1].read()[0])
    with pytest.raises(IndexError):
        segments[len(segments)]


def test_a_text_that_is_too_short(text: Callable[..., TextDataset]) -> None:
    dataset = text("a", 100, 18)
    with pytest.raises(UserError, match="19 tokens is shorter than one segment of 5 tokens in each of 4 streams"):
        StreamPlan([dataset], [1.0], STREAMS, LENGTH, seed=1)
    assert StreamPlan([dataset], [1.1], STREAMS, LENGTH, seed=1).segments == 1


def test_lines_become_ids_and_counts(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(schema.TokenizerSection(kind="byte"), ["text"])
    lines = ["Käse für 日本", "", "  two\twords "]
    read = [LinePart(line) for line in lines]
    ids, counts = encode_lines(tokenizer, read)
    assert tokenizer.decode(ids[ids != EOS].tolist()) == "".join(lines)
    assert (ids == EOS).sum() == 3 and ids[-1] == EOS and UNK not in ids
    assert counts == TextCounts(
        tokens=len("".join(lines).encode()) + 3, characters=11 + 0 + 12 + 3, words=3 + 0 + 2 + 3, bytes=17 + 0 + 12 + 3
    )
    with TextWriter(tmp_path / "x", name="some", tokenizer=tokenizer) as writer:
        writer.append(read[:1])
        writer.append(read[1:])
    assert writer.counts == counts
    dataset = TextDataset(tmp_path / "x")
    assert (dataset.name, dataset.counts, dataset.ids.tolist()) == ("some", counts, ids.tolist())
    dataset.check_contents(tokenizer.size)
    with pytest.raises(UserError, match="ids that are not in their vocabulary"):
        dataset.check_contents(200)
    (tmp_path / "x" / "text.bin").write_bytes(b"12")
    with pytest.raises(UserError, match="2 bytes instead of"):
        TextDataset(tmp_path / "x")
