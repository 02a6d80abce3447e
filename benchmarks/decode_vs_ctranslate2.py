"""Beam search relative to CTranslate2: the same sizes, random weights, every output of the same length.

Random weights and a forced length make the work known exactly: every hypothesis has the maximum length on both sides.
No shortlist of the vocabulary on either side.
Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Case, Side, run
from peers.environments import python_of

OURS = Side("workers/decode.py")
CTRANSLATE2 = Side("peers/ctranslate2_decode.py", lambda: python_of("ctranslate2"))

BASE: dict[str, Any] = {
    # The model.
    "dimension": 512,
    "feed_forward": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "vocabulary": 32000,  # shared: one table for source, target and output
    "max_positions": 1024,
    # The search.
    "beam_size": 4,
    "length_penalty": 0.6,
    "batch_sentences": 32,
    "sentences": 64,
    "source_length": 15,  # tokens without </s>
    "target_length": 16,  # steps of the decoder
    # The machine.
    "threads": 2,
    "our_dtype": "fp32",
    "peer_compute_type": "float32",
}

SMALL = (
    BASE
    | {"dimension": 256, "feed_forward": 1024, "heads": 4, "vocabulary": 8000}
    | {"encoder_layers": 3, "decoder_layers": 3}
)
LONG = BASE | {"batch_sentences": 10, "sentences": 10}

CASES = [
    Case("base_fp32", OURS, CTRANSLATE2, BASE, bar=1.5),
    # The fastest dtype of this machine, by the measurement of `sparsenmt decode --dtype auto`.
    Case("base_fast", OURS, CTRANSLATE2, BASE | {"our_dtype": "auto", "peer_compute_type": "int8"}, bar=1.2),
    Case("small_fp32", OURS, CTRANSLATE2, SMALL | {"sentences": 256}, bar=1.0),
    Case("base_400_fp32", OURS, CTRANSLATE2, LONG | {"source_length": 399, "target_length": 60}, bar=1.5),
    # Our gates drop 71.5% of the source positions at random; the peer has none.
    Case(
        "base_2048_l0drop_fp32",
        OURS,
        CTRANSLATE2,
        LONG | {"source_length": 2047, "target_length": 120, "max_positions": 2048, "dropped": 0.715},
        bar=2.0,
    ),
]

if __name__ == "__main__":
    sys.exit(run("decode_vs_ctranslate2", __doc__, CASES, repeats=5))
