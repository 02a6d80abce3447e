"""Beam search relative to CTranslate2: the same sizes, random weights, every output of the same length.

Random weights and a forced length make the work known exactly: every hypothesis has the maximum length on both sides.
No shortlist of the vocabulary on either side. CTranslate2 is tried with each of its backends and with one or two
workers, each with its share of the threads (`peer_settings`); the two fastest settings take turns with ours, and the
better one counts. In `base_avx2_fp32` and `base_avx2_fast` both sides are held to the instructions of a processor with
AVX2 only. Ends with one JSON line; the exit code is 0 if every ratio reaches its bar.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import Case, Side, run
from peers.environments import python_of

OURS = Side("workers/decode.py")
CTRANSLATE2 = Side("peers/ctranslate2_decode.py", lambda: python_of("ctranslate2"))
WORKERS = (1, 2)


def has_tiles() -> bool:
    """Return True on a processor with AMX, whose products of bf16 and int8 are several times faster (Linux)."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and b" amx_tile" in cpuinfo.read_bytes()


def peer_settings(side: Side, workers: Sequence[int] = WORKERS) -> list[Side]:
    """Return CTranslate2 with each backend that it can be given, with each of these numbers of workers.

    Its packages for x86-64 hold oneDNN and Intel MKL, and take MKL on Intel's processors only; MKL packs the weights
    when a model is loaded, unless `CT2_PACKED_GEMM` is 0. For other processors there is nothing to choose.
    """
    backends: list[dict[str, str]] = [{}]
    if platform.machine().lower() in ("x86_64", "amd64"):
        backends = [{"CT2_USE_MKL": "0"}, {"CT2_USE_MKL": "1"}, {"CT2_USE_MKL": "1", "CT2_PACKED_GEMM": "0"}]
    return [
        replace(side, work={**side.work, "side_by_side": count}, environment=backend)
        for backend in backends
        for count in workers
    ]


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
    "side_by_side": 1,  # workers of the peer, which share the threads
    "our_dtype": "fp32",
    "peer_compute_type": "float32",
}

SMALL = (
    BASE
    | {"dimension": 256, "feed_forward": 1024, "heads": 4, "vocabulary": 8000}
    | {"encoder_layers": 3, "decoder_layers": 3}
)
LONG = BASE | {"batch_sentences": 10, "sentences": 10}


def case(name: str, work: dict[str, Any], bar: float) -> Case:
    first, *others = peer_settings(CTRANSLATE2)
    return Case(name, OURS, first, work, bar, other_settings=tuple(others))


AVX2_OURS = {"SPARSENMT_NATIVE_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"}
AVX2_PEER = {"CT2_FORCE_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def avx2_case(name: str, work: dict[str, Any], bar: float) -> Case:
    """Return a case for a processor with AVX2 only: every library of both sides is held to it by its environment."""
    sides = [replace(side, environment={**side.environment, **AVX2_PEER}) for side in peer_settings(CTRANSLATE2)]
    ours = replace(OURS, environment=AVX2_OURS)
    return Case(name, ours, sides[0], work, bar, other_settings=tuple(sides[1:]))


# The fastest dtype of this machine, by the measurement of `sparsenmt decode --dtype auto`.
FAST = BASE | {"our_dtype": "auto", "peer_compute_type": "int8"}

CASES = [
    case("base_fp32", BASE, 1.6),
    case("base_fast", FAST, 3.5 if has_tiles() else 2.5),
    case("small_fp32", SMALL | {"sentences": 256}, 1.3),
    case("base_400_fp32", LONG | {"source_length": 399, "target_length": 60}, 2.0),
    # Our gates drop 71.5% of the source positions at random; the peer has none.
    case(
        "base_2048_l0drop_fp32",
        LONG | {"source_length": 2047, "target_length": 120, "max_positions": 2048, "dropped": 0.715},
        2.5,
    ),
    avx2_case("base_avx2_fp32", BASE, 1.2),
    avx2_case("base_avx2_fast", FAST, 1.2),
]

if __name__ == "__main__":
    sys.exit(run("decode_vs_ctranslate2", __doc__, CASES, repeats=5))
