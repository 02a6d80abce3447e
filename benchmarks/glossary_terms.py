"""Terms of a glossary in translations: their share, and what they cost in BLEU.

    python benchmarks/glossary_terms.py MODEL_DIR --source TEXT --reference TEXT [--sentences 200] [--threads 1]

The glossary is made of the text: words of the source with the word of the reference that stands beside them most
exclusively (Dice's coefficient). It prints the share of terms that stand in the translations without a glossary, with
one that must be kept, and with a bonus of one nat a token, and the BLEU of each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from sacrebleu import corpus_bleu

from common import verdict
from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.terminology import Glossary, stands
from sparsenmt.data.text import read_parallel, write_lines
from sparsenmt.data.word_spaces import word_spans
from sparsenmt.decoding.translate import translate_lines

LEAST_FOUND, LEAST_DICE, LEAST_LETTERS = 3, 0.6, 4
BARS = {"terms": 0.98}


def words(text: str) -> set[str]:
    """Return the longer words of a text."""
    found = {text[slice(*span)] for span in word_spans(text)}
    return {word for word in found if len(word) >= LEAST_LETTERS and word.isalpha()}


def make_terms(rows: list[tuple[str, ...]]) -> dict[str, str]:
    """Return source words with the words that translate them best."""
    single, both = (Counter[str](), Counter[str]()), Counter[tuple[str, str]]()
    for row in rows:
        sides = tuple(words(text) for text in row)
        for counter, own in zip(single, sides, strict=True):
            counter.update(own)
        both.update(product(sides[0], sides[1]))
    terms: dict[str, tuple[float, str]] = {}
    for (source, target), count in both.items():
        dice = 2 * count / (single[0][source] + single[1][target])
        if count >= LEAST_FOUND and dice >= LEAST_DICE:
            terms[source] = max(terms.get(source, (0.0, "")), (dice, target))
    lower = {source.lower(): target for source, (_, target) in terms.items()}
    return dict(sorted(lower.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    bundle = open_model(given.model)
    options, target = bundle.recipe.decoding.model_copy(update={"method": "beam"}), bundle.tokenizers.target
    rows = list(read_parallel([given.source, given.reference]))
    terms = make_terms(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "terms.tsv"
        known = {source: own for source, own in terms.items() if 1 not in target.encode(own)}
        write_lines(path, [f"{source}\t{own}" for source, own in known.items()])
        hard, soft = (Glossary(path, target, bundle.max_target_length, bonus) for bonus in (None, 1.0))
    rows = [row for row in rows if hard.find(row[0])][: given.sentences]
    wanted = [hard.find(source) for source, _ in rows]
    shares, scores = {}, {}
    for name, glossary in (("none", None), ("kept", hard), ("bonus", soft)):
        lines = input_lines([source for source, _ in rows])
        if glossary is not None:
            lines = [replace(line, terms=glossary.find(line.text)) for line in lines]
        found = [each.text for each in translate_lines(bundle, lines, options)]
        there = [stands(own, text, target) for text, row in zip(found, wanted, strict=True) for own in row]
        shares[name] = sum(there) / len(there)
        scores[name] = corpus_bleu(found, [[reference for _, reference in rows]]).score
        print(f"{name:6} {shares[name]:7.2%} of {len(there)} terms in {len(rows)} sentences, BLEU {scores[name]:.2f}")
    ratios = {"terms": shares["kept"], "terms_bonus": shares["bonus"], "terms_none": shares["none"]}
    ratios |= {"bleu_loss": scores["none"] - scores["kept"], "bleu_loss_bonus": scores["none"] - scores["bonus"]}
    result = verdict("glossary_terms", ratios, BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
