"""Build hook of the wheel and of editable installs: compiled kernels, shared libraries for instruction sets.

A wheel gets those of every instruction set of this architecture; an editable install (`pip install -e .`) builds those
of this processor into the checkout (`sparsenmt/_kernels`). SPARSENMT_WHEEL_KERNELS in the environment:

    1        they must be built: without GCC, or if it compiles none, the build fails
    0        none is built
    not set  they are built where GCC is found; otherwise a warning says what is lost

CXX names the compiler. The libraries' names hold hashes of their sources and bytes (`sparsenmt/native/sources.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "SPARSENMT_WHEEL_KERNELS"
OLDEST_GLIBC, OLDEST_LIBSTDCXX = (2, 28), (3, 4, 25)
"""The versions on every system that PyTorch's wheels run on (manylinux_2_28)."""


class KernelHook(BuildHookInterface):
    """Adds the libraries to the wheel and names its platform, or puts them into the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is written."""
        wanted = os.environ.get(SWITCH, "")
        if wanted not in ("", "0", "1"):
            raise ValueError(f"{SWITCH}={wanted}: give 1 to build kernels, or 0 to build none")
        if wanted == "0":
            return
        sys.path.insert(0, self.root)  # an isolated build does not see the package
        from sparsenmt.errors import UserError
        from sparsenmt.native.build import COMMAND, WITHOUT, build_here

        try:
            if version == "editable":
                build_here(self.app.display_info)
            else:
                self._add(build_data)
        except UserError as error:
            if wanted == "1":
                raise RuntimeError(f"{SWITCH}=1, but kernels cannot be built: {error}") from None
            self.app.display_warning(f"without compiled kernels: {error}\n{WITHOUT}. To build them later: {COMMAND}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries, which are in the wheel now."""
        if "kernels" in build_data:
            shutil.rmtree(build_data.pop("kernels"))

    def _add(self, build_data: dict[str, Any]) -> None:
        """Build every library for every instruction set of this architecture into the wheel."""
        from sparsenmt.errors import UserError
        from sparsenmt.native.build import build
        from sparsenmt.native.instruction_sets import InstructionSet, sets_of_machine
        from sparsenmt.native.sources import SourceFiles

        folder = Path(tempfile.mkdtemp(prefix="sparsenmt-kernels-"))  # `finalize` removes it
        build_data["kernels"] = str(folder)

        def put(files: SourceFiles, made_for: InstructionSet, data: bytes) -> None:
            (folder / files.file_name(made_for, data)).write_bytes(data)

        if not build(sets_of_machine(), put, self.app.display_info):
            raise UserError("no library could be compiled", hint="The lines above say why.")
        for path in folder.iterdir():
            build_data["force_include"][str(path)] = f"sparsenmt/_kernels/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path.read_bytes() for path in folder.iterdir())}"


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
