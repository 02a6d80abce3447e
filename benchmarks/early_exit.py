"""Quality against decoder layers: early exits by confidence, fixed depths, and depths chosen for each sentence.

    python benchmarks/early_exit.py MODEL_DIR --source TEXT --reference TEXT [--sentences N] [--output FILE.csv]

The model is a tied-multi one. All systems search greedily with all encoder layers. For each it prints the decoder
layers of a token on average, BLEU and chrF:

fixed M           M layers for every token
early exit P      a token takes the first exit at which it is certain, with `exit_confidence` P
oracle            for each sentence the fewest layers that give its best sentence-level chrF, which must be known
selector          the layers that the model's depth selector chooses, with its encoder layers; if the model has one

layers_saved is all layers over those of the early exit with the fewest whose chrF is at most 0.5 below that of all.
Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from common import verdict
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_parallel, write_lines
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.depth_selector.selector import FOLDER, open_selector
from sparsenmt.evaluation.depth_oracle import chosen_lines, oracle_depths, sentence_chrf
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.recipe.schema import Decoding

CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
LOSS = 0.5  # chrF
SETTINGS = ScoringSettings(("bleu", "chrf"))
Row = tuple[str, float, float, float]


def layers_of(found: Sequence[TranslatedLine], usual: float) -> float:
    """Return the decoder layers of a token on average."""
    best = [each.hypotheses[0] for each in found if not each.source.empty]
    counts = [len(each.tokens) + each.ended for each in best]
    layers = [usual if each.layers is None else each.layers for each in best]
    return float(np.average(layers, weights=counts))


def row(name: str, texts: Sequence[str], layers: float, references: Sequence[str]) -> Row:
    """Score a system, print its line, and return it."""
    bleu, chrf = (score.value for score in corpus_scores(texts, [references], SETTINGS))
    print(f"{name:<18}{layers:>8.2f}{bleu:>8.2f}{chrf:>8.2f}", flush=True)
    return name, layers, bleu, chrf


def systems(bundle: Bundle, model: Path, sources: Sequence[str], references: Sequence[str]) -> list[Row]:
    """Translate with every system; returns a row for each."""
    lines, plan = input_lines(sources), bundle.model.plan
    encoder, last = plan.deepest
    base = bundle.recipe.decoding.model_copy(update={"method": "greedy"})
    fixed: dict[int, list[str]] = {}
    counts: list[list[int]] = []
    rows = []

    def run(options: Decoding) -> list[TranslatedLine]:
        return list(translate_lines(bundle, lines, options))

    for depth in plan.decoder_exits:
        found = run(base.at((encoder, depth)))
        fixed[depth] = [each.text for each in found]
        counts.append([len(each.hypotheses[0].tokens) + 1 for each in found])
        rows.append(row(f"fixed {depth}", fixed[depth], depth, references))
    for confidence in CONFIDENCES:
        found = run(base.model_copy(update={"method": "early_exit", "exit_confidence": confidence}))
        rows.append(row(f"early exit {confidence:g}", [e.text for e in found], layers_of(found, last), references))
    chosen = oracle_depths(sentence_chrf(list(fixed.values()), references))
    depths, weights = np.array(plan.decoder_exits)[chosen], [counts[k][i] for i, k in enumerate(chosen)]
    layers = float(np.average(depths, weights=weights))
    rows.append(row("oracle", chosen_lines(list(fixed.values()), chosen), layers, references))
    if (model / FOLDER).exists():
        selected = list(open_selector(model, bundle).translate(bundle, lines, base))
        weights = [len(each.hypotheses[0].tokens) + 1 for each in selected]
        layers = float(np.average([each.depth[1] if each.depth else last for each in selected], weights=weights))
        rows.append(row("selector", [each.text for each in selected], layers, references))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--sentences", type=int, help="number of sentences to use, from the first")
    parser.add_argument("--output", type=Path, help="CSV file of the table")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pairs = list(read_parallel([given.source, given.reference]))[: given.sentences]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    bundle = open_model(given.model, device="cpu")
    print(f"{'':<18}{'layers':>8}{'BLEU':>8}{'chrF':>8}")
    rows = systems(bundle, given.model, sources, references)
    if given.output is not None:
        table = [f"{name},{layers:.4f},{bleu:.4f},{chrf:.4f}" for name, layers, bleu, chrf in rows]
        write_lines(given.output, ["system,layers,bleu,chrf", *table])
    full = next(each for each in rows if each[0] == f"fixed {bundle.model.plan.decoder_exits[-1]}")
    close = [each[1] for each in rows if each[0].startswith("early") and each[3] >= full[3] - LOSS]
    result = verdict("early_exit", {"layers_saved": full[1] / min(close, default=full[1])}, {})
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
