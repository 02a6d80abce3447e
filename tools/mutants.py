"""Damage the compiled kernels in many ways, one at a time, and run the tests that must fail.

    python -m tools.mutants [WORD ...]

Each mutant is a copy of the checkout with one replacement in its sources. Its libraries are built in a cache of their
own. It is killed if its tests fail; the same tests must pass without the replacement. With words, only mutants whose
names contain one of them are tried.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("sparsenmt", "tests", "tools", "recipes", "benchmarks", "pyproject.toml")
NATIVE, SIMPLEX = "sparsenmt/native", "sparsenmt/sparsity/simplex"
DECODING = ("tests/native/test_kernels.py", "tests/native/test_steps.py", "tests/native/test_threads.py")
ENTMAX = (
    "tests/sparsity/test_entmax_native.py",
    "tests/sparsity/test_entmax_function.py",
    "tests/native/test_threads.py",
)
ADDRESSES = ("tests/native/test_addresses.py",)


@dataclass(frozen=True)
class Mutant:
    """A replacement in a source, and the tests that must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


MUTANTS = (
    Mutant(
        "attention of few queries times 1.1",
        f"{NATIVE}/few.h",
        "store(out + r * out_step + kLanes * e, context[r][e] * inverse[r]);",
        "store(out + r * out_step + kLanes * e, context[r][e] * inverse[r] * 1.1f);",
        DECODING,
    ),
    Mutant(
        "attention of many queries times 1.1",
        f"{NATIVE}/many.cpp",
        "factors ? sums[r][c] * factors[r] : sums[r][c]",
        "factors ? sums[r][c] * factors[r] * 1.1f : sums[r][c]",
        DECODING,
    ),
    Mutant(
        "products times 1.1",
        f"{NATIVE}/products.h",
        "value = _mm512_add_ps(value, bias);",
        "value = _mm512_add_ps(_mm512_mul_ps(value, _mm512_set1_ps(1.1f)), bias);",
        DECODING,
    ),
    Mutant(
        "int8 without the offset of rows",
        f"{NATIVE}/products.h",
        "*zero = inverse > 0.0f ? static_cast<int32_t>(std::lrint(-least * inverse)) : 0;",
        "*zero = inverse > 0.0f && least == 0.0f ? static_cast<int32_t>(std::lrint(-least * inverse)) : 0;",
        DECODING,
    ),
    Mutant(
        "a product without the last thread's panels",
        f"{NATIVE}/products.cpp",
        "for (int64_t part = 0; part < threads; part++)",
        "for (int64_t part = 0; part < threads - (threads > 1); part++)",
        DECODING,
    ),
    Mutant(
        "a step without the last thread's heads",
        f"{NATIVE}/step.cpp",
        "if (few_) return {all * H * thread_ / threads_, all * H * (thread_ + 1) / threads_};",
        "if (few_) return {all * H * thread_ / threads_, (all * H - (threads_ > 1)) * (thread_ + 1) / threads_};",
        DECODING,
    ),
    Mutant(
        "a step whose threads do not wait",
        f"{NATIVE}/step.cpp",
        "    if (few_) {\n#pragma omp barrier\n    }\n",
        "",
        DECODING,
    ),
    Mutant(
        "the next tokens without the last row of each thread",
        f"{NATIVE}/next.cpp",
        "int64_t last(int64_t all) const { return all * (thread + 1) / threads; }",
        "int64_t last(int64_t all) const { return all * (thread + 1) / threads - (threads > 1); }",
        DECODING,
    ),
    Mutant(
        "the best tokens without the end of the row",
        f"{NATIVE}/best.h",
        "best.offer(row, first, size);",
        "best.offer(row, first, size - 1);",
        DECODING,
    ),
    Mutant(
        "the old shuffle in another order",
        f"{NATIVE}/vectors.h",
        "__builtin_shuffle(a, b, Ints{__VA_ARGS__})",
        "__builtin_shuffle(b, a, Ints{__VA_ARGS__})",
        DECODING,
    ),
    Mutant(
        "products in fp32 only with bf16 instructions",
        f"{NATIVE}/products.h",
        "#ifdef __AVX512F__",
        "#if defined(__AVX512F__) && !defined(__AVX512F__)",
        DECODING,
    ),
    Mutant(
        "alpha-entmax times 1.1",
        f"{SIMPLEX}/native_rows.h",
        "const float scale = 1.0f / sum;",
        "const float scale = 1.1f / sum;",
        ENTMAX,
    ),
    Mutant(
        "alpha-entmax in tiles times 1.1",
        f"{SIMPLEX}/native_tiles.h",
        "const Vector scale = 1.0f / mass;",
        "const Vector scale = 1.1f / mass;",
        ENTMAX,
    ),
    Mutant(
        "alpha-entmax without the last row of several threads",
        f"{SIMPLEX}/native.cpp",
        "row < rows.count; row += step) work(space, row);",
        "row < rows.count - (threads > 1) * step; row += step) work(space, row);",
        ENTMAX,
    ),
    Mutant(
        "options that let the compiler reorder sums",
        f"{NATIVE}/build.py",
        '"-fno-math-errno", ',
        '"-ffast-math", ',
        DECODING,
    ),
    Mutant(
        "no check of the decoding kernels at the start",
        f"{NATIVE}/kernels.py",
        "return found if error(found) <= 1 else None",
        "return found",
        DECODING,
    ),
    Mutant(
        "no check of the alpha-entmax kernel at the start",
        f"{SIMPLEX}/native.py",
        "return found if error(found) <= _TOLERANCE else None",
        "return found",
        ENTMAX,
    ),
    Mutant(
        "an address without its shape",
        f"{NATIVE}/address.py",
        "x.shape != shape or ",
        "",
        ADDRESSES,
    ),
    Mutant(
        "an address without its dtype",
        f"{NATIVE}/address.py",
        "x.dtype != dtype or ",
        "",
        ADDRESSES,
    ),
    Mutant(
        "copies with the pointers of the original",
        f"{NATIVE}/packing.py",
        'if name != "matrix"',
        "",
        ADDRESSES,
    ),
)


def run_tests(checkout: Path, tests: Sequence[str], cache: Path) -> tuple[int, str]:
    """Run tests in a checkout up to the first failure; the exit status of pytest, and the first failure."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "XDG_CACHE_HOME": str(cache),
        "SPARSENMT_NATIVE": "always",
    }
    environment["SPARSENMT_NATIVE_FLAGS"] = "-O1"  # compiled sooner
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line", *tests]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    reasons = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, reasons[0] if reasons else done.stdout.strip().splitlines()[-1]


def copy_checkout(to: Path) -> None:
    """Copy what the tests need, with only the first of the variants of a build: every mutant is compiled anew."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", ".venvs"))
        else:
            shutil.copy2(source, to / name)
    build = to / NATIVE / "build.py"
    text, found = re.subn(r"(\n_VARIANTS = \(\n.*\n)(?:    \(.*\n)+\)", r"\1)", build.read_text(encoding="utf-8"))
    if found != 1:
        raise SystemExit(f"{build}: no table of builds is found")
    build.write_text(text, encoding="utf-8")


def survives(mutant: Mutant, checkout: Path, cache: Path) -> bool:
    """Make the mutant, run its tests, and undo it; True if the tests pass."""
    path = checkout / mutant.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file}: the text of the mutant {mutant.name!r} is there {before.count(mutant.old)} times"
        )
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, reason = run_tests(checkout, mutant.tests, cache)
    finally:
        path.write_text(before, encoding="utf-8")
    print(f"{'SURVIVES' if status == 0 else 'killed  '} {mutant.name}\n           {reason}", flush=True)
    if status not in (0, 1):
        raise SystemExit(f"pytest ended with exit status {status}: this says nothing about the mutant")
    return status == 0


def main(words: Sequence[str]) -> int:
    """Try the mutants; return 1 if one survives."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="sparsenmt-mutants-") as folder:
        checkout, cache = Path(folder) / "checkout", Path(folder) / "cache"
        copy_checkout(checkout)
        every = sorted({test for mutant in chosen for test in mutant.tests})
        status, reason = run_tests(checkout, every, cache)
        if status:
            raise SystemExit(f"the tests fail without a mutant: {reason}")
        alive = [mutant.name for mutant in chosen if survives(mutant, checkout, cache)]
    print(
        f"{len(chosen) - len(alive)} of {len(chosen)} mutants are killed"
        + "".join(f"\nalive: {name}" for name in alive)
    )
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
