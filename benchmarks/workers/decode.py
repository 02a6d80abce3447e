"""This project: beam search with random weights, every output of the same length.

A worker of ``benchmarks/decode_vs_ctranslate2.py``. Like the peer's, it starts and ends with tokens.
"""

from __future__ import annotations

import torch
from torch import nn

import sparsenmt
from protocol import decoding_sources, serve, work_from_arguments
from sparsenmt.data.batching import pad
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.beam import beam_search
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.side_by_side import run_side_by_side
from sparsenmt.engine.build import build, dtype_name, named_dtype
from sparsenmt.model.protocol import Source
from sparsenmt.process.devices import pick_device
from sparsenmt.recipe import schema
from workers.coins import Coins, coins
from workers.model import random_model


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    device = pick_device(work.get("device", "cpu"))
    model = random_model(work).to(device)
    dtype = named_dtype(model, work["our_dtype"]) or torch.float32
    engine = build(model, dtype, final=True)
    sources = [[*source, EOS] for source in decoding_sources(work)]
    kept = None
    if "dropped" in work:
        kept = coins(len(sources), len(sources[0]), work["dropped"])
        model.memory.output = nn.ModuleList([Coins()])
    rows, length = work["batch_sentences"], work["target_length"]
    # EOS is forbidden for `min_length` steps, and the search ends after `length` steps: no hypothesis ends before.
    options = schema.Decoding(
        beam_size=work["beam_size"], length_penalty="gnmt", alpha=work["length_penalty"], min_length=length
    )

    @torch.inference_mode()
    def translate(start: int) -> list[list[Hypothesis]]:
        batch = sources[start : start + rows]
        features = {} if kept is None else {"kept": kept[start : start + rows].to(device)}
        tokens, valid = (each.to(device) for each in pad(batch))
        memory = engine.encode(Source(tokens, valid, features), compact=True).memory
        return beam_search(engine, memory, torch.full((len(batch),), length, device=device), options)

    def repeat() -> None:
        starts = range(0, len(sources), rows)
        for results in run_side_by_side(starts, engine.searches.at_once, lambda own: map(translate, own)):
            assert all(len(hypotheses[0].tokens) == length for hypotheses in results)

    serve(
        what=f"sparsenmt {sparsenmt.__version__} {dtype_name(dtype)}{work.get('named', '')}"
        + (f", {work['dropped']:.1%} dropped" if kept is not None else ""),
        units=len(sources) * length,
        repeat=repeat,
    )


if __name__ == "__main__":
    main()
