"""Everything that a GPU can show, in one table: conformance, speed against the device's rate, peers, memory, graphs.

    python benchmarks/gpu.py [--device cuda] [--preset base] [--repeats N] [--no-tests] [--no-scripts] [--output FILE]
    python benchmarks/gpu.py --smoke    # every part on the CPU in tiny sizes, without bars

Training and decoding are those of `sparsenmt benchmark`: the share is that of the rate of the work's own matrix
products on the device. Memory is the peak that PyTorch allocated. `graphs_over_steps` is decoding with recorded steps
(SPARSENMT_CUDA_GRAPHS=1) over decoding without. Two peers take turns with this project (`peers`): CTranslate2 in
float16 with beam 4, and Hugging Face Transformers in bf16. Ratios of other benchmarks are measured on the device, too
(`SCRIPTS`). Prints a table in Markdown, and one JSON line with the bars (`BARS`), which are for the preset base on a
GPU: a ratio that was not measured misses its bar. The exit code is 0 if every bar is reached and no test has failed.
Without the device it says so in one line and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from common import Case, compare, verdict
from decode_vs_ctranslate2 import BASE, CTRANSLATE2
from decode_vs_ctranslate2 import OURS as OUR_DECODING
from multi30k import write_batches
from sparsenmt.engine.graph_engine import SWITCH
from sparsenmt.errors import UserError
from sparsenmt.process.devices import pick_device
from sparsenmt.report.tables import Table
from sparsenmt.workflows.evaluation.benchmark.measurement import BenchmarkRequest, benchmark
from train_vs_transformers import BF16, MARIAN, SMALL
from train_vs_transformers import OURS as OUR_TRAINING

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = "graphs_over_steps"
DECODED, TRAINED = 256, 25_000
"""Sentences of a batch in decoding, and tokens of one in training, for which there are bars."""
BARS = {
    "decode_over_ctranslate2": 1.2,
    "decode_share_of_products": 0.40,
    "train_share_of_products": 0.45,
    "train_over_transformers": 1.5,
}
"""The bars of the preset base on a GPU, in bf16; decoding with beam 4."""
_SIZES = ("dimension", "feed_forward", "heads", "encoder_layers", "decoder_layers", "vocabulary")
TINY = {"dimension": 32, "feed_forward": 64, "heads": 8, "encoder_layers": 1, "decoder_layers": 1, "vocabulary": 300}
"""Sizes of `--smoke`."""
SCRIPTS: dict[str, Sequence[str]] = {
    "attention_training.py": ("entmax15_64", "adaptive_64", "fixed_7f1l", "topk8_64", "--set", "our_dtype=bf16"),
    "l0drop_decode.py": ("2048", "400", "--without-peer"),
}
"""Other benchmarks, with their arguments; training has as many tokens as the largest of ``--batch-tokens``."""
_SMOKE_SETS = ("batches=1", "batch_sentences=2", "steps=1", "source_length=9", "target_length=3")


@dataclass(frozen=True)
class Row:
    """A line of the table; ``value`` None: not measured, for the reason in ``note``."""

    what: str
    value: float | None
    unit: str
    note: str = ""

    def markdown(self) -> str:
        shown = "not measured" if self.value is None else f"{self.value:,.4g}"
        return f"| {self.what} | {shown} | {self.unit} | {self.note} |"


def conformance(given: argparse.Namespace) -> list[Row]:
    """Run `tests/gpu` in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", given.workers, "--no-header", "tests/gpu"]
    environment = os.environ | {"SPARSENMT_TEST_GPU": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().split("\n")
    return [Row("conformance: tests that failed", float(done.returncode != 0), "0 or 1", lines[-1].strip("= "))]


def speed(device: torch.device, given: argparse.Namespace) -> list[Row]:
    """Time training and decoding, each in batches of several sizes, with the peak of memory."""
    training = [(f"training, {size:,} tokens", {"batch_tokens": size}) for size in given.batch_tokens]
    decoding = [(f"decoding, {size:,} sentences", {"sentences": size}) for size in given.sentences]
    rows = []
    for name, size in training + decoding:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        request = BenchmarkRequest(
            preset=given.preset,
            vocabulary=given.vocabulary,
            decoding="sentences" in size,
            training="batch_tokens" in size,
            device=str(device),
            repeats=given.repeats,
            dtypes=("fp32", "bf16", "fp16") if device.type == "cuda" and "sentences" in size else (),
            **size,
        )
        (table,) = benchmark(request).tables
        rows += [line for values in table.rows for line in _speed_rows(name, table, values)]
        peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
        rows.append(Row(f"{name}: peak memory", peak, "MB", "" if peak else "only of a CUDA device"))
    return rows


def _speed_rows(name: str, table: Table, values: Sequence[object]) -> list[Row]:
    """Return what a row of the benchmark's table says."""
    row = dict(zip([column.name for column in table.columns], values, strict=True))
    rate, limit, share = (float(str(row[key])) for key in ("gflops", "limit_gflops", "share"))
    name = f"{name}, {row['dtype']}"
    return [
        Row(f"{name}: tokens", float(str(row["tokens_per_second"])), "1/s"),
        Row(f"{name}: products", rate, "GFLOP/s", f"the device's own rate of them: {limit:,.0f}"),
        Row(f"{name}: share of the device's rate", share, ""),
    ]


def scripts(device: torch.device, given: argparse.Namespace) -> list[Row]:
    """Run other benchmarks on the device, and return their ratios."""
    environment, rows = os.environ | {"PYTHONPATH": str(ROOT)}, list[Row]()
    for name, own in SCRIPTS.items():
        sets = [f"batch_tokens={max(given.batch_tokens)}"] if "train" in name else []
        if given.smoke:
            sets += [*_SMOKE_SETS, *(f"{key}={value}" for key, value in TINY.items())]
        options = [*own, *(part for each in (*sets, f"device={device}") for part in ("--set", each))]
        options += ["--repeats", str(given.repeats)]
        command = [sys.executable, str(ROOT / "benchmarks" / name), *options]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        try:
            ratios = json.loads(done.stdout.strip().split("\n")[-1])["ratios"]
        except (ValueError, KeyError):
            reason = (done.stderr.strip().split("\n") or [""])[-1]
            rows.append(Row(name, None, "ratio", reason.replace("|", "/")))
            continue
        rows += [Row(f"{name}: {case}", float(ratio), "ratio") for case, ratio in ratios.items()]
    return rows


def peers(device: torch.device, given: argparse.Namespace) -> list[Row]:
    """Decode and train in turns with CTranslate2 and Transformers; a peer that does not run is not measured."""
    sizes = TINY if given.smoke else {key: BASE[key] for key in _SIZES}
    shared = {**sizes, "device": str(device)}
    sentences, tokens = max(given.sentences), max(given.batch_tokens)
    dtypes = {"our_dtype": "fp32", "peer_compute_type": "float32"}
    if device.type == "cuda":
        dtypes = {"our_dtype": "bf16", "peer_compute_type": "float16"}
    decoding = {**BASE, **shared, **dtypes, "batch_sentences": sentences, "sentences": 4 * sentences}
    half = decoding | {"our_dtype": "fp16"}
    training = {**SMALL, **shared, **BF16, "batch_tokens": tokens, "steps": 1 if given.smoke else SMALL["steps"]}
    cases = [
        Case("decode_over_ctranslate2", OUR_DECODING, CTRANSLATE2, decoding),
        *([Case("decode_fp16_over_ctranslate2", OUR_DECODING, CTRANSLATE2, half)] if device.type == "cuda" else []),
        Case("train_over_transformers", OUR_TRAINING, MARIAN, training, prepare=write_batches),
    ]
    rows = []
    for case in cases:
        try:
            rows.append(Row(case.name, compare(case, given.repeats), "ratio"))
        except (SystemExit, OSError, subprocess.CalledProcessError, UserError) as error:
            rows.append(Row(case.name, None, "ratio", str(error).partition("\n")[0].replace("|", "/")))
    return rows


def shares(rows: Sequence[Row]) -> list[Row]:
    """Return the shares with a bar, from the rows of `speed`."""
    wanted = {
        "decode_share_of_products": f"decoding, {DECODED:,} sentences, bf16",
        "train_share_of_products": f"training, {TRAINED:,} tokens, bf16",
    }
    found = {row.what: row.value for row in rows}
    return [Row(name, found.get(f"{what}: share of the device's rate"), "", what) for name, what in wanted.items()]


def graphs(device: torch.device, given: argparse.Namespace, rows: Sequence[Row]) -> list[Row]:
    """Time decoding with recorded steps, and divide the tokens a second by those in the rows of `speed`."""
    if device.type != "cuda":
        return [Row(GRAPHS, None, "ratio", "only on a CUDA device")]
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    found = speed(device, argparse.Namespace(**{**vars(given), "batch_tokens": []}))
    os.environ.pop(SWITCH) if before is None else os.environ.update({SWITCH: before})
    plain = {row.what: row.value for row in rows}
    return [
        Row(f"{GRAPHS}: {row.what.removesuffix(': tokens')}", row.value / value, "ratio")
        for row in found
        if row.what.endswith(": tokens") and row.value and (value := plain.get(row.what))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sentences", type=int, nargs="+", default=[32, DECODED], help="of a batch in decoding")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096, TRAINED], help="of a batch in training")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", default="4", help="processes of the tests (default: %(default)s)")
    parser.add_argument("--no-tests", action="store_true", help="leave tests/gpu out")
    parser.add_argument("--no-scripts", action="store_true", help="leave the other benchmarks out")
    parser.add_argument("--smoke", action="store_true", help="run every part on the CPU in tiny sizes, without bars")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    given = parser.parse_args(arguments)
    if given.smoke:
        tiny = {"device": "cpu", "preset": "tiny", "vocabulary": 40, "sentences": [2], "batch_tokens": [128]}
        vars(given).update(tiny, repeats=1)
    try:
        device = pick_device(given.device, "--device")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows = [] if given.no_tests else conformance(given)
    rows += speed(device, given)
    rows += graphs(device, given, rows)
    rows += shares(rows)
    rows += [] if given.no_scripts else [*peers(device, given), *scripts(device, given)]
    title = f"{name}, PyTorch {torch.__version__}, preset {given.preset}"
    table = "\n".join([f"{title}\n", "| what | value | unit | note |", "|---|---:|---|---|", *map(Row.markdown, rows)])
    print(table)
    if given.output is not None:
        given.output.write_bytes(f"{table}\n".encode())
    ratios = {row.what: row.value for row in rows if row.value is not None}
    bars = BARS if device.type == "cuda" and given.preset == "base" else {}
    result = verdict("gpu", ratios, {case: bar for case, bar in bars.items() if case in ratios})
    result |= {"device": name, "bars": bars, "missing": sorted(bars.keys() - ratios.keys())}
    passed = not any(row.value for row in rows if row.what.startswith("conformance"))
    result["ok"] = bool(result["ok"] and passed and not result["missing"])
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
