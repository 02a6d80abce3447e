"""Marian, by pymarian: translating lines with an exported model, from text to text.

A worker of ``benchmarks/students.py`` and ``benchmarks/marian_parity.py``. The settings are those of `decoder.yml`,
which `sparsenmt export --to marian` wrote; the work says model, batch, beam, and if there is a shortlist.
Marian's threads are workers, each with a batch of its own.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import yaml
from pymarian import Translator

from protocol import serve, work_from_arguments


def main() -> None:
    work = work_from_arguments()
    folder = Path(work["marian_folder"])
    settings = yaml.safe_load((folder / work["marian_settings"]).read_bytes())
    options = {
        "models": [str(folder / work["marian_model"])],
        "vocabs": [str(folder / name) for name in settings["vocabs"]],
        "beam_size": work["beam_size"],
        "normalize": settings["normalize"],
        "max_length_factor": settings["max-length-factor"],
        "allow_unk": settings.get("allow-unk", False),
        "mini_batch": 1 if settings["mini-batch"] == 1 else work["mini_batch"],
        "maxi_batch": 1000,
        "maxi_batch_sort": "src",
        "cpu_threads": work["threads"],
        "skip_cost": True,
        "quiet": True,
    }
    if work["with_shortlist"] and "shortlist" in settings:
        options["shortlist"] = [str(folder / settings["shortlist"][0]), "false"]
    translator = Translator(**options)
    lines = json.loads(Path(work["lines"]).read_bytes())
    Path(work["peer_output"]).write_bytes(json.dumps(translator.translate(lines)).encode())  # the warm-up
    serve(
        what=f"Marian {version('pymarian')} {work['marian_model']}, batches of {work['mini_batch']} sentences",
        units=len(lines),
        repeat=lambda: translator.translate(lines),
        warm_up=lambda: None,
    )


if __name__ == "__main__":
    main()
