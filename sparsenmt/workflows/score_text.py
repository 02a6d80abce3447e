"""Score a text with a language model: read it once, from its beginning to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.data.text import bounded_batches, read_lines
from sparsenmt.data.text_dataset import encode_lines
from sparsenmt.data.vocabulary import UNK
from sparsenmt.decoding.text_scores import score_text
from sparsenmt.devices import pick_device, use_threads
from sparsenmt.errors import UserError
from sparsenmt.evaluation.text_quality import TextQuality
from sparsenmt.metric import TextCounts
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.progress import notify, progress_bar
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.task import check_language_model
from sparsenmt.store import Bundle, open_model

_MOST_UNKNOWN = 0.01
"""A larger share of unknown tokens is worth a warning."""


@dataclass(frozen=True)
class TextUse:
    """A language model and how it reads a text.

    Args:
        segment_length, segment_memory: as in the recipe's `decoding`; None: the recipe's.
        decoder_layers: layers that run; None: the deepest trained exit.
    """

    model: Path
    segment_length: int | None = None
    segment_memory: int | None = None
    decoder_layers: int | None = None
    threads: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class TextReading:
    """The numbers with which a text is read."""

    segment_length: int
    segment_memory: int
    rows: int
    exits: tuple[int, ...] | None

    @classmethod
    def of(cls, recipe: Recipe, use: TextUse | None = None) -> TextReading:
        """Those of a recipe, with the changes of ``use``."""
        decoding, training = recipe.decoding, recipe.training
        length = decoding.segment_length or training.segment_length
        memory = recipe.model.segment_memory if decoding.segment_memory is None else decoding.segment_memory
        layers = decoding.decoder_layers
        if use is not None:
            length = use.segment_length or length
            memory = memory if use.segment_memory is None else use.segment_memory
            layers = use.decoder_layers or layers
        return cls(length, memory, max(training.batch_tokens // length, 1), None if layers is None else (layers,))

    def record(self) -> dict[str, Any]:
        """What the likelihoods depend on: not the number of segments that are computed at once."""
        exits = None if self.exits is None else list(self.exits)
        return {"segment_length": self.segment_length, "segment_memory": self.segment_memory, "exits": exits}

    @property
    def words(self) -> str:
        """The segments in words."""
        memory = f" with a memory of {self.segment_memory:,} positions" if self.segment_memory else ""
        return f"segments of {self.segment_length:,} tokens{memory}"


def token_nats(
    model: TranslationModel,
    ids: NDArray[np.integer],
    reading: TextReading,
    device: torch.device,
    *,
    shown: bool = True,
    label: str = "score",
) -> NDArray[np.float64]:
    """Compute the negative log-likelihood of every token of a text, (N,).

    Args:
        ids: (N) the tokens, with `EOS` at the end of each line.
        shown: show the progress.
        label: of the progress.
    """
    found = []
    with progress_bar(label, len(ids), unit="token", shown=shown) as advance:
        for values in score_text(
            model,
            ids,
            segment_length=reading.segment_length,
            segment_memory=reading.segment_memory,
            rows=reading.rows,
            device=device,
            exits=reading.exits,
            advance=advance,
        ):
            found.append(-values.double().cpu().numpy())
    return np.concatenate(found)


@dataclass(frozen=True)
class EncodedText:
    """A text as a model's tokens.

    Args:
        ids: (N) the tokens, with `EOS` at the end of each line.
    """

    lines: list[str]
    ids: NDArray[np.int64]
    counts: TextCounts


def read_text(bundle: Bundle, text: Path) -> EncodedText:
    """Read a text with the tokenizer of a language model; warn of unknown tokens.

    Raises:
        UserError: the text is empty or cannot be read.
    """
    lines = list(read_lines(text))
    if not lines:
        raise UserError("the file has no lines", where=str(text), hint="Name the file that was meant.")
    parts = [encode_lines(bundle.tokenizers.target, part) for part in bounded_batches(lines, len)]
    ids, counts = np.concatenate([part for part, _ in parts]), sum((own for _, own in parts), TextCounts())
    unknown = int((ids == UNK).sum()) / len(ids)
    if unknown > _MOST_UNKNOWN:
        notify(
            f"warning: {text}: {unknown:.1%} of the tokens are unknown to the model's vocabulary, and count as one "
            "token each: another language or script than that of the training text?"
        )
    return EncodedText(lines, ids, counts)


def score_text_file(use: TextUse, text: Path) -> tuple[TextQuality, TextReading]:
    """Score a text file with a language model.

    Raises:
        UserError: the model is none of language, the text is empty, or the memory does not fit the positions.
    """
    use_threads(use.threads)
    device = pick_device(use.device, "--device")
    bundle = open_model(use.model, device=device, any_task=True)
    check_language_model(bundle.recipe, use.model)
    reading = TextReading.of(bundle.recipe, use)
    _check_reading(bundle, reading, use)
    encoded = read_text(bundle, text)
    nats = token_nats(bundle.model, encoded.ids, reading, device)
    return TextQuality(float(nats.sum()), encoded.counts), reading


def _check_reading(bundle: Bundle, reading: TextReading, use: TextUse) -> None:
    """Raise UserError if the model's positions do not fit how the text is to be read."""
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
