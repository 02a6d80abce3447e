"""Score a text with a language model: read it once, from its beginning to its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.decoding.text_scores import TextReading, encode_text, score_text
from sparsenmt.engine.contract import Engine
from sparsenmt.errors import UserError
from sparsenmt.evaluation.text_quality import TextQuality
from sparsenmt.process.devices import pick_device, use_threads
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.model_use import check_language_model


def token_nats(
    engine: Engine,
    ids: NDArray[np.integer],
    reading: TextReading,
    device: torch.device,
    *,
    modules: Iterable[nn.Module] = (),
    shown: bool = True,
    label: str = "score",
) -> Iterator[NDArray[np.float64]]:
    """Yield the negative log-likelihoods of the tokens of a text in nats, in order, an array for each segment.

    Args:
        ids: (N,) the tokens, with `EOS` at the end of each line.
        modules: of the model, as for `score_text`.
        shown: show the progress.
        label: of the progress.
    """
    with progress_bar(label, len(ids), unit="token", shown=shown) as advance:
        for values in score_text(engine, ids, reading, device, modules=modules, advance=advance):
            yield -values.double().cpu().numpy()


def total_nats(nats: Iterable[NDArray[np.float64]]) -> float:
    """Return the sum of the negative log-likelihoods of `token_nats`, in nats."""
    return math.fsum(float(values.sum()) for values in nats)


def score_text_file(
    model: Path,
    text: Path,
    *,
    segment_length: int | None = None,
    segment_memory: int | None = None,
    decoder_layers: int | None = None,
    threads: int | None = None,
    device: str = "auto",
) -> tuple[TextQuality, TextReading]:
    """Score a text file with a language model.

    Args:
        segment_length, segment_memory: as in the recipe's `decoding`; None: the recipe's.
        decoder_layers: layers that run; None: the deepest trained exit.

    Raises:
        UserError: the model is no language model, the text is empty, or the memory does not fit the positions.
    """
    use_threads(threads)
    bundle = open_model(model, device=pick_device(device, "--device"), any_task=True)
    check_language_model(bundle.recipe, model)
    reading = TextReading.of(bundle.recipe, segment_length, segment_memory, decoder_layers)
    _check_reading(bundle, reading)
    encoded = encode_text(bundle.tokenizers.target, text)
    nats = total_nats(token_nats(bundle.engine, encoded.ids, reading, bundle.device, modules=bundle.model.modules()))
    return TextQuality(nats, encoded.counts), reading


def _check_reading(bundle: Bundle, reading: TextReading) -> None:
    """Raise UserError if absolute positions of the model do not fit the segments and their memory."""
    model = bundle.recipe.model
    if model.positions == "none":
        return
    if reading.segment_memory:
        raise UserError(
            "the model has absolute positions, which begin at 0 in every segment: there is no memory before it",
            where="--segment-memory",
            hint="Leave it out.",
        )
    if reading.segment_length > model.max_positions:
        raise UserError(
            f"a segment of {reading.segment_length} tokens does not fit the model's {model.max_positions} positions",
            where="--segment-length",
            hint=f"Give {model.max_positions} or less.",
        )
