"""Instruction sets that kernels are compiled for, and those that this processor and its operating system have.

Imports no PyTorch: the build of a wheel reads the same table.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.errors import UserError

CAP = "SPARSENMT_NATIVE_ISA"
"""The environment variable that names the best set to be used: better ones are ignored."""

_CPU_INFO = Path("/proc/cpuinfo")
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt")
_AVX512 = (
    *_AVX2,
    *("-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
    "-mprefer-vector-width=512",
)
_BF16 = (*_AVX512, "-mavx512vnni", "-mavx512bf16")
_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
_AVX2_FEATURES = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
_AVX512_FEATURES = ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")
_BF16_FEATURES = frozenset({"avx2", "fma", *_AVX512_FEATURES, "avx512_vnni", "avx512_bf16"})
_AMX_FEATURES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_DOTPROD_FEATURES = frozenset({"asimd", "asimddp", "atomics"})  # compilers take the atomic instructions of ARMv8.1


@dataclass(frozen=True)
class InstructionSet:
    """Instructions that a library may use.

    Args:
        machines: names of the architecture, as `platform.machine` gives them.
        needs: features, as Linux lists them of the processor: only those whose registers it saves.
        flags: options of the compiler.
    """

    name: str
    machines: Sequence[str]
    needs: frozenset[str]
    flags: tuple[str, ...]


INSTRUCTION_SETS = (
    InstructionSet("amx", _X86, _BF16_FEATURES | _AMX_FEATURES, (*_BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16")),
    InstructionSet("avx512_bf16", _X86, _BF16_FEATURES, _BF16),
    InstructionSet(
        "avx512_vnni", _X86, frozenset({"avx2", "fma", *_AVX512_FEATURES, "avx512_vnni"}), (*_AVX512, "-mavx512vnni")
    ),
    InstructionSet("avx512", _X86, frozenset({"avx2", "fma", *_AVX512_FEATURES}), _AVX512),
    InstructionSet("avx_vnni", _X86, _AVX2_FEATURES | {"avx_vnni"}, (*_AVX2, "-mavxvnni")),
    InstructionSet("avx2", _X86, _AVX2_FEATURES, _AVX2),
    InstructionSet("neon_dotprod", _ARM, _DOTPROD_FEATURES, ("-march=armv8.2-a+dotprod",)),
    InstructionSet("neon", _ARM, frozenset(), ()),  # every 64-bit ARM processor has it
)
"""The best of an architecture first. bf16 products need AVX-512 with bf16; int8 products are in all sets but `neon`;
VNNI makes them faster, and AMX both."""


def sets_of_machine() -> list[InstructionSet]:
    """The sets of this architecture, which the processor may lack."""
    return [each for each in INSTRUCTION_SETS if platform.machine() in each.machines]


def cpu_info(*names: str) -> str | None:
    """The text after the first of these names in /proc/cpuinfo; None: it has none of them."""
    lines = _CPU_INFO.read_bytes().decode(errors="replace").split("\n") if _CPU_INFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), None)


def features() -> frozenset[str]:
    """The features of the processor that Linux lists."""
    return frozenset((cpu_info("flags", "Features") or "").split())


def cap() -> str | None:
    """The best set to be used, as SPARSENMT_NATIVE_ISA names it.

    Raises:
        UserError: it names none of this architecture.
    """
    named = os.environ.get(CAP, "").strip().lower()
    known = [each.name for each in sets_of_machine()]
    if named and named not in known:
        hint = f"Name one of {', '.join(known)}." if known else "Unset it: no set of this architecture is known."
        raise UserError(f"'{named}' is no instruction set of this architecture", where=CAP, hint=hint)
    return named or None


def usable_sets() -> list[InstructionSet]:
    """The sets that the processor has, the best first, from the one on that SPARSENMT_NATIVE_ISA names.

    Raises:
        UserError: it names none of this architecture.
    """
    known, limit, has = sets_of_machine(), cap(), features()
    first = next((i for i, each in enumerate(known) if each.name == limit), 0)
    return [each for each in known[first:] if each.needs <= has]
