"""The layout of the files of an imported model of Marian: all but its weights, so that they can be written again.

A model directory holds the weights in fp32. Beside them, the layout keeps what the files had and the weights do not
have: the order of the tensors, padding, the configuration and the numbers of the 8-bit matrices, as the model file
without its values; the settings, vocabularies that are no SentencePiece models, and the names of all files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from sparsenmt.data.text_sides import SIDES
from sparsenmt.data.tokenizers.tokenizer import LAYOUT
from sparsenmt.errors import UserError
from sparsenmt.importers.marian_files import MarianFile, Values
from sparsenmt.storage.records import typed
from sparsenmt.storage.tensors import digest_of

_PROGRAM = "marian"
_PIECES = (".spm", ".model")
_HINT = "Import the model again."


@dataclass(frozen=True)
class MarianLayout:
    """The layout of the files of a model.

    Args:
        program: ``marian``: importers of other programs have layouts of their own.
        model: the name of the model file.
        rest: the model file without the values of its tensors, in base64.
        sha256: of the model file.
        weights: `digest_of` the weights that were made of it.
        places: of the values that ``rest`` lacks, in their order.
        multipliers, alphas: as of `MarianFile`.
        vocabularies: the names of the files of source and target.
        texts: of vocabularies that are no SentencePiece models, the contents by name, in base64.
        settings, settings_text: the name and the text of the file of decoding settings; "": there was none.
        shortlist: the name of a binary shortlist; "": there was none.
        shortlist_best: the most translations of a token, which a binary shortlist says.
    """

    program: str
    model: str
    rest: str
    sha256: str
    weights: str
    places: list[Values]
    multipliers: dict[str, float]
    alphas: dict[str, float]
    vocabularies: list[str]
    texts: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    settings_text: str = ""
    shortlist: str = ""
    shortlist_best: int = 0

    @staticmethod
    def of(
        path: Path, found: MarianFile, weights: Mapping[str, Tensor], vocabularies: tuple[Path, Path]
    ) -> MarianLayout:
        """The layout of a model file with its vocabularies; ``weights`` were made of it."""
        data, places = path.read_bytes(), sorted(found.places, key=lambda each: each.begin)
        ends = [0, *(each.begin + each.length for each in places)]
        rest = b"".join(data[end : each.begin] for end, each in zip(ends, places, strict=False)) + data[ends[-1] :]
        names = [each.name for each in vocabularies]
        if names[0] == names[1] and vocabularies[0] != vocabularies[1]:  # of two folders
            names = [f"{side}.{name}" for side, name in zip(SIDES, names, strict=True)]
        others = {name: each for name, each in zip(names, vocabularies, strict=True) if each.suffix not in _PIECES}
        return MarianLayout(
            program=_PROGRAM,
            model=path.name,
            rest=_text(rest),
            sha256=hashlib.sha256(data).hexdigest(),
            weights=digest_of(weights),
            places=places,
            multipliers=found.multipliers,
            alphas=found.alphas,
            vocabularies=names,
            texts={name: _text(each.read_bytes()) for name, each in others.items()},
        )

    @staticmethod
    def read(content: bytes | None) -> MarianLayout | None:
        """Read the file `LAYOUT` of tokenizers; None without one, or of a model of another program.

        Raises:
            UserError: it is damaged.
        """
        if content is None:
            return None
        path = Path(LAYOUT)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise UserError("not a layout of files, or a damaged one", where=str(path), hint=_HINT) from None
        if not isinstance(value, dict) or value.get("program") != _PROGRAM:
            return None
        found = typed(value, MarianLayout, path, hint=_HINT)
        needed = [found.model, *found.vocabularies]
        for name in (*needed, *filter(None, (found.settings, found.shortlist))):
            if not name or "\0" in name or Path(name).name != name or name == "..":
                raise UserError(f"it names {name[:100]!r}, which leads elsewhere", where=str(path), hint=_HINT)
        return found

    def content(self) -> bytes:
        """The bytes of the file."""
        return (json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n").encode()

    def vocabulary(self, side: int) -> tuple[str, bytes | None]:
        """The name and the contents of a vocabulary; None: it is a SentencePiece model."""
        name = self.vocabularies[side]
        text = self.texts.get(name)
        return name, None if text is None else _bytes(text)

    def filled(self, encode: Callable[[Values], bytes]) -> bytes | None:
        """The model file with other values; None if it is not the original.

        encode: returns the bytes of the values of a tensor.
        """
        rest, parts, position, taken = _bytes(self.rest), list[bytes](), 0, 0
        for each in self.places:
            gap = each.begin - position
            parts += [rest[taken : taken + gap], encode(each)]
            position, taken = each.begin + each.length, taken + gap
        data = b"".join([*parts, rest[taken:]])
        return data if hashlib.sha256(data).hexdigest() == self.sha256 else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("not a layout of files, or a damaged one", where=LAYOUT, hint=_HINT) from None
