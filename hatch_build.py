"""Build hook of the wheel: compiled kernels, one shared library for each instruction set of this architecture.

SPARSENMT_WHEEL_KERNELS in the environment:

    1        they must be built: without a C++ compiler, or if none compiles, the build fails
    0        none is built: a pure wheel (`py3-none-any`), which builds kernels at first use
    not set  they are built where a compiler is found, and not for an editable install (`pip install -e .`), which
             builds them for its own processor at first use

CXX names the compiler, as at first use. The libraries' names hold hashes of their sources and bytes (`sources.py`).
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "SPARSENMT_WHEEL_KERNELS"
SECONDS = 1200  # for all libraries together
OLDEST_GLIBC, OLDEST_LIBSTDCXX = (2, 28), (3, 4, 25)
"""The versions on every system that PyTorch's wheels run on (manylinux_2_28)."""


class KernelHook(BuildHookInterface):
    """Adds the libraries to the wheel and names its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is written."""
        wanted = os.environ.get(SWITCH, "")
        if wanted not in ("", "0", "1"):
            raise ValueError(f"{SWITCH}={wanted}: give 1 to build kernels into the wheel, or 0 to build none")
        if wanted == "0" or (version == "editable" and wanted != "1"):
            return
        sys.path.insert(0, self.root)  # an isolated build does not see the package
        from sparsenmt.native.compiler import CHOICE, COMPILERS, find_compiler

        compiler = find_compiler()
        if compiler is None:
            chosen = os.environ.get(CHOICE)
            self._lack(
                wanted, f"{CHOICE}={chosen} is not found" if chosen else f"none of {', '.join(COMPILERS)} is found"
            )
            return
        built = self._build(compiler)
        if not built:
            self._lack(wanted, "no library could be compiled")
            return
        if version == "editable":
            _replace(Path(self.root) / "sparsenmt" / "_kernels", built)
            return
        folder = Path(tempfile.mkdtemp(prefix="sparsenmt-kernels-"))  # `finalize` removes it
        build_data["kernels"] = str(folder)
        for name, data in built.items():
            (folder / name).write_bytes(data)
            build_data["force_include"][str(folder / name)] = f"sparsenmt/_kernels/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(built.values())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries, which are in the wheel now."""
        folder = build_data.pop("kernels", None)
        for path in Path(folder).iterdir() if folder else ():
            path.unlink()
        if folder:
            Path(folder).rmdir()

    def _build(self, compiler: Any) -> dict[str, bytes]:
        """Every library for every instruction set of this architecture; sets that the compiler lacks are left out."""
        from sparsenmt.native.compiler import CompilerError, compile_library
        from sparsenmt.native.instruction_sets import sets_of_machine
        from sparsenmt.native.sources import FLAGS, LIBRARIES, OPENMP, digest, shipped_name

        built: dict[str, bytes] = {}
        deadline = time.monotonic() + SECONDS
        for made_for in sets_of_machine():
            for library in LIBRARIES:
                options = [*FLAGS, *library.flags, *made_for.flags, "-fopenmp"]
                sources = [*library.source_paths, OPENMP]
                cores = os.cpu_count() or 1
                try:
                    with tempfile.TemporaryDirectory(prefix="sparsenmt-") as scratch:
                        data = compile_library(
                            compiler, sources, options, Path(scratch), at_once=cores, deadline=deadline
                        )
                except CompilerError as error:
                    self.app.display_warning(f"kernels ({library.name}) for {made_for.name} are left out: {error}")
                    continue
                made_from = digest(library.source_paths, library.header_paths, library.flags)
                built[shipped_name(library.name, made_for, made_from, data)] = data
                self.app.display_info(f"kernels ({library.name}) for {made_for.name}: {len(data)} bytes")
        return built

    def _lack(self, wanted: str, reason: str) -> None:
        if wanted == "1":
            raise RuntimeError(f"{SWITCH}=1, but kernels cannot be built into the wheel: {reason}")
        self.app.display_warning(
            f"a pure wheel, without compiled kernels: {reason}. They are built at first use where a compiler is found."
        )


def _replace(folder: Path, built: dict[str, bytes]) -> None:
    """Put the libraries into a checkout, in the place of others."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.so"):
        path.unlink()
    for name, data in built.items():
        (folder / name).write_bytes(data)


def platform_tag(libraries: Any) -> str:
    """The platform that libraries run on: as old a Linux as PyTorch's wheels need, or one like this machine's."""
    own = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    libc, libstdcxx = (2, 0), (3, 0)
    for data in libraries:
        libc = max([libc, *_versions(rb"GLIBC", data)])
        libstdcxx = max([libstdcxx, *_versions(rb"GLIBCXX", data)])
    if own.startswith("linux_") and (2, 0) < libc <= OLDEST_GLIBC and libstdcxx <= OLDEST_LIBSTDCXX:
        return own.replace("linux_", f"manylinux_{OLDEST_GLIBC[0]}_{OLDEST_GLIBC[1]}_", 1)
    return own


def _versions(name: bytes, data: bytes) -> list[tuple[int, ...]]:
    """The versions of a system's library whose symbols are used."""
    return [
        tuple(map(int, found.split(b"."))) for found in re.findall(rb"\b" + name + rb"_([0-9]+(?:\.[0-9]+)+)\0", data)
    ]
