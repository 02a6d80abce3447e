"""The time of decoding with compiled kernels, which the table of choices selects, relative to PyTorch alone.

    python benchmarks/native_choice.py [CASE ...] [--repeats N]

Beam search with random weights and outputs of one length. Ratios are the seconds with SPARSENMT_NATIVE=0 over those
with kernels, on one thread: a kernel that is slower than PyTorch's operators must not be used, so that no ratio is
under 1 / 1.05. Both take turns in one process, and its processor time is counted, so that others disturb less.

native_*  kernels compiled for this processor
avx2_*    compiled for AVX2 only, as on a processor without AVX-512, where most attention is slower than PyTorch's
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from common import FOLDER, command_line, parse, take_turns, verdict
from decode_vs_ctranslate2 import BASE
from protocol import EOS, decoding_sources
from sparsenmt.data.batching import pad
from sparsenmt.decoding.beam import beam_search
from sparsenmt.engine.build import build
from sparsenmt.model.protocol import Source
from sparsenmt.native import kernels as module
from sparsenmt.native.build import build_here
from sparsenmt.native.instruction_sets import CAP
from sparsenmt.native.library import SWITCH
from sparsenmt.recipe import schema
from workers.model import random_model

BAR = 1 / 1.05
LARGE: dict[str, Any] = BASE | {"encoder_layers": 3, "decoder_layers": 3, "vocabulary": 8000, "threads": 1}
TINY = LARGE | {"dimension": 128, "feed_forward": 512, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
WORK: dict[str, dict[str, Any]] = {
    "short_sources": LARGE | {"sentences": 32},
    "one_by_one": LARGE | {"sentences": 4, "batch_sentences": 1},
    "30_queries": TINY | {"sentences": 64, "batch_sentences": 64, "source_length": 29},
    "long_sources": LARGE | {"sentences": 4, "batch_sentences": 4, "source_length": 399, "target_length": 30},
    "long_sources_tiny": TINY | {"sentences": 8, "batch_sentences": 8, "source_length": 399, "target_length": 30},
}
BUILDS = ("native", "avx2")


@contextmanager
def compiled(build: str) -> Iterator[None]:
    """Use kernels of this build, which are in a folder of their own."""
    with mock.patch.dict(os.environ):
        if build == "avx2":
            os.environ |= {"SPARSENMT_NATIVE_FOLDER": str(FOLDER.parent / "build" / "avx2"), CAP: "avx2"}
        build_here(print)
        module._found.cache_clear()
        try:
            yield
        finally:
            module._found.cache_clear()


def translation(work: dict[str, Any], switch: str) -> Callable[[], float]:
    """A function that translates, with the switch at this value, and returns the seconds of processor time."""
    os.environ[SWITCH] = switch
    engine = build(random_model(work), final=True)
    sources = [[*source, EOS] for source in decoding_sources(work)]
    options = schema.Decoding(beam_size=work["beam_size"], length_penalty="gnmt", alpha=work["length_penalty"])
    rows, length = work["batch_sentences"], work["target_length"]

    @torch.inference_mode()
    def once() -> float:
        os.environ[SWITCH] = switch
        start = time.process_time()
        for first in range(0, len(sources), rows):
            batch = sources[first : first + rows]
            memory = engine.encode(Source(*pad(batch), {}), compact=True).memory
            found = beam_search(engine, memory, torch.full((len(batch),), length), options)
            assert all(len(hypotheses[0].tokens) == length for hypotheses in found)  # the end is improbable
        return time.process_time() - start

    return once


def measure(name: str, work: dict[str, Any], repeats: int) -> float:
    """Time a case, print it, and return PyTorch's seconds over ours."""
    torch.set_num_threads(work["threads"])
    sides = {side: translation(work, switch) for side, switch in (("kernels", "1"), ("PyTorch", "0"))}
    timings = take_turns(sides, repeats)
    print(f"\n{name}: {work['sentences']} sentences, fastest of {repeats}, taking turns")
    for side, timing in timings.items():
        print(f"  {side:<10}{timing.best * 1e3:>10.1f} ms  (spread {timing.spread:6.1%})")
    ratio = timings["PyTorch"].best / timings["kernels"].best
    print(f"  ratio {ratio:.3f}", flush=True)
    return ratio


def main(arguments: Sequence[str] | None = None) -> int:
    names = [f"{kind}_{case}" for kind in BUILDS for case in WORK]
    given, changes = parse(command_line(__doc__, repeats=15), names, arguments)
    ratios: dict[str, float] = {}
    for kind in BUILDS:
        chosen = {name: case for case in WORK if (name := f"{kind}_{case}") in (given.cases or names)}
        if not chosen:
            continue
        with compiled(kind):
            os.environ[SWITCH] = "1"
            if module.kernels() is None:
                print(f"{kind}: no kernels")
                continue
            ratios |= {name: measure(name, WORK[case] | changes, given.repeats) for name, case in chosen.items()}
    result = verdict("native_choice", ratios, {} if changes else dict.fromkeys(ratios, BAR))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
