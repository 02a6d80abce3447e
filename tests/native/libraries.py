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
from sparsenmt.native.kernels import Kernels, kernels
from sparsenmt.sparsity.simplex import native as simplex_module
from sparsenmt.sparsity.simplex.native import SimplexKernel, native

NEEDED = {torch.float32: "fma", torch.bfloat16: "avx512_bf16", torch.int8: "fma"}
"""Dtype of products -> the flag of /proc/cpuinfo that they need."""

IN_USE = "in use"
BUILDS = {
    "AVX-512": ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    "short vectors": ("-march=native", "-fopenmp"),
    "one thread": ("-march=native", "-fopenmp-simd"),
    "any processor": ("-fopenmp-simd",),
    "no AMX": ("-march=native", "-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16", "-fopenmp"),
    "no bf16": ("-march=native", "-mno-avx512bf16", "-fopenmp"),
    "no VNNI": ("-march=native", "-mno-avx512bf16", "-mno-avx512vnni", "-fopenmp"),
    "Cascade Lake": ("-march=cascadelake", "-fopenmp"),
    "Ice Lake": ("-march=icelake-server", "-fopenmp"),
    "AVX-VNNI": ("-march=native", "-mno-avx512f", "-mavxvnni", "-fopenmp"),
    "AVX2": ("-march=native", "-mno-avx512f", "-mno-avxvnni", "-fopenmp"),
    "AVX2, little optimisation": ("-O1", "-march=native", "-mno-avx512f", "-mno-avxvnni", "-fopenmp"),
}
NEEDED_BY_BUILD = {
    **{"no bf16": "avx512_vnni", "Cascade Lake": "avx512_vnni", "Ice Lake": "avx512_vnni"},
    **{"AVX-VNNI": "avx_vnni", "AVX2": "fma", "AVX2, little optimisation": "fma"},
}
"""Name of a build -> the flag of /proc/cpuinfo that it needs."""
PRODUCTS: dict[str, set[torch.dtype]] = {
    "no bf16": {torch.float32, torch.int8},
    "Cascade Lake": {torch.float32, torch.int8},
    "Ice Lake": {torch.float32, torch.int8},
    "any processor": set(),
    "AVX-VNNI": {torch.float32, torch.int8},
    "AVX2": {torch.float32, torch.int8},
    "AVX2, little optimisation": {torch.float32, torch.int8},
}
"""The dtypes that a build has products of, where that does not depend on the processor."""


def compiler_or_skip() -> Compiler:
    """The compiler that libraries are built with; the test is skipped without one, and where kernels are turned off."""
    found = find_compiler() if build.wanted() else None
    if found is None:
        pytest.skip("no compiler, or kernels are turned off")
    return found


def flags_of_processor() -> set[str]:
    """The instructions that Linux lists."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").split("\n") if info.exists() else []
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def decoding_kernels(*dtypes: torch.dtype) -> Kernels:
    """The library of decoding, with products of these dtypes.

    Skips without a compiler, or if the processor has no instructions for the products; fails if the library is refused.
    """
    compiler_or_skip()
    found = kernels()
    if found is None:
        pytest.fail(f"the kernels of decoding are not used: {why(decoding_module.library())}")
    lacking = {NEEDED[dtype] for dtype in dtypes if dtype not in found.layout.dtypes}
    if lacking <= flags_of_processor() and lacking:
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
            path = compiled(library, build._VARIANTS[0][0], Path(scratch))
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
    flags = BUILDS[name]
    if platform.machine() != "x86_64" and any(each.startswith(("-mno-", "-march=")) for each in flags):
        pytest.skip("for other processors")
    if NEEDED_BY_BUILD.get(name) not in {None, *flags_of_processor()}:
        pytest.skip(f"this processor lacks {NEEDED_BY_BUILD[name]}")
    return compiled(library, flags, folder)
