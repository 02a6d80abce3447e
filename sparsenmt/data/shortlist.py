"""Vocabulary shortlists: the tokens that may come out, by the tokens of the source.

Each sentence may use the special tokens, the most frequent ones, and the translations of each of its source tokens
(Jean et al. 2015; Marian's lexical shortlists). A file of this program belongs to its two vocabularies.
Shapes: B sentences, V and W tokens of the source and the target vocabulary, N translations of all source tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.tokenizers.tokenizer import SHORTLIST, Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import SPECIAL_TOKENS
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Decoding
from sparsenmt.storage.files import sha256_text
from sparsenmt.storage.tensors import load_tensors, read_header, save_tensors

_ARRAYS = ("always", "ends", "tokens")
_HINT = "Make it again with `sparsenmt shortlist`, or copy it again."


def vocabulary_hashes(source: Tokenizer, target: Tokenizer) -> tuple[str, str]:
    """Return the hashes of the tokens of two vocabularies, in order."""
    found = [sha256_text("\n".join(each.pieces(range(each.size)))) for each in (source, target)]
    return found[0], found[1]


@dataclass(frozen=True)
class Shortlist:
    """A shortlist by this program's ids.

    Args:
        always: tokens that always may come out, sorted; the special ones are added.
        ends: (V) for each source token, the number of translations of it and of all before it.
        tokens: (N) translations of each source token.
        target_size: W.
        vocabularies: hashes of the vocabularies, as `vocabulary_hashes`.
    """

    always: NDArray[np.int64]
    ends: NDArray[np.int64]
    tokens: NDArray[np.int32]
    target_size: int
    vocabularies: tuple[str, str]

    @staticmethod
    def of(
        always: Iterable[int],
        translations: Sequence[Iterable[int]],
        source: Tokenizer,
        target: Tokenizer,
    ) -> Shortlist:
        """Make one from the translations of each source token."""
        lists = [np.fromiter(sorted(set(each)), np.int32) for each in translations]
        ends = np.cumsum([len(each) for each in lists], dtype=np.int64)
        everywhere = np.array(sorted({*always, *range(len(SPECIAL_TOKENS))}), np.int64)
        tokens = np.concatenate([*lists, np.empty(0, np.int32)])
        return Shortlist(everywhere, ends, tokens, target.size, vocabulary_hashes(source, target))

    def allowed(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Return (B, W) bool: the tokens that may come out of each source, given as ids with `</s>` and its frame."""
        ids = np.concatenate([np.asarray(each, np.int64) for each in sources])
        sentences = np.repeat(np.arange(len(sources)), [len(each) for each in sources])
        ends = self.ends[ids]
        counts = ends - np.where(ids > 0, self.ends[ids - 1], 0)
        last = np.cumsum(counts)
        places = np.arange(last[-1]) + np.repeat(ends - last, counts)
        found = torch.zeros(len(sources), self.target_size, dtype=torch.bool)
        found[
            torch.from_numpy(np.repeat(sentences, counts)), torch.from_numpy(self.tokens[places].astype(np.int64))
        ] = True
        found[:, torch.from_numpy(self.always)] = True
        return found

    def translations(self) -> list[NDArray[np.int32]]:
        """Return the translations of each source token, by its id."""
        return np.split(self.tokens, self.ends[:-1])

    def reduced(self, source_ids: Sequence[int], target_ids: Sequence[int], tokenizers: Tokenizers) -> Shortlist:
        """Return the shortlist of reduced vocabularies, whose tokens have these ids here."""
        places = np.full(self.target_size, -1, np.int64)
        places[np.asarray(target_ids)] = np.arange(len(target_ids))

        def placed(ids: NDArray[Any]) -> NDArray[np.int64]:
            found: NDArray[np.int64] = places[ids]
            return found[found >= 0]

        own = self.translations()
        translations = [placed(own[id_]).tolist() for id_ in source_ids]
        return Shortlist.of(placed(self.always).tolist(), translations, tokenizers.source, tokenizers.target)

    def save(self, path: Path) -> None:
        """Write the shortlist, atomically."""
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}
        source, target = self.vocabularies
        notes = {"target_size": str(self.target_size), "source_vocabulary": source, "target_vocabulary": target}
        save_tensors(path, tensors, notes={"kind": "shortlist", **notes})

    @staticmethod
    def read(path: Path, source: Tokenizer, target: Tokenizer, content: bytes | None = None) -> Shortlist:
        """Read what `save` wrote, for a model with these vocabularies.

        content: the bytes of the file, where they were read before.

        Raises:
            UserError: it is missing, damaged, no shortlist, or belongs to other vocabularies.
        """
        if content is None and not path.is_file():
            what = "this is not a file, and may not be a pipe" if path.exists() else "there is no such shortlist"
            raise UserError(what, where=str(path), hint="Make one with `sparsenmt shortlist`.")
        notes = read_header(path, hint=_HINT, content=content)[1]
        if notes.get("kind") != "shortlist":
            raise UserError("this is not a shortlist", where=str(path), hint="Make one with `sparsenmt shortlist`.")
        found = load_tensors(path, hint=_HINT, content=content)
        own = vocabulary_hashes(source, target)
        given = notes.get("source_vocabulary"), notes.get("target_vocabulary")
        if own != given:
            sides = [side for side, mine, its in zip(("source", "target"), own, given, strict=True) if mine != its]
            raise UserError(
                f"the shortlist belongs to another {' and another '.join(sides)} vocabulary than the model's",
                where=str(path),
                hint="Make one for this model with `sparsenmt shortlist`.",
            )
        if found.keys() != set(_ARRAYS) or not _sound(found, source.size, target.size):
            raise UserError("the shortlist has tokens that the vocabularies do not have", where=str(path), hint=_HINT)
        always, ends, tokens = (found[name].numpy() for name in _ARRAYS)
        return Shortlist(always, ends, tokens, target.size, own)


@dataclass(frozen=True)
class Shortlists:
    """The shortlists with which a model can be decoded: its own, and files, each of which is read once."""

    tokenizers: Tokenizers
    _read: dict[Path | None, Shortlist] = field(default_factory=dict, repr=False, compare=False)  # None: its own

    def named(self, options: Decoding) -> Shortlist | None:
        """Return the shortlist that decoding options name; None: all tokens may come out.

        Raises:
            UserError: there is none, or it is damaged or belongs to other vocabularies.
        """
        path, content = options.shortlist_file, None
        if options.own_shortlist:
            content = self.tokenizers.shortlist
            if content is None:
                raise UserError(
                    "the model has no shortlist of its own",
                    where="decoding.shortlist",
                    hint="Name a file that `sparsenmt shortlist` wrote.",
                )
        elif path is None:
            return None
        if path not in self._read:
            pair = self.tokenizers.source, self.tokenizers.target
            self._read[path] = Shortlist.read(path or Path(SHORTLIST), *pair, content)
        return self._read[path]


def _sound(found: Mapping[str, Tensor], source_size: int, target_size: int) -> bool:
    """Return True if these are the arrays of a shortlist for vocabularies of these sizes."""
    always, ends, tokens = (found[name] for name in _ARRAYS)
    types = always.dtype, ends.dtype, tokens.dtype
    if types != (torch.int64, torch.int64, torch.int32) or ends.shape != (source_size,):
        return False
    if any(each.dim() != 1 or bool(((each < 0) | (each >= target_size)).any()) for each in (always, tokens)):
        return False
    rising = int(ends[0]) >= 0 and bool((ends.diff() >= 0).all())
    return rising and int(ends[-1]) == len(tokens) and set(range(len(SPECIAL_TOKENS))) <= set(always.tolist())
