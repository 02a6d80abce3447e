"""Every library for every instruction set of this architecture, as the build of a wheel makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.engine import entmax_kernel as simplex
from sparsenmt.native import gradients
from sparsenmt.native import kernels as decoding
from sparsenmt.native.build import compile_library
from sparsenmt.native.instruction_sets import InstructionSet, sets_of_machine, usable_sets
from sparsenmt.native.sources import LIBRARIES, SourceFiles
from tests.native.libraries import compiler_or_skip

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name)
@pytest.mark.parametrize("made_for", sets_of_machine(), ids=lambda each: each.name)
def test_it_compiles_and_is_right(
    made_for: InstructionSet, library: SourceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results agree with PyTorch's, if the processor has the instructions."""
    monkeypatch.delenv("SPARSENMT_NATIVE_ISA", raising=False)
    path = tmp_path / f"{library.name}.so"
    path.write_bytes(compile_library(compiler_or_skip(), library, made_for.flags))
    if made_for not in usable_sets():
        return
    if library.name == "decoding":
        assert decoding.error(decoding.Kernels(path)) <= 1
    elif library.name == "training":
        assert gradients.error(gradients.GradientKernels(path)) <= 1
    else:
        assert simplex.error(simplex.SimplexKernel(path)) <= 1
