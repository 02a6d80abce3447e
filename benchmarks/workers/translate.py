"""This project: translating lines with a trained model, from text to text. A worker of ``benchmarks/real_text.py``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

import sparsenmt
from protocol import serve, work_from_arguments
from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.build import build, dtype_name, named_dtype


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    bundle = open_model(work["model"], device=torch.device("cpu"), dtype=None)
    dtype = named_dtype(bundle.model, work["our_dtype"]) or torch.float32
    bundle = replace(bundle, built=build(bundle.model, dtype))
    lines = json.loads(Path(work["lines"]).read_bytes())
    options = bundle.recipe.decoding.model_copy(
        update={
            "method": "beam",
            "beam_size": work["beam_size"],
            "length_penalty": "average",
            "alpha": 1.0,
            "max_length_factor": 0.0,
            "max_length_offset": work["longest"] + 1,  # with </s>
            "min_length": 0,
            "no_repeat_ngram": 0,
            "batch_tokens": work["batch_tokens"] * work["beam_size"],
            "shortlist": work["shortlist"],
        }
    )

    def translate() -> list[TranslatedLine]:
        return list(translate_lines(bundle, input_lines(lines), options))

    found = translate()  # the warm-up
    target = bundle.tokenizers.target
    pieces = [target.pieces(each.hypotheses[0].tokens) for each in found]
    Path(work["our_output"]).write_bytes(json.dumps(pieces).encode())

    def repeat() -> None:
        for each in translate():
            assert each.text is not None

    serve(
        what=f"sparsenmt {sparsenmt.__version__} {dtype_name(dtype)}, batches of {work['batch_tokens']}",
        units=len(lines),
        repeat=repeat,
        warm_up=lambda: None,
    )


if __name__ == "__main__":
    main()
