"""Kernels for other processors, run by an emulator (`make processors`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sparsenmt.native.build import compile_library
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS
from sparsenmt.native.sources import DECODING, FLAGS, LIBRARIES, SourceFiles

MACHINES = {
    "avx2": ("x86_64-linux-gnu-g++", ("qemu-x86_64-static", "-cpu", "Haswell")),
    "neon_dotprod": ("aarch64-linux-gnu-g++", ("qemu-aarch64-static", "-cpu", "max")),
    "neon": ("aarch64-linux-gnu-g++", ("qemu-aarch64-static", "-cpu", "cortex-a53")),
}
"""Instruction set -> a compiler and an emulator of a processor that has it."""
PROGRAM = Path(__file__).with_name("parity.cpp")
SECONDS = 600

pytestmark = pytest.mark.slow


def flags_of(name: str) -> tuple[str, ...]:
    return next(each.flags for each in INSTRUCTION_SETS if each.name == name)


def compiler_of(name: str) -> str:
    compiler = shutil.which(MACHINES[name][0])
    if compiler is None:
        pytest.skip(f"{MACHINES[name][0]} is not installed")
    return compiler


@pytest.mark.parametrize("name", MACHINES)
def test_decoding(name: str, tmp_path: Path) -> None:
    """Kernels agree with naive twins."""
    compiler, (emulator, *arguments) = compiler_of(name), MACHINES[name][1]
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed")
    program = tmp_path / "parity"
    options = [*FLAGS, *DECODING.flags, *flags_of(name), "-fopenmp", "-static", "-o", str(program)]
    subprocess.run([compiler, *options, *map(str, DECODING.paths()), str(PROGRAM)], check=True, timeout=SECONDS)
    ran = subprocess.run([emulator, *arguments, str(program)], capture_output=True, text=True, timeout=SECONDS)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0 and "the best continuations" in ran.stdout
    assert ("products in int8" in ran.stdout) == (name != "neon")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name)
@pytest.mark.parametrize("name", MACHINES)
def test_it_compiles(name: str, library: SourceFiles) -> None:
    """As the build of a wheel compiles it."""
    assert compile_library([compiler_of(name)], library, flags_of(name))
