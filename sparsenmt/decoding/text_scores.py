"""The log-probabilities that a language model gives to a text, read once from its beginning to its end.

Shapes: N tokens of the text, B segments that are read together, T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.forced_decoding import token_log_probabilities
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import TranslationModel


@torch.inference_mode()
def score_text(
    model: TranslationModel,
    tokens: NDArray[np.integer],
    *,
    segment_length: int,
    segment_memory: int,
    rows: int,
    device: torch.device,
    exits: Sequence[int] | None = None,
    advance: Callable[[int], object] | None = None,
) -> Iterator[Tensor]:
    """Yield the natural log-probabilities of all tokens of a text, in order, segment by segment: no token is skipped.

    With a segment memory the text is one stream, and every layer keeps the keys and values of the positions before a
    segment. Without one, a segment is read alone, and ``rows`` segments at once.

    Args:
        tokens: (N).
        segment_length: tokens of a segment; the last one may be shorter.
        segment_memory: positions before a segment to which it attends.
        exits: as for `TranslationModel.decode`.
        advance: is told the number of tokens of each segment.

    Raises:
        UserError: a log-probability is not finite.
    """
    cache = model.new_cache(model.no_source(1), exits=exits, segment_memory=segment_memory) if segment_memory else None
    previous, first = EOS, 0  # a text begins after the end of a line
    while first < len(tokens):
        count = segment_length if cache is not None else _whole(len(tokens) - first, segment_length, rows)
        wanted = torch.from_numpy(tokens[first : first + count].astype(np.int64)).to(device)
        inputs = torch.cat([wanted.new_tensor([previous]), wanted[:-1]])
        shape = (-1, min(segment_length, len(wanted)))
        memory = model.no_source(inputs.view(shape).shape[0]) if cache is None else cache.memory
        (hidden,) = model.decode(inputs.view(shape), memory, cache=cache, exits=exits).values()
        values = token_log_probabilities(model, hidden.flatten(0, 1), wanted)
        if not bool(values.isfinite().all()):
            raise UserError(
                f"the model's probabilities of tokens {first + 1:,} to {first + len(wanted):,} are not finite",
                where="the text",
                hint="The model is damaged, or its training diverged: take an earlier checkpoint.",
            )
        previous, first = int(wanted[-1]), first + len(wanted)
        if advance:
            advance(len(wanted))
        yield values


def _whole(left: int, length: int, rows: int) -> int:
    """Tokens to read together: whole segments, or the last one alone."""
    return min(left // length, rows) * length or left
