"""Training speed relative to Hugging Face Marian: the same sizes, and the same batches of Multi30k English-German.

A step is forward, label-smoothed cross-entropy, backward and Adam. The text is in the directory that the environment
variable SPARSENMT_DATA names, or in ``data/`` of the checkout.
``--set device=cuda`` runs both sides on a GPU; there ``SPARSENMT_PEER_PYTHON`` may name the interpreter of the peer.
Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Case, Side, run
from multi30k import write_batches
from peers.environments import python_of

OURS = Side("workers/train.py")
MARIAN = Side("peers/transformers_train.py", lambda: python_of("transformers"))

SMALL: dict[str, Any] = {
    # The model.
    "dimension": 256,
    "feed_forward": 1024,
    "heads": 4,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "vocabulary": 8000,  # shared: one table for source, target and output
    "max_positions": 512,
    "dropout": 0.1,  # on the outputs of sub-layers and on embeddings
    "label_smoothing": 0.1,
    # The data.
    "batch_tokens": 4096,  # rows times the longer of the padded lengths, at most
    "steps": 6,  # batches in a repeat, the same every time
    # The machine.
    "device": "cpu",
    "threads": 2,
    "our_dtype": "fp32",
    "peer_dtype": "fp32",
}
BF16 = {"our_dtype": "bf16", "peer_dtype": "bf16"}

CASES = [
    Case("fp32", OURS, MARIAN, SMALL, bar=1.5, prepare=write_batches),
    Case("bf16", OURS, MARIAN, SMALL | {"our_dtype": "bf16"}, bar=3.8, prepare=write_batches),
    Case("bf16_vs_bf16", OURS, MARIAN, SMALL | BF16, bar=2.6, prepare=write_batches),
]

if __name__ == "__main__":
    sys.exit(run("train_vs_transformers", __doc__, CASES, repeats=5))
