"""Compiled kernels for the CPU: built at their first use, kept in the user's cache, used only if they are right.

It needs a C++ compiler and nothing else: a shared library without PyTorch's headers takes seconds to build, and is
called through ctypes. Whatever goes wrong (no compiler, no cache, another result than PyTorch's), PyTorch's operators
do the work. SPARSENMT_NATIVE=0 in the environment turns all of them off.
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
# Tried in turn. OpenMP is linked to by none of them: its symbols must be those that PyTorch brings, whose threads are
# the ones that are waiting already. A second OpenMP would have threads of its own that fight for the same cores.
_VARIANTS = (
    ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    ("-march=native", "-fopenmp"),
    ("-march=native", "-fopenmp-simd"),
    ("-fopenmp-simd",),
)
_SECONDS = 120  # for one compilation
_WAITS, _WAIT = 600, 0.2  # times, and seconds between them

Kernels = TypeVar("Kernels")


def wanted() -> bool:
    """Whether compiled kernels are not turned off."""
    return os.environ.get(SWITCH, "1") != "0"


@dataclass(frozen=True)
class Library(Generic[Kernels]):
    """A shared library.

    Args:
        name: what its files in the cache begin with.
        sources: C++ files.
        headers: what they include.
        flags: options of the compiler beside the common ones, which they override.
        load: the library's functions, from its path; None if they give wrong results. OSError and AttributeError are
            taken for that too.
    """

    name: str
    sources: Sequence[Path]
    load: Callable[[Path], Kernels | None]
    headers: Sequence[Path] = ()
    flags: Sequence[str] = ()

    def find(self) -> Kernels | None:
        """From the cache, or built and put there; None if there is none that is right."""
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
        """What the library depends on: its source, how it is built, and the processor, as caches may be shared."""
        stat = compiler.stat()
        parts = [
            *(path.read_bytes().decode() for path in (*self.headers, *self.sources)),
            repr((_FLAGS, self.flags, _VARIANTS)),
            f"{compiler} {stat.st_size} {stat.st_mtime_ns}",
            f"{platform.system()} {platform.machine()} {torch.__version__} {_processor()}",
        ]
        return f"{self.name}-{sha256_text(chr(10).join(parts))[:24]}"

    def _kept(self, folder: Path, stem: str) -> Kernels | None:
        """What the cache has, if it is whole and right."""
        try:
            kept = read_sealed(folder / f"{stem}.json")
            library = folder / str(kept["file"])
            if kept["sha256"] != sha256_file(library):
                return None
        except (OSError, UserError, KeyError):
            return None
        return self._checked(library)

    def _build_alone(self, compiler: Path, folder: Path, stem: str) -> Kernels | None:
        """What another process builds now is waited for, not built twice."""
        make_directories(folder)
        for _ in range(_WAITS):
            try:
                with directory_lock(folder, "builds the kernel"):
                    kept = self._kept(folder, stem)
                    return kept if kept is not None else self._build(compiler, folder, stem)
            except UserError:  # it has the lock
                time.sleep(_WAIT)
        return None

    def _build(self, compiler: Path, folder: Path, stem: str) -> Kernels | None:
        """The first variant that can be built, loaded, and is right."""
        for number, variant in enumerate(_VARIANTS):
            library = folder / f"{stem}-{number}.so"  # a name of its own: what was loaded stays loaded under its name
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
        """The bytes of a shared library; None where the compiler refuses."""
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
        except (OSError, AttributeError):  # a symbol that PyTorch does not bring after all
            return None


def _succeeds(command: list[str]) -> bool:
    try:
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=True)
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
    """Where libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparsenmt" / "kernels"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_bytes().decode(errors="replace").split("\n") if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
