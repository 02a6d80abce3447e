"""Frames: the tokens around the sentences of a model, such as those of languages, beside EOS.

Prepared data and tokenizers know sentences that end with EOS, and nothing else. A multilingual model reads the token of
a language before or after them, and its decoder begins with one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import invalid_file, read_json, write_json
from sparsenmt.storage.records import typed

_NAMED = 12  # languages that a message lists
TAG = re.compile(r">>([^\s<>]+)<<")
"""The token of a language in models of several targets, which their users write before a source."""
_WRITTEN = re.compile(rf"{TAG.pattern}|<2(\w+)>")
"""The same, also as MADLAD-400 has it."""


@dataclass(frozen=True)
class Frame:
    """The tokens around a sentence.

    Args:
        prefix: before its first token. The decoder is given them, and does not predict them.
        suffix: after its EOS; sources only.
        start: what the decoder reads first; targets only.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    start: int = BOS

    def __bool__(self) -> bool:
        return self != Frame()

    @property
    def size(self) -> int:
        """Number of tokens beside the sentence and its EOS; the start is not one of them."""
        return len(self.prefix) + len(self.suffix)

    @property
    def given(self) -> tuple[int, ...]:
        """The decoder's inputs before the first token of a sentence."""
        return (self.start, *self.prefix)

    def around(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a source that ends with EOS, in their frame."""
        return [*self.prefix, *ids, *self.suffix]

    def before(self, ids: Sequence[int]) -> list[int]:
        """The decoder's inputs for a target: (P + T) for P tokens of a prefix and the T tokens of ``ids``."""
        return [*self.given, *ids[:-1]]


@dataclass(frozen=True)
class FramePair:
    """The frames of sources and targets."""

    source: Frame = field(default_factory=Frame)
    target: Frame = field(default_factory=Frame)


NO_FRAMES = FramePair()


@dataclass(frozen=True)
class Frames:
    """The frames of a model by its languages. In places of tokens, a side stands for the token of its language.

    Args:
        languages: code -> token; empty: the model has no choice of languages.
        source_prefix, source_suffix: around a source; a target's language may be named before a source.
        target_start, target_prefix: before a target.
    """

    languages: dict[str, int] = field(default_factory=dict)
    source_prefix: list[int | str] = field(default_factory=list)
    source_suffix: list[int | str] = field(default_factory=list)
    target_start: int | str = BOS
    target_prefix: list[int | str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self != Frames()

    def uses(self, side: str) -> bool:
        """True if the language of a side is one of the tokens."""
        return side in (*self.source_prefix, *self.source_suffix, self.target_start, *self.target_prefix)

    @property
    def tagged(self) -> bool:
        """True if the token of the target's language stands before a source, where a tag may be written, too."""
        return "target" in self.source_prefix

    def of_line(self, text: str, options: schema.Decoding, where: str) -> tuple[Frame | None, str]:
        """The frame of a source that begins with a tag, ``>>fra<<`` or ``<2fr>``, and the text after it; or None.

        Of a model whose sources are `tagged`.

        Raises:
            UserError: the model does not have the language; ``where`` names the line.
        """
        found = _WRITTEN.match(text.lstrip(" "))
        if found is None:
            return None, text
        code = found[1] or found[2]
        self._token("target", code, where)
        return self.choose(options.source_language, code).source, found.string[found.end() :].lstrip(" ")

    def of(self, options: schema.Decoding) -> FramePair:
        """The frames of the languages of decoding options; errors as for `choose`."""
        return self.choose(options.source_language, options.target_language)

    def choose(self, source: str | None, target: str | None) -> FramePair:
        """The frames of a pair of languages.

        Raises:
            UserError: the model does not have the language, has no languages, or needs one that is not given.
        """
        given = {"source": source, "target": target}
        if missing := [side for side, code in given.items() if code is None and self.uses(side)]:
            sides, options = " and ".join(missing), " and ".join(f"--{side}-language" for side in missing)
            raise UserError(
                f"the model translates between {len(self.languages)} languages, and not all are given: {sides}",
                where=f"decoding.{missing[0]}_language",
                hint=f"Give {options}, of: {self._listed()}.",
            )
        tokens = {side: self._token(side, code) for side, code in given.items()}

        def filled(place: int | str) -> int:
            return place if isinstance(place, int) else tokens[place]

        return FramePair(
            Frame(tuple(map(filled, self.source_prefix)), tuple(map(filled, self.source_suffix))),
            Frame(tuple(map(filled, self.target_prefix)), start=filled(self.target_start)),
        )

    def _token(self, side: str, code: str | None, where: str | None = None) -> int:
        """The token of a side's language, UserError if there is none; EOS without one, which no place asks for."""
        where = where or f"decoding.{side}_language"
        if code is None:
            return EOS
        if not self.languages:
            raise UserError(
                f"the model has no languages to choose from, but {code!r} is given", where=where, hint="Leave it out."
            )
        if code not in self.languages:
            raise UserError(
                f"the model does not have the language {code!r}",
                where=where,
                hint=f"Take one of: {self._listed(code)}." if self.uses(side) else "Leave it out: it reads none there.",
            )
        return self.languages[code]

    def renumbered(self, source: Mapping[int, int], target: Mapping[int, int], codes: Collection[str]) -> Frames:
        """The frames of other vocabularies, with some languages; ``source`` and ``target``: old id -> new."""

        def placed(places: Sequence[int | str], ids: Mapping[int, int]) -> list[int | str]:
            return [ids[place] if isinstance(place, int) else place for place in places]

        ids = source if any(isinstance(place, str) for place in (*self.source_prefix, *self.source_suffix)) else target
        return Frames(
            {code: ids[token] for code, token in self.languages.items() if code in codes and token in ids},
            placed(self.source_prefix, source),
            placed(self.source_suffix, source),
            placed([self.target_start], target)[0],
            placed(self.target_prefix, target),
        )

    def tokens(self, codes: Collection[str]) -> tuple[set[int], set[int]]:
        """The tokens that frames of these languages have on each side."""
        sides = [*self.source_prefix, *self.source_suffix], [self.target_start, *self.target_prefix]
        languages = {token for code, token in self.languages.items() if code in codes}
        source, target = (
            {place for place in places if isinstance(place, int)}
            | (languages if any(isinstance(place, str) for place in places) else set())
            for places in sides
        )
        return source, target

    def check_known(self, code: str, where: str) -> None:
        """Raise UserError unless the model has a language."""
        self._token("source", code, where)

    def _listed(self, like: str = "") -> str:
        """The codes, close matches of ``like`` first, shortened."""
        codes = sorted(self.languages)
        lower = like.lower()
        same = [code for code in codes if lower and (code.lower().startswith(lower[:2]) or lower in code.lower())]
        close = difflib.get_close_matches(like, codes, n=3, cutoff=0.6)
        ordered = list(dict.fromkeys([*close, *same, *codes]))
        return ", ".join(ordered[:_NAMED]) + (f", ... ({len(codes)} in all)" if len(codes) > _NAMED else "")

    @classmethod
    def read(cls, path: Path, source_size: int, target_size: int) -> Frames:
        """Read what `save` wrote; nothing, if there is no file.

        Raises:
            UserError: it is damaged, or names tokens beyond the vocabularies.
        """
        if not path.exists():
            return cls()
        frames: Frames = typed(read_json(path), cls, path, hint="Restore it from a copy.")
        source = [*frames.source_prefix, *frames.source_suffix]
        target = [frames.target_start, *frames.target_prefix]
        for size, places in (source_size, source), (target_size, target):
            languages = frames.languages.values() if any(isinstance(place, str) for place in places) else ()
            tokens = [place for place in (*places, *languages) if isinstance(place, int)]
            if not all(0 <= token < size for token in tokens) or not {*places} - {*tokens} <= {"source", "target"}:
                raise invalid_file(path, "it names tokens that the vocabularies do not have")
        return frames

    def save(self, path: Path) -> None:
        """Write the frames, if there are any."""
        if self:
            write_json(path, asdict(self))


def begins_with_language(text: str, names: tuple[str, ...]) -> bool:
    """Return True if a text begins with a tag such as ``>>fra<<``, or with one of the names of languages' tokens."""
    text = text.lstrip(" ")
    return TAG.match(text) is not None or text.startswith(names)
