"""Compiled kernels for the CPU: built at first use, kept in the user's cache, used only if their results are right.

Building needs only a C++ compiler: a shared library without PyTorch's headers is built in seconds and called through
ctypes. If anything fails (no compiler, no cache, a result that differs from PyTorch's), PyTorch's operators are used.
SPARSENMT_NATIVE=0 in the environment turns the kernels off.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from sparsenmt.errors import UserError
from sparsenmt.files import (
    directory_lock,
    make_directories,
    read_sealed,
    sha256_file,
    sha256_text,
    write_bytes,
    write_sealed,
)

SWITCH = "SPARSENMT_NATIVE"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=gnu++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# Tried in turn. None links to OpenMP: its symbols must be those that PyTorch has loaded. A second OpenMP would start
# threads of its own that compete for the same cores.
_VARIANTS = (
    ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    ("-march=native", "-fopenmp"),
    ("-march=native", "-fopenmp-simd"),
    ("-fopenmp-simd",),
)
_TIMEOUT = 120  # seconds for one compilation
_WAITS, _WAIT_SECONDS = 600, 0.2  # for another process that builds the library

Kernels = TypeVar("Kernels")


def wanted() -> bool:
    """Return True unless compiled kernels are turned off."""
    return os.environ.get(SWITCH, "1") != "0"


@dataclass(frozen=True)
class Library(Generic[Kernels]):
    """A shared library.

    Args:
        name: prefix of its files in the cache.
        sources: C++ files.
        headers: the files that they include.
        flags: compiler options, added after the common ones.
        load: returns the library's functions, from its path; None if their results are wrong. Raising OSError or
            AttributeError counts as wrong.
    """

    name: str
    sources: Sequence[Path]
    load: Callable[[Path], Kernels | None]
    headers: Sequence[Path] = ()
    flags: Sequence[str] = ()

    def find(self) -> Kernels | None:
        """Load the library from the cache, or build it; None if no build gives right results."""
        compiler = _compiler()
        if compiler is None:
            return None
        try:
            folder, stem = cache(), self._stem(compiler)
            kept = self._kept(folder, stem)
            return kept if kept is not None else self._build_alone(compiler, folder, stem)
        except (OSError, RuntimeError, UserError):  # no home, no space, no permission
            return None

    def _stem(self, compiler: Path) -> str:
        """File name by a hash of the sources, the compiler, its options and the processor, as caches may be shared."""
        stat = compiler.stat()
        parts = [
            *(path.read_bytes().decode() for path in (*self.headers, *self.sources)),
            repr((_FLAGS, self.flags, _VARIANTS)),
            f"{compiler} {stat.st_size} {stat.st_mtime_ns}",
            f"{platform.system()} {platform.machine()} {torch.__version__} {_processor()}",
        ]
        return f"{self.name}-{sha256_text(chr(10).join(parts))[:24]}"

    def _kept(self, folder: Path, stem: str) -> Kernels | None:
        """The library in the cache, if it is complete and right."""
        try:
            kept = read_sealed(folder / f"{stem}.json")
            library = folder / str(kept["file"])
            if kept["sha256"] != sha256_file(library):
                return None
        except (OSError, UserError, KeyError):
            return None
        return self._checked(library)

    def _build_alone(self, compiler: Path, folder: Path, stem: str) -> Kernels | None:
        """Build under a lock; if another process is building the library, wait for it."""
        make_directories(folder)
        for _ in range(_WAITS):
            try:
                with directory_lock(folder, "builds the kernel"):
                    kept = self._kept(folder, stem)
                    return kept if kept is not None else self._build(compiler, folder, stem)
            except UserError:  # it has the lock
                time.sleep(_WAIT_SECONDS)
        return None

    def _build(self, compiler: Path, folder: Path, stem: str) -> Kernels | None:
        """Build the variants in turn; return the first that compiles, loads and is right."""
        for number, variant in enumerate(_VARIANTS):
            library = folder / f"{stem}-{number}.so"  # each variant has its own name: a loaded file stays loaded
            with tempfile.TemporaryDirectory(prefix="sparsenmt-") as scratch:
                built = self._compile(compiler, variant, Path(scratch))
                if built is None:
                    continue
                write_bytes(library, built)
            found = self._checked(library)
            if found is not None:
                write_sealed(folder / f"{stem}.json", {"file": library.name, "sha256": sha256_file(library)})
                return found
            library.unlink(missing_ok=True)
        return None

    def _compile(self, compiler: Path, variant: tuple[str, ...], folder: Path) -> bytes | None:
        """Compile and link; return the bytes of the shared library, None if the compiler fails."""
        made, linked = [folder / f"{path.stem}.o" for path in self.sources], folder / "library.so"
        pairs = zip(self.sources, made, strict=True)
        commands = [
            [str(compiler), *_FLAGS, *self.flags, *variant, "-c", str(source), "-o", str(to)] for source, to in pairs
        ]
        with ThreadPoolExecutor() as pool:
            compiled = all(pool.map(_succeeds, commands))
        together = [str(compiler), "-shared", *map(str, made), "-o", str(linked)]
        return linked.read_bytes() if compiled and _succeeds(together) else None

    def _checked(self, library: Path) -> Kernels | None:
        try:
            return self.load(library)
        except (OSError, AttributeError):  # a symbol is missing, such as OpenMP's
            return None


def _succeeds(command: list[str]) -> bool:
    try:
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT, check=True)
    except subprocess.SubprocessError:
        return False
    return True


def _compiler() -> Path | None:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    return None


def cache() -> Path:
    """The directory of built libraries."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparsenmt" / "kernels"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_bytes().decode(errors="replace").split("\n") if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
