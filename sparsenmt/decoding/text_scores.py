"""The log-probabilities that a language model gives to a text, read once from its beginning to its end.

Shapes: N tokens of the text, B segments that are read together, T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsenmt.data.dataset import count_token
from sparsenmt.data.line_parts import read_line_parts
from sparsenmt.data.text import bounded_batches
from sparsenmt.data.text_dataset import encode_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.decoding.forced_decoding import token_log_probabilities
from sparsenmt.engine.contract import Engine
from sparsenmt.errors import UserError
from sparsenmt.metric import TextCounts
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import nonfinite_method
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.schema import Recipe

_MOST_UNKNOWN = 0.01
"""A larger share of unknown tokens is worth a warning."""


@dataclass(frozen=True)
class TextReading:
    """The numbers with which a text is read."""

    segment_length: int
    segment_memory: int
    rows: int
    exits: tuple[int, ...] | None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        segment_length: int | None = None,
        segment_memory: int | None = None,
        decoder_layers: int | None = None,
    ) -> TextReading:
        """Those of a recipe, unless they are given; ``decoder_layers``: layers that run, by default all."""
        decoding, training = recipe.decoding, recipe.training
        length = segment_length or decoding.segment_length or training.segment_length
        memories = (segment_memory, decoding.segment_memory, recipe.model.segment_memory)
        memory = next(each for each in memories if each is not None)
        layers = decoder_layers or decoding.decoder_layers
        return cls(length, memory, max(training.batch_tokens // length, 1), None if layers is None else (layers,))

    def record(self) -> dict[str, Any]:
        """All that the likelihoods depend on; the number of segments that are computed at once is not."""
        exits = None if self.exits is None else list(self.exits)
        return {"segment_length": self.segment_length, "segment_memory": self.segment_memory, "exits": exits}

    @property
    def words(self) -> str:
        """The segments in words."""
        memory = f" with a memory of {self.segment_memory:,} positions" if self.segment_memory else ""
        return f"segments of {self.segment_length:,} tokens{memory}"


@dataclass(frozen=True)
class EncodedText:
    """A text as a model's tokens.

    Args:
        ids: (N) the tokens, with `EOS` at the end of each line.
    """

    ids: NDArray[np.integer]
    counts: TextCounts


def encode_text(tokenizer: Tokenizer, path: Path, *, most: int | None = None) -> EncodedText:
    """Read a text as the tokens of a language model; warn of unknown ones. Two or four bytes of memory a token.

    Args:
        most: tokens, from the first; None: the whole text.

    Raises:
        UserError: there are no lines; or as `read_line_parts`.
    """
    found, counts = [], TextCounts()
    with progress_bar(f"encoding {path.name}", None, unit="character") as advance:
        for part in bounded_batches(read_line_parts(path), lambda line: line.characters):
            ids, own = encode_lines(tokenizer, part)
            found.append(ids)
            counts += own
            advance(own.characters)
            if most is not None and counts.tokens >= most:
                break
    if not found:
        raise UserError("the file has no lines", where=str(path), hint="Name the file that was meant.")
    ids = np.concatenate(found)
    unknown = count_token(ids, UNK) / len(ids)
    if unknown > _MOST_UNKNOWN:
        notify(
            f"warning: {path}: {unknown:.1%} of the tokens are unknown to the model's vocabulary, and count as one "
            "token each: another language or script than that of the training text?"
        )
    return EncodedText(ids[:most], counts)


@torch.inference_mode()
def score_text(
    engine: Engine,
    tokens: NDArray[np.integer],
    reading: TextReading,
    device: torch.device,
    *,
    modules: Iterable[nn.Module] = (),
    advance: Callable[[int], object] | None = None,
) -> Iterator[Tensor]:
    """Yield the natural log-probabilities of all tokens of a text, in order, segment by segment: no token is skipped.

    With a segment memory the text is one stream, and every layer keeps the keys and values of the positions before a
    segment. Without one, a segment is read alone, and several at once.

    Args:
        tokens: (N).
        reading: the segments; the last one may be shorter.
        modules: of the model, to find out if a method from outside the package is the reason of an error.
        advance: is told the number of tokens of each segment.

    Raises:
        UserError: a log-probability is not finite.
    """
    reader, length, first = TextReader(engine, reading, device), reading.segment_length, 0
    while first < len(tokens):
        left = (
            len(tokens) - first
        )  # without a memory: as many whole segments as are read at once, or the last one alone
        count = length if reading.segment_memory else min(left // length, reading.rows) * length or left
        wanted = torch.from_numpy(tokens[first : first + count].astype(np.int64)).to(device)
        values = reader.read(wanted)
        if not bool(values.isfinite().all()):
            again = nonfinite_method(modules, partial(TextReader(engine, reading, device).read, wanted))
            raise again or UserError(
                f"the model's probabilities of tokens {first + 1:,} to {first + len(wanted):,} are not finite",
                where="the text",
                hint="The model is damaged, or its training diverged: take an earlier checkpoint.",
            )
        first += len(wanted)
        if advance:
            advance(len(wanted))
        yield values


class TextReader:
    """A language model that reads a text, part by part.

    Args:
        reading: the segments.
    """

    def __init__(self, engine: Engine, reading: TextReading, device: torch.device) -> None:
        self._engine, self._reading, self._device = engine, reading, device
        self._previous = EOS  # a text begins after the end of a line
        keep, exits = reading.segment_memory, reading.exits
        self.cache = engine.new_cache(self._memory(1), exits=exits, segment_memory=keep) if keep else None
        """The keys and values of the segment memory; None without one."""

    @torch.inference_mode()
    def read(self, wanted: Tensor) -> Tensor:
        """Read the next tokens (N): one segment, or without a memory several; return their log-probabilities (N)."""
        cache = self.cache
        inputs = torch.cat([wanted.new_tensor([self._previous]), wanted[:-1]])
        rows = inputs.view(-1, min(self._reading.segment_length, len(wanted)))
        if cache is None:
            cache = self._engine.new_cache(self._memory(len(rows)), exits=self._reading.exits, at_once=True)
        hidden = self._engine.step(rows, cache)
        self._previous = int(wanted[-1])
        return token_log_probabilities(self._engine, hidden.flatten(0, 1), wanted)

    def _memory(self, rows: int) -> Memory:
        return self._engine.encode(Source.none(rows, self._device)).memory
