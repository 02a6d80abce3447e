"""The text of a language model as token ids: memory-mapped, with the sizes that its metrics divide by.

Every line is its tokens and `EOS`, which stands for the line feed; the text is its lines, one after the other. A
directory with one raw little-endian array and one small JSON file:

``meta.json``   name, type of the array, sizes of the text
``text.bin``    the ids of all lines, each line ended by EOS
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import ArrayWriter, id_type, map_array
from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.metric import TextCounts
from sparsenmt.storage.files import name_file_in_errors, read_json
from sparsenmt.storage.records import typed

_HINT = "Run `sparsenmt prepare` again."


def encode_lines(tokenizer: Tokenizer, lines: Sequence[LinePart]) -> tuple[NDArray[np.integer], TextCounts]:
    """The ids of lines, each line ended by EOS, and the sizes of the text. Long lines may come in parts."""
    encoded = zip(tokenizer.encode_batch([line.text for line in lines]), lines, strict=True)
    tokens = chain.from_iterable(chain(ids, (EOS,)) if line.ends else ids for ids, line in encoded)
    ids = np.fromiter(tokens, dtype=id_type(tokenizer.size))
    sizes = (sum(getattr(line, name) for line in lines) for name in ("characters", "words", "bytes"))
    return ids, TextCounts(len(ids), *sizes)


@dataclass(frozen=True)
class _TextMeta:
    """The contents of ``meta.json``."""

    name: str
    type: Literal["<u2", "<u4"]
    counts: TextCounts


class TextWriter(ArrayWriter):
    """Writes the ids of a text, which are complete after it.

    Args:
        directory: see `ArrayWriter`.
        name: the corpus's name, for reports.
    """

    def __init__(self, directory: Path, *, name: str, tokenizer: Tokenizer) -> None:
        self.counts = TextCounts()
        """Sizes of the text so far."""
        meta = {"name": name, "type": id_type(tokenizer.size).str, "counts": asdict(self.counts)}
        super().__init__(directory, meta)
        self._tokenizer, self._ids = tokenizer, self.create("text")

    def append(self, lines: Sequence[LinePart]) -> None:
        """Append lines, or parts of them."""
        ids, counts = encode_lines(self._tokenizer, lines)
        with name_file_in_errors(self._directory):
            self._ids.write(ids.tobytes())
        self.counts += counts
        self._meta["counts"] = asdict(self.counts)


class TextDataset:
    """The ids of a text, read-only and memory-mapped; several processes may open it.

    Args:
        directory: written by `TextWriter`.

    Raises:
        UserError: a file is missing or has a wrong size.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        path = self.directory / "meta.json"
        meta = typed(read_json(path), _TextMeta, path, hint=_HINT)
        self.name = meta.name
        self.counts = meta.counts
        self.ids: NDArray[np.integer] = map_array(self.directory, "text", np.dtype(meta.type), meta.counts.tokens)

    def __len__(self) -> int:
        return len(self.ids)

    def check_contents(self, size: int) -> None:
        """Check that the ids are in a vocabulary of this size, and that the last line has its end.

        Raises:
            UserError: they are not, as is possible in files that another program wrote.
        """
        if self.ids.max(initial=0) >= size or (len(self) and self.ids[-1] != EOS):
            message = "the prepared data have ids that are not in their vocabulary, or no end"
            raise UserError(message, where=str(self.directory), hint=_HINT)
