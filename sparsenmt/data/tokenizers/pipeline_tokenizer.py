"""Tokenizers of the `tokenizers` package, an extra: normalisation, words and a model, as its file describes them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.added_tokens import AddedToken, AddedTokens
from sparsenmt.data.tokenizers.pipeline_description import PipelineDescription
from sparsenmt.data.tokenizers.spans import Span, fill_unknown
from sparsenmt.data.tokenizers.wire_format import bytes_field, number_field
from sparsenmt.data.vocabulary import BOS, EOS, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.storage.files import invalid_file, read_json, write_bytes, write_json
from sparsenmt.storage.records import typed

RANDOM = ("dropout", "alpha", "nbest_size")
"""Keys of a model with which it divides the same text in other ways at each call, as in training."""


@dataclass(frozen=True)
class _PipelineSettings:
    """The contents of a tokenizer's file."""

    ids: list[int]
    names: list[str]
    markers: list[int]
    hidden: list[int] = field(default_factory=list)


class PipelineTokenizer:
    """A tokenizer of the `tokenizers` package, with ids of this program.

    Special tokens are not looked for in the text: "</s>" in it is text. Byte-level models are decoded here, byte by
    byte, others by their visible spaces; what a model has divided into bytes is put together again.

    Nothing is drawn at random: the dropout of merges, with which a model may have been saved in training, is off. The
    map of characters of a SentencePiece model is applied by SentencePiece: the package takes whole grapheme clusters,
    and loses combining marks.

    Args:
        description: what the package saves as ``tokenizer.json``.
        ids: the package's id of each token after the special ones; negative: none.
        names: of the tokens after the special ones.
        markers: ids that are not text: no text is encoded to them, and decoding skips them.
        hidden: ids that decoding skips, although text is encoded to them.

    Raises:
        ValueError: the description is none, or of a kind that is not known.
        UserError: the package is not installed.
    """

    kind = "pipeline"

    def __init__(
        self,
        description: bytes,
        ids: Sequence[int],
        names: Sequence[str],
        markers: Sequence[int],
        hidden: Sequence[int] = (),
    ) -> None:
        self.markers, self.hidden = frozenset(markers), frozenset(hidden)
        self._theirs, self._names = list(ids), list(names)
        self.size = len(SPECIAL_TOKENS) + len(self._names)
        if len(ids) != len(names) or not all(
            len(SPECIAL_TOKENS) <= id_ < self.size for id_ in self.markers | self.hidden
        ):
            raise ValueError("ids, names and markers do not belong together")
        read = _read(description)
        self._tokenizer, self.description, self._bytes = read.tokenizer, read.description, read.bytes
        self._map, self._falls_back = read.map, read.falls_back
        self._places = {theirs: id_ for id_, theirs in enumerate(ids, len(SPECIAL_TOKENS)) if id_ not in self.markers}
        self._ids = {read.moved.get(theirs, theirs): id_ for theirs, id_ in self._places.items()}
        self._skipped = SKIPPED_IDS | self.markers | self.hidden
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
            return cls(path.read_bytes(), found.ids, found.names, found.markers, found.hidden)
        except OSError as error:
            raise invalid_file(path, f"cannot be read: {error.strerror}") from None
        except ValueError:
            raise invalid_file(path, "not a tokenizer of the `tokenizers` package, or a damaged one") from None

    def required(self, ids: Collection[int]) -> set[int]:
        description = PipelineDescription.read(self.description)
        needed = description.required(theirs for theirs, id_ in self._places.items() if id_ in ids)
        if self._bytes:
            needed |= {id_ for name in self._bytes if (id_ := description.ids.get(name)) is not None}
        return {*ids, *(self._places[theirs] for theirs in needed if theirs in self._places)}

    def reduced(self, ids: Sequence[int]) -> PipelineTokenizer:
        kept, first = frozenset(ids), len(SPECIAL_TOKENS)
        dropped = {theirs for theirs, id_ in self._places.items() if id_ not in kept}
        description = PipelineDescription.read(self.description).without(dropped)
        tokenizer = _read(description).tokenizer
        names = {id_: self._tokenizer.id_to_token(theirs) for theirs, id_ in self._ids.items() if theirs >= 0}
        found = [tokenizer.token_to_id(names[id_]) if names.get(id_) is not None else None for id_ in ids[first:]]
        theirs = [-1 if id_ is None else id_ for id_ in found]
        markers, hidden = (
            [place for place, id_ in enumerate(ids) if id_ in own] for own in (self.markers, self.hidden)
        )
        return PipelineTokenizer(
            description, theirs, [self._names[id_ - first] for id_ in ids[first:]], markers, hidden
        )

    def save(self, directory: Path, stem: str) -> None:
        settings = {"kind": self.kind, "markers": sorted(self.markers), "ids": self._theirs, "names": self._names}
        write_json(directory / f"{stem}.json", settings | ({"hidden": sorted(self.hidden)} if self.hidden else {}))
        write_bytes(directory / f"{stem}.model", self.description)

    def encode(self, line: str) -> list[int]:
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        ids, texts = self._ids, list(lines) if self._map is None else self._map.texts(lines)
        return [
            [ids.get(theirs, UNK) for theirs in each.ids]
            for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def spans(self, line: str) -> list[Span]:
        text, places = (line, range(len(line) + 1)) if self._map is None else self._map.text_and_places(line)
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [(places[begin], places[end]) for begin, end in offsets]

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in self._skipped]
        if self._bytes:
            names = [UNKNOWN_SURFACE if id_ == UNK else self._names[id_ - len(SPECIAL_TOKENS)] for id_ in kept]
            filled = zip(kept, fill_unknown(kept, names, unknown), strict=True)
            parts = (text.encode() if id_ == UNK else self._bytes_of(text) for id_, text in filled)
            return b"".join(parts).decode("utf-8", errors="replace").replace("\n", "\ufffd")
        names = [UNKNOWN_SURFACE if id_ == UNK else self._pieces[id_] for id_ in kept]
        filled = zip(kept, fill_unknown(kept, names, unknown), strict=True)
        if self._falls_back:
            return "".join(_with_bytes_joined(filled)).strip(" ")
        return "".join(text for _, text in filled).replace(SPACE, " ").strip(" ")

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


_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _with_bytes_joined(tokens: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The texts of tokens (id, name), with each run of bytes as text.

    As in the package: of a run that is not UTF-8, each byte becomes U+FFFD. So does the end of a line.
    """
    run = bytearray()
    for id_, name in (*tokens, (UNK, "")):
        if id_ != UNK and (found := _BYTE.fullmatch(name)):
            run.append(int(found[1], 16))
            continue
        if run:
            try:
                yield run.decode().replace("\n", "\ufffd")
            except UnicodeDecodeError:
                yield "\ufffd" * len(run)
            run.clear()
        yield name.replace(SPACE, " ")


class _CharacterMap:
    """The map of characters of a SentencePiece model, applied by SentencePiece: the longest match at each place.

    Args:
        content: the map, as SentencePiece compiles it.
        added: tokens whose text is left as it is.

    Raises:
        RuntimeError: it is no such map.
    """

    def __init__(self, content: bytes, added: Sequence[AddedToken]) -> None:
        # Fields of NormalizerSpec, in ModelProto: the map; no space in front, no space removed, none made visible.
        spec = bytes_field(2, content) + b"".join(number_field(number, 0) for number in (3, 4, 5))
        self._normalizer: Any = sentencepiece.SentencePieceNormalizer(model_proto=bytes_field(3, spec))
        self._added = AddedTokens(added)

    def texts(self, lines: Sequence[str]) -> list[str]:
        """The lines with mapped characters."""
        normalize = self._normalizer.normalize
        if not self._added.tokens:  # as of most models: no line is looked through
            return list(normalize(list(lines))) if lines else []
        sections = map(self._added.sections, lines)
        return ["".join(normalize(each.text) if each.id is None else each.text for each in line) for line in sections]

    def text_and_places(self, line: str) -> tuple[str, Sequence[int]]:
        """The line with mapped characters, and the place in the line of each of its characters, and of its end."""
        texts, places = [], list[int]()
        for each in self._added.sections(line):
            text, own = each.text, range(len(each.text))
            if each.id is None:
                text, own = self._normalizer.normalize(each.text, with_offsets=True)
            texts.append(text)
            places += [each.begin + place for place in own[: len(text)]]
        return "".join(texts), [*places, len(line)]


@dataclass(frozen=True)
class _Pipeline:
    """A tokenizer of the package.

    Args:
        description: what is kept of it.
        bytes: the byte of each character, if it reads bytes.
        map: of characters, which it leaves to SentencePiece.
        falls_back: True if it divides characters that it does not know into bytes.
        moved: the package's own ids of tokens that have another one in the description: it numbers them anew.
    """

    tokenizer: Any
    description: bytes
    bytes: dict[str, int]
    map: _CharacterMap | None
    falls_back: bool
    moved: dict[int, int]


def _read(description: bytes) -> _Pipeline:
    """Read a description; errors as of `PipelineTokenizer`."""
    package = load_package()
    try:
        values = json.loads(description)
        decoder, model = values["decoder"], values["model"]
        kinds = {part.get("type") for part in decoder.get("decoders", [decoder])}
        # Special tokens are no text, and frames are made by this program.
        special = {str(token["content"]) for token in values.get("added_tokens", ()) if token["special"]}
        kept = [token for token in values.get("added_tokens", ()) if not token["special"]]
        values |= {"added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
        values["model"] = model = {key: value for key, value in model.items() if key not in RANDOM}
        if isinstance(model.get("vocab"), list):  # Unigram would find them in the text
            model["vocab"] = [[name, -1e9 if name in special else score] for name, score in model["vocab"]]
        text = json.dumps(values, ensure_ascii=False)
        normalizer, content = _without_map(values.get("normalizer"))
        own = text if content is None else json.dumps(values | {"normalizer": normalizer}, ensure_ascii=False)
        tokenizer = package.Tokenizer.from_str(own)
        raw = [AddedToken(int(token["id"]), str(token["content"])) for token in kept if not token.get("normalized")]
        found = None if content is None else _CharacterMap(content, raw)
        moved = {int(token["id"]): int(tokenizer.token_to_id(token["content"])) for token in kept}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"no description of a tokenizer: {error}") from None
    except Exception as error:  # the package raises nothing more specific
        raise ValueError(f"the package refuses the description: {error}") from None
    falls_back = bool(model.get("byte_fallback")) or "ByteFallback" in kinds
    if "ByteLevel" in kinds:
        characters = {character: byte for byte, character in enumerate(byte_characters())}
        return _Pipeline(tokenizer, text.encode(), characters, found, falls_back, moved)
    if "Metaspace" in kinds or "Replace" in kinds:
        return _Pipeline(tokenizer, text.encode(), {}, found, falls_back, moved)
    raise ValueError(f"a decoder of an unknown kind: {', '.join(sorted(map(str, kinds)))}")


def _without_map(normalizer: dict[str, Any] | None) -> tuple[dict[str, Any] | None, bytes | None]:
    """A normalizer without its map of characters, and the map; None: it has none, or other steps before it.

    White space that is removed or replaced before is so after it, too.
    """
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    kinds = [step["type"] for step in steps]
    if kinds.count("Precompiled") != 1:
        return normalizer, None
    place = kinds.index("Precompiled")
    if not {"Strip", "Replace"}.issuperset(kinds[:place]):
        return normalizer, None
    content = base64.b64decode(steps[place]["precompiled_charsmap"])
    return {"type": "Sequence", "normalizers": [*steps[:place], *steps[place + 1 :]]}, content


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
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, str]],
    added: Sequence[Mapping[str, Any]] = (),
    *,
    prefix_space: bool,
) -> bytes:
    """Describe the byte-level BPE of ``vocab.json`` and ``merges.txt``; ``added``: tokens, as the package has them."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    model = {
        **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": ""},
        **{"end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
        **{"vocab": vocabulary, "merges": [list(pair) for pair in merges]},
    }
    values: dict[str, Any] = {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [*added], "normalizer": None},
        **{"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model},
    }
    return json.dumps(values, ensure_ascii=False).encode()
