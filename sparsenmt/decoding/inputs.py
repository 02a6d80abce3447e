"""Lines of text as sources for a model.

Shapes: B sentences, S source pieces, </s> included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from sparsenmt.data.batching import pad
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import Source, TranslationModel
from sparsenmt.progress import notify


class ModelBundle(Protocol):
    """A model with what it takes to feed it: what `store.open_model` returns."""

    @property
    def model(self) -> TranslationModel: ...
    @property
    def tokenizers(self) -> Tokenizers: ...
    @property
    def features(self) -> FeatureSet: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def max_source_length(self) -> int:
        """Most pieces of a source that are read, EOS apart."""
        ...

    @property
    def cuts_by_choice(self) -> bool:
        """True if the recipe cuts long sources, not the model's positions."""
        ...

    @property
    def depth(self) -> tuple[int, int]:
        """Encoder and decoder layers that run unless told otherwise: those of the recipe, or the deepest exits."""
        ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class SourceLine:
    """One line of input."""

    number: int  # from 0
    text: str
    ids: list[int]  # pieces and EOS; EOS alone for a line of nothing but spaces
    cut: int = 0  # pieces beyond `ModelBundle.max_source_length`
    tags: TaggedSentence | None = None  # given beside the line

    @property
    def empty(self) -> bool:
        return len(self.ids) == 1

    @property
    def kept(self) -> int:
        """Pieces without EOS."""
        return len(self.ids) - 1


def cut_warning(line: str, kept: int, cut: int, done: str) -> str:
    """The warning about a line whose last ``cut`` pieces are left out; ``done`` is what happens to the others."""
    return f"warning: {line} is too long: {kept} of {kept + cut} pieces are {done}"


def cut_summary(cut: int, limit: int) -> str:
    """The note about sources that were cut because the recipe says so."""
    sources = "1 source was" if cut == 1 else f"{cut:,} sources were"
    return f"{sources} cut to {limit:,} piece{'' if limit == 1 else 's'} (data.filters.max_source_length)"


def warn_of_cut_lines(bundle: ModelBundle, lines: Sequence[SourceLine], text: str, done: str) -> None:
    """Report cut sources: their number if the recipe cuts them, otherwise every line that is too long for the model.

    Args:
        text: the name of the text in messages.
        done: the participle for what happens to the tokens that are kept, e.g. "translated".
    """
    cut = [line for line in lines if line.cut]
    if cut and bundle.cuts_by_choice:
        notify(cut_summary(len(cut), bundle.max_source_length))
        return
    for line in cut:
        notify(cut_warning(f"{text}, line {line.number + 1},", line.kept, line.cut, done))


def read_sources(bundle: ModelBundle, lines: Sequence[InputLine]) -> list[SourceLine]:
    """Tokenize lines. A line longer than the model reads is cut and records how much; a blank line is empty."""
    most = bundle.max_source_length
    result = []
    for line, ids in zip(lines, bundle.tokenizers.source.encode_batch([line.text for line in lines]), strict=True):
        if not line.text.strip(" "):  # to some tokenizers a space is a token
            ids = []
        result.append(SourceLine(line.number, line.text, [*ids[:most], EOS], max(len(ids) - most, 0), line.tags))
    return result


def make_source(bundle: ModelBundle, lines: Sequence[SourceLine]) -> Source:
    """A padded batch with its features."""
    tokens, valid = pad([line.ids for line in lines])
    computed = [bundle.features.compute(line.ids, line.text, line.tags) for line in lines]
    features = {name: pad([row[name] for row in computed])[0].to(bundle.device) for name in bundle.features.names}
    return Source(tokens.to(bundle.device), valid.to(bundle.device), features)


@contextmanager
def naming_shape(batch: Sequence[SourceLine], rest: str, *, batch_tokens: int, alone: str) -> Iterator[None]:
    """Where the block runs out of memory, say what it was doing, and what to change.

    Args:
        rest: what else there is to say of the batch's shape, e.g. ``"beam 4"``.
        batch_tokens: the limit that made the batch; `length_batches`.
        alone: what helps where the batch is one sentence, which no limit makes smaller.

    Raises:
        UserError: instead of the error that PyTorch raises.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        longest, count = max(batch, key=lambda line: len(line.ids)), len(batch)
        sentences = "1 sentence" if count == 1 else f"{count:,} sentences"
        smaller = f"Lower decoding.batch_tokens (`decode` and `score`: --batch-tokens), now {batch_tokens:,}."
        raise UserError(
            f"out of memory on a batch of {sentences}, {len(longest.ids):,} source pieces long, {rest}",
            where=f"line {longest.number + 1:,}" + (" and others" if count > 1 else ""),
            hint=alone if count == 1 else smaller,
        ) from None


def not_numbers(line: SourceLine) -> UserError:
    """The error about a model that gives NaN or infinity."""
    return UserError(
        "the model's scores are not numbers",
        where=f"line {line.number + 1:,}",
        hint="Its training has diverged: average earlier checkpoints, or train it again with a lower learning rate.",
    )
