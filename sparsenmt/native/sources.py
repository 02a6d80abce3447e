"""The libraries of compiled kernels: their sources, the folder of the built ones, and the names of their files.

Imports no PyTorch: the build reads the same table. In the environment, SPARSENMT_NATIVE_FOLDER names another folder
than the package's own, and SPARSENMT_NATIVE_FLAGS more options of the compiler, such as sanitizers.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.native.instruction_sets import InstructionSet

_PACKAGE = Path(__file__).parents[1]
FLAGS = ("-std=gnu++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_FOLDER, _MORE_FLAGS = "SPARSENMT_NATIVE_FOLDER", "SPARSENMT_NATIVE_FLAGS"
_DIGITS = 16  # of a hash in a file's name


def kernel_folder() -> Path:
    """The folder of the built libraries."""
    return Path(os.environ.get(_FOLDER) or _PACKAGE / "_kernels")


def more_flags() -> list[str]:
    """The options of the compiler that SPARSENMT_NATIVE_FLAGS adds to all others."""
    return os.environ.get(_MORE_FLAGS, "").split()


@dataclass(frozen=True)
class SourceFiles:
    """The sources of a library.

    Args:
        name: of the library.
        folder: of its files, in the package.
        sources: names of the C++ files.
        headers: names of the files that they include.
        flags: compiler options, added after `FLAGS`.
    """

    name: str
    folder: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    flags: tuple[str, ...] = ()

    def paths(self, *, headers: bool = False) -> list[Path]:
        """The paths of the C++ files, or of the headers."""
        return [_PACKAGE / self.folder / name for name in (self.headers if headers else self.sources)]

    def digest(self) -> str:
        """The hash of everything that it is compiled from, but the compiler and its options for a processor."""
        found = hashlib.sha256(repr((FLAGS, self.flags, more_flags())).encode())
        for path in (*self.paths(headers=True), *self.paths()):
            found.update(path.read_bytes())
        return found.hexdigest()[:_DIGITS]

    def file_name(self, made_for: InstructionSet, data: bytes) -> str:
        """The name of a built library: NAME-SET-DIGEST-HASH.so, with `digest` and the hash of its bytes, ``data``."""
        return f"{self.name}-{made_for.name}-{self.digest()}-{_hash(data)}.so"

    def built(self, made_for: InstructionSet) -> Iterator[Path]:
        """The libraries in the folder that were built from these sources: one, or none."""
        for path in sorted(kernel_folder().glob(f"{self.name}-{made_for.name}-{self.digest()}-*.so")):
            if re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", path.stem.rpartition("-")[2]):
                yield path

    def others(self) -> list[Path]:
        """The libraries of this name in the folder that were built from other sources."""
        return [each for each in kernel_folder().glob(f"{self.name}-*.so") if f"-{self.digest()}-" not in each.name]


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
)
TRAINING = SourceFiles(
    "training",
    "native",
    ("loss.cpp", "dropout.cpp", "attention.cpp"),
    ("memory.h", "vectors.h", "elements.h", "attention_head.h"),
)
SIMPLEX = SourceFiles(
    "simplex",
    "sparsity/simplex",
    ("native.cpp",),
    ("native_math.h", "native_rows.h", "native_tiles.h"),
    # Products and sums are not fused, so that a row has the same result in a full tile and in a part of one.
    ("-ffp-contract=off",),
)
LIBRARIES = (DECODING, TRAINING, SIMPLEX)
"""Every library of the package: each is built once for every instruction set."""


def set_of(library: Path) -> str:
    """The instruction set in the name of a built library; ``avx2`` for a file of another name."""
    parts = library.stem.split("-")
    return parts[1] if len(parts) == 4 else "avx2"


def is_intact(library: Path) -> bool:
    """Return True if the bytes of a built library are those that its name tells.

    Raises:
        OSError: it cannot be read.
    """
    return _hash(library.read_bytes()) == library.stem.rpartition("-")[2]


def _hash(data: bytes) -> str:
    """The first hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
