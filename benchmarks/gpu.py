"""Everything that a GPU can show, in one table: conformance, speed against the device's rate, memory, methods, graphs.

    python benchmarks/gpu.py [--device cuda] [--preset base] [--repeats N] [--no-tests] [--no-scripts] [--output FILE]

Training and decoding are those of `sparsenmt benchmark`: the share is that of the rate of the work's own matrix
products on the device. Memory is the peak that PyTorch allocated. The graph is a decoder over a fixed prefix, captured
once and replayed, against the same calls one by one. Ratios are those of other benchmarks, run on the device
(`SCRIPTS`). Prints a table in Markdown, and one JSON line; there are no bars.
Without the device it says so in one line and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sparsenmt.errors import UserError
from sparsenmt.model.protocol import Source
from sparsenmt.process.devices import pick_device
from sparsenmt.report.tables import Table
from sparsenmt.workflows.evaluation.benchmark.flops import synchronize
from sparsenmt.workflows.evaluation.benchmark.measurement import BenchmarkRequest, benchmark, preset_model

ROOT = Path(__file__).resolve().parents[1]
CALLS = 20  # of the decoder between two looks at the clock
_BASE = ("dimension=512", "feed_forward=2048", "heads=8", "encoder_layers=6", "decoder_layers=6")
SCRIPTS: dict[str, Sequence[str]] = {
    "train_vs_transformers.py": ("bf16_vs_bf16", *(part for each in _BASE for part in ("--set", each))),
    "attention_training.py": ("entmax15_64", "adaptive_64", "fixed_7f1l", "topk8_64", "--set", "our_dtype=bf16"),
    "l0drop_decode.py": ("2048", "400", "--without-peer"),
}
"""Other benchmarks, with their arguments; training has as many tokens as the largest of ``--batch-tokens``."""


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
        size = ("--set", f"batch_tokens={max(given.batch_tokens)}") if "train" in name else ()
        options = (*own, *size, "--set", f"device={device}", "--repeats", str(given.repeats))
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


def graph(device: torch.device, given: argparse.Namespace) -> list[Row]:
    """Time a decoder over a fixed prefix, call by call and, on a GPU, as a graph."""
    model = preset_model(given.preset, given.vocabulary).build().to(device).eval()
    with torch.inference_mode():
        tokens = torch.randint(4, given.vocabulary, (given.sentences[0], 16), device=device)
        (memory,) = model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool))).memories.values()

        def decode() -> object:
            return model.decode(tokens, memory)

        plain = _seconds(decode, device)
        rows = [Row("decoder over 16 tokens, call by call", 1e3 * plain, "ms")]
        if device.type != "cuda":
            return [*rows, Row("decoder over 16 tokens, as a CUDA graph", None, "ms", "only on a CUDA device")]
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                decode()
        except RuntimeError as error:
            note = str(error).partition("\n")[0]
            return [*rows, Row("decoder over 16 tokens, as a CUDA graph", None, "ms", f"not captured: {note}")]
        return [*rows, Row("decoder over 16 tokens, as a CUDA graph", 1e3 * _seconds(captured.replay, device), "ms")]


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, in the fastest of five blocks after an untimed one."""
    best = float("inf")
    for block in range(6):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(CALLS):
            work()
        synchronize(device)
        best = min(best, (time.perf_counter() - began) / CALLS) if block else best
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sentences", type=int, nargs="+", default=[32, 256], help="of a batch in decoding")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096, 25_000], help="of a batch in training")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", default="4", help="processes of the tests (default: %(default)s)")
    parser.add_argument("--no-tests", action="store_true", help="leave tests/gpu out")
    parser.add_argument("--no-scripts", action="store_true", help="leave the other benchmarks out")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    given = parser.parse_args(arguments)
    try:
        device = pick_device(given.device, "--device")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rows = [] if given.no_tests else conformance(given)
    rows += [*speed(device, given), *graph(device, given)]
    rows += [] if given.no_scripts else scripts(device, given)
    title = f"{name}, PyTorch {torch.__version__}, preset {given.preset}"
    table = "\n".join([f"{title}\n", "| what | value | unit | note |", "|---|---:|---|---|", *map(Row.markdown, rows)])
    print(table)
    if given.output is not None:
        given.output.write_bytes(f"{table}\n".encode())
    ok = not any(row.value for row in rows if row.what.startswith("conformance"))
    ratios = {row.what: round(row.value, 4) for row in rows if row.value is not None}
    print(json.dumps({"name": "gpu", "device": name, "ratios": ratios, "bars": {}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
