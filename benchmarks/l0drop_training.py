"""Training speed with L0Drop gates after the encoder relative to training without: the cost of the gates.

A step is forward, label-smoothed cross-entropy with the penalty, backward and Adam, on the same batches of Multi30k
English-German (in the directory that SPARSENMT_DATA names, or in ``data/`` of the checkout). The ratios are
target tokens per second with gates over those without. Zhang et al. 2021 call the overhead negligible; there is no bar.
Ends with one JSON line.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Case, Side, run
from multi30k import write_batches
from train_vs_transformers import SMALL

GATES: dict[str, Any] = {"memory": [{"name": "l0drop"}], "losses": ["l0"], "penalty": 0.3, "named": " with gates"}
GATED = Side("workers/train.py", work=GATES)
DENSE = Side("workers/train.py")

CASES = [
    Case("fp32", GATED, DENSE, SMALL, prepare=write_batches),
    Case("bf16", GATED, DENSE, SMALL | {"our_dtype": "bf16"}, prepare=write_batches),
]

if __name__ == "__main__":
    sys.exit(run("l0drop_training", __doc__, CASES, repeats=7))
