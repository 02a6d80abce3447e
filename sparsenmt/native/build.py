"""Compiled kernels for the CPU: taken from the wheel, or built at first use; used only if their results are right.

A platform wheel has every library once for each instruction set (`sources.py`, `instruction_sets.py`); the best one
that the processor has is used. Without one, as in a checkout, a C++ compiler builds it for this processor: a shared
library without PyTorch's headers is built in seconds and called through ctypes, and kept in a private folder. If
anything fails (no compiler, no cache, a result that differs from PyTorch's), PyTorch's operators are used, and a
warning says why, once: a failure is remembered in the cache until the compiler or a source changes.

SPARSENMT_NATIVE in the environment: 0 turns the kernels off, ``always`` uses them without measuring, ``build`` builds
them even if the wheel has them.
SPARSENMT_NATIVE_ISA names the best instruction set to be used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from sparsenmt.errors import UserError, printable
from sparsenmt.native import cache
from sparsenmt.native.compiler import CHOICE, COMPILERS, Compiler, CompilerError, compile_library, find_compiler
from sparsenmt.native.instruction_sets import InstructionSet, cap, processor, usable_sets
from sparsenmt.native.sources import FLAGS, OPENMP, SourceFiles, digest, is_intact, shipped_libraries
from sparsenmt.process.progress import notify
from sparsenmt.storage.files import directory_lock, sha256_text

SWITCH = "SPARSENMT_NATIVE"
MORE_FLAGS = "SPARSENMT_NATIVE_FLAGS"  # more options of the compiler, such as sanitizers; for `make sanitize`
BUILD = "build"  # of SWITCH
# Tried in turn, with what is lost. None links to OpenMP: its symbols must be those that PyTorch has loaded. A second
# OpenMP would start threads of its own that compete for the same cores.
_ONE_THREAD = "on one thread only"
_NATIVE = ((("-march=native", "-mprefer-vector-width=512", "-fopenmp"), ""), (("-march=native", "-fopenmp"), ""))
_RESORTS = (
    (("-march=native", "-fopenmp-simd"), _ONE_THREAD),
    (("-fopenmp-simd",), f"{_ONE_THREAD}, and without most vector instructions of this processor"),
)
_BUILD_SECONDS = 240  # for all variants together
_WAITS, _WAIT_SECONDS = 1500, 0.2  # for another process that builds: longer than a build may take
_INSTEAD = "PyTorch's operators are used instead, which are slower."
_NO_COMPILER = "no-compiler.json"

Kernels = TypeVar("Kernels")


def wanted() -> bool:
    """Return True unless compiled kernels are turned off."""
    return os.name == "posix" and os.environ.get(SWITCH, "1") != "0"


@dataclass(frozen=True)
class Origin:
    """The library that is used of a name, and why no better one is.

    Args:
        way: ``wheel``, ``built`` or ``none``: PyTorch's operators are used.
        path: of its file; None if there is none.
        refused: libraries that were not used, with the reasons.
        lost: of a library that was built with less than the compiler was asked for first: what, and why.
    """

    way: str
    path: Path | None
    refused: tuple[str, ...] = ()
    lost: str = ""


origins: dict[str, Origin] = {}
"""The origin of every library that this process has looked for, by its name."""


class _RefusedError(Exception):
    """A library does not load, or its results are wrong."""


@dataclass(frozen=True)
class Library(Generic[Kernels]):
    """A shared library.

    Args:
        name: prefix of its files in the cache.
        sources: C++ files.
        headers: the files that they include.
        callers: modules that lay out what it reads, and check its results.
        flags: compiler options, added after the common ones.
        load: returns the library's functions, from its path; None if their results are wrong. Raising OSError or
            AttributeError counts as wrong.
    """

    name: str
    sources: Sequence[Path]
    load: Callable[[Path], Kernels | None]
    headers: Sequence[Path] = ()
    callers: Sequence[Path] = ()
    flags: Sequence[str] = ()

    @classmethod
    def of(cls, files: SourceFiles, load: Callable[[Path], Kernels | None]) -> Library[Kernels]:
        """One of the package's libraries."""
        return cls(files.name, files.source_paths, load, files.header_paths, files.caller_paths, files.flags)

    def find(self) -> Kernels | None:
        """Take the library from the wheel or the cache, or build it; None if none gives right results.

        Raises:
            UserError: SPARSENMT_NATIVE_ISA names no instruction set.
        """
        refused: list[str] = []
        usable = usable_sets()
        if os.environ.get(SWITCH) != BUILD and not _more_flags():
            for path in self._shipped(usable):
                try:
                    if not is_intact(path):
                        raise _RefusedError("damaged, its contents changed after it was built; install sparsenmt again")
                    found = self._checked(path)
                except (_RefusedError, OSError) as error:
                    refused.append(f"{path}: {error}")
                    cache.say_once(f"{path}: not used: {error}")
                else:
                    origins[self.name] = Origin("wheel", path, tuple(refused))
                    return found
        origins[self.name] = Origin("none", None, tuple(refused))
        return self._find_built(refused)

    def _shipped(self, usable: Sequence[InstructionSet]) -> Iterator[Path]:
        """The libraries of the wheel that this processor can run, the best first."""
        made_from = digest(self.sources, self.headers, self.flags)
        for each in usable:
            yield from shipped_libraries(self.name, each, made_from)

    def _find_built(self, refused: list[str]) -> Kernels | None:
        """The library of this machine's compiler, from the cache or built now."""
        compiler = find_compiler()
        if compiler is None:
            _warn_without_compiler()
            return None
        try:
            cache.folder()
            stem = self._stem(compiler)
            reason = self._failure(stem)
            if reason is not None:
                origins[self.name] = Origin("none", None, (*refused, f"cannot be built: {reason}"))
                return None
            kept = self._kept(stem)
            return kept if kept is not None else self._build_alone(compiler, stem)
        except UserError as error:
            cache.say_once(f"{error}\n  {_INSTEAD}")
            origins[self.name] = Origin("none", None, (*refused, str(error)))
        except (OSError, RuntimeError) as error:  # no space, no permission
            cache.say_once(f"kernels ({self.name}) cannot be built or kept: {printable(str(error))}. {_INSTEAD}")
            origins[self.name] = Origin("none", None, (*refused, str(error)))
        return None

    def _stem(self, compiler: Compiler) -> str:
        """File name by a hash of the sources, the compiler, its options and the processor, as caches may be shared.

        Also of the modules that check its results: what one version of them refuses, another one may not.
        """
        parts = [
            *(path.read_bytes().decode() for path in (*self.headers, *self.sources, OPENMP, *self.callers)),
            repr((FLAGS, self.flags, _variants(), _more_flags())),
            compiler.identity(),
            f"{platform.system()} {platform.machine()} {torch.__version__} {processor()}",
        ]
        return f"{self.name}-{sha256_text(chr(10).join(parts))[:24]}"

    def _failure(self, stem: str) -> str | None:
        """The reason why an earlier build failed; None if none did."""
        reason = (cache.read_record(f"{stem}.json") or {}).get("failed")
        return None if reason is None else str(reason)

    def _kept(self, stem: str) -> Kernels | None:
        """The library in the cache; None unless it is complete, of this user alone, and right."""
        kept = cache.read_record(f"{stem}.json")
        if kept is None:
            return None
        name = str(kept.get("file"))
        if not re.fullmatch(rf"{re.escape(stem)}-[0-9]+\.so", name):
            cache.say_once(f"{cache.place() / stem}.json: names {name!r}, which is not its library; it is built again")
            return None
        try:
            found = cache.read_file(name)
        except UserError as refused:
            cache.say_once(f"{refused}\n  It is built again.")
            return None
        if found is None or hashlib.sha256(found[1]).hexdigest() != kept.get("sha256"):
            return None
        try:
            return self._checked(found[0], str(kept.get("lost", "")))
        except _RefusedError:
            return None

    def _build_alone(self, compiler: Compiler, stem: str) -> Kernels | None:
        """Build under a lock; if another process is building, wait for it."""
        folder = cache.folder()
        with _alone(folder) as locked:
            if not locked:
                cache.say_once(f"{folder}: another process still builds kernels. {_INSTEAD}")
                return None
            if self._failure(stem) is not None:
                return None
            kept = self._kept(stem)
            return kept if kept is not None else self._build(compiler, stem)

    def _build(self, compiler: Compiler, stem: str) -> Kernels | None:
        """Build the variants in turn; return the first that compiles, loads and is right."""
        notify(f"building kernels ({self.name}), once; this takes about 15 s")
        if cache.folder() != cache.place():
            notify(f"warning: {cache.place()}: cannot be written; kernels are kept in {cache.folder()}")
        cache.check_space()
        reason, deadline = "", time.monotonic() + _BUILD_SECONDS
        for number, (variant, lost) in enumerate(_variants()):
            name = f"{stem}-{number}.so"  # each variant has its own name: a loaded file stays loaded
            try:
                with tempfile.TemporaryDirectory(prefix="sparsenmt-") as scratch:
                    built = self._compile(compiler, variant, Path(scratch), deadline)
                path = cache.write_file(name, built)
                lost = lost and f"kernels ({self.name}) run {lost}: {reason}"
                found = self._checked(path, lost)
            except CompilerError as error:
                reason = str(error)
                if error.timed_out:
                    break
                continue
            except _RefusedError as error:
                path.unlink(missing_ok=True)
                reason = str(error)
                continue
            if lost:
                notify(f"warning: {lost}")
            record = {"file": name, "sha256": hashlib.sha256(built).hexdigest(), "lost": lost}
            cache.write_record(f"{stem}.json", record)
            return found
        self._remember_failure(stem, reason)
        return None

    def _compile(self, compiler: Compiler, variant: tuple[str, ...], folder: Path, deadline: float) -> bytes:
        """Compile and link; return the bytes of the shared library.

        Raises:
            CompilerError: the compiler fails or takes too long.
        """
        more = _more_flags()
        return compile_library(
            compiler,
            (*self.sources, OPENMP),
            [*FLAGS, *self.flags, *variant, *more],
            folder,
            at_once=torch.get_num_threads(),
            deadline=deadline,
            link=more,
        )

    def _checked(self, library: Path, lost: str = "") -> Kernels:
        """Load a library and check it. ``lost``: by a variant that is not the first, for `origins`.

        Raises:
            _RefusedError: it does not load, or its results are wrong.
        """
        try:
            found = self.load(library)
        except (OSError, AttributeError) as error:  # a symbol is missing, such as OpenMP's
            reason = str(error).removeprefix(f"{library}: ")
            raise _RefusedError(f"the compiled library cannot be loaded: {printable(reason)}") from None
        if found is None:
            raise _RefusedError("the compiled library was refused: its results differ from PyTorch's")
        refused = origins[self.name].refused if self.name in origins else ()
        again = f"; to build it again, delete {library.parent / library.stem.rpartition('-')[0]}.json"
        origins[self.name] = Origin("built", library, refused, lost and lost + again)
        return found

    def _remember_failure(self, stem: str, reason: str) -> None:
        record = f"{stem}.json"
        kept = cache.write_record(record, {"failed": reason})
        again = f" To try again, delete {cache.folder() / record}." if kept else ""
        notify(f"warning: kernels ({self.name}) cannot be built: {reason}. {_INSTEAD}{again}")


def _variants() -> tuple[tuple[tuple[str, ...], str], ...]:
    """The compiler's options that are tried in turn, with what is lost: this processor's, or those of a lesser set.

    A virtual machine may hide AVX-512 and show AMX, which the sources refuse together with all else of the processor.
    """
    flags = next((each.flags for each in usable_sets()), ())
    of_set = (*flags, "-fopenmp"), ""
    if cap() is not None:
        return of_set, ((*flags, "-fopenmp-simd"), _ONE_THREAD)
    return *_NATIVE, of_set, *_RESORTS


def _more_flags() -> list[str]:
    return os.environ.get(MORE_FLAGS, "").split()


def _warn_without_compiler() -> None:
    """Warn that no compiler is found: once, and again if CXX changes."""
    chosen = os.environ.get(CHOICE, "")
    if (cache.read_record(_NO_COMPILER) or {}).get(CHOICE) == chosen:
        return
    cache.write_record(_NO_COMPILER, {CHOICE: chosen})
    names = (
        f"{CHOICE} names none: {printable(chosen)}" if chosen.strip() else f"none of {', '.join(COMPILERS)} is found"
    )
    cache.say_once(f"no C++ compiler for kernels ({names}). {_INSTEAD}")


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Lock the folder, or wait for the process that has locked it; False if that takes too long."""
    with ExitStack() as held:
        for attempt in range(_WAITS):
            try:
                held.enter_context(directory_lock(folder, "builds kernels"))
            except UserError:  # another process has the lock
                if attempt == 0:
                    notify(f"{folder}: another process builds kernels; this one waits for it")
                time.sleep(_WAIT_SECONDS)
            else:
                yield True
                return
        yield False
