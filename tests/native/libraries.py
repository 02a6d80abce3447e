"""Compiled libraries for tests. Where a compiler is, one that does not build or is refused fails them."""

from __future__ import annotations

import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.engine.entmax_kernel import SimplexKernel
from sparsenmt.engine.entmax_kernel import simplex_kernel as find_simplex_kernel
from sparsenmt.errors import UserError
from sparsenmt.native.build import compile_library, find_compiler
from sparsenmt.native.gradients import GradientKernels, gradient_kernels
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS, features
from sparsenmt.native.kernels import Kernels, kernels
from sparsenmt.native.library import origins, wanted
from sparsenmt.native.sources import SourceFiles

NEEDED = {torch.float32: "fma", torch.bfloat16: "avx512_bf16", torch.int8: "fma"}
"""Dtype of products -> the flag of /proc/cpuinfo that they need."""

IN_USE = "in use"
SETS = {each.name: each for each in INSTRUCTION_SETS if "x86_64" in each.machines}
BUILDS = {
    **{name: (name, each.flags) for name, each in SETS.items()},
    "this processor": (None, ("-march=native",)),
    "AVX-512 and AVX-VNNI": ("avx512", (*SETS["avx512"].flags, "-mavxvnni")),
    "AVX2, little optimisation": ("avx2", ("-O1", *SETS["avx2"].flags)),
}
"""Name of a build -> the instruction set that a processor needs for it (None: every one can run it), and the options.

Options name the features that a build has: `-march=native` less a feature would keep those of other processors.
"""
INT8 = {torch.float32, torch.int8}
PRODUCTS: dict[str, set[torch.dtype]] = {
    **{"amx": {*INT8, torch.bfloat16}, "avx512_bf16": {*INT8, torch.bfloat16}},
    **{"avx512_vnni": INT8, "avx512": INT8, "avx_vnni": INT8, "avx2": INT8},
    **{"AVX-512 and AVX-VNNI": INT8, "AVX2, little optimisation": INT8},
}
"""The dtypes that a build has products of, where that does not depend on the processor."""


def compiler_or_skip() -> list[str]:
    """The compiler that libraries are built with; the test is skipped without one, and where kernels are turned off."""
    if not wanted():
        pytest.skip("kernels are turned off")
    try:
        return find_compiler()
    except UserError as error:
        pytest.skip(f"no compiler: {error}")


def decoding_kernels(*dtypes: torch.dtype) -> Kernels:
    """The library of decoding, with products of these dtypes.

    Skips without a compiler, or if the processor has no instructions for the products; fails if the library is refused.
    """
    compiler_or_skip()
    found = kernels()
    if found is None:
        pytest.fail(f"the kernels of decoding are not used: {origins['decoding'].refused}")
    lacking = {NEEDED[dtype] for dtype in dtypes if dtype not in found.layout.dtypes}
    if lacking <= features() and lacking:
        pytest.fail(f"the library has no products, although the processor has {sorted(lacking)}")
    if lacking:
        pytest.skip(f"this processor lacks {sorted(lacking)}")
    return found


def training_kernels() -> GradientKernels:
    """The library of training. Skips without a compiler; fails if the library is refused."""
    compiler_or_skip()
    found = gradient_kernels()
    if found is None:
        pytest.fail(f"the kernels of training are not used: {origins['training'].refused}")
    return found


def simplex_kernel() -> SimplexKernel:
    """The library of alpha-entmax. Skips without a compiler; fails if the library is refused."""
    compiler_or_skip()
    found = find_simplex_kernel()
    if found is None:
        pytest.fail(f"the kernel of alpha-entmax is not used: {origins['simplex'].refused}")
    return found


def builds(thorough: Collection[str]) -> list[Any]:
    """Parameters of tests: the library that is in use, and builds, which are marked thorough or slow."""
    marks = {name: pytest.mark.thorough if name in thorough else pytest.mark.slow for name in BUILDS}
    return [IN_USE, *(pytest.param(name, marks=mark) for name, mark in marks.items())]


_compiled: dict[tuple[str, str], Path] = {}


def build_or_skip(library: SourceFiles, name: str, folders: pytest.TempPathFactory) -> Path:
    """Compile one of `BUILDS`, once in a session; skip it where the processor is another."""
    if (library.name, name) not in _compiled:
        _compiled[library.name, name] = _compile_or_skip(library, name, folders.mktemp("build"))
    return _compiled[library.name, name]


def _compile_or_skip(library: SourceFiles, name: str, folder: Path) -> Path:
    needed, flags = BUILDS[name]
    if needed is not None and platform.machine() not in SETS[needed].machines:
        pytest.skip("for other processors")
    path = folder / f"{library.name}.so"
    path.write_bytes(compile_library(compiler_or_skip(), library, flags))  # also where the processor cannot run it
    lacking = SETS[needed].needs - features() if needed is not None else ()
    if lacking:
        pytest.skip(f"this processor lacks {', '.join(sorted(lacking))}")
    return path
