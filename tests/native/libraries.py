"""Compiled libraries for tests. Where a compiler is, one that does not build or is refused fails them."""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.native import build, training_trials
from sparsenmt.native import gradients as training_module
from sparsenmt.native import kernels as decoding_module
from sparsenmt.native.build import Library
from sparsenmt.native.compiler import Compiler, CompilerError, find_compiler
from sparsenmt.native.gradients import GradientKernels, gradient_kernels
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS, features
from sparsenmt.native.kernels import Kernels, kernels
from sparsenmt.sparsity.simplex import native as simplex_module
from sparsenmt.sparsity.simplex.native import SimplexKernel, native

NEEDED = {torch.float32: "fma", torch.bfloat16: "avx512_bf16", torch.int8: "fma"}
"""Dtype of products -> the flag of /proc/cpuinfo that they need."""

IN_USE = "in use"
SETS = {each.name: each for each in INSTRUCTION_SETS if "x86_64" in each.machines}
BUILDS = {
    **{name: (name, (*each.flags, "-fopenmp")) for name, each in SETS.items()},
    "this processor": (None, ("-march=native", "-fopenmp")),
    "one thread": (None, ("-march=native", "-fopenmp-simd")),
    "any processor": (None, ("-fopenmp-simd",)),
    "AVX-512 and AVX-VNNI": ("avx512", (*SETS["avx512"].flags, "-mavxvnni", "-fopenmp")),
    "AVX2, little optimisation": ("avx2", ("-O1", *SETS["avx2"].flags, "-fopenmp")),
}
"""Name of a build -> the instruction set that a processor needs for it (None: every one can run it), and the options.

Options name the features that a build has: `-march=native` less a feature would keep those of other processors.
"""
INT8 = {torch.float32, torch.int8}
PRODUCTS: dict[str, set[torch.dtype]] = {
    **{"amx": {*INT8, torch.bfloat16}, "avx512_bf16": {*INT8, torch.bfloat16}, "any processor": set()},
    **{"avx512_vnni": INT8, "avx512": INT8, "avx_vnni": INT8, "avx2": INT8},
    **{"AVX-512 and AVX-VNNI": INT8, "AVX2, little optimisation": INT8},
}
"""The dtypes that a build has products of, where that does not depend on the processor."""


def compiler_or_skip() -> Compiler:
    """The compiler that libraries are built with; the test is skipped without one, and where kernels are turned off."""
    found = find_compiler() if build.wanted() else None
    if found is None:
        pytest.skip("no compiler, or kernels are turned off")
    return found


def decoding_kernels(*dtypes: torch.dtype) -> Kernels:
    """The library of decoding, with products of these dtypes.

    Skips without a compiler, or if the processor has no instructions for the products; fails if the library is refused.
    """
    compiler_or_skip()
    found = kernels()
    if found is None:
        pytest.fail(f"the kernels of decoding are not used: {why(decoding_module.library())}")
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
        pytest.fail(f"the kernels of training are not used: {why(training_module.library())}")
    return found


def simplex_kernel() -> SimplexKernel:
    """The library of alpha-entmax. Skips without a compiler; fails if the library is refused."""
    compiler_or_skip()
    found = native(torch.zeros(1))
    if found is None:
        pytest.fail(f"the kernel of alpha-entmax is not used: {why(simplex_library())}")
    return found


def simplex_library() -> Library[SimplexKernel]:
    """The library of alpha-entmax, with its sources."""
    return simplex_module.library()


def why(library: Library[Any]) -> str:
    """The reason why a library is not used."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            path = compiled(library, build._variants()[0][0], Path(scratch))
            return f"it deviates from PyTorch: {_deviation(library, path)}"
        except (CompilerError, OSError, AttributeError) as error:
            return str(error)


def _deviation(library: Library[Any], path: Path) -> float:
    if library.name == "simplex":
        return simplex_module.error(SimplexKernel(path))
    if library.name == "training":
        return training_trials.error(GradientKernels(path))
    return decoding_module.error(Kernels(path))


def compiled(library: Library[Any], flags: Sequence[str], folder: Path) -> Path:
    """Compile a library with other flags than its own."""
    path = folder / f"{library.name}.so"
    path.write_bytes(library._compile(compiler_or_skip(), tuple(flags), folder, math.inf))
    return path


def builds(fast: Collection[str], names: Iterable[str] = BUILDS) -> list[Any]:
    """Parameters of tests: the library that is in use, and builds, of which all but the fast ones are slow."""
    return [IN_USE, *(name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names)]


_compiled: dict[tuple[str, str], Path] = {}


def build_or_skip(library: Library[Any], name: str, folders: pytest.TempPathFactory) -> Path:
    """Compile one of `BUILDS`, once in a session; skip it where the processor is another."""
    if (library.name, name) not in _compiled:
        _compiled[library.name, name] = _compile_or_skip(library, name, folders.mktemp("build"))
    return _compiled[library.name, name]


def _compile_or_skip(library: Library[Any], name: str, folder: Path) -> Path:
    needed, flags = BUILDS[name]
    if needed is not None and platform.machine() not in SETS[needed].machines:
        pytest.skip("for other processors")
    path = compiled(library, flags, folder)  # also where the processor cannot run it: the sources compile for it
    lacking = SETS[needed].needs - features() if needed is not None else ()
    if lacking:
        pytest.skip(f"this processor lacks {', '.join(sorted(lacking))}")
    return path
