"""The libraries of kernels that wheels bring along: their sources, how they are compiled, and their files' names.

Imports no PyTorch: the build of a wheel reads the same table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.native.instruction_sets import InstructionSet

_PACKAGE = Path(__file__).parents[1]
OPENMP = Path(__file__).parent / "clang_openmp.cpp"
"""Compiled into every library."""

FLAGS = ("-std=gnu++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
SHIPPED = _PACKAGE / "_kernels"
"""The folder of an installed wheel's libraries."""

_DIGITS = 16  # of a hash in a file's name


@dataclass(frozen=True)
class SourceFiles:
    """The sources of a library.

    Args:
        name: of the library.
        folder: of its files, in the package.
        sources: C++ files.
        headers: the files that they include.
        callers: modules that lay out what it reads, and check its results.
        flags: compiler options, added after the common ones.
    """

    name: str
    folder: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    callers: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def source_paths(self) -> list[Path]:
        """The paths of the C++ files."""
        return [_PACKAGE / self.folder / name for name in self.sources]

    @property
    def header_paths(self) -> list[Path]:
        """The paths of the headers."""
        return [_PACKAGE / self.folder / name for name in self.headers]

    @property
    def caller_paths(self) -> list[Path]:
        """The paths of the modules."""
        return [_PACKAGE / self.folder / name for name in self.callers]


DECODING = SourceFiles(
    "decoding",
    "native",
    (
        *("few.cpp", "many.cpp", "vocabulary.cpp", "products.cpp"),
        *("step.cpp", "next.cpp", "listed.cpp", "greedy.cpp", "encoder.cpp"),
    ),
    (
        *("memory.h", "vectors.h", "best.h", "few.h", "product_arguments.h", "amx.h", "products.h", "vocabulary.h"),
        *("norm.h", "step.h"),
    ),
    ("kernels.py", "packing.py", "steps.py", "encoder.py", "greedy.py", "token_lists.py"),
)
TRAINING = SourceFiles(
    "training",
    "native",
    ("loss.cpp", "dropout.cpp", "attention.cpp"),
    ("memory.h", "vectors.h", "elements.h", "attention_head.h"),
    ("gradients.py", "training_operators.py", "training_trials.py"),
)
SIMPLEX = SourceFiles(
    "simplex",
    "sparsity/simplex",
    ("native.cpp",),
    ("native_math.h", "native_rows.h", "native_tiles.h"),
    ("native.py",),
    # Products and sums are not fused, so that a row has the same result in a full tile and in a part of one.
    ("-ffp-contract=off",),
)
LIBRARIES = (DECODING, TRAINING, SIMPLEX)
"""Every library of the package: a wheel has each, once for every instruction set."""


def digest(sources: Sequence[Path], headers: Sequence[Path], flags: Sequence[str]) -> str:
    """A hash of everything that a library is compiled from, but the compiler and its options for a processor."""
    found = hashlib.sha256(repr((FLAGS, tuple(flags))).encode())
    for path in (*headers, *sources, OPENMP):
        found.update(path.read_bytes())
    return found.hexdigest()[:_DIGITS]


def shipped_name(library: str, made_for: InstructionSet, sources: str, data: bytes) -> str:
    """The name of a library in a wheel, with `digest` of its sources and with a hash of its bytes."""
    return f"{library}-{made_for.name}-{sources}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.so"


def shipped_libraries(library: str, made_for: InstructionSet, sources: str) -> Iterator[Path]:
    """The installed libraries of these sources: one, or none."""
    for path in sorted(SHIPPED.glob(f"{library}-{made_for.name}-{sources}-*.so")):
        if re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", path.stem.rpartition("-")[2]):
            yield path


def is_intact(path: Path) -> bool:
    """Return True if the bytes of an installed library are those that its name tells.

    Raises:
        OSError: it cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS] == path.stem.rpartition("-")[2]
