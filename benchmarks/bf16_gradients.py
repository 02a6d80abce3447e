"""The gradients of training in bf16 beside float64: how far each parameter's is off, at real batch sizes.

    python benchmarks/bf16_gradients.py [--parameters]

Models of several kinds with random weights, rounded to bf16; one batch of made-up sentences, without dropout, in bf16
(as `sparsenmt train` computes it) and, with the same rounded weights, in float64. The error of a parameter is the
distance of the two gradients over the length of that of float64, both as vectors; rounded activations have a part in
it. The table has the largest error of each kind of parameter, and the norm of all gradients: of the whole batch, of the
batch in ten parts, and in float64. `--parameters` lists the errors of all parameters. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from common import verdict
from sparsenmt.assemble.model import build_model
from sparsenmt.data.batching import Batch, pad
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.recipe import schema
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.segments import accumulate_segment_gradients

BARS = {"norms": 0.05, "biases": 0.05, "tables": 0.05, "matrices": 0.05, "methods": 0.05}
"""The largest error of each kind."""

SMALLEST = 1e-4  # of the norm of all gradients: below, a gradient is 0 but for rounding, as that of a key's bias


@dataclass(frozen=True)
class Trial:
    """A model, and the batch that it is given.

    Args:
        section: the `model` section of a recipe.
        vocabulary: number of tokens.
        tokens: target tokens of the batch. length: of its longest sentence, or of the segments of a language model.
        encoder: False: a language model.
    """

    section: Mapping[str, Any]
    vocabulary: int = 8000
    tokens: int = 4096
    length: int = 40
    encoder: bool = True


SIZES = {"dimension": 256, "feed_forward": 1024, "heads": 4, "decoder_layers": 2, "dropout": {"residual": 0.0}}
SMALL = {**SIZES, "encoder_layers": 2}
LANGUAGE_MODEL = {**SIZES, "encoder_layers": 0, "positions": "none", "segment_memory": 128}
SITES = ("encoder_self", "decoder_self", "cross")


def _language_model(**choices: Any) -> Trial:
    return Trial({**LANGUAGE_MODEL, "attention": {"decoder_self": choices}}, 80, 4096, 128, encoder=False)


TRIALS = {
    "words": Trial(SMALL),
    "characters": Trial(SMALL, 80, 3000, 200),
    "post-norm": Trial({**SMALL, "norm": "post", "embedding_norm": True, "positions": "learned", "output_bias": True}),
    "1.5-entmax": Trial({**SMALL, "attention": {site: {"transform": {"name": "entmax15"}} for site in SITES}}),
    "alphas": Trial({**SMALL, "attention": {site: {"transform": {"name": "entmax"}} for site in SITES}}),
    "gates": Trial({**SMALL, "memory": [{"name": "l0drop", "at": "output"}]}),
    "recurrence": Trial({**SMALL, "recurrence": {"name": "ssru"}}),
    "all depths": Trial({**SMALL, "depth": {"name": "tied_multi"}}),
    "relative": _language_model(position={"name": "transformer_xl"}),
    "spans": _language_model(
        position={"name": "distance_vectors", "maximum": 256},
        span={"name": "adaptive_span", "maximum": 256, "ramp": 32},
    ),
}


def made_batch(trial: Trial) -> Batch:
    """A batch of sentences of random lengths; tokens are as unequal as words, by Zipf's law."""
    draw = torch.Generator().manual_seed(1)
    chances = 1 / torch.arange(1, trial.vocabulary - EOS, dtype=torch.float64)

    def sentence() -> list[int]:
        length = trial.length if not trial.encoder else int(torch.randint(3, trial.length, (1,), generator=draw))
        return [*(EOS + 1 + torch.multinomial(chances, length, True, generator=draw)).tolist(), EOS]

    rows: list[tuple[list[int], list[int]]] = []
    while sum(len(target) for _, target in rows) < trial.tokens:
        rows.append((sentence(), sentence()))
    source, source_valid = pad([source for source, _ in rows])
    output, valid = pad([target for _, target in rows])
    given, _ = pad([[BOS, *target[:-1]] for _, target in rows])
    return Batch(source, source_valid, {}, given, output, valid, None, tuple(range(len(rows))))


def gradients(trial: Trial, dtype: torch.dtype, batches: int = 1) -> dict[str, Tensor]:
    """The gradient of every parameter in float64, by name; weights are those of bf16 in every dtype.

    Args:
        dtype: of the arithmetic: bf16 as in training, or float64 throughout.
        batches: parts of the batch, whose gradients are added up.
    """
    section = schema.ModelSection.model_validate(trial.section)
    model = build_model(section, source_size=trial.vocabulary, target_size=trial.vocabulary, seed=1)
    weights = MasterWeights(model, torch.bfloat16)
    weights.publish()
    if dtype != torch.bfloat16:
        model = model.to(dtype)
    model.eval()  # no dropout, and gates without noise
    batch, losses = made_batch(trial), {"l0": 1.0} if "memory" in trial.section else {}
    whole = UpdateTotals.of([batch])
    for part in _parts(batch, batches):
        if trial.encoder:
            accumulate_gradients(model, part, Objective(0.1, "tokens", losses), whole)
        else:
            given = part.target_input, part.target_output, None
            accumulate_segment_gradients(model, *given, Objective(0.1, "tokens", {}), whole)
        if dtype == torch.bfloat16:
            weights.collect()
    found = weights.named if dtype == torch.bfloat16 else dict(model.named_parameters())
    return {name: each.grad.double() for name, each in found.items() if each.grad is not None}


def _parts(batch: Batch, count: int) -> Iterator[Batch]:
    rows = torch.arange(batch.sentences).chunk(count)
    for each in rows:
        yield replace(
            batch,
            source=batch.source[each],
            source_valid=batch.source_valid[each],
            target_input=batch.target_input[each],
            target_output=batch.target_output[each],
            target_valid=batch.target_valid[each],
            indices=tuple(each.tolist()),
            source_tokens=-1,
            target_tokens=-1,
        )


def errors(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """The error of each parameter's gradient; parameters without a gradient to speak of are left out."""
    least = SMALLEST * norm(exact)
    return {
        name: float((found[name] - each).norm() / each.norm()) for name, each in exact.items() if each.norm() > least
    }


def norm(gradients: Mapping[str, Tensor]) -> float:
    """The norm of all gradients of an update, as it is clipped."""
    return float(torch.stack([each.norm() for each in gradients.values()]).norm())


def kind(name: str) -> str:
    """The kind of a parameter, a key of `BARS`."""
    if "norm" in name:
        return "norms"
    if name.startswith(("embeddings.", "positions.")):
        return "tables"
    if name.endswith(".bias") or name == "output_bias":
        return "biases"
    return "matrices" if name.endswith(".weight") and ".transform." not in name else "methods"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", metavar="MODEL", help=f"default: all of {', '.join(TRIALS)}")
    parser.add_argument("--parameters", action="store_true", help="list the errors of all parameters")
    arguments = parser.parse_args()
    worst = dict.fromkeys(BARS, 0.0)
    print(f"{'':20}" + "".join(f"{each:>10}" for each in BARS) + f"{'norm':>10}{'in parts':>10}{'exact':>10}")
    for name in arguments.trials or TRIALS:
        trial = TRIALS[name]
        exact, found = gradients(trial, torch.float64), gradients(trial, torch.bfloat16)
        parts = gradients(trial, torch.bfloat16, batches=10)
        off, kinds = errors(found, exact), dict.fromkeys(BARS, 0.0)
        for parameter, error in off.items():
            kinds[kind(parameter)] = max(kinds[kind(parameter)], error)
            if arguments.parameters:
                print(f"  {parameter:60}{error:10.4f}")
        print(
            f"{name:20}"
            + "".join(f"{each:10.4f}" for each in kinds.values())
            + f"{norm(found):10.4f}{norm(parts):10.4f}{norm(exact):10.4f}",
            flush=True,
        )
        worst = {each: max(worst[each], kinds[each]) for each in BARS}
    result = verdict("bf16_gradients", worst, BARS, most=BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
