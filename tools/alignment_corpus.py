"""Write the corpus of recipes/alignment-de-en.yaml: Europarl and WMT, made like hand-aligned sentences, with links.

    SPARSENMT_DATA=data python -m tools.alignment_corpus data/alignment-corpus

Reads ``europarl-doc/{dev,test}``, ``wmt-10k/train`` and ``alignment-deen/test`` (``.de.gz`` and ``.en.gz``) below
SPARSENMT_DATA. Text becomes lower case and is tokenised like the hand-aligned sentences. ``train.align`` has links of
IBM Model 1 in both directions (`sparsenmt.data.translation_table`, on words) with a prior for places near the diagonal
(Dyer, Chahuneau and Smith 2013, "A Simple, Fast, and Effective Reparameterization of IBM Model 2"), symmetrised by
grow-diag (Koehn, Och and Marcu 2003). The hand-aligned sentences are in the text that the links are learned from, not
in the text that models are trained on. Ends with one line of JSON: the alignment error rate of these links.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.data.translation_table import translation_table
from sparsenmt.data.word_links import Link, parse_links
from sparsenmt.evaluation.alignment_error import AlignmentError

SIDES = ("de", "en")
_SIGNS = re.compile(r"([^\w\s'-])")
_WRITTEN = str.maketrans({"’": "'", "‘": "'", "\xad": None})
_DAMAGED = "\ufffd"  # in the place of a character that was lost
_QUOTE = re.compile(r"'(?=s\b)|(?<=\w)'(?!\w)|(?<!\w)'(?=\w)")
_OPENING = re.compile(r"(?<!\S)'(?=\w)(?!(?:s|t|re|ve|ll|d|m)\b)")  # a quotation mark, and no part of a word
_DIAGONAL = 4.0  # how fast the prior falls with the distance from the diagonal
_LONGEST = 60  # words of a sentence
_DEV = 554  # lines of `dev` that validate; the others are trained on
_FIRST = 4  # the id of the first word: smaller ones are special tokens
_NEIGHBOURS = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]


def tokenised(line: str) -> str:
    """Return a line in lower case, with signs apart from words; hyphens stay in words, and 's is a word.

    Apostrophes are of one kind, and hyphens that are not seen are left out.
    """
    text = _SIGNS.sub(r" \1 ", html.unescape(line).translate(_WRITTEN).lower())
    text = re.sub(r"(\d) ([.,]) (\d)", r"\1\2\3", text)
    text = _QUOTE.sub(" '", text).replace("' s ", "'s ")
    return " ".join(_OPENING.sub("' ", text).split())


def word_ids(texts: Iterable[Sequence[str]]) -> list[list[int]]:
    """Return the numbers of words, in the order of their first occurrences."""
    known: dict[str, int] = {}
    return [[known.setdefault(word, len(known) + _FIRST) for word in words] for words in texts]


def viterbi(pairs: Sequence[tuple[list[int], list[int]]]) -> list[set[Link]]:
    """Align each target word with the most probable source word, or with none: links (source, target) of each pair."""
    size = 1 + max(max(target, default=0) for _, target in pairs)
    table = translation_table(pairs, size)
    keys = (table.source * size + table.target).tolist()
    known = dict(zip(keys, table.probabilities.tolist(), strict=True))
    found = []
    for source, target in pairs:
        links = set()
        for j, y in enumerate(target):
            place = (j + 1) / len(target)
            values = [
                known.get(x * size + y, 0.0) * math.exp(-_DIAGONAL * abs((i + 1) / len(source) - place))
                for i, x in enumerate(source)
            ]
            if values and max(values) > 1e-6:
                links.add((values.index(max(values)), j))
        found.append(links)
    return found


def grow_diag(forward: set[Link], backward: set[Link]) -> set[Link]:
    """Return the links of both directions, and neighbours of them of either one for words that have no link yet."""
    links, either, grown = forward & backward, forward | backward, True
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    while grown:
        grown = False
        for i, j in sorted(links):
            for new in ((i + a, j + b) for a, b in _NEIGHBOURS):
                if new in either and new not in links and (new[0] not in sources or new[1] not in targets):
                    links.add(new)
                    sources.add(new[0])
                    targets.add(new[1])
                    grown = True
    return links


def main(data: Path, output: Path) -> None:
    """Write the corpus, and print the error rate of its links."""
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "gold": []}
    for name, part, first in (
        ("europarl-doc/test", "train", 0),
        ("europarl-doc/dev", "dev", 0),
        ("europarl-doc/dev", "train", _DEV),
        ("wmt-10k/train", "train", 0),
        ("alignment-deen/test", "gold", 0),
    ):
        lines = zip(*(read_lines(data / f"{name}.{side}.gz") for side in SIDES), strict=True)
        for pair in islice(lines, first, _DEV if part == "dev" else None):
            own = pair if part == "gold" else (tokenised(pair[0]), tokenised(pair[1]))
            if part != "train" or all(0 < len(text.split()) <= _LONGEST and _DAMAGED not in text for text in own):
                parts[part].append(own)
    both = [*parts["train"], *parts["gold"]]
    ids = [word_ids(texts) for texts in zip(*([text.split() for text in pair] for pair in both), strict=True)]
    forward = viterbi(list(zip(ids[0], ids[1], strict=True)))
    backward = viterbi(list(zip(ids[1], ids[0], strict=True)))
    links = [grow_diag(a, {(i, j) for j, i in b}) for a, b in zip(forward, backward, strict=True)]
    output.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev"):
        for number, side in enumerate(SIDES):
            write_lines(output / f"{part}.{side}", (pair[number] for pair in parts[part]))
    count = len(parts["train"])
    write_lines(output / "train.align", (" ".join(f"{i}-{j}" for i, j in sorted(own)) for own in links[:count]))
    golds = [parse_links(line, "gold") for line in read_lines(data / "alignment-deen/test.align.gz")]
    rate = AlignmentError.of(zip(links[count:], golds, strict=True)).rate
    print(json.dumps({"name": "alignment_corpus", "pairs": count, "aer": rate}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder that is written")
    main(Path(os.environ.get("SPARSENMT_DATA", "data")), parser.parse_args().folder)
