"""Inline tags through translation: are all tags of a line in its translation, balanced, around the same text?

    python benchmarks/markup.py MODEL_DIR --source TEXT [--sentences 300] [--threads 1]

Every line gets one element around some words, and every second one, by chance, another around a word. It prints the
share of translations, by greedy search, that have the tags of their line, that are balanced, and that are the
translation of the line without tags. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import sparsenmt
from common import verdict
from sparsenmt.data.text import read_lines, write_lines

BARS = {"tags": 1.0, "balanced": 1.0, "same_text": 1.0}
_TAG = re.compile(r"<(/?)([a-z]+)>")


def tagged(line: str, draw: random.Random) -> str:
    """Return a line with one or two random elements, which do not overlap in part."""
    words = line.split()
    first = draw.randrange(len(words))
    last = draw.randrange(first, len(words))
    if draw.random() < 0.5:
        inner = draw.randrange(len(words))
        words[inner] = f"<u>{words[inner]}</u>"
    name = draw.choice("abi")
    words[first] = f"<{name}>{words[first]}"
    words[last] += f"</{name}>"
    return " ".join(words)


def is_balanced(text: str) -> bool:
    """Return True if every tag is closed, in order."""
    opened: list[str] = []
    for end, name in _TAG.findall(text):
        if not end:
            opened.append(name)
        elif not opened or opened.pop() != name:
            return False
    return not opened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    draw, usual = random.Random(1), {"method": "greedy", "threads": given.threads}
    plain = list(islice((line for line in read_lines(given.source) if line.strip()), given.sentences))
    marked = [tagged(line, draw) for line in plain]
    with tempfile.TemporaryDirectory() as name:
        outputs = {}
        for kind, lines, options in (("plain", plain, {}), ("marked", marked, {"markup": "xml"})):
            source, output = Path(name) / f"{kind}.source", Path(name) / kind
            write_lines(source, lines)
            sparsenmt.decode(given.model, input=source, output=output, **usual, **options)
            outputs[kind] = list(read_lines(output))
    pairs = list(zip(marked, outputs["marked"], outputs["plain"], strict=True))
    counts = {
        "tags": sum(Counter(_TAG.findall(line)) == Counter(_TAG.findall(found)) for line, found, _ in pairs),
        "balanced": sum(is_balanced(found) for _, found, _ in pairs),
        "same_text": sum(_TAG.sub("", found) == without for _, found, without in pairs),
    }
    print(f"of {len(pairs)} translations: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    result = verdict("markup", {kind: count / len(pairs) for kind, count in counts.items()}, BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
