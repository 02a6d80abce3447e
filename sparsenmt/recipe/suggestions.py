"""What the user may have meant: the nearest valid key, or the section that a key belongs in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from sparsenmt.recipe.keys import all_keys
from sparsenmt.recipe.problems import Complaint, KeyPath

# Names that other toolkits use for the same thing.
_OTHER_NAMES = {
    "lr": "training.learning_rate",
    "batch_size": "training.batch_tokens",
    "max_tokens": "training.batch_tokens",
    "epochs": "training.max_epochs",
    "steps": "training.max_updates",
    "max_steps": "training.max_updates",
    "train_steps": "training.max_updates",
    "warmup": "training.warmup_updates",
    "warmup_steps": "training.warmup_updates",
    "early_stopping": "training.validation.patience",
    "beam": "decoding.beam_size",
    "vocab_size": "data.tokenizer.vocabulary_size",
    "vocabulary": "data.tokenizer.vocabulary_size",
    "d_model": "model.dimension",
    "hidden_size": "model.dimension",
    "embed_dim": "model.dimension",
    "ffn_dim": "model.feed_forward",
    "num_heads": "model.heads",
    "layers": "model.encoder_layers",
    "valid": "data.dev",
}


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The candidate that looks most like ``word``, None if none does."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def unknown_key(key: str, section: KeyPath, valid: Sequence[str], *, of: str | None = None) -> Complaint:
    """The complaint about an unknown key.

    Args:
        key: the key as written.
        section: path of the section that it stands in.
        valid: the section's keys.
        of: the owner of the valid keys in words, if it is not the section (e.g. a method).
    """
    if "." in key:
        first, rest = key.split(".", 1)
        return Complaint(
            "unknown key", f"Sections are nested in a file: write `{first}:`, and indent `{rest}` under it."
        )
    here = nearest(key, valid, cutoff=0.75)
    places = _elsewhere(key, section)
    if here and nearest(key, [here], cutoff=0.85):
        meant = [here]
    elif places:
        meant = places
    elif here:
        meant = [here]
    else:
        meant = _similar_elsewhere(key)
    suggestion = f"Did you mean {' or '.join(f'`{one}`' for one in meant)}?"
    keys = f"The keys here are: {', '.join(valid) or 'none'}."
    if of:
        return Complaint(f"unknown option of {of}", suggestion if meant else keys)
    return Complaint("unknown key", suggestion if meant else keys)


def _elsewhere(key: str, section: KeyPath) -> list[str]:
    """Paths that end in ``key``, those that share most with ``section`` first; at most three."""
    found = [path for path in all_keys() if path[-1] == key and path[:-1] != section]
    found.sort(key=lambda path: (-_shared(path, section), len(path)))
    if found and len(found) > 3:
        found = [path for path in found if len(path) == min(map(len, found))][:3] or found[:3]
    paths = [".".join(path) for path in found]
    other = _OTHER_NAMES.get(key)
    return paths or ([other] if other else [])


def _shared(path: Sequence[str | int], section: Sequence[str | int]) -> int:
    """Length of the common beginning."""
    count = 0
    for left, right in zip(path, section, strict=False):
        if left != right:
            break
        count += 1
    return count


def _similar_elsewhere(key: str) -> list[str]:
    """The path whose last key looks like ``key``, as a list of none or one."""
    by_last: dict[str, str] = {}
    for path in sorted(all_keys(), key=len):
        by_last.setdefault(path[-1], ".".join(path))
    close = nearest(key, by_last, cutoff=0.8)
    return [by_last[close]] if close else []
