"""The kernels in Triton, compiled for a GPU on a machine without one: its interpreter runs what no compiler takes.

    python -m tests.gpu.compiled_kernels

Without TRITON_INTERPRET. Prints the name of each kernel, and the bytes of its machine code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sparsenmt.sparsity.simplex import blockwise_kernels as kernels

TARGET = GPUTarget("cuda", 80, 32)
POINTERS: Mapping[str, str] = {
    **dict.fromkeys(("q", "k", "v", "out", "given", "of_q", "of_k", "of_v"), "*bf16"),
    **dict.fromkeys(("means", "solved", "levels", "betas", "counts", "of_alpha"), "*fp32"),
    **{"flags": "*i8", "allowed": "*u8", "own": "*i32", "positions": "*i32", "seeds": "*i64"},
}
CONSTANTS = {"SIZE": 24, "R": 16, "C": 16, "E": 32, "CAUSAL": 1, "MASKED": 1, "COUNTED": 1, "PRECISION": "tf32"}
CHOICES: tuple[Mapping[str, Any], ...] = (
    {"FORMULA": 0, "ONE": 0, "DROPS": 1, "TRAINS": 1, "LEARNED": 1, "PARTS": 2},
    {"FORMULA": 1, "ONE": 1, "DROPS": 0, "TRAINS": 0, "LEARNED": 0, "PARTS": 1},
    {"FORMULA": 2, "ONE": 0, "DROPS": 0, "TRAINS": 1, "LEARNED": 0, "PARTS": 1},
)


def kind(name: str) -> str:
    """The type of an argument by its name, as Triton writes it."""
    if name.isupper():
        return "constexpr"
    return POINTERS.get(name, "fp32" if name in ("factor", "close", "dropout") else "i32")


def main() -> None:
    for function in (kernels.forward, kernels.backward_queries, kernels.backward_keys):
        names = function.arg_names
        for choice in CHOICES:
            constants = {name: value for name, value in {**CONSTANTS, **choice}.items() if name in names}
            source = ASTSource(fn=function, signature={name: kind(name) for name in names}, constexprs=constants)
            code = triton.compile(source, target=TARGET, options={"num_warps": 4, "num_stages": 2}).asm["cubin"]
            print(function.__name__, choice["FORMULA"], len(code), flush=True)


if __name__ == "__main__":
    main()
