"""Decoding of real text relative to CTranslate2: the same trained weights, test sets of Multi30k and search.

    python benchmarks/real_text.py [--model MODEL_DIR]

The model is exported with `sparsenmt export --to ctranslate2`. Both sides search with the recipe's beam, rank by the
log-probability over the length (`length_penalty: average`, alpha 1), stop when as many hypotheses have ended as the
beam size, or at 256 tokens, sort all lines by length and fill batches to the same number of source tokens. Both are
timed with four batch sizes, CTranslate2 also with as many parallel translations as there are threads, one thread each
(`inter_threads`): the ratio is that of each side's fastest setting. Start-up (loading, packing, a first pass) is
excluded. Both sides begin and end with text: SentencePiece tokenizes and detokenizes for CTranslate2 with the same
model file.

Where translations differ, this program scores both by forced decoding: a near tie (scores less than 1e-3 apart) can
round either way. The bars: 1.2 times as fast, at least 99% of translations identical, every difference a near
tie. Ends with a JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import Side, Worker, command_line, interleave, parse, verdict
from multi30k import ROOT, corpus
from peers.environments import python_of

OURS = Side("workers/translate.py")
CTRANSLATE2 = Side("peers/ctranslate2_translate.py", lambda: python_of("ctranslate2"))
BARS = {"real_text": 1.2, "identical": 0.99, "near_ties": 1.0}
NEAR_TIE = 1e-3

BATCH_TOKENS = (512, 1024, 2048, 4096)

WORK: dict[str, Any] = {
    "sentences": None,  # of all test sets; None: all
    "beam_size": None,  # None: the recipe's
    "batch_tokens": 512,  # source tokens of a batch, padding included
    "longest": 256,  # longest output in tokens
    "threads": 2,
    "side_by_side": 1,  # parallel translations, which share the threads
    "our_dtype": "fp32",
    "peer_compute_type": "float32",
}


def export(model: Path, output: Path) -> None:
    """Run `sparsenmt export`, with the CTranslate2 package of the peer's environment if ours has none."""
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python_of("ctranslate2")), "-c", site], stdout=subprocess.PIPE, check=True)
    code = "import sys; sys.path.append(sys.argv.pop(1)); from sparsenmt.cli import main; main()"
    path = found.stdout.decode().strip()
    command = [sys.executable, "-c", code, path, "export", str(model), "--to", "ctranslate2", str(output)]
    subprocess.run(command, check=True, cwd=ROOT)


def text() -> list[str]:
    """Return the English side of the test sets that exist."""
    from sparsenmt.data.text import read_lines

    return [line for path in sorted(corpus().glob("test_*.en.gz")) for line in read_lines(path)]


def sides(changes: Mapping[str, Any]) -> tuple[list[Side], list[Side]]:
    """Return our sides and the peer's, one for each setting; settings of the command line are not varied."""
    sizes = [{"batch_tokens": size} for size in BATCH_TOKENS if "batch_tokens" not in changes] or [{}]
    ways = [{"side_by_side": count} for count in (1, WORK["threads"]) if "side_by_side" not in changes] or [{}]
    ours = [replace(OURS, work=size) for size in sizes]
    return ours, [replace(CTRANSLATE2, work={**size, **way}) for size in sizes for way in ways]


@dataclass(frozen=True)
class Difference:
    """A line that the two sides translate differently, with this program's scores of both translations."""

    line: str
    ours: str
    theirs: str
    our_score: float
    their_score: float

    @property
    def is_near_tie(self) -> bool:
        return abs(self.our_score - self.their_score) < NEAR_TIE


def differences(model: str, lines: list[str], ours: list[list[str]], theirs: list[list[str]]) -> list[Difference]:
    """Return all lines whose translations differ, with scores in fp32."""
    from sparsenmt.data.input_line import input_lines
    from sparsenmt.data.vocabulary import EOS
    from sparsenmt.decoding.forced_decoding import score_batches
    from sparsenmt.decoding.inputs import read_sources
    from sparsenmt.devices import pick_device
    from sparsenmt.store import open_model

    places = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    if not places:
        return []
    bundle = open_model(model, device=pick_device("cpu"))
    target = bundle.tokenizers.target
    ids = {piece: id_ for id_, piece in reversed(list(enumerate(target.pieces(range(target.size)))))}
    sources = read_sources(bundle, input_lines([lines[i] for i in places]))
    rows = [[[*(ids[piece] for piece in side[i]), EOS] for side in (ours, theirs)] for i in places]
    found: dict[int, Difference] = {}
    for scored in score_batches(bundle, sources, rows, batch_tokens=4096, compact=True):
        for i, values in scored.items():
            scores = [float(each.double().sum()) / len(each) for each in values]
            texts = [target.decode(row) for row in rows[i]]
            found[i] = Difference(lines[places[i]], texts[0], texts[1], scores[0], scores[1])
    return [found[i] for i in range(len(places))]


def prepare(model: Path, work: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Export the model, and write the files that both sides read."""
    from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
    from sparsenmt.data.tokenizers.tokenizer import Tokenizers
    from sparsenmt.store import read_recipe

    export(model, folder / "exported")
    lines = [line for line in text() if line.strip(" ")][: work["sentences"]]
    (folder / "lines.json").write_bytes(json.dumps(lines).encode())
    names = {key: str(folder / f"{key}.json") for key in ("lines", "our_output", "peer_output")}
    tokenizers = Tokenizers.load(model / "tokenizers")
    for side in ("source", "target"):
        tokenizer = getattr(tokenizers, side)
        assert isinstance(tokenizer, SentencePieceTokenizer), "the peer reads SentencePiece's models"
        (folder / f"{side}.model").write_bytes(tokenizer.model)
        names[f"{side}_model"] = str(folder / f"{side}.model")
    beam = work["beam_size"] or read_recipe(model).decoding.beam_size
    return work | names | {"model": str(model.resolve()), "exported": str(folder / "exported"), "beam_size": beam}


def main() -> int:
    parser = command_line(__doc__, 5)
    parser.add_argument("--model", type=Path, default=ROOT / "runs" / "multi30k-en-de", help="default: %(default)s")
    arguments, changes = parse(parser, ["real_text"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = prepare(arguments.model, WORK | changes, folder)
        ours, theirs = sides(changes)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(side, work)) for side in (*ours, *theirs)]
            timings = interleave(workers, arguments.repeats)
        lines, *outputs = (json.loads(Path(work[key]).read_bytes()) for key in ("lines", "our_output", "peer_output"))
    print(f"\nreal_text: {len(lines)} sentences, beam {work['beam_size']}, start-up excluded, taking turns")
    for timing in timings:
        every = " ".join(f"{s:.3f}" for s in timing.seconds)
        print(f"  {timing.what:<60} {timing.rate:>8.1f} sentences/s  spread {timing.spread:5.1%}  seconds: {every}")
    found = differences(work["model"], lines, *outputs)
    for each in found:
        kind = "near tie" if each.is_near_tie else "NOT A TIE"
        print(f"  {kind}: ours {each.our_score:.6f}, theirs {each.their_score:.6f}: {each.line}")
        print(f"    ours:   {each.ours}\n    theirs: {each.theirs}")
    ratios = {
        "real_text": max(each.rate for each in timings[: len(ours)]) / max(each.rate for each in timings[len(ours) :]),
        "identical": 1 - len(found) / len(lines),
        "near_ties": sum(each.is_near_tie for each in found) / len(found) if found else 1.0,
    }
    result = verdict("real_text", ratios, {} if changes else BARS)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
