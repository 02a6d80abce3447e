"""Language models: training speed relative to Hugging Face GPT-2, and what learned spans save.

A training step is forward, cross-entropy, backward, clipping of the norm and AdamW, on bytes, with a context of 512,
sizes of 256 and 1,024, six layers. ``span_train`` and ``span_eval`` compare a model whose heads have learned spans
(mean 100, longest 256) with the same model whose spans are the longest, 1,024; both read a text in segments of 512 with
a memory of 1,024 positions.
Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Case, Side, run
from peers.environments import python_of

OURS = Side("workers/language_model.py")
GPT2 = Side("peers/transformers_language_model.py", lambda: python_of("transformers"))

SMALL: dict[str, Any] = {
    # The model.
    "dimension": 256,
    "feed_forward": 1024,
    "heads": 4,
    "decoder_layers": 6,
    "vocabulary": 260,  # bytes and special tokens
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "segment_memory": 0,
    "span_maximum": 0,  # 0: no spans
    # The data.
    "task": "train",
    "streams": 8,
    "segment_length": 512,
    "steps": 3,  # segments of every stream in a repeat
    # The machine.
    "threads": 2,
    "our_dtype": "fp32",
    "peer_dtype": "fp32",
}
SPAN = SMALL | {"span_maximum": 1024, "segment_memory": 1024, "attention_dropout": 0.0, "streams": 4}
EVAL = SPAN | {"task": "score", "streams": 1, "steps": 8}
LEARNED = {"spans": [32.0, 48.0, 64.0, 256.0], "named": ", learned spans"}  # of the heads, the ramp included: mean 100
FULL = {"spans": [1024.0] * 4, "named": ", full spans"}


def spans(name: str, work: dict[str, Any], bar: float) -> Case:
    sides = [Side("workers/language_model.py", work=chosen) for chosen in (LEARNED, FULL)]
    return Case(name, sides[0], sides[1], work, bar=bar)


CASES = [
    Case("lm_fp32", OURS, GPT2, SMALL, bar=1.2),
    Case("lm_bf16", OURS, GPT2, SMALL | {"our_dtype": "bf16", "peer_dtype": "bf16"}, bar=1.5),
    spans("span_train", SPAN, bar=1.5),
    spans("span_eval", EVAL, bar=1.8),
]

if __name__ == "__main__":
    sys.exit(run("language_model", __doc__, CASES, repeats=5))
