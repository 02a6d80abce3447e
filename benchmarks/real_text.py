"""Decoding of real text relative to CTranslate2: the same trained weights, test sets of Multi30k and search.

    python benchmarks/real_text.py [real_text] [real_text_fast] [real_text_shortlist] [--model MODEL_DIR]

The model is exported with `sparsenmt export --to ctranslate2`. Both sides search with the recipe's beam, rank by the
log-probability over the length (`length_penalty: average`, alpha 1), stop when as many hypotheses have ended as the
beam size, or at 256 tokens, sort all lines by length and fill batches to the same number of source tokens. Each side is
tried with four batch sizes, CTranslate2 also with each of its backends and with as many workers as there are threads,
one thread each; the fastest settings of each side then take turns, and the ratio is that of the fastest of each.
Start-up (loading, packing, a first pass) is excluded. Both sides begin and end with text: SentencePiece tokenizes and
detokenizes for CTranslate2 with the same model file.

    real_text       fp32 on both sides; at least 1.4 times as fast. Where translations differ, this program scores both
                    by forced decoding: a near tie (scores less than 1e-3 apart) can round either way. At least 99% of
                    the translations are identical, and every difference is a near tie.
    real_text_fast  bf16, where the processor multiplies it, or int8, tried both, against CTranslate2 in int8; at least
                    1.8 times as fast. `bleu_fast` is our BLEU of that dtype minus that of fp32: at least -0.2.
    real_text_shortlist
                    the same dtypes, both sides with the vocabulary shortlist that `sparsenmt shortlist` learns from the
                    training text: CTranslate2 as its vocabulary map, which holds for a batch together, so that smaller
                    batches are tried, too; at least 1.5 times as fast. BLEU of all outputs is printed.

Ends with a JSON line.
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

import torch

from common import KEPT, Side, Worker, command_line, fastest_sides, interleave, parse, show, verdict
from decode_vs_ctranslate2 import peer_settings
from multi30k import ROOT, corpus
from peers.environments import python_of
from sparsenmt.training.precision import pick_dtype

OURS = Side("workers/translate.py")
CTRANSLATE2 = Side("peers/ctranslate2_translate.py", lambda: python_of("ctranslate2"))
BARS = {
    **{"real_text": 1.4, "identical": 0.99, "near_ties": 1.0, "real_text_fast": 1.8, "bleu_fast": -0.2},
    "real_text_shortlist": 1.5,
}
NEAR_TIE = 1e-3
BATCH_TOKENS = (512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Case:
    """Our dtypes, the peer's compute type, the sizes of batches that are tried, and if outputs are restricted."""

    dtypes: tuple[str, ...]
    compute_type: str
    batch_tokens: tuple[int, ...] = BATCH_TOKENS
    shortlist: bool = False


CASES = {
    "real_text": Case(("fp32",), "float32"),
    "real_text_fast": Case(("bf16", "int8"), "int8"),
    "real_text_shortlist": Case(("bf16", "int8"), "int8", (128, 256, *BATCH_TOKENS), shortlist=True),
}

WORK: dict[str, Any] = {
    "sentences": None,  # of all test sets; None: all
    "beam_size": None,  # None: the recipe's
    "batch_tokens": 512,  # source tokens of a batch, padding included
    "longest": 256,  # longest output in tokens
    "threads": 2,
    "side_by_side": 1,  # workers of the peer, which share the threads
    "our_dtype": "fp32",
    "peer_compute_type": "float32",
    "shortlist": None,  # the file of a shortlist; None: all tokens may come out
}


def learn_shortlist(model: Path, folder: Path) -> Path:
    """Learn a shortlist from the training text, and write it and CTranslate2's map of it; returns its file."""
    from sparsenmt.data.shortlist import Shortlist
    from sparsenmt.data.tokenizers.tokenizer import Tokenizers
    from sparsenmt.export.to_ctranslate2 import VOCABULARY_MAP, vocabulary_map
    from sparsenmt.workflows.conversion.shortlist import ShortlistRequest, make_shortlist

    path = folder / "own.shortlist"
    pair = corpus() / "train.en.gz", corpus() / "train.de.gz"
    make_shortlist(ShortlistRequest(model, [pair], path))
    tokenizers = Tokenizers.load(model / "tokenizers")
    shortlist = Shortlist.read(path, tokenizers.source, tokenizers.target)
    (folder / "exported" / VOCABULARY_MAP).write_bytes(vocabulary_map(shortlist, tokenizers))
    return path


def export(model: Path, output: Path) -> None:
    """Run `sparsenmt export`, with the CTranslate2 package of the peer's environment if ours has none."""
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python_of("ctranslate2")), "-c", site], stdout=subprocess.PIPE, check=True)
    code = "import sys; sys.path.append(sys.argv.pop(1)); from sparsenmt.cli import main; main()"
    path = found.stdout.decode().strip()
    command = [sys.executable, "-c", code, path, "export", str(model), "--to", "ctranslate2", str(output)]
    subprocess.run(command, check=True, cwd=ROOT)


def text(language: str) -> list[str]:
    """Return one side of the test sets that exist."""
    from sparsenmt.data.text import read_lines

    return [line for path in sorted(corpus().glob(f"test_*.{language}.gz")) for line in read_lines(path)]


def sides(name: str, changes: Mapping[str, Any], folder: Path) -> tuple[list[Side], list[Side]]:
    """Return our sides and the peer's, one for each setting; settings of the command line are not varied."""
    case, ending = CASES[name], "-shortlist" if CASES[name].shortlist else ""
    dtypes = case.dtypes
    if pick_dtype("auto", torch.device("cpu")) != torch.bfloat16:
        dtypes = tuple(each for each in dtypes if each != "bf16")
    sizes = [{"batch_tokens": size} for size in case.batch_tokens if "batch_tokens" not in changes] or [{}]
    workers = sorted({1, WORK["threads"]}) if "side_by_side" not in changes else [changes["side_by_side"]]
    ours = [
        replace(OURS, work={**size, "our_dtype": dtype, "our_output": str(folder / f"ours-{dtype}{ending}.json")})
        for dtype in dtypes
        for size in sizes
    ]
    output = {
        "peer_compute_type": case.compute_type,
        "peer_output": str(folder / f"peer-{case.compute_type}{ending}.json"),
    }
    theirs = [replace(CTRANSLATE2, work={**size, **output}) for size in sizes]
    return ours, [each for side in theirs for each in peer_settings(side, workers)]


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
    from sparsenmt.assemble.bundle import open_model
    from sparsenmt.data.input_line import input_lines
    from sparsenmt.data.vocabulary import EOS
    from sparsenmt.decoding.forced_decoding import score_batches
    from sparsenmt.decoding.inputs import read_sources
    from sparsenmt.process.devices import pick_device

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
    from sparsenmt.assemble.model_directory import read_recipe
    from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
    from sparsenmt.data.tokenizers.tokenizer import Tokenizers

    export(model, folder / "exported")
    pairs = [pair for pair in zip(text("en"), text("de"), strict=True) if pair[0].strip(" ")][: work["sentences"]]
    names = {key: str(folder / f"{key}.json") for key in ("lines", "references")}
    for path, lines in zip(names.values(), zip(*pairs, strict=True), strict=True):
        Path(path).write_bytes(json.dumps(lines).encode())
    tokenizers = Tokenizers.load(model / "tokenizers")
    for side in ("source", "target"):
        tokenizer = getattr(tokenizers, side)
        assert isinstance(tokenizer, SentencePieceTokenizer), "the peer reads SentencePiece's models"
        (folder / f"{side}.model").write_bytes(tokenizer.model)
        names[f"{side}_model"] = str(folder / f"{side}.model")
    beam = work["beam_size"] or read_recipe(model).decoding.beam_size
    return work | names | {"model": str(model.resolve()), "exported": str(folder / "exported"), "beam_size": beam}


def measure(
    name: str, work: dict[str, Any], changes: Mapping[str, Any], repeats: int, folder: Path
) -> tuple[float, str]:
    """Time both sides in turns; returns the ratio, and the dtype of our fastest setting.

    Each side's translations lie in its output file afterwards.
    """
    print(f"\n{name}")
    if CASES[name].shortlist:
        work = work | {"shortlist": str(learn_shortlist(Path(work["model"]), folder))}
    ours, theirs = (fastest_sides(each, work, KEPT) for each in sides(name, changes, folder))
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(side, work)) for side in (*ours, *theirs)]
        timings = interleave(workers, repeats)
    print(f"{name}: {timings[0].units} sentences, beam {work['beam_size']}, start-up excluded, taking turns")
    show(timings, "sentences")
    best = max(range(len(ours)), key=lambda i: timings[i].rate)
    ratio = timings[best].rate / max(each.rate for each in timings[len(ours) :])
    return ratio, str(ours[best].work["our_dtype"])


def read(path: Path) -> list[list[str]]:
    """Return the tokens of every translation that a worker wrote."""
    found: list[list[str]] = json.loads(path.read_bytes())
    return found


def agreement(work: dict[str, Any], folder: Path) -> dict[str, float]:
    """Print the lines that both sides translate differently in fp32; returns the shares of equal lines and of ties."""
    lines = json.loads(Path(work["lines"]).read_bytes())
    found = differences(work["model"], lines, read(folder / "ours-fp32.json"), read(folder / "peer-float32.json"))
    for each in found:
        kind = "near tie" if each.is_near_tie else "NOT A TIE"
        print(f"  {kind}: ours {each.our_score:.6f}, theirs {each.their_score:.6f}: {each.line}")
        print(f"    ours:   {each.ours}\n    theirs: {each.theirs}")
    return {
        "identical": 1 - len(found) / len(lines),
        "near_ties": sum(each.is_near_tie for each in found) / len(found) if found else 1.0,
    }


def quality(work: dict[str, Any], folder: Path) -> dict[str, float]:
    """Print the BLEU of every output; returns ours of each dtype minus that of fp32."""
    from sparsenmt.data.tokenizers.tokenizer import Tokenizers
    from sparsenmt.evaluation.metrics import corpus_scores
    from sparsenmt.evaluation.scorer import ScoringSettings

    references = json.loads(Path(work["references"]).read_bytes())
    target = Tokenizers.load(Path(work["model"]) / "tokenizers").target
    ids = {piece: id_ for id_, piece in reversed(list(enumerate(target.pieces(range(target.size)))))}
    scores = {}
    for path in sorted(folder.glob("*-*.json")):
        texts = [target.decode([ids[piece] for piece in row]) for row in read(path)]
        (score,) = corpus_scores(texts, [references], ScoringSettings(("bleu",)))
        scores[path.stem] = score.value
        print(f"  BLEU {scores[path.stem]:.2f}: {path.stem}")
    own = {name.removeprefix("ours-"): value for name, value in scores.items() if name.startswith("ours-")}
    return {dtype: value - own["fp32"] for dtype, value in own.items()}


def translate_in_fp32(work: dict[str, Any], folder: Path) -> None:
    """Let our worker write its translations in fp32, which are compared with those of the fast dtype."""
    with Worker(replace(OURS, work={"our_dtype": "fp32", "our_output": str(folder / "ours-fp32.json")}), work):
        pass


def main() -> int:
    parser = command_line(__doc__, 5)
    parser.add_argument("--model", type=Path, default=ROOT / "runs" / "multi30k-en-de", help="default: %(default)s")
    arguments, changes = parse(parser, list(CASES))
    ratios: dict[str, float] = {}
    fast = "fp32"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = prepare(arguments.model, WORK | changes, folder)
        for case in CASES:
            if not arguments.cases or case in arguments.cases:
                ratios[case], dtype = measure(case, work, changes, arguments.repeats, folder)
                fast = dtype if case == "real_text_fast" else fast
        if "real_text" in ratios:
            ratios |= agreement(work, folder)
        if ratios.keys() != {"real_text"}:
            if "real_text" not in ratios:
                translate_in_fp32(work, folder)
            losses = quality(work, folder)
            if "real_text_fast" in ratios:
                ratios["bleu_fast"] = losses[fast]
    bars = {} if changes else {key: bar for key, bar in BARS.items() if key in ratios}
    result = verdict("real_text", ratios, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
