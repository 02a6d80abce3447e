"""CTranslate2: translating lines with an exported model, from text to text, with SentencePiece around it.

A worker of ``benchmarks/real_text.py``, whose table of cases says what the keys of the work mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece

from peers.ctranslate2_settings import settings
from protocol import serve, work_from_arguments


def main() -> None:
    work = work_from_arguments()
    workers = min(work["side_by_side"], work["threads"])
    translator = ctranslate2.Translator(
        work["exported"],
        device="cpu",
        compute_type=work["peer_compute_type"],
        inter_threads=workers,
        intra_threads=work["threads"] // workers,
    )
    lines = json.loads(Path(work["lines"]).read_bytes())
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=work[f"{side}_model"]) for side in ("source", "target")
    )

    def translate() -> list[Any]:
        results: list[Any] = translator.translate_batch(
            source.encode(lines, out_type=str),
            max_batch_size=work["batch_tokens"],
            batch_type="tokens",
            beam_size=work["beam_size"],
            length_penalty=1.0,  # the log-probability over length ^ 1
            min_decoding_length=0,
            max_input_length=0,
            max_decoding_length=work["longest"],
            use_vmap=work["shortlist"] is not None,
        )
        return results

    pieces = [each.hypotheses[0] for each in translate()]  # the warm-up
    Path(work["peer_output"]).write_bytes(json.dumps(pieces).encode())

    def repeat() -> None:
        target.decode([each.hypotheses[0] for each in translate()])

    serve(
        what=f"CTranslate2 {ctranslate2.__version__} {work['peer_compute_type']}, batches of {work['batch_tokens']}, "
        + settings(workers),
        units=len(lines),
        repeat=repeat,
        warm_up=lambda: None,
    )


if __name__ == "__main__":
    main()
