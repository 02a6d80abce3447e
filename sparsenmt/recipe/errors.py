"""Problems of a recipe, collected and shown together in one `UserError`, with suggestions for misspelled keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from sparsenmt.errors import UserError, printable
from sparsenmt.recipe.key_paths import KeyPath, all_keys, key_path

_LONGEST = 60  # characters of a value or a key in a message
_MOST = 20  # problems that are shown

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


@dataclass(frozen=True)
class YamlOrigin:
    """The place where a value was written.

    Args:
        place: the text shown to the user, e.g. ``recipe.yaml:12`` or ``override 'training.seed=2'``.
        folder: the folder that relative corpus paths written here start from; None: they stay as they are.
        is_override: True if the value comes from the command line.
        line: the line in the file, from 1; 0 if there is none.
    """

    place: str
    folder: Path | None = None
    is_override: bool = False
    line: int = 0


class Complaint(NamedTuple):
    """An error message about a value, without a subject and a full stop, and a hint in sentences."""

    message: str
    hint: str


class Contradiction(NamedTuple):
    """A complaint about several keys; it is shown at the first of them that the recipe contains."""

    keys: tuple[KeyPath, ...]
    complaint: Complaint


def named_keys(*dotted: str) -> tuple[KeyPath, ...]:
    """Return the places of keys that are written with dots."""
    return tuple(map(key_path, dotted))


@dataclass(frozen=True)
class Problem:
    """A complaint about the value of a key, with the place where it was written.

    Args:
        complaint: or a function that makes it; it is called only if the problem is shown, because a search for similar
            words takes long.
    """

    origin: YamlOrigin
    path: KeyPath
    complaint: Complaint | Callable[[], Complaint]

    @property
    def where(self) -> str:
        return f"{self.origin.place}: {dotted(self.path)}" if self.path else self.origin.place

    def told(self) -> Complaint:
        """The complaint, which is made now if it is a function."""
        return self.complaint if isinstance(self.complaint, Complaint) else self.complaint()

    def __str__(self) -> str:
        message, hint = self.told()
        return printable(f"{self.where}: {message}. {hint}")


class ProblemError(Exception):
    """A problem, raised where it is found, for a caller that collects problems."""

    def __init__(self, origin: YamlOrigin, path: KeyPath, complaint: Complaint) -> None:
        self.problem = Problem(origin, path, complaint)
        super().__init__(complaint.message)


def raise_together(problems: Iterable[Problem], recipe: str) -> None:
    """Raise one `UserError` that shows all ``problems``, by file and line, overrides last; return if there are none."""
    unique = sorted(dict.fromkeys(problems), key=_reading_order)
    if not unique:
        return
    if len(unique) == 1:
        message, hint = unique[0].told()
        raise UserError(printable(message), where=unique[0].where, hint=printable(hint))
    lines = [f"\n  {problem}" for problem in unique[:_MOST]]
    if len(unique) > _MOST:
        lines.append(f"\n  ... and {len(unique) - _MOST:,} more")
    raise UserError(
        f"{len(unique):,} problems:{''.join(lines)}",
        where=recipe,
        hint="Fix them all; docs/reference/recipes.md lists every key with its values and its default.",
    )


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    origin = problem.origin
    if origin.is_override:
        return True, "", 0  # in the order of the command line
    return False, origin.place.removesuffix(f":{origin.line}"), origin.line


def dotted(path: KeyPath) -> str:
    """A key path as overrides write it: ``model.memory.0.at``."""
    return ".".join(shortened(printable(str(part))) or "''" for part in path)


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def show(value: object) -> str:
    """A value as the user wrote it, short enough for a message."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{shortened(value)}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    return shortened(str(value))


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The candidate most similar to ``word``, None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def unknown_key(key: str, section: KeyPath, valid: Sequence[str], *, of: str | None = None) -> Complaint:
    """The complaint about an unknown key.

    Args:
        section: path of the section around the key.
        valid: the section's keys.
        of: the owner of the valid keys in words, if it is not the section (e.g. a method).
    """
    if "." in key:
        first, rest = key.split(".", 1)
        return Complaint(
            "unknown key", f"Sections are nested in a file: write `{first}:`, and indent `{rest}` under it."
        )
    here = nearest(key, valid, cutoff=0.75)
    places = _same_key_elsewhere(key, section)
    if here and nearest(key, [here], cutoff=0.85):
        meant = [here]
    elif places:
        meant = places
    elif here:
        meant = [here]
    else:
        meant = _similar_key_elsewhere(key)
    hint = f"The keys here are: {', '.join(valid) or 'none'}."
    if meant:
        hint = f"Did you mean {' or '.join(f'`{one}`' for one in meant)}?"
    return Complaint(f"unknown option of {of}" if of else "unknown key", hint)


def _same_key_elsewhere(key: str, section: KeyPath) -> list[str]:
    """At most three paths that end in ``key``, those with the longest common beginning with ``section`` first."""
    found = [path for path in all_keys() if path[-1] == key and path[:-1] != section]
    found.sort(key=lambda path: (-_common_length(path, section), len(path)))
    if len(found) > 3:
        found = [path for path in found if len(path) == min(map(len, found))][:3]
    other = _OTHER_NAMES.get(key)
    return [".".join(path) for path in found] or ([other] if other else [])


def _common_length(path: KeyPath, other: KeyPath) -> int:
    return [*(left == right for left, right in zip(path, other, strict=False)), False].index(False)


def _similar_key_elsewhere(key: str) -> list[str]:
    """The shortest path whose last key is similar to ``key``, as a list of none or one."""
    by_last: dict[str, str] = {}
    for path in sorted(all_keys(), key=len):
        by_last.setdefault(path[-1], ".".join(path))
    close = nearest(key, by_last, cutoff=0.8)
    return [by_last[close]] if close else []
