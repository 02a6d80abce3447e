"""The section `decoding` of a recipe: how a trained model is searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sparsenmt.recipe.choices import (
    LARGEST_BEAM,
    NO_SHORTLIST,
    OWN_SHORTLIST,
    DecodingDtype,
    LengthPenalty,
    LongLines,
    UnknownTokens,
)
from sparsenmt.recipe.section import Section
from sparsenmt.recipe.table_names import DecodingMethod
from sparsenmt.storage.files import sha256_file


class Decoding(Section):
    """Defaults of `decode`, `score` and validation."""

    method: DecodingMethod = Field("beam", description="Search method.")
    beam_size: PositiveInt = Field(
        4,
        le=LARGEST_BEAM,
        description="Hypotheses per sentence. The search stops when this many have ended with `</s>`, "
        "or at the longest output.",
    )
    length_penalty: LengthPenalty = Field(
        "gnmt",
        description="Score of a hypothesis. `gnmt`: log-probability / ((5 + length) / 6)^alpha; `average`: "
        "log-probability / length^alpha; `none`: log-probability.",
    )
    alpha: NonNegativeFloat = Field(0.6, le=10, description="Length-penalty alpha: the exponent.")
    max_length_factor: NonNegativeFloat = Field(
        1.0, description="Longest output: this factor x source tokens + `max_length_offset`."
    )
    max_length_offset: NonNegativeInt = Field(50, description="See `max_length_factor`.")
    min_length: NonNegativeInt = Field(0, description="Shortest output, in tokens.")
    max_lines: NonNegativeInt = Field(
        1,
        description="Language models: lines of an output, that of the prompt included; 0: as many as fit the longest "
        "output.",
    )
    no_repeat_ngram: NonNegativeInt = Field(0, description="Never repeat an n-gram of this length; 0 = allow all.")
    unknown: UnknownTokens = Field(
        "allow",
        description="Unknown tokens of the output. `allow`: written as U+2047; `forbid`: never generated; `copy`: "
        "replaced by the source text that the last decoder layer attends to most.",
    )
    temperature: PositiveFloat = Field(1.0, description="Sampling: divisor of the logits.")
    top_k: NonNegativeInt = Field(0, description="Sampling: keep only the k most probable tokens; 0 = all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sampling: keep the smallest set of tokens with this mass.")
    seed: NonNegativeInt = Field(1, lt=2**32, description="Sampling: random seed.")
    draft_tokens: PositiveInt = Field(4, le=64, description="Speculative search: tokens that are drafted at a time.")
    draft_layers: PositiveInt = Field(1, description="Speculative search: decoder layers that draft.")
    exit_confidence: float = Field(
        0.9, ge=0, le=1, description="Early exit: by how much a probability must exceed the next best one's to stop."
    )
    batch_tokens: PositiveInt = Field(
        2048, description="Largest size of a batch: source tokens, including padding, times the beam size."
    )
    dtype: DecodingDtype = Field(
        "fp32", description="Precision of matrix products in `decode`; `auto`: the fastest here; `fp16`: for GPUs."
    )
    threads: PositiveInt | None = Field(None, description="Number of CPU threads of `decode`. Default: all cores.")
    encoder_layers: PositiveInt | None = Field(
        None, description="Number of encoder layers to run, from the first on. Default: the deepest trained exit."
    )
    decoder_layers: PositiveInt | None = Field(
        None, description="Number of decoder layers to run, from the first on. Default: the deepest trained exit."
    )
    source_language: str | None = Field(
        None, description="Code of the source's language, of a model of several; `sparsenmt import` names them."
    )
    target_language: str | None = Field(
        None, description="Code of the language to translate to, of a model of several; also in training."
    )
    segment_length: PositiveInt | None = Field(
        None,
        le=2**20,
        description="Language models: tokens that are scored at once. Default: `training.segment_length`.",
    )
    segment_memory: NonNegativeInt | None = Field(
        None,
        le=2**20,
        description="Language models: positions that are kept for the next segment. Default: `model.segment_memory`.",
    )

    shortlist: str | None = Field(
        None,
        description="Tokens that may come out of a sentence. `model`: the shortlist that the model was imported with; "
        "a file of `sparsenmt shortlist`; `none`, and by default: all. Scores of given translations use all.",
    )

    long: LongLines | None = Field(
        None,
        description="Sources longer than those of the training text. `split`: each of their sentences is translated by "
        "itself, in parts if it is beyond `data.filters.max_length` or the positions; `cut`: tokens beyond the "
        "positions are left out; `refuse`: an error. Default: `split`; of summaries (one "
        "language, or `data.filters.max_source_length`) `cut`.",
    )

    younger = frozenset(
        {
            *("segment_length", "segment_memory", "source_language", "target_language", "shortlist", "max_lines"),
            *("draft_tokens", "draft_layers", "exit_confidence", "long", "threads"),
        }
    )

    def recorded(self) -> dict[str, Any]:
        """These settings as JSON values, for records of what an output depends on.

        A key that is younger than records on disk is in it only where it changes the output. Of a file that is named,
        the contents count. The number of threads is one of `engine.numerics`.
        """
        left_out = {"threads", *(["unknown"] if self.unknown == "allow" else [])}
        found: dict[str, Any] = self.model_dump(mode="json", exclude=left_out)
        if self.shortlist == NO_SHORTLIST:
            del found["shortlist"]
        elif (path := self.shortlist_file) is not None and path.is_file():
            found["shortlist"] = sha256_file(path)
        return found

    @property
    def undivided(self) -> Decoding:
        """These settings for lines that cannot be translated in parts."""
        return self if self.long == "refuse" else self.model_copy(update={"long": "cut"})

    @property
    def own_shortlist(self) -> bool:
        """True if the shortlist is the model's own."""
        return self.shortlist == OWN_SHORTLIST

    @property
    def shortlist_file(self) -> Path | None:
        """The file of the shortlist; None: it is the model's own, or there is none."""
        return (
            None if self.shortlist is None or self.shortlist in (NO_SHORTLIST, OWN_SHORTLIST) else Path(self.shortlist)
        )

    @property
    def encoder_exits(self) -> tuple[int, ...] | None:
        """The encoder depth whose output is used; None: the deepest trained exit."""
        return None if self.encoder_layers is None else (self.encoder_layers,)

    @property
    def decoder_exits(self) -> tuple[int, ...] | None:
        """The decoder depth whose output is used; None: the deepest trained exit."""
        return None if self.decoder_layers is None else (self.decoder_layers,)

    @property
    def depth(self) -> tuple[int, int] | None:
        """Encoder and decoder layers to run, if both are set."""
        return (self.encoder_layers, self.decoder_layers) if self.encoder_layers and self.decoder_layers else None

    def at(self, depth: tuple[int, int] | None) -> Decoding:
        """These settings with other numbers of encoder and decoder layers; None: the deepest trained exits."""
        encoder, decoder = depth or (None, None)
        return self.model_copy(update={"encoder_layers": encoder, "decoder_layers": decoder})
