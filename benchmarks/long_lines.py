"""Paragraphs of 300 to 3,000 words as single lines, against their sentences line by line.

    python benchmarks/long_lines.py MODEL_DIR --source TEXT --reference TEXT [--paragraphs 200] [--threads 1]

Consecutive lines of the text make paragraphs; lines of a short text are repeated, in both ways alike. It prints the
share of the paragraphs' characters that were read (all, or something was cut), the share of the lines' sentences whose
translation alone stands in that of their paragraph, BLEU of paragraphs and of lines alone against the reference, and
the peak of memory after the paragraphs over that after the lines alone.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
from collections.abc import Sequence
from pathlib import Path

import torch
from sacrebleu import corpus_bleu

from common import verdict
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.sentences import divide
from sparsenmt.data.text import read_parallel
from sparsenmt.decoding.translate import translate_lines

SHORTEST, LONGEST = 300, 3000  # words
BARS = {"read": 1.0, "stands": 0.9, "bleu_loss": 1.0, "memory": 1.1}


def paragraphs(rows: list[tuple[str, ...]], count: int) -> list[list[int]]:
    """Return the numbers of the lines of each paragraph; the lengths are drawn, short ones more often."""
    draw, found, at = random.Random(1), list[list[int]](), 0
    for _ in range(count):
        wanted, own, words = SHORTEST * (LONGEST / SHORTEST) ** draw.random() ** 2, list[int](), 0
        while words < wanted:
            own.append(at % len(rows))
            words += len(rows[at % len(rows)][0].split())
            at += 1
        found.append(own)
    return found


def sentences(bundle: Bundle, text: str) -> list[str]:
    """Return the sentences of a line, also of one that a model would read whole."""

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in bundle.tokenizers.source.encode_batch(list(texts))]

    return [text[slice(*span)] for span in divide(text, count, 0, bundle.max_source_length)]


def peak() -> int:
    """Return the most memory, in kilobytes, that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--paragraphs", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    bundle = open_model(given.model)
    options = bundle.recipe.decoding.model_copy(update={"method": "greedy", "long": "split"})
    rows = list(read_parallel([given.source, given.reference]))
    chosen = paragraphs(rows, given.paragraphs)
    lines = [i for own in chosen for i in own]
    texts = input_lines([rows[i][0] for i in lines])
    alone = dict(zip(lines, (each.text for each in translate_lines(bundle, texts, options)), strict=True))
    used = sorted(alone)
    divided = {i: sentences(bundle, rows[i][0]) for i in used}
    each_sentence = [text for i in used for text in divided[i]]
    stands = {i: list[str]() for i in used}
    places = (i for i in used for _ in divided[i])
    for i, each in zip(places, translate_lines(bundle, input_lines(each_sentence), options), strict=True):
        stands[i].append(each.text)
    before = peak()
    joined = [" ".join(rows[i][0] for i in own) for own in chosen]
    found, read, cut = list[str](), 0, 0
    for each in translate_lines(bundle, input_lines(joined), options):
        found.append(each.text)
        read += sum(len("".join(part.source.text.split())) for part in each.parts or (each,))
        cut += each.source.cut
    memory = peak() / before
    whole = sum(len("".join(text.split())) for text in joined)
    standing = [one in text for own, text in zip(chosen, found, strict=True) for i in own for one in stands[i]]
    references = [" ".join(rows[i][1] for i in own) for own in chosen]
    ours = corpus_bleu(found, [references]).score
    theirs = corpus_bleu([" ".join(alone[i] for i in own) for own in chosen], [references]).score
    words = [len(text.split()) for text in joined]
    print(f"{len(joined)} paragraphs of {min(words)} to {max(words)} words in {len(lines)} lines; {cut} tokens cut")
    print(f"BLEU {ours:.2f} in paragraphs, {theirs:.2f} line by line")
    ratios = {
        "read": read / whole,
        "stands": sum(standing) / len(standing),
        "bleu_loss": theirs - ours,
        "memory": memory,
    }
    result = verdict("long_lines", ratios, BARS, most={"bleu_loss", "memory"})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
