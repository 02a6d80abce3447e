"""The time of `sparsenmt report` over the sum of the times of the commands that its sections name.

    python benchmarks/report_page.py [--set sentences=50]

Three models, dense, with gates and with learned alphas, are trained for a moment on the demo corpus, and read 1,000
sentences. Both sides begin without kept results. Commands that show single sentences get those of the report. The time
of decoding is not measured on either side. The bar is the most that the report may take: 2.0. Ends with a JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import command_line, parse, verdict
from sparsenmt.cli import run
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.report.page.document import read_document

WORK: dict[str, Any] = {"sentences": 1000, "shown": 20, "updates": 60, "threads": 1}
NAME, BAR = "report_over_analyses", 2.0
RECIPE = Path(__file__).resolve().parents[1] / "recipes/demo.yaml"
CHANGES = (
    *("model.dimension=64", "model.feed_forward=256"),
    *("data.directory=prepared", "data.tokenizer.vocabulary_size=500", "training.device=cpu"),
    *("training.batch_tokens=1024", "training.warmup_updates=10", "training.validation.every=100000"),
    *("decoding.beam_size=2", "decoding.max_length_factor=1.2", "decoding.max_length_offset=5"),
)
OTHERS = {
    "gated": ("model.memory=[{name: l0drop}]", "losses={l0: {weight: 0.1}}"),
    "alphas": ("model.attention.encoder_self.transform={name: entmax, alpha: learned}",),
}
_SHOWN = ("annotate", "maps")


def main() -> int:
    parser = command_line(__doc__, 1)
    _, changes = parse(parser, [NAME])
    work = WORK | changes
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        train(work)
        ours = timed(
            ["report", *models(), "--source", "corpus/test.en", "--reference", "corpus/test.de", "--no-speed"],
            *("--sentences", str(work["shown"]), "-o", "page.html", "--json", "page.json"),
            threads=work["threads"],
        )
        document = read_document(Path("page.json"))
        shown = sorted({each.number for section in document.sections for each in section.kept_words})
        lines = list(read_lines("corpus/test.en"))
        write_lines("shown.en", [lines[number - 1] for number in shown])
        forget()
        theirs = 0.0
        for section in document.sections:
            if section.command and not section.missing and section.name not in ("sparsity", "time"):
                words = shlex.split(section.command)[1:]
                words = ["shown.en" if word == "corpus/test.en" and section.name in _SHOWN else word for word in words]
                threads = None if section.name == "alphas" else work["threads"]
                if section.name != "maps":
                    theirs += timed(words, threads=threads)
                    continue
                for site in ("encoder_self", "decoder_self", "cross"):
                    theirs += timed(words, "--site", site, "--apart", "--json", "maps.json", threads=threads)
    print(f"report {ours:.1f} s, its commands one by one {theirs:.1f} s")
    result = verdict("report_page", {NAME: ours / theirs}, {} if changes else {NAME: BAR}, most=(NAME,))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def models() -> list[str]:
    """Return the model directories."""
    return ["dense", *OTHERS]


def train(work: dict[str, Any]) -> None:
    """Write the corpus, and train the models."""
    write_demo_corpus(Path("corpus"), train=4000, dev=20, test=work["sentences"])
    os.environ["SPARSENMT_DEMO"] = str(Path("corpus").resolve())
    call(["prepare", str(RECIPE), *CHANGES])
    for name, overrides in {"dense": (), **OTHERS}.items():
        more = (f"directory={name}", f"training.max_updates={work['updates']}")
        call(["train", str(RECIPE), *CHANGES, *more, *overrides])


def forget() -> None:
    """Remove the results that are kept beside the models."""
    for name in models():
        shutil.rmtree(Path(name, "evaluation"), ignore_errors=True)


def timed(words: list[str], *more: str, threads: int | None) -> float:
    """Run a command; returns its seconds."""
    began = time.perf_counter()
    call([*words, *more, *([] if threads is None else ["--threads", str(threads)])])
    return time.perf_counter() - began


def call(words: list[str]) -> None:
    """Run a command without its output; stop with its words if it fails."""
    with open(os.devnull, "w", encoding="utf-8", newline="\n") as sink, contextlib.redirect_stdout(sink):
        code = run([*words, "--quiet"])
    if code:
        sys.exit(f"sparsenmt {shlex.join(words)}: exit code {code}")


if __name__ == "__main__":
    sys.exit(main())
