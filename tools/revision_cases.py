"""The cases of `compare_revisions.py`: recipes, texts, and the commands that two checkouts run on them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

RECIPE = """\
name: small
directory: model
model: {preset: tiny, dimension: 32, feed_forward: 64, heads: 2, encoder_layers: 2, decoder_layers: 1}
data:
  directory: prepared
  source_language: en
  target_language: de
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de}]
  dev: {source: corpus/dev.en, target: corpus/dev.de}
  tokenizer: {vocabulary_size: 150}
training:
  device: cpu
  compute_dtype: fp32
  threads: 1
  max_updates: 240
  batch_tokens: 512
  learning_rate: 8e-3
  warmup_updates: 8
  validation: {every: 12, metric: chrf, beam_size: 2, max_sentences: 4}
  log_every: 4
  save_every: 12
  keep_last: 4
  average_last: 2
decoding: {beam_size: 2, max_length_factor: 0.5, max_length_offset: 5}
"""
RUN = """\
base: small.yaml
name: run
directory: run
training: {max_updates: 48, save_every: 2, accumulate_tokens: 1024}
"""
BLOCKS = """\
base: small.yaml
name: blocks
directory: blocks
data:
  directory: prepared-blocks
  documents: {max_length: 60}
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de, documents: corpus/train.id}]
  dev: {documents: corpus/dev.id}
training: {max_updates: 48, validation: {metric: dbleu, max_sentences: 8}}
decoding: {max_length_factor: 1.0}
"""
TAGGED = """\
base: small.yaml
name: tagged
directory: tagged
model: {memory: [{name: pos, later_pieces: false, drop: [content]}]}
data: {directory: prepared-tagged}
"""
MIXED = """\
base: small.yaml
name: mixed
directory: mixed
model:
  heads: 8
  attention:
    encoder_self: {heads: {given: {name: fixed_token, learned: 1}}}
    decoder_self: {pattern: {name: window, k: 4}, transform: {name: topk, k: 3}}
    cross: {transform: {name: entmax, alpha: learned}}
training: {max_updates: 60}
"""
SWEEP = """\
name: patterns
title: Attended positions
directory: sweep
recipe: small.yaml
from: model
updates: 2
set:
  data.test: {source: short.en, target: short.de}
metrics: [chrf, bleu]
variants:
  - name: full
    at: {method: full, k: full}
  - at: {method: window, k: [4]}
    set: {model.attention.encoder_self.pattern: {name: "${method}", k: "${k}"}}
table: {rows: method, columns: k, baseline: {method: full, k: full}}
"""
CORPUS = """\
try:
    from sparsenmt.data.demo.corpus import write_demo_corpus
except ImportError:
    from sparsenmt.data.demo_corpus import write_demo_corpus
from pathlib import Path
write_demo_corpus(Path("corpus"), train=300, dev=20, test=400)
"""
SHORT = 16  # lines of short.en
TAGS = ["DT", "NN", "VBZ", "IN", "JJ"]


@dataclass(frozen=True)
class Case:
    """A command that both checkouts run.

    Args:
        name: the name in the table.
        arguments: the words after `sparsenmt`.
        files: files and folders that it writes, compared as well.
        stdin: file that it reads.
        prose: True if standard output is a table whose words may change: only its numbers are compared.
        silent: True if standard output is not compared at all.
        package: optional package that it needs.
        quick: True if it also runs with --quick.
        continues: "train" or "decode" if the case resumes a run that the old checkout left interrupted.
    """

    name: str
    arguments: tuple[str, ...]
    files: tuple[str, ...] = ()
    stdin: str | None = None
    prose: bool = False
    silent: bool = False
    package: str | None = None
    quick: bool = False
    continues: Literal["train", "decode"] | None = None

    @property
    def compared(self) -> str:
        """The column of the table that says what is compared."""
        output = "" if self.silent else "numbers of stdout" if self.prose else "stdout"
        return ", ".join(filter(None, [output, *self.files]))


# The folder that both begin with


def write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def write_texts(folder: Path) -> None:
    """Write recipes, short texts, tags, document ids and wrong translations beside the demo corpus."""
    recipes = {"small": RECIPE, "run": RUN, "blocks": BLOCKS, "tagged": TAGGED, "mixed": MIXED, "sweep": SWEEP}
    for name, text in recipes.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8", newline="\n")
    for name in ("train", "dev", "test"):
        count = (folder / "corpus" / f"{name}.en").read_bytes().count(b"\n")
        write(folder / "corpus" / f"{name}.id", [str(number // 5) for number in range(count)])
    source, target = (
        (folder / "corpus" / f"test.{language}").read_bytes().decode().split("\n")[:SHORT] for language in ("en", "de")
    )
    write(folder / "short.en", source)
    write(folder / "short.de", target)
    write(folder / "short.id", [str(number // 5) for number in range(SHORT)])
    write(folder / "gaps.en", [source[0], "", *source[1:5], "Sophie", " ".join(source)])
    write(folder / "wrong.de", [" ".join(reversed(line.split())) for line in target])
    write(folder / "worse.de", [*target[1:], target[0]])
    write(folder / "short.tags", [tagged(line) for line in source])
    suite = [
        {"source": s, "reference": t, "origin": f"demo.{number}", "errors": [_error(t, number)]}
        for number, (s, t) in enumerate(zip(source, target, strict=True))
    ]
    (folder / "suite.json").write_text(json.dumps(suite, ensure_ascii=False), encoding="utf-8", newline="\n")


def _error(target: str, number: int) -> dict[str, Any]:
    wrong = " ".join(reversed(target.split()))
    return {"type": "order" if number % 2 else "agreement", "contrastive": wrong, "distance": number, "frequency": 3}


def tagged(line: str) -> str:
    """Give every word a tag, by its length."""
    words = re.findall(r"\w+(?:['-]\w+)*\.?(?=\s\w)|\w+(?:['-]\w+)*|[^\w\s]", line)
    return " ".join(f"{word}_{TAGS[len(word) % len(TAGS)] if word[0].isalnum() else '.'}" for word in words)


ONE = ("--threads", "1")
SELECT = (
    *("select-depth", "deep", "-s", "corpus/train.en", "-r", "corpus/train.de", "--lines", "120", "--method", "greedy"),
    *("--layers", "1", "--heads", "2", "--alpha", "0", "--lambda", "0.5,1", "--epochs", "1", "--time-lines", "2"),
    *("--threads", "1"),
)
GROWING = (
    *("decode", "model", "-i", "corpus/test.en", "-o", "grown.de", "--window", "4", "--dtype", "fp32"),
    *("--threads", "1", "--n-best", "2"),
)


# The cases


def decode_cases() -> Iterator[Case]:
    def decode(
        name: str, model: str, *options: str, stdin: str | None = None, quick: bool = False, **more: Any
    ) -> Case:
        source = () if stdin else ("-i", "short.en")
        return Case(
            f"decode {name}",
            ("decode", model, *source, "--dtype", "fp32", *ONE, *options),
            (),
            stdin,
            quick=quick,
            **more,
        )

    yield decode("beam", "model", "--beam-size", "4", quick=True)
    yield decode("beam --json", "model", "--beam-size", "4", "--n-best", "3", "--json", "--alpha", "1", quick=True)
    yield decode("beam --n-best", "model", "--beam-size", "3", "--n-best", "3", "--length-penalty", "average")
    yield decode("beam, limits", "model", "--no-repeat-ngram", "2", "--min-length", "4", "--max-length-offset", "9")
    yield decode("greedy --json", "model", "--method", "greedy", "--json", quick=True)
    yield decode("greedy, stdin", "model", "--method", "greedy", stdin="gaps.en", quick=True)
    yield decode("sample --json", "model", "--method", "sample", "--seed", "7", "--json", quick=True)
    nucleus = ("--temperature", "0.8", "--top-p", "0.9", "--top-k", "20")
    yield decode("sample, nucleus", "model", "--method", "sample", "--seed", "7", *nucleus)
    yield decode("disabled heads", "model", "--disable-heads", "cross:1", "--disable-heads", "encoder_self:2", "--json")
    yield decode("small batches", "model", "--batch-tokens", "40", "--window", "5", "--json")
    yield decode("gates", "gated", "--json", quick=True)
    yield decode("gates, greedy", "gated", "--method", "greedy", "--json")
    yield decode("mixed methods", "mixed", "--json", quick=True)
    yield decode("mixed methods, greedy", "mixed", "--method", "greedy", "--json")
    yield decode("at depth 1, 2", "deep", "--encoder-layers", "1", "--decoder-layers", "2", "--json", quick=True)
    yield decode("--depth auto", "deep", "--depth", "auto", "--json", quick=True)
    yield decode("--documents", "blocks", "--documents", "short.id")
    yield decode("--documents --json", "blocks", "--documents", "short.id", "--json", "--method", "greedy")
    yield decode("--tags", "tagged", "--tags", "short.tags", "--json", package="HanTa")
    yield Case("decode bf16", ("decode", "model", "-i", "short.en", "--dtype", "bf16", *ONE, "--json"))
    yield Case("decode int8", ("decode", "model", "-i", "short.en", "--dtype", "int8", *ONE, "--json"))
    yield Case("decode resumed", GROWING, ("grown.de",), quick=True, continues="decode")


def scoring_cases() -> Iterator[Case]:
    model = ("--model", "model", "--source", "short.en")
    files = ("score", "wrong.de", "-r", "short.de")
    yield Case("score", files, prose=True, quick=True)
    metrics = tuple(
        f"-m{name}" for name in ("bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "length")
    )
    yield Case("score, all metrics", (*files, *metrics, "--json"), quick=True)
    yield Case("score --baseline", (*files, "--baseline", "worse.de", "--resamples", "50", "--json"), quick=True)
    yield Case("score --documents", (*files, "--documents", "short.id", "--json"))
    yield Case("score --model", ("score", *model, "-r", "short.de", "--json"), quick=True)
    yield Case("score --target --json", ("score", *model, "--target", "short.de", "--json"), quick=True)
    yield Case("score --target", ("score", *model, "--target", "short.de"), prose=True)
    gated = ("score", "--model", "gated", "--source", "short.en", "--target", "short.de", "--json")
    yield Case("score --target, gates", gated)
    mixed = ("score", "--model", "mixed", "--source", "short.en", "--target", "short.de", "--json")
    yield Case("score --target, mixed methods", mixed)
    blocks = ("score", "--model", "blocks", "--source", "short.en", "--documents", "short.id", "--json")
    yield Case("score --model, documents", (*blocks, "-r", "short.de"))
    yield Case("score --target, documents", (*blocks, "--target", "short.de"))
    report = ("--json", "r.json", "--csv", "r.csv", "--items", "r.tsv", *ONE)
    wrote = ("r.json", "r.csv", "r.tsv")
    yield Case(
        "contrast, a suite", ("contrast", "model", "gated", "suite.json", *report), wrote, prose=True, quick=True
    )
    lines = ("--source", "short.en", "--correct", "short.de", "--incorrect", "wrong.de", "--incorrect", "worse.de")
    yield Case("contrast, lines", ("contrast", "model", *lines, "--normalize", *report), wrote, prose=True)
    yield Case("contrast --save-suite", ("contrast", "suite.json", "--save-suite", "s.json"), ("s.json",), silent=True)
    test = ("--source", "short.en", "--reference", "short.de", "--no-speed", *ONE)
    tables = ("--json", "r.json", "--csv", "r.csv")
    compare = ("compare", "model", "gated", "mixed", *test, *tables)
    yield Case("compare", compare, ("r.json", "r.csv"), silent=True, quick=True)
    yield Case("compare, kept results", compare, ("r.json", "r.csv"), silent=True)


def analysis_cases() -> Iterator[Case]:
    gated, dense, short = ("gated",), ("model", "mixed"), ("--limit", "6", "--beam-size", "1")
    target = ("--limit", "6", "--target", "short.de")
    quality = ("-r", "short.de", "--beam-size", "1", "--resamples", "20")
    reports: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("pos", gated, ("--tags", "short.tags")),
        ("position", gated, ()),
        ("attention-mass", gated, short),
        ("entropy", gated, ("--baseline", "model", "--limit", "6")),
        ("maps", gated, ("--limit", "2", "--beam-size", "1")),
        ("layers", gated, ()),
        ("annotate", gated, ("--limit", "3")),
        ("density", dense, target),
        ("diversity", dense, short),
        ("roles", dense, ("--interrogative", "how")),
        ("dense-sentences", dense, ("--sparse", "1", *target)),
        ("last-token", dense, target),
        ("ablate-heads", ("mixed",), (*quality, "--limit", "6")),
        ("by-length", ("model", "wrong.de"), (*quality, "--edges", "6,8")),
    ]
    for name, models, options in reports:
        arguments = ("analyze", name, *models, "-i", "short.en", *options, *ONE, "--json", "r.json", "--csv", "r.csv")
        quick = name in ("pos", "density")
        yield Case(f"analyze {name}", arguments, ("r.json", "r.csv"), prose=True, quick=quick)
    alphas = ("analyze", "alphas", "mixed", "--json", "r.json", "--csv", "r.csv")
    yield Case("analyze alphas", alphas, ("r.json", "r.csv"), prose=True)


def making_cases() -> Iterator[Case]:
    yield Case("prepare", ("prepare", "small.yaml", "data.directory=again"), ("again",), silent=True, quick=True)
    yield Case("prepare, documents", ("prepare", "blocks.yaml", "data.directory=again"), ("again",), silent=True)
    yield Case("prepare, nothing to do", ("prepare", "small.yaml"), ("prepared",), silent=True)
    few = ("directory=again", "training.max_updates=8")
    yield Case("train", ("train", "small.yaml", *few), ("again",), silent=True, quick=True)
    yield Case(
        "train, mixed methods",
        ("train", "mixed.yaml", "directory=again", "training.max_updates=12"),
        ("again",),
        silent=True,
    )
    bf16 = ("training.compute_dtype=bf16", "training.accumulate_tokens=1024")
    yield Case("train bf16", ("train", "small.yaml", *few, *bf16), ("again",), silent=True)
    exits = ("model.decoder_layers=2", "model.depth.name=tied_multi", "model.depth.sample.encoder=1")
    yield Case("train, sampled exits", ("train", "small.yaml", *few, *exits), ("again",), silent=True)
    gates = ("finetune-l0", "model", "--target", "0.5", "--ramp", "3", "--updates", "4", "-o", "again")
    yield Case("finetune-l0", gates, ("again",), silent=True)
    yield Case("train resumed", ("train", "run.yaml"), ("run",), silent=True, quick=True, continues="train")
    yield Case("average", ("average", "model", "--last", "2", "-o", "again"), ("again",), silent=True, quick=True)
    yield Case("slice", ("slice", "deep", "again", "-n", "1", "-m", "1"), ("again",), silent=True, quick=True)
    for to, package in (("safetensors-hf", None), ("ctranslate2", "ctranslate2")):
        arguments = ("export", "model", "again", "--to", to)
        yield Case(f"export {to}", arguments, ("again",), silent=True, package=package, quick=True)
    kept = ("deep/selector", "deep/depths")
    yield Case("select-depth, nothing to do", SELECT, kept, silent=True, quick=True)
    depths = ("depth-table", "deep", "--source", "short.en", "--reference", "short.de", "--no-speed", *ONE)
    # The folder of translations is named by the model's identity, which may be computed in another way.
    tables = ("depths/table.json", "depths/table.csv")
    yield Case("depth-table", (*depths, "--beam-size", "1", "-o", "depths"), tables, prose=True)
    yield Case("sweep --table", ("sweep", "sweep.yaml", "--table"), ("sweep",), prose=True)
    yield Case("sweep --list", ("sweep", "sweep.yaml", "--list"))
    yield Case("sweep, nothing to do", ("sweep", "sweep.yaml"), ("sweep",), prose=True)
    student = (
        "directory=student",
        "data.directory=student-data",
        "--until",
        "corpus",
        "--method",
        "greedy",
        "--dtype",
        "fp32",
        *ONE,
    )
    yield Case(
        "distill --until corpus", ("distill", "model", "small.yaml", *student), ("student-data-text",), silent=True
    )
    yield Case("train --dump-config", ("train", "mixed.yaml", "--dump-config"), quick=True)


CASES = [*decode_cases(), *scoring_cases(), *analysis_cases(), *making_cases()]
