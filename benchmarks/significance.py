"""The error rate of the significance tests: how often equally good systems are told apart at p < 0.05.

    python benchmarks/significance.py [CASE ...] [--set pairs=400]

Two systems translate the same random sentences: they replace, lose and exchange words with the same probabilities.
Their outputs are scored by sacrebleu or by ROUGE. A simulated pair is a sample of these sentences, whose outputs go to
either side by the toss of a coin: neither system is better. Pairs are compared as `sparsenmt score --baseline` does.

bootstrap_*, randomization_*  share of the pairs with p < 0.05; the bars are the least and the greatest allowed one
interval_*                    share of the pairs whose 95% interval does not hold 0
sacrebleu_bs_*                share with p < 0.05 by the formula of sacrebleu's --paired-bs, from the same samples
few_N                         share with p < 0.05 of pairs with N segments, in case few; at most the greatest allowed
                              one. Beside it in the table: the bootstrap in any case, and intervals without 0
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from common import command_line, parse
from sparsenmt.evaluation.metrics import Statistics, statistics
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import FEWEST, LEVEL, PairedTest, compare_statistics
from sparsenmt.recipe.choices import SignificanceMethod

SIZES = {"pairs": 2000, "segments": 200, "resamples": 400, "sentences": 2000}
CASES: dict[str, dict[str, Any]] = {metric: SIZES | {"metric": metric} for metric in ("bleu", "chrf", "rouge1")}
CASES["few"] = {**CASES["bleu"], "counts": (1, 2, 3, 5, 10, 20, 30, 50, 100)}
BAR = (0.03, 0.07)
_SYLLABLES = ("a", "e", "ino", "ora", "usti")
_WORDS = ["the", "of", "and", *(first + last for first in "bdgklmnprst" for last in _SYLLABLES)]


def sentences(count: int, chooser: random.Random) -> list[str]:
    """Make random sentences of 6 to 30 words, frequent words first in the vocabulary."""
    weights = [1 / (rank + 2) for rank in range(len(_WORDS))]
    return [" ".join(chooser.choices(_WORDS, weights, k=chooser.randint(6, 30))) for _ in range(count)]


def translated(line: str, chooser: random.Random) -> str:
    """Return the output of a system for a reference: some words are others, lost, or exchanged with the next one."""
    words = [chooser.choice(_WORDS) if chooser.random() < 0.2 else word for word in line.split()]
    words = [word for word in words if chooser.random() > 0.05]
    for i in range(len(words) - 1):
        if chooser.random() < 0.1:
            words[i : i + 2] = words[i + 1], words[i]
    return " ".join(words)


def outputs(metric: str, count: int) -> tuple[Statistics, Statistics]:
    """Score the outputs of two systems for the same sentences."""
    chooser = random.Random(1)
    references = sentences(count, chooser)
    settings = ScoringSettings([metric])
    systems = ([translated(line, chooser) for line in references] for _ in range(2))
    (first,), (second,) = (statistics(lines, [references], settings) for lines in systems)
    return first, second


def equal_pairs(
    scored: tuple[Statistics, Statistics], pairs: int, segments: int
) -> Iterator[tuple[Statistics, Statistics]]:
    """Draw pairs of equally good systems: the outputs for some sentences go to either side by the toss of a coin."""
    rng = np.random.default_rng(1)
    first, second = scored
    for _ in range(pairs):
        chosen = rng.choice(len(first.values), segments, replace=False)
        coin = rng.integers(2, size=(segments, 1), dtype=np.bool_)
        ours, theirs = first.values[chosen], second.values[chosen]
        yield replace(first, values=np.where(coin, ours, theirs)), replace(first, values=np.where(coin, theirs, ours))


def error_rates(work: dict[str, Any], method: SignificanceMethod, fewest: int = FEWEST) -> dict[str, float]:
    """Return the shares of equal pairs that are told apart: by ``p``, by sacrebleu's p, and by the interval.

    Args:
        fewest: as of `PairedTest`.
    """
    found = {"p": 0, "sacrebleu": 0, "interval": 0}
    scored = outputs(work["metric"], work["sentences"])
    for seed, pair in enumerate(equal_pairs(scored, work["pairs"], work["segments"])):
        (one,) = compare_statistics([pair], PairedTest(method, work["resamples"], seed, fewest))
        found["p"] += one.p_value is not None and one.p_value < LEVEL
        found["sacrebleu"] += one.sacrebleu_p is not None and one.sacrebleu_p < LEVEL
        ends = one.difference.interval
        found["interval"] += ends is not None and not ends[0] <= 0 <= ends[1]
    return {name: count / work["pairs"] for name, count in found.items()}


def measure(work: dict[str, Any]) -> dict[str, float]:
    """Measure both tests by one metric, and print their rates."""
    metric, ratios = work["metric"], {}
    for method in get_args(SignificanceMethod):
        rates = error_rates(work, method)
        ratios[f"{method}_{metric}"] = rates["p"]
        if method == "bootstrap":
            ratios[f"interval_{metric}"] = rates["interval"]
            if rates["sacrebleu"]:
                ratios[f"sacrebleu_bs_{metric}"] = rates["sacrebleu"]
    print(f"\n{metric}: {work['pairs']} pairs, {work['segments']} segments, {work['resamples']} resamples")
    for name, rate in ratios.items():
        print(f"  {name:<24}{rate:>8.2%}", flush=True)
    return ratios


def measure_few(work: dict[str, Any]) -> dict[str, float]:
    """Measure pairs of few segments: by the bootstrap in any case, and as `compare_statistics` does."""
    print(f"\nfew segments, {work['metric']}: {work['pairs']} pairs, {work['resamples']} resamples")
    print(f"  {'segments':>8}{'bootstrap':>11}{'interval':>10}{'p here':>9}{'interval here':>15}", flush=True)
    ratios = {}
    for count in work["counts"]:
        own = work | {"segments": count}
        before, now = (error_rates(own, "bootstrap", fewest) for fewest in (0, FEWEST))
        ratios[f"few_{count}"] = now["p"]
        interval = f"{now['interval']:.1%}" if count >= FEWEST else "-"
        p_value = f"{now['p']:.1%}" if count > 1 else "-"
        print(f"  {count:>8}{before['p']:>11.1%}{before['interval']:>10.1%}{p_value:>9}{interval:>15}", flush=True)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, repeats=1), list(CASES), arguments)
    ratios: dict[str, float] = {}
    for name in given.cases or CASES:
        ratios |= (measure_few if name == "few" else measure)(CASES[name] | changes)
    barred = () if changes else get_args(SignificanceMethod)
    bars = {name: BAR for name in ratios if name.startswith(barred)} if barred else {}
    bars |= {name: (0, BAR[1]) for name in ratios if barred and name.startswith("few_")}
    ok = all(low <= ratios[name] <= high for name, (low, high) in bars.items())
    print(json.dumps({"name": "significance", "ratios": ratios, "bars": bars, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
