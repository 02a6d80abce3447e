"""This project: beam search with random weights, every output of the same length.

A worker of ``benchmarks/decode_vs_ctranslate2.py``. Like the peer's, it starts from pieces and ends with pieces.
"""

from __future__ import annotations

import torch

import sparsenmt
from protocol import decoding_sources, serve, work_from_arguments
from sparsenmt.data.batching import pad
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.model.interfaces import Source
from sparsenmt.recipe import schema
from sparsenmt.training.precision import pick_device, pick_dtype
from workers.model import random_model


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    model = random_model(work)
    model.pack(pick_dtype(work["our_dtype"], pick_device("cpu")))
    sources = [[*source, EOS] for source in decoding_sources(work)]
    rows, length = work["batch_sentences"], work["target_length"]
    # EOS is forbidden for `min_length` steps, and the search ends after `length` steps: no hypothesis ends before.
    options = schema.Decoding(
        beam_size=work["beam_size"], length_penalty="gnmt", alpha=work["length_penalty"], min_length=length
    )

    @torch.inference_mode()
    def translate(batch: list[list[int]]) -> list[list[Hypothesis]]:
        (memory,) = model.encode(Source(*pad(batch)), compact=True).memories.values()
        return beam_search(model, memory, torch.full((len(batch),), length), options)

    def repeat() -> None:
        for start in range(0, len(sources), rows):
            results = translate(sources[start : start + rows])
            assert all(len(hypotheses[0].tokens) == length for hypotheses in results)

    serve(
        what=f"sparsenmt {sparsenmt.__version__} {work['our_dtype']}",
        units=len(sources) * length,
        repeat=repeat,
    )


if __name__ == "__main__":
    main()
