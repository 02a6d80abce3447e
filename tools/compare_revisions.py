"""Show that two checkouts of sparsenmt are the same program: same bytes, same numbers, each other's files continued.

    python tools/compare_revisions.py OLD_CHECKOUT NEW_CHECKOUT --work DIR [--old-python P] [--new-python P] [--quick]

The old checkout prepares data, trains small models on the demo corpus, and leaves one training run and one translation
interrupted. Then both checkouts run every case on a copy of that folder, at the same path, in the same order. Standard
output, exit codes and files are compared; what says when, how fast or by which revision something was made is left out.
Messages on standard error may differ. Texts of tables may be worded differently: their numbers are compared.

Prints a table, then one line of JSON; the exit code is 1 if anything differs, 2 if the old checkout fails.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

SERVER = """\
import importlib.util, json, os, runpy, signal, sys
import torch
print(json.dumps(importlib.util.find_spec("sparsenmt").origin), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(job["seconds"])
        for number, (name, flags) in enumerate(job["streams"]):
            os.dup2(os.open(name, flags, 0o644), number)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        sys.argv = ["sparsenmt", *job["arguments"]]
        code = 1
        try:
            runpy.run_module("sparsenmt", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        os._exit(code)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""
"""Loads PyTorch once and forks for every command: that takes more than half of the time of a small command."""

VOLATILE = re.compile(r"time|(.*_)?seconds(_.*)?|.*_per_second|git_revision|seal")
"""Keys of JSON objects whose values say when, how fast, or by which revision something was made."""
PICTURES = {".png", ".svg"}


class Failed(Exception):
    """The comparison cannot be made."""


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
        check: called with the folder of the new checkout's results and what it wrote on standard error; returns what
            is wrong.
    """

    name: str
    arguments: tuple[str, ...]
    files: tuple[str, ...] = ()
    stdin: str | None = None
    prose: bool = False
    silent: bool = False
    package: str | None = None
    quick: bool = False
    check: Callable[[Path, str], str | None] | None = None

    @property
    def compared(self) -> str:
        """The column of the table that says what is compared."""
        output = "" if self.silent else "numbers of stdout" if self.prose else "stdout"
        return ", ".join(filter(None, [output, *self.files]))


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    compared: str
    difference: str | None
    seconds: float


class Checkout:
    """Runs the commands of one checkout in one folder.

    Args:
        folder: the checkout.
        python: an interpreter with the dependencies.
        work: the working directory of all commands.
        timeout: seconds that a command may take.
    """

    def __init__(self, folder: Path, python: str, work: Path, timeout: int) -> None:
        self.folder, self.python, self.work, self.timeout = folder, python, work, timeout
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARSENMT")},
            **dict.fromkeys(names, "1"),
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def __enter__(self) -> Checkout:
        self._server = subprocess.Popen(
            [self.python, "-c", SERVER],
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        origin = Path(self._answer())
        if origin.resolve() != (self.folder / "sparsenmt" / "__init__.py").resolve():
            raise Failed(f"{self.python} imports {origin}, not the package in {self.folder}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise Failed(f"{self.python} ended early in {self.folder}")
        return json.loads(line)

    def run(self, arguments: Sequence[str], results: Path, stdin: str | None = None) -> int:
        """Run a command; its streams go to ``results``/out and /err. Returns the exit code, negative for a signal."""
        results.mkdir(parents=True)
        write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        source = str(self.work / stdin) if stdin else os.devnull
        streams = [(source, os.O_RDONLY), (str(results / "out"), write), (str(results / "err"), write)]
        request = {"arguments": list(arguments), "streams": streams, "seconds": self.timeout}
        assert self._server.stdin is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._answer())

    def python_code(self, code: str) -> None:
        """Run lines of Python in the working directory, with the package of this checkout."""
        subprocess.run([self.python, "-c", code], env=self.environment, cwd=self.work, check=True, timeout=self.timeout)

    def interrupt(self, arguments: Sequence[str], ready: Callable[[], bool]) -> None:
        """Start a command as a process of its own, and send it SIGINT as soon as ``ready`` is true."""
        process = subprocess.Popen(
            [self.python, "-m", "sparsenmt", *arguments],
            env=self.environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + self.timeout
        while process.poll() is None and not ready() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=self.timeout)
        if process.returncode != 130:
            raise Failed(f"{' '.join(arguments)} could not be interrupted:\n{errors.decode()}")

    def has(self, package: str) -> bool:
        """True if the interpreter can import a package."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        return subprocess.run([self.python, "-c", code], env=self.environment).returncode == 0


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


def build(old: Checkout, logs: Path, quick: bool) -> None:
    """Train, with the old checkout, the models that the cases use."""
    numbers = iter(range(1000))

    def run(*arguments: str) -> None:
        results = logs / f"build-{next(numbers):02}"
        code = old.run(arguments, results)
        if code:
            raise Failed(f"sparsenmt {' '.join(arguments)} gave {code}:\n{(results / 'err').read_bytes().decode()}")

    work = old.work
    old.python_code(CORPUS)
    write_texts(work)
    run("prepare", "small.yaml")
    run("train", "small.yaml")
    # Gates around the border of being closed: some are 0, some are 1, most are between.
    gates = ("model.memory.0.init_log_alpha=-2.2", "training.learning_rate=1e-2")
    run("finetune-l0", "model", "--weight", "0.1", "--updates", "4", "-o", "gated", *gates)
    deep = ("model.decoder_layers=2", "model.depth.name=tied_multi", "training.max_updates=48")
    run("train", "small.yaml", "directory=deep", *deep)
    run(*SELECT)
    run("train", "mixed.yaml")
    # An undisturbed training run, and the same one interrupted.
    run("train", "run.yaml")
    (work / "run").rename(work / "undisturbed")
    old.interrupt(("train", "run.yaml"), lambda: any((work / "run").glob("checkpoints/*12*/*")))
    run(*GROWING)
    (work / "grown.de").rename(work / "undisturbed.de")
    old.interrupt(GROWING, lambda: (work / ".grown.de.journal").exists())
    if not quick:
        run("prepare", "blocks.yaml")
        run("train", "blocks.yaml")
        run("sweep", "sweep.yaml")
        if old.has("HanTa"):
            run("prepare", "tagged.yaml")
            run("train", "tagged.yaml", "--from", "model", "training.max_updates=2")


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


def continued_training(work: Path, _errors: str) -> str | None:
    """Compare the resumed run with the one that the old checkout made without an interrupt."""
    return difference(work / "undisturbed", work / "run")


def continued_output(work: Path, errors: str) -> str | None:
    """Compare the resumed output with the undisturbed one; its beginning must have been kept."""
    if (work / "undisturbed.de").read_bytes() != (work / "grown.de").read_bytes():
        return "the output differs from the undisturbed one"
    journal = (work.parent / "base" / ".grown.de.journal").read_bytes()
    kept = re.search(rb'"lines": ?(\d+)', journal)
    if kept is None or not re.search(rf"\b{kept[1].decode()}\b", errors):
        return f"nothing says that lines were kept: {errors.strip()!r}"
    return None


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
    yield Case("decode resumed", GROWING, ("grown.de",), quick=True, check=continued_output)


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
    yield Case("train resumed", ("train", "run.yaml"), ("run",), silent=True, quick=True, check=continued_training)
    yield Case("average", ("average", "model", "--last", "2", "-o", "again"), ("again",), silent=True, quick=True)
    yield Case("slice", ("slice", "deep", "again", "-n", "1", "-m", "1"), ("again",), silent=True, quick=True)
    for to, package in (("safetensors-hf", None), ("ctranslate2", "ctranslate2")):
        arguments = ("export", "model", "again", "--to", to)
        yield Case(f"export {to}", arguments, ("again",), silent=True, package=package, quick=True)
    kept = ("deep/selector", "deep/depths")
    yield Case("select-depth, nothing to do", SELECT, kept, silent=True, quick=True)
    depths = ("depth-table", "deep", "--source", "short.en", "--reference", "short.de", "--no-speed", *ONE)
    yield Case("depth-table", (*depths, "--beam-size", "1", "-o", "again"), ("again",), prose=True)
    yield Case("sweep --table", ("sweep", "sweep.yaml", "--table"), ("sweep",))
    yield Case("sweep --list", ("sweep", "sweep.yaml", "--list"))
    yield Case("sweep, nothing to do", ("sweep", "sweep.yaml"), ("sweep",))
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


ONE = ("--threads", "1")
CASES = [*decode_cases(), *scoring_cases(), *analysis_cases(), *making_cases()]


# What is compared


def normalised(path: Path) -> Any:
    """The contents of a file, without what says when, how fast, or by which revision it was made."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return stripped(json.loads(data))
    if path.suffix == ".jsonl":
        return [stripped(json.loads(line)) for line in data.split(b"\n") if line]
    if path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
        volatile = [bool(VOLATILE.fullmatch(name.strip())) for name in rows[0]]
        return [[cell for cell, drop in zip(row, volatile, strict=False) if not drop] for row in rows]
    if path.name == "README.md":
        return numbers(data)
    return data


def stripped(value: Any) -> Any:
    """A JSON value without its volatile keys."""
    if isinstance(value, dict):
        if value.keys() == {"bytes", "sha256"}:  # of a file: compared itself, and it may hold a time
            return None
        return {key: stripped(each) for key, each in value.items() if not VOLATILE.fullmatch(key)}
    return [stripped(each) for each in value] if isinstance(value, list) else value


def numbers(text: bytes) -> list[bytes]:
    return re.findall(rb"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?%?", text)


def difference(old: Path, new: Path) -> str | None:
    """The first difference between two files or folders; None: they hold the same. Pictures are not compared."""
    if old.is_dir() or new.is_dir():
        left, right = listing(old), listing(new)
        if left != right:
            return f"{new.name}: files {', '.join(sorted(left ^ right)[:4])}"
        found = (difference(old / name, new / name) for name in sorted(left))
        return next((f"{new.name}/{each}" for each in found if each), None)
    if not old.exists() or not new.exists():
        return f"{new.name} is missing" if old.exists() != new.exists() else f"{new.name} is missing in both"
    if old.suffix in PICTURES or old.read_bytes() == new.read_bytes():
        return None
    left, right = normalised(old), normalised(new)
    return None if left == right else f"{new.name}: {first_difference(left, right)}"


def listing(folder: Path) -> set[str]:
    """The files of a folder, those of locks left out."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "lock" not in path.name and path.suffix not in PICTURES
    }


def first_difference(old: Any, new: Any, where: str = "") -> str:
    """Say where two values differ first."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                return f"{where}.{key} only in the {'old' if key in old else 'new'}"
            if old[key] != new[key]:
                return first_difference(old[key], new[key], f"{where}.{key}")
    if isinstance(old, list) and isinstance(new, list):
        for number, (left, right) in enumerate(zip(old, new, strict=False)):
            if left != right:
                return first_difference(left, right, f"{where}[{number}]")
        return f"{where} {len(old)} and {len(new)} items"
    if isinstance(old, bytes) and isinstance(new, bytes) and len(old) < 10**6:
        for number, (left, right) in enumerate(zip(old.split(b"\n"), new.split(b"\n"), strict=False), 1):
            if left != right:
                return f"{where} line {number}: {left[:60]!r}, {right[:60]!r}"
    return f"{where} {str(old)[:60]}, {str(new)[:60]}"


class Recorder:
    """Runs the cases with one checkout, and keeps what each wrote: a later case may write the same files again."""

    def __init__(self, checkout: Checkout, results: Path) -> None:
        self.checkout, self.results = checkout, results
        self.seconds: dict[str, float] = {}

    def record(self, case: Case) -> None:
        began = time.perf_counter()
        kept = self.results / re.sub(r"\W+", "-", case.name)
        code = self.checkout.run(case.arguments, kept, case.stdin)
        (kept / "code").write_text(f"{code}\n", encoding="utf-8", newline="\n")
        for name in case.files:
            source = self.checkout.work / name
            if source.exists():
                (kept / "files" / name).parent.mkdir(parents=True, exist_ok=True)
                if name in FRESH:
                    source.rename(kept / "files" / name)
                else:
                    copy = shutil.copytree if source.is_dir() else shutil.copyfile
                    copy(source, kept / "files" / name)
        self.seconds[case.name] = time.perf_counter() - began


FRESH = {"again", "r.json", "r.csv", "r.tsv", "s.json", "student-data-text"}
"""What a case makes for itself: out of the way of the next one."""


def compared(case: Case, old: Path, new: Path, work: Path) -> str | None:
    """What differs between the results of a case; None: nothing."""
    folder = re.sub(r"\W+", "-", case.name)
    old, new = old / folder, new / folder
    errors = (new / "err").read_bytes().decode(errors="replace")
    codes = [(each / "code").read_bytes().decode().strip() for each in (old, new)]
    if codes != ["0", "0"]:
        side = old if codes[0] != "0" else new
        last = (side / "err").read_bytes().decode(errors="replace").strip().split("\n")[-2:]
        return f"exit codes {' and '.join(codes)}: {' '.join(last)[:160]}"
    outputs = [(each / "out").read_bytes() for each in (old, new)]
    if case.prose:
        outputs_differ = numbers(outputs[0]) != numbers(outputs[1])
    else:
        outputs_differ = not case.silent and outputs[0] != outputs[1]
    if outputs_differ:
        return f"stdout: {first_difference(*outputs)}"
    for name in case.files:
        found = difference(old / "files" / name, new / "files" / name)
        if found:
            return found
    return case.check(work, errors) if case.check else None


def compare_revisions(
    checkouts: Sequence[Path], pythons: Sequence[str], folder: Path, *, quick: bool, timeout: int, only: str = ""
) -> list[Row]:
    """Run all cases with both checkouts in ``folder``, and compare them.

    Both run in ``folder``/work, one after the other, since files may hold absolute paths. What each leaves is then
    moved to ``folder``/old and /new.
    """
    work, base = folder / "work", folder / "base"
    for name in ("work", "base", "old", "new", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    work.mkdir(parents=True)
    recorders: list[Recorder] = []
    for number, name in enumerate(("old", "new")):
        if number:
            shutil.copytree(base, work, symlinks=True)
        with Checkout(checkouts[number], pythons[number], work, timeout) as checkout:
            if not number:
                told(f"training the models with {checkouts[0]}")
                build(checkout, folder / "logs", quick)
                shutil.copytree(work, base, symlinks=True)
                cases = [
                    case
                    for case in CASES
                    if (case.quick or not quick)
                    and re.search(only, case.name)
                    and (case.package is None or checkout.has(case.package))
                ]
            recorders.append(Recorder(checkout, folder / "logs" / name))
            for each, case in enumerate(cases, 1):
                told(f"{name}: {each} of {len(cases)}, {case.name}")
                recorders[-1].record(case)
        if not number:
            work.rename(folder / "old")
    rows = []
    for case in cases:
        seconds = sum(recorder.seconds[case.name] for recorder in recorders)
        found = compared(case, recorders[0].results, recorders[1].results, work)
        rows.append(Row(case.name, case.compared, found, seconds))
    work.rename(folder / "new")
    return rows


def told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    cells = [("case", "compared", "result", "seconds")]
    cells += [(row.name, row.compared, "DIFFERENT" if row.difference else "same", f"{row.seconds:.1f}") for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    for number, row in reversed(list(enumerate(rows, 1))):
        if row.difference:
            lines.insert(number + 1, f"    {row.difference}")
    return "\n".join([lines[0], "-" * max(map(len, lines[:1])), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT")
    parser.add_argument("new", type=Path, metavar="NEW_CHECKOUT")
    parser.add_argument("--work", type=Path, required=True, help="Folder to work in; its contents are replaced.")
    parser.add_argument("--old-python", default=sys.executable, help="Interpreter of OLD_CHECKOUT. [default: this one]")
    parser.add_argument("--new-python", default=sys.executable, help="Interpreter of NEW_CHECKOUT. [default: this one]")
    parser.add_argument("--quick", action="store_true", help="Run only the most telling cases.")
    parser.add_argument("--only", default="", metavar="REGEX", help="Run only cases whose name matches.")
    parser.add_argument("--timeout", type=int, default=120, help="Seconds that one command may take. [default: 120]")
    options = parser.parse_args()
    began = time.perf_counter()
    checkouts = [options.old.resolve(), options.new.resolve()]
    pythons = [os.path.abspath(options.old_python), os.path.abspath(options.new_python)]
    try:
        rows = compare_revisions(
            checkouts, pythons, options.work.resolve(), quick=options.quick, timeout=options.timeout, only=options.only
        )
    except (Failed, subprocess.SubprocessError) as error:
        told(f"error: {error}")
        sys.exit(2)
    different = [row.name for row in rows if row.difference]
    print(table(rows))
    summary = {
        "name": "compare_revisions",
        "cases": len(rows),
        "different": different,
        "seconds": round(time.perf_counter() - began),
        "ok": not different,
    }
    print(json.dumps(summary))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
