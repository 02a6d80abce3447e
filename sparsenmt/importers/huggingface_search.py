"""The settings of a search of Transformers, as keys of `decoding`, and notes on all that this program does not have.

Transformers reads ``generation_config.json`` alone; without that file, the same keys of ``config.json``. Its lengths
count every token that the decoder reads: its start, and a forced first token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.importers.foreign_files import SWITCH, ValueKind, check_values, read_object, real_number, whole_number
from sparsenmt.recipe.errors import show

GENERATION_CONFIG = "generation_config.json"
TOKEN_ID = whole_number(0, 1 << 22)
_COUNT = whole_number(0, 1 << 20)
_WORDS = ValueKind(
    "a list of tokens, or of lists of tokens",
    lambda value: isinstance(value, list) and all(TOKEN_ID.or_list().fits(each) for each in value),
)
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_NEEDED = ("eos_token_id", "decoder_start_token_id")  # of a search
SEARCH_KINDS: dict[str, ValueKind] = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "decoder_start_token_id"), TOKEN_ID),
    **dict.fromkeys(("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"), TOKEN_ID.or_list()),
    **dict.fromkeys(("num_beams", "max_length", "max_new_tokens"), whole_number(1, 1 << 20)),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "top_k"), _COUNT),
    **{"length_penalty": real_number(-100, 100), "temperature": real_number(1e-3, 1000), "top_p": real_number(1e-3, 1)},
    **dict.fromkeys(("do_sample", "renormalize_logits", "force_bos_token_to_be_generated"), SWITCH),
    **{"bad_words_ids": _WORDS, "suppress_tokens": _WORDS},
}
"""The values that the keys of a search may have."""

_USED = frozenset(SEARCH_KINDS.keys() - {"force_bos_token_to_be_generated"} | {"early_stopping"})
_NO_EFFECT = frozenset(
    {
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "is_assistant"),
        *("assistant_lookbehind", "target_lookbehind", "assistant_early_exit", "use_mtp", "speculation_type"),
        *("compile_config", "disable_compile", "continuous_batching_config", "remove_invalid_values"),
        *("transformers_version", "_from_model_config", "_commit_hash", "_original_object_hash"),
    }
)
"""Keys of the speed and of the form of a result, and of the file."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beam_groups", "num_return_sequences"), (1,)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "diversity_penalty", "epsilon_cutoff", "eta_cutoff"), (0,)),
    **dict.fromkeys(("begin_suppress_tokens", "forced_decoder_ids"), ([],)),
    **dict.fromkeys(("penalty_alpha", "prompt_lookup_num_tokens", "assistant_ensemble_weight"), (0,)),
    **dict.fromkeys(("min_p", "top_h", "max_time", "stop_strings", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("sequence_bias", "watermarking_config", "dola_layers", "constraints", "force_words_ids"), ()),
    **dict.fromkeys(("token_healing",), (False,)),
    **{"max_matching_ngram_size": (2,)},
}
"""Keys that this program does not have, with the values beside null that change nothing; any other key is told too."""

_OF_SAMPLING = frozenset({"min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"})
SEARCH_KEYS = _USED | _NO_EFFECT | _NEUTRAL.keys() | {"force_bos_token_to_be_generated"}
"""Keys of ``config.json`` that are settings of a search, unless ``generation_config.json`` exists."""


def listed(ids: Any) -> list[int]:
    """One id, a list of them, or null, as a list."""
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search that Transformers reads in a directory, without nulls.

    Args:
        values: with the ids of tokens, which ``config.json`` has if ``generation_config.json`` lacks them.
        notes: on what was filled in.
    """

    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path, config: Mapping[str, Any]) -> SearchSettings:
        """Read the settings; ``config``: the values of ``config.json``.

        Raises:
            UserError: ``generation_config.json`` is broken, or a value is of another kind.
        """
        path = directory / GENERATION_CONFIG
        given = {key: value for key, value in config.items() if value is not None}
        if not path.exists():
            values = {key: value for key, value in given.items() if key in SEARCH_KEYS}
            if values.pop("force_bos_token_to_be_generated", False) and "bos_token_id" in values:
                values["forced_bos_token_id"] = values["bos_token_id"]
            return cls(values)
        values = {key: value for key, value in read_object(path).items() if value is not None}
        check_values(values, SEARCH_KINDS, path)
        missing = [key for key in _TOKENS if key in given and key not in values]
        if "decoder_start_token_id" in missing and "bos_token_id" in values:
            missing.remove("decoder_start_token_id")  # the decoder begins with bos_token_id
        notes = [f"{key} is that of config.json: {GENERATION_CONFIG} has none." for key in missing if key in _NEEDED]
        return cls({**{key: given[key] for key in missing}, **values}, tuple(notes))

    @property
    def start(self) -> int | None:
        """The token with which the decoder begins; None: the settings name none."""
        found: int | None = self.values.get("decoder_start_token_id", self.values.get("bos_token_id"))
        return found

    @property
    def ends(self) -> list[int]:
        """The tokens that end an output."""
        return listed(self.values.get("eos_token_id"))


def decoding_settings(
    search: Mapping[str, Any],
    prefix: int = 0,
    *,
    unknown: int = -1,
    never: Collection[int] = (),
    padding_comes: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """The `decoding` section for the settings of a search, and notes on those that this program does not have.

    Args:
        prefix: tokens that the decoder is given after its start.
        unknown: the id of unknown tokens.
        never: ids of tokens that never come here.
        padding_comes: the padding has a share of the softmax.
    """
    beams = int(search.get("num_beams", 1))
    lengths, notes = _lengths(search, prefix)
    penalty = float(search.get("length_penalty", 1.0))
    section: dict[str, Any] = {
        **{"beam_size": beams, "length_penalty": "average", "alpha": max(penalty, 0.0), **lengths},
        "no_repeat_ngram": int(search.get("no_repeat_ngram_size", 0)),
    }
    if search.get("do_sample"):
        section |= {"method": "sample", "temperature": float(search.get("temperature", 1.0))}
        section |= {"top_k": int(search.get("top_k", 50)), "top_p": float(search.get("top_p", 1.0))}
        if beams > 1:
            notes.append(f"num_beams: {beams} is left out: with do_sample one hypothesis is drawn.")
    elif beams > 1:
        notes += _beam_notes(search, penalty)
    if section["no_repeat_ngram"] == 1:
        notes.append("no_repeat_ngram_size: 1 forbids the tokens that the decoder is given only in Transformers.")
    bad = _bad_words(search, never)
    if [unknown] in bad:
        section["unknown"] = "forbid"
        bad.remove([unknown])
    if bad:
        notes.append(
            f"{len(bad)} of the sequences in bad_words_ids and suppress_tokens may come: there is no key for them."
        )
    shares = section["min_length"] or section["no_repeat_ngram"] or "unknown" in section or padding_comes
    if search.get("renormalize_logits") and beams > 1 and not search.get("do_sample") and shares:
        notes.append("renormalize_logits: true is left out: tokens that may not come keep their share of the softmax.")
    return section, [*notes, *_left_out(search)]


def _lengths(search: Mapping[str, Any], prefix: int) -> tuple[dict[str, Any], list[str]]:
    """The keys of lengths: those of Transformers less the tokens that the decoder is given, and a forced end."""
    given, notes = 1 + prefix, []
    longest, shortest = search.get("max_length"), int(search.get("min_length", 0))
    if (most := search.get("max_new_tokens")) is not None:
        longest = int(most) + 1
    if (least := search.get("min_new_tokens")) is not None:
        shortest = int(least) + 1
    keys = {"min_length": max(shortest - given, 0)}
    if longest is None:
        notes.append(
            "There is no max_length: Transformers ends an output after 20 tokens. Here the longest output has the "
            "length of its source and 50 tokens more."
        )
        return keys, notes
    # A forced end takes the last place, so that one token less is chosen.
    limit = int(longest) - given - (1 if search.get("forced_eos_token_id") is not None else 0)
    if limit < max(1, keys["min_length"] + 1):
        notes.append(
            f"The longest output, {longest} tokens with those that the decoder is given, is not longer than the "
            f"shortest, {shortest}: here it is."
        )
    return {"max_length_factor": 0.0, "max_length_offset": max(limit, 1), **keys}, notes


def _beam_notes(search: Mapping[str, Any], penalty: float) -> list[str]:
    """Notes on a beam search."""
    notes = []
    if penalty < 0:
        notes.append(f"length_penalty {penalty:g} is not available: hypotheses are ranked by their log-probability.")
    if search.get("early_stopping") is not True:
        notes.append(
            "The search ends when as many hypotheses as the beam is wide have ended; that of Transformers, without "
            "early_stopping, when no other can become better."
        )
    if {"max_length", "max_new_tokens"} & search.keys():
        notes.append(
            "Hypotheses that are cut at the longest output come after all that ended; in Transformers they compete."
        )
    return notes


def _bad_words(search: Mapping[str, Any], never: Collection[int]) -> list[list[int]]:
    """The sequences that may not come, each once, without tokens that never come here."""
    rows = [*(search.get("bad_words_ids") or []), *(search.get("suppress_tokens") or [])]
    found = [row for row in map(listed, rows) if row not in [[token] for token in never]]
    return [row for number, row in enumerate(found) if row not in found[:number]]


def _left_out(search: Mapping[str, Any]) -> list[str]:
    """Notes on keys that this program does not have."""
    notes = []
    ends, forced = (listed(search.get(f"{key}eos_token_id")) for key in ("", "forced_"))
    if len(ends) > 1:
        notes.append(f"eos_token_id: {ends}: only the first ends an output.")
    if forced and forced != ends[:1]:
        notes.append(f"forced_eos_token_id: {forced} is left out: it is not the end of an output.")
    for key, value in search.items():
        known = key in _USED | _NO_EFFECT or (key in _OF_SAMPLING and not search.get("do_sample"))
        if not known and value is not None and value not in _NEUTRAL.get(key, ()):
            notes.append(f"{key}: {show(value)} is not available, and left out.")
    return notes
