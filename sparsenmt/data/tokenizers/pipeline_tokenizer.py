"""Tokenizers of the `tokenizers` package, an extra: normalisation, words and a model, as its file describes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.pipeline_description import PipelineDescription
from sparsenmt.data.tokenizers.spans import Span, fill_unknown
from sparsenmt.data.vocabulary import BOS, EOS, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.files import invalid_file, read_json, write_bytes, write_json
from sparsenmt.records import typed


@dataclass(frozen=True)
class _PipelineSettings:
    """The contents of a tokenizer's file."""

    ids: list[int]
    names: list[str]
    markers: list[int]


class PipelineTokenizer:
    """A tokenizer of the `tokenizers` package, with ids of this program.

    Special tokens are not looked for in the text: "</s>" in it is text. Byte-level models are decoded here, byte by
    byte, others by their visible spaces.

    Args:
        description: what the package saves as ``tokenizer.json``.
        ids: the package's id of each token after the special ones; negative: none.
        names: of the tokens after the special ones.
        markers: ids that are not text: no text is encoded to them, and decoding skips them.

    Raises:
        ValueError: the description is none, or of a kind that is not known.
        UserError: the package is not installed.
    """

    kind = "pipeline"

    def __init__(self, description: bytes, ids: Sequence[int], names: Sequence[str], markers: Sequence[int]) -> None:
        self.markers = frozenset(markers)
        self._theirs, self._names = list(ids), list(names)
        self.size = len(SPECIAL_TOKENS) + len(self._names)
        if len(ids) != len(names) or not all(len(SPECIAL_TOKENS) <= id_ < self.size for id_ in self.markers):
            raise ValueError("ids, names and markers do not belong together")
        self._tokenizer, self.description, self._bytes = _read(description)
        self._ids = {theirs: id_ for id_, theirs in enumerate(ids, len(SPECIAL_TOKENS)) if id_ not in self.markers}
        self._skipped = SKIPPED_IDS | self.markers
        self._pieces = [*SPECIAL_TOKENS, *map(self._readable, self._names)]
        self.word_starts: NDArray[np.bool_] = np.array([name.startswith(SPACE) for name in self._pieces])
        self.keeps_word_boundaries = bool(self.word_starts.any())
        self.word_starts[[BOS, EOS, *self.markers]] = True

    @classmethod
    def load(cls, directory: Path, stem: str) -> PipelineTokenizer:
        """Read what `save` wrote."""
        settings_path, path = directory / f"{stem}.json", directory / f"{stem}.model"
        found = typed(read_json(settings_path), _PipelineSettings, settings_path, hint="Restore it from a copy.")
        try:
            return cls(path.read_bytes(), found.ids, found.names, found.markers)
        except OSError as error:
            raise invalid_file(path, f"cannot be read: {error.strerror}") from None
        except ValueError:
            raise invalid_file(path, "not a tokenizer of the `tokenizers` package, or a damaged one") from None

    def required(self, ids: Collection[int]) -> set[int]:
        description = PipelineDescription.read(self.description)
        needed = description.required(theirs for theirs, id_ in self._ids.items() if id_ in ids)
        if self._bytes:
            needed |= {id_ for name in self._bytes if (id_ := description.ids.get(name)) is not None}
        return {*ids, *(self._ids[theirs] for theirs in needed if theirs in self._ids)}

    def reduced(self, ids: Sequence[int]) -> PipelineTokenizer:
        kept, first = frozenset(ids), len(SPECIAL_TOKENS)
        dropped = {theirs for theirs, id_ in self._ids.items() if id_ not in kept}
        description = PipelineDescription.read(self.description).without(dropped)
        tokenizer = _read(description)[0]
        theirs = []
        for id_ in ids[first:]:
            name = None if id_ in self.markers else self._tokenizer.id_to_token(self._theirs[id_ - first])
            found = None if name is None else tokenizer.token_to_id(name)
            theirs.append(-1 if found is None else found)
        markers = [place for place, id_ in enumerate(ids) if id_ in self.markers]
        return PipelineTokenizer(description, theirs, [self._names[id_ - first] for id_ in ids[first:]], markers)

    def save(self, directory: Path, stem: str) -> None:
        settings = {"kind": self.kind, "markers": sorted(self.markers), "ids": self._theirs, "names": self._names}
        write_json(directory / f"{stem}.json", settings)
        write_bytes(directory / f"{stem}.model", self.description)

    def encode(self, line: str) -> list[int]:
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        ids = self._ids
        return [
            [ids.get(theirs, UNK) for theirs in each.ids]
            for each in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        ]

    def spans(self, line: str) -> list[Span]:
        return [(int(begin), int(end)) for begin, end in self._tokenizer.encode(line, add_special_tokens=False).offsets]

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in self._skipped]
        if self._bytes:
            names = [UNKNOWN_SURFACE if id_ == UNK else self._names[id_ - len(SPECIAL_TOKENS)] for id_ in kept]
            filled = zip(kept, fill_unknown(kept, names, unknown), strict=True)
            parts = (text.encode() if id_ == UNK else self._bytes_of(text) for id_, text in filled)
            return b"".join(parts).decode("utf-8", errors="replace").replace("\n", "\ufffd")
        names = [UNKNOWN_SURFACE if id_ == UNK else self._pieces[id_] for id_ in kept]
        return "".join(fill_unknown(kept, names, unknown)).replace(SPACE, " ").strip(" ")

    def pieces(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        return list(fill_unknown(ids, [self._pieces[int(id_)] for id_ in ids], unknown))

    def _bytes_of(self, name: str) -> bytes:
        """The bytes of a byte-level token; of any other token, its text."""
        try:
            return bytes(self._bytes[character] for character in name)
        except KeyError:
            return name.encode()

    def _readable(self, name: str) -> str:
        """The name of a token as text, with a visible space; bytes that are no characters as numbers."""
        if not self._bytes:
            return name
        found = self._bytes_of(name)
        try:
            return found.decode().replace(" ", SPACE)
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in found)


def _read(description: bytes) -> tuple[Any, bytes, dict[str, int]]:
    """The package's tokenizer, what is kept of its description, and the byte of each character if it reads bytes.

    Raises:
        ValueError: it is no description, or of a kind that is not known.
        UserError: the package is not installed.
    """
    package = load_package()
    try:
        values = json.loads(description)
        decoder, model = values["decoder"], values["model"]
        kinds = {part.get("type") for part in decoder.get("decoders", [decoder])}
        # Special tokens are no text, and frames are made by this program.
        special = {str(token["content"]) for token in values.get("added_tokens", ()) if token["special"]}
        kept = [token for token in values.get("added_tokens", ()) if not token["special"]]
        values |= {"added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
        if isinstance(model.get("vocab"), list):  # Unigram would find them in the text
            model["vocab"] = [[name, -1e9 if name in special else score] for name, score in model["vocab"]]
        text = json.dumps(values, ensure_ascii=False)
        tokenizer = package.Tokenizer.from_str(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no description of a tokenizer: {error}") from None
    except Exception as error:  # the package raises nothing more specific
        raise ValueError(f"the package refuses the description: {error}") from None
    if "ByteLevel" in kinds:
        return tokenizer, text.encode(), {character: byte for byte, character in enumerate(byte_characters())}
    if "Metaspace" in kinds or "Replace" in kinds:
        return tokenizer, text.encode(), {}
    raise ValueError(f"a decoder of an unknown kind: {', '.join(sorted(map(str, kinds)))}")


def load_package() -> Any:
    """The `tokenizers` package.

    Raises:
        UserError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "the model's tokenizer needs the package `tokenizers`, which is not installed",
            where="tokenizers",
            hint="Install it: pip install 'sparsenmt[tokenizers]'.",
        ) from None
    return tokenizers


def byte_characters() -> list[str]:
    """The character that stands for each byte: visible ones for themselves, as in GPT-2."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


def byte_pair_description(
    vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], *, prefix_space: bool
) -> bytes:
    """Describe the byte-level BPE of ``vocab.json`` and ``merges.txt``."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    model = {
        **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": ""},
        **{"end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
        **{"vocab": vocabulary, "merges": [list(pair) for pair in merges]},
    }
    values: dict[str, Any] = {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None},
        **{"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model},
    }
    return json.dumps(values, ensure_ascii=False).encode()
