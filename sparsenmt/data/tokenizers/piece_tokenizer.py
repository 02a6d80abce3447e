"""The tokens of a SentencePiece model with ids of their own, as the models of other programs number them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.added_tokens import AddedToken, AddedTokens, TextPart
from sparsenmt.data.tokenizers.sentencepiece_model import SentencePieceModel
from sparsenmt.data.tokenizers.spans import Span, fill_unknown
from sparsenmt.data.vocabulary import BOS, EOS, SKIPPED_IDS, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.storage.files import invalid_file, read_json, write_bytes, write_json
from sparsenmt.storage.records import typed


@dataclass(frozen=True)
class _PieceSettings:
    """The contents of a tokenizer's file."""

    pieces: list[str]
    markers: list[int]
    added: list[AddedToken] = field(default_factory=list)


class PieceTokenizer:
    """A SentencePiece model divides the text; a table numbers its tokens, and may have others, which decode to text.

    Args:
        model: the bytes of SentencePiece's own model file.
        pieces: the names of the tokens after the special ones, in the order of their ids.
        markers: ids that are not text, such as those of languages: no text is encoded to them, and decoding skips them.
        added: tokens that are found before the model divides a text.

    Raises:
        ValueError: the model is none.
    """

    kind = "pieces"

    def __init__(
        self, model: bytes, pieces: Sequence[str], markers: Sequence[int] = (), added: Sequence[AddedToken] = ()
    ) -> None:
        self.model = model
        self.added = AddedTokens(added)
        self.markers = frozenset(markers)
        self._pieces = [*SPECIAL_TOKENS, *pieces]
        self.size = len(self._pieces)
        if not model or not all(len(SPECIAL_TOKENS) <= id_ < self.size for id_ in self.markers | self.added.ids):
            raise ValueError("no SentencePiece model, or markers beyond the vocabulary")
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
            own = [self._processor.id_to_piece(id_) for id_ in range(self._processor.get_piece_size())]
        except RuntimeError:
            raise ValueError("no SentencePiece model") from None
        first = len(SPECIAL_TOKENS)
        no_pieces = self.markers | {id_ for id_ in self.added.ids if self._pieces[id_] not in own}
        self._ids = {name: id_ for id_, name in enumerate(pieces, first) if id_ not in no_pieces}
        self._unknown = int(self._processor.unk_id())
        self._table = [self._ids.get(name, UNK) for name in own]  # by SentencePiece's ids
        self._skipped = SKIPPED_IDS | self.markers | self.added.special
        self.word_starts: NDArray[np.bool_] = np.array([name.startswith(SPACE) for name in self._pieces])
        self.keeps_word_boundaries = bool(self.word_starts.any())
        self.word_starts[[BOS, EOS, *self.markers, *self.added.ids]] = True

    @classmethod
    def load(cls, directory: Path, stem: str) -> PieceTokenizer:
        """Read what `save` wrote."""
        settings_path, path = directory / f"{stem}.json", directory / f"{stem}.model"
        settings = typed(read_json(settings_path), _PieceSettings, settings_path, hint="Restore it from a copy.")
        try:
            return cls(path.read_bytes(), settings.pieces, settings.markers, settings.added)
        except OSError as error:
            raise invalid_file(path, f"cannot be read: {error.strerror}") from None
        except ValueError:
            raise invalid_file(path, "not a SentencePiece model, or a damaged one") from None

    def save(self, directory: Path, stem: str) -> None:
        settings = {"kind": self.kind, "markers": sorted(self.markers), "pieces": self._pieces[len(SPECIAL_TOKENS) :]}
        added = {"added": [asdict(token) for token in self.added.tokens]} if self.added.tokens else {}
        write_json(directory / f"{stem}.json", settings | added)
        write_bytes(directory / f"{stem}.model", self.model)

    def required(self, ids: Collection[int]) -> set[int]:
        model = SentencePieceModel.read(self.model)
        own = model.required(self._own(model, frozenset(ids)))
        characters = {character for id_ in ids if id_ not in self.markers for character in self._pieces[id_]}
        others = {self._ids[each] for each in characters if each in self._ids}  # of tokens that are not the model's
        return {
            *ids,
            *others,
            *self.added.ids,
            *(self._ids[name] for id_ in own if (name := model.names[id_]) in self._ids),
        }

    def reduced(self, ids: Sequence[int]) -> PieceTokenizer:
        model, places = SentencePieceModel.read(self.model), {id_: place for place, id_ in enumerate(ids)}
        markers = [places[id_] for id_ in self.markers if id_ in places]
        names = [self._pieces[id_] for id_ in ids[len(SPECIAL_TOKENS) :]]
        added = self.added.renumbered(places)
        return PieceTokenizer(model.reduced(self._own(model, places.keys())), names, markers, added)

    def _own(self, model: SentencePieceModel, ids: Collection[int]) -> set[int]:
        """SentencePiece's ids of tokens; those without an id here divide a text, too, and always stay."""
        return {id_ for id_, name in enumerate(model.names) if name not in self._ids or self._ids[name] in ids}

    def encode(self, line: str) -> list[int]:
        if self.added.tokens:
            return self.encode_batch([line])[0]
        return self._numbered(line, self._processor.encode(line))

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        if not self.added.tokens:  # as of most models: no line is looked through
            found = self._processor.encode(list(lines)) if lines else ()
            return [self._numbered(line, own) for line, own in zip(lines, found, strict=True)]
        divided = [list(self.added.sections(line)) for line in lines]
        texts = [section.text for sections in divided for section in sections if section.id is None]
        own = zip(texts, self._processor.encode(texts) if texts else (), strict=True)

        def ids(section: TextPart) -> list[int]:
            return self._numbered(*next(own)) if section.id is None else [section.id]

        return [[id_ for section in sections for id_ in ids(section)] for sections in divided]

    def _numbered(self, text: str, own: Sequence[int]) -> list[int]:
        """The ids of a text from SentencePiece's."""
        table = self._table
        if self._unknown not in own:
            return [table[id_] for id_ in own]
        # What the model does not know may be a token all the same: of the other language of a joint vocabulary.
        return [self._ids.get(name, UNK) for name in self._processor.encode(text, out_type=str)]

    def spans(self, line: str) -> list[Span]:
        spans = []
        for section in self.added.sections(line):
            first = section.begin
            if section.id is None:
                found = self._processor.encode(section.text, return_type="offset_mapping")["offsets"]
            else:
                found = [(0, len(section.text))]
            spans += [(first + int(begin), first + int(end)) for begin, end in found]
        return spans

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        kept = [int(id_) for id_ in ids if id_ not in self._skipped]
        names = [UNKNOWN_SURFACE if id_ == UNK else self._pieces[id_] for id_ in kept]
        # A token that the model does not have is decoded to itself, with a visible space.
        text = str(self._processor.decode(list(fill_unknown(kept, names, unknown))))
        return text.replace(SPACE, " ").replace("\n", "\ufffd").strip(" ")  # a byte may be the end of a line

    def pieces(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        return list(fill_unknown(ids, [self._pieces[int(id_)] for id_ in ids], unknown))
