"""Every library for every instruction set of this architecture, by both compilers, as the build of a wheel makes it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from sparsenmt.native import gradients, training_trials
from sparsenmt.native import kernels as decoding
from sparsenmt.native.compiler import Compiler, compile_library
from sparsenmt.native.instruction_sets import InstructionSet, sets_of_machine, usable_sets
from sparsenmt.native.sources import FLAGS, LIBRARIES, OPENMP, SourceFiles
from sparsenmt.sparsity.simplex import native as simplex

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name)
@pytest.mark.parametrize("made_for", sets_of_machine(), ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_it_compiles_and_is_right(
    name: str, made_for: InstructionSet, library: SourceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results agree with PyTorch's, if the processor has the instructions."""
    compiler = shutil.which(name)
    if compiler is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.delenv("SPARSENMT_NATIVE_ISA", raising=False)
    options = [*FLAGS, *library.flags, *made_for.flags, "-fopenmp"]
    sources = [*library.source_paths, OPENMP]
    path = tmp_path / f"{library.name}.so"
    path.write_bytes(compile_library(Compiler((compiler,)), sources, options, tmp_path, at_once=2, deadline=math.inf))
    if made_for not in usable_sets():
        return
    if library.name == "decoding":
        assert decoding.error(decoding.Kernels(path)) <= 1
    elif library.name == "training":
        assert training_trials.error(gradients.GradientKernels(path)) <= 1
    else:
        assert simplex.error(simplex.SimplexKernel(path)) <= simplex.TOLERANCE
