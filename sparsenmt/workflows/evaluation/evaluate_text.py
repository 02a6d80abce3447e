"""The evaluation of a language model on a text: likelihood, attention, spans. Results are kept beside the model."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.density import DensityCounter
from sparsenmt.analysis.observe import ATTENTION_TOKENS, observe_text
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model_directory import model_identity, parameter_count, read_recipe
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.text_scores import EncodedText, TextReading, encode_text
from sparsenmt.engine.numerics import numerics
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import Comparison, PairedTest, compare_statistics
from sparsenmt.evaluation.text_quality import TextQuality, block_qualities, text_statistics
from sparsenmt.metric import TEXT_METRICS, TextCounts
from sparsenmt.process.devices import pick_device
from sparsenmt.process.progress import progress_bar
from sparsenmt.workflows.evaluation.evaluation_file import (
    KeptEvaluation,
    SiteAttention,
    evaluation_key,
    evaluation_path,
    site_attention,
)
from sparsenmt.workflows.evaluation.reference_texts import PlainText
from sparsenmt.workflows.evaluation.score_text import token_nats


@dataclass(frozen=True)
class TextBlock:
    """A block of lines: its negative log-likelihood in nats, and its sizes."""

    nats: float
    tokens: int
    characters: int
    words: int
    bytes: int


@dataclass(kw_only=True)
class TextEvaluation(KeptEvaluation):
    """One language model on one text.

    Args:
        blocks: those of `text_quality.block_qualities`.
        spans: for each layer those of its heads, in positions; empty without learned spans.
        reading: the segments in which the text was read, in words.
    """

    blocks: list[TextBlock]
    spans: list[list[float]] = field(default_factory=list)
    reading: str = ""
    sentences: ClassVar[None] = None
    """No number: a text has lines, not sentences."""
    sparsity: ClassVar[None] = None
    """No rate: there is no source whose positions could be dropped."""

    @property
    def qualities(self) -> list[TextQuality]:
        """The quality of every block."""
        return [
            TextQuality(each.nats, TextCounts(each.tokens, each.characters, each.words, each.bytes))
            for each in self.blocks
        ]

    @property
    def quality(self) -> TextQuality:
        """The quality of the whole text."""
        found = self.qualities
        return TextQuality(sum(each.nats for each in found), sum((each.counts for each in found), TextCounts()))

    @property
    def scores(self) -> dict[str, float]:
        """Metric of texts -> value."""
        return {name: self.quality.value(name) for name in TEXT_METRICS}

    @property
    def signatures(self) -> dict[str, str]:
        """Metric -> how the text was read."""
        tokens = "; per token: not tested between models with different vocabularies"
        return {name: self.reading + tokens * (each.per == "token") for name, each in TEXT_METRICS.items()}

    @property
    def size(self) -> str:
        """The size of the text, for titles."""
        count = len(self.blocks)
        return f"{self.quality.counts.characters:,} characters in {count:,} block{'s' if count != 1 else ''} of lines"

    @property
    def mean_span(self) -> float | None:
        """The mean of all heads in positions; None without learned spans."""
        spans = [span for layer in self.spans for span in layer]
        return sum(spans) / len(spans) if spans else None

    @property
    def longest_span(self) -> float | None:
        """The longest of all heads in positions; None without learned spans."""
        return max((span for layer in self.spans for span in layer), default=None)

    def against(self, other: TextEvaluation, metric: str, test: PairedTest) -> dict[str, float]:
        """Test the difference to another model on the same blocks of lines; returns `Comparison.record` of it."""

        def make() -> Comparison:
            pair = text_statistics(self.qualities, metric), text_statistics(other.qualities, metric)
            (found,) = compare_statistics([pair], test)
            return found

        return self.keep_test(metric, repr(other.blocks), test, make)

    def is_same(self, kept: Self) -> bool:
        return kept.blocks == self.blocks


def evaluate_text(directory: Path, text: PlainText, *, attention: bool = True, device: str = "auto") -> TextEvaluation:
    """Read a text with a language model as its recipe says, and measure it; kept results are not measured again.

    Args:
        attention: True to count attended positions, too, on the first `ATTENTION_TOKENS` tokens.
        device: as for `pick_device`.

    Raises:
        UserError: a file or the model is not what it must be.
    """
    identity, place = model_identity(directory), _path_and_key(directory, text)
    label = f"{directory.name}: {text.name}"
    encoded: list[EncodedText] = []  # once for both measurements

    def read(bundle: Bundle) -> NDArray[np.integer]:
        """Return the ids of the tokens of the text, (N,)."""
        if not encoded:
            encoded.append(encode_text(bundle.tokenizers.target, text.path))
        return encoded[0].ids

    def open_bundle(directory: Path) -> Bundle:
        return open_model(directory, device=pick_device(device, "--device"), any_task=True)

    def make(bundle: Bundle) -> TextEvaluation:
        ids, reading, modules = read(bundle), TextReading.of(bundle.recipe), bundle.model.modules()
        parts = token_nats(bundle.engine, ids, reading, bundle.device, modules=modules, label=label)
        nats = np.concatenate(list(parts))
        lines = list(read_lines(text.path, longest=sys.maxsize))
        found_blocks = block_qualities(nats, ids, lines, bundle.tokenizers.target.spans)
        return TextEvaluation(
            path=place[0],
            key=place[1],
            parameters=parameter_count(directory),
            numerics=numerics(bundle.device),
            blocks=[TextBlock(each.nats, **asdict(each.counts)) for each in found_blocks],
            spans=bundle.model.logged().get("span", {}).get("decoder_self", []),
            reading=reading.words,
        )

    def attend(bundle: Bundle) -> dict[str, SiteAttention]:
        ids, counter = read(bundle)[:ATTENTION_TOKENS], DensityCounter()
        with progress_bar(f"{label}: attention", len(ids), unit="token") as advance:
            observe_text(bundle, ids, TextReading.of(bundle.recipe), [counter], advance)
        return site_attention(counter.result(label))

    return TextEvaluation.of(directory, place, identity, open_bundle, make, attend if attention else None)


def kept_text_evaluation(directory: Path, text: PlainText) -> TextEvaluation | None:
    """Return the kept results of `evaluate_text`, or None; nothing is read."""
    return TextEvaluation.read(*_path_and_key(directory, text))


def check_text_metrics(scoring: ScoringOptions) -> None:
    """Raise UserError for metrics of translations, and settings that only these have."""
    for metric in scoring.metrics:
        if metric not in TEXT_METRICS:
            raise UserError(
                f"{metric} compares translations with references: a language model has none",
                where="--metric",
                hint=f"Choose from {', '.join(TEXT_METRICS)}.",
            )
    settings = {"lowercase": scoring.lowercase, "tokenize": scoring.tokenize, "language": scoring.language}
    for option, given in settings.items():
        if given:
            raise UserError(
                "has no meaning for a language model: it predicts the text as it is",
                where=f"--{option}",
                hint="Leave it out.",
            )


def _path_and_key(directory: Path, text: PlainText) -> tuple[Path, dict[str, Any]]:
    """Return the file of an evaluation, and everything that it depends on."""
    digests, reading = text.digests(), TextReading.of(read_recipe(directory))
    # Older files took what some head sees as seen by all, and had no blocks of a part of a line.
    decoding = reading.record() | {"visible": "by head", "blocks": "of lines and parts of long ones"}
    return evaluation_path(directory, text.name, digests), evaluation_key(model_identity(directory), decoding, digests)
