"""Training speed with sparse attention relative to softmax attention.

    python benchmarks/attention_training.py [CASE ...] [--repeats N]

Base size, fp32, sentences of one length on both sides, random tokens. A step is forward, label-smoothed cross-entropy,
backward and Adam. Softmax uses PyTorch's fused attention, as in every recipe. Ratios are target tokens per
second over those with softmax.

entmax15_*, adaptive_*  1.5-entmax, or a learned alpha per head, at all three sites (published: 0.90 and 0.75, on a GPU)
fixed_7f1l              seven fixed heads and a learned one in the encoder, at length 64; fixed_7f1l_16: at 16, no bar
topk8_*                 top-k with k = 8 at all three sites, no bar

``--set device=cuda`` trains on a GPU; ``--set batch_tokens=16384 --set our_dtype=bf16`` then keeps it busier.

Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from common import Case, Side, run
from multi30k import ROOT
from protocol import EOS
from sparsenmt.model.sites import SITES
from sparsenmt.sparsity.registry import Socket, methods

TRAINING: dict[str, Any] = {
    # The model.
    "dimension": 512,
    "feed_forward": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "vocabulary": 8000,  # small, so that the output layer does not hide the time of attention
    "max_positions": 512,
    "dropout": 0.1,  # on the outputs of sub-layers and on embeddings
    "label_smoothing": 0.1,
    # The data.
    "batch_tokens": 2048,
    "steps": 2,  # batches in a repeat, the same every time
    # The machine.
    "device": "cpu",
    "threads": 2,
    "our_dtype": "fp32",
}
SOFTMAX = Side("workers/train.py")


def write_batches(work: dict[str, Any]) -> dict[str, Any]:
    """Write ``steps`` batches of random tokens, ``length`` with </s>; returns the work with their path."""
    path = ROOT / "runs" / "benchmarks" / f"random-{work['length']}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for i in range(work["steps"]):
        for side in ("source", "target"):
            ids = rng.integers(EOS + 1, work["vocabulary"], (work["batch_tokens"] // work["length"], work["length"]))
            ids[:, -1] = EOS
            arrays[f"{side}_{i}"] = ids
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy types the keywords as its own options
    return work | {"batches": str(path)}


def transforms(name: str, **options: Any) -> dict[str, Any]:
    """Return the attention section with one transform at all sites."""
    return {site: {"transform": {"name": name, **options}} for site in SITES}


def case(name: str, attention: dict[str, Any], length: int, bar: float | None) -> Case:
    side = Side("workers/train.py", work={"attention": attention, "named": f" {name}"})
    return Case(name, side, SOFTMAX, TRAINING | {"length": length}, bar, write_batches)


def cases() -> list[Case]:
    """Return the cases whose methods are registered; print the others on standard error."""
    fixed = {"encoder_self": {"heads": {"given": {"name": "fixed_token", "learned": 1}}}}
    wanted: list[tuple[Socket, str, Case]] = [
        ("transform", "entmax15", case("entmax15_16", transforms("entmax15"), 16, 0.95)),
        ("transform", "entmax15", case("entmax15_64", transforms("entmax15"), 64, 0.95)),
        ("transform", "entmax", case("adaptive_16", transforms("entmax", alpha="learned"), 16, 0.85)),
        ("transform", "entmax", case("adaptive_64", transforms("entmax", alpha="learned"), 64, 0.85)),
        ("heads", "fixed_token", case("fixed_7f1l", fixed, 64, 1.0)),
        ("heads", "fixed_token", case("fixed_7f1l_16", fixed, 16, None)),
        ("transform", "topk", case("topk8_16", transforms("topk", k=8), 16, None)),
        ("transform", "topk", case("topk8_64", transforms("topk", k=8), 64, None)),
    ]
    known = methods()
    for socket, method, left_out in wanted:
        if method not in known[socket]:
            print(f"{left_out.name}: left out, as {method} is not registered", file=sys.stderr)
    return [each for socket, method, each in wanted if method in known[socket]]


if __name__ == "__main__":
    sys.exit(run("attention_training", __doc__, cases(), repeats=7))
