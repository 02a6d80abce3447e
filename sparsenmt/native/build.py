"""The build of the compiled kernels: shared libraries without PyTorch's headers, called through ctypes.

    python -m sparsenmt.native.build [--all]

An installation runs it (`hatch_build.py`), and a checkout that is used without one after its C++ files have changed. It
compiles for the best instruction set of this processor, or with ``--all`` for every one of this architecture, into
the package's own folder (`sources.kernel_folder`), and leaves alone what is up to date. The compiler is GCC, since
PyTorch brings along GCC's OpenMP: a second one would start threads of its own that compete for the same cores. CXX
names it, with arguments as in ``CXX="ccache g++"``.
Imports no PyTorch.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparsenmt.errors import UserError, printable
from sparsenmt.native.instruction_sets import InstructionSet, sets_of_machine, usable_sets
from sparsenmt.native.sources import FLAGS, LIBRARIES, SourceFiles, is_intact, kernel_folder, more_flags

COMMAND = "python -m sparsenmt.native.build"
_CHOICE, _COMPILERS = "CXX", ("g++", "c++")
_SECONDS = 600  # that a call of the compiler may take
_MOST_SHOWN = 200  # characters of its message
_TUNED = ("-mtune=native",)  # the same instructions, in an order that suits this processor
WITHOUT = "PyTorch's operators are used instead: decoding is slower, and has no products in bf16 and int8"
"""The cost of an installation without kernels."""


class CompilerError(Exception):
    """The compiler fails; the text is its first error."""


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler.

    Raises:
        UserError: CXX names none, or none is found.
    """
    chosen, hint = os.environ.get(_CHOICE, ""), f"Install GCC (g++), or name it in {_CHOICE}."
    try:
        named = [shlex.split(chosen)] if chosen.strip() else [[name] for name in _COMPILERS]
    except ValueError:  # an unclosed quotation mark
        named = [[chosen]]
    for words in named:
        path = shutil.which(words[0])
        if path is not None:
            return [path, *words[1:]]
    if chosen.strip():
        raise UserError(f"it names no program: {printable(chosen)}", where=_CHOICE, hint=hint)
    raise UserError(f"no C++ compiler is found ({', '.join(_COMPILERS)})", where="kernels", hint=hint)


def compile_library(compiler: Sequence[str], files: SourceFiles, options: Sequence[str]) -> bytes:
    """Compile the sources of a library, side by side, and link them; return the bytes of the shared library.

    It is not linked to OpenMP: it uses the functions of the one that PyTorch has loaded.

    Args:
        compiler: its command, from `find_compiler`.
        options: of the compiler for a processor, beside those of all libraries.

    Raises:
        CompilerError: the compiler fails or takes too long.
    """
    more = more_flags()
    every = [*FLAGS, "-fopenmp", *files.flags, *options, *more]
    with tempfile.TemporaryDirectory(prefix="sparsenmt-") as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        made = {str(folder / f"{path.stem}.o"): path for path in files.paths()}
        commands = [[*compiler, *every, "-c", str(path), "-o", to] for to, path in made.items()]
        for _ in pool.map(lambda command: _run(command, folder), commands):
            pass
        linked = folder / "library.so"
        _run([*compiler, *more, "-shared", *made, "-o", str(linked)], folder)
        return linked.read_bytes()


def _run(command: list[str], folder: Path) -> None:
    """Run a command of the compiler, with its temporary files in a folder; CompilerError unless it succeeds."""
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{command[0]}: takes longer than {_SECONDS} seconds") from None
    except OSError as error:
        raise CompilerError(f"{command[0]}: does not start: {error.strerror}") from None
    if done.returncode:
        shown = (done.stderr + done.stdout).decode(errors="replace").split("\n")
        lines = [line.strip() for line in shown if line.strip()]
        first = next(
            (each for each in lines if re.search(r"\berror\b", each, re.IGNORECASE)), lines[-1] if lines else ""
        )
        message = printable(re.sub(r"\S*/", "", first)[:_MOST_SHOWN])  # without folders
        raise CompilerError(f"{command[0]}: {message or f'ends with status {done.returncode}'}")


Put = Callable[[SourceFiles, InstructionSet, bytes], object]
"""Takes the bytes of a library that was built, to write them where it likes."""
Report = Callable[[str], object]
"""Takes lines of progress and warnings."""


def build(sets: Iterable[InstructionSet], put: Put, report: Report) -> list[InstructionSet]:
    """Build every library for instruction sets; one for which the compiler fails is reported and left out.

    Returns:
        the sets that all libraries are built for.

    Raises:
        UserError: there is no compiler.
    """
    compiler = find_compiler()
    return [each for each in sets if _build(compiler, each, LIBRARIES, each.flags, put, report)]


def _build(
    compiler: Sequence[str],
    made_for: InstructionSet,
    libraries: Iterable[SourceFiles],
    options: Sequence[str],
    put: Put,
    report: Report,
) -> bool:
    """Build libraries for an instruction set; False, after a warning, if the compiler fails. ``options``: its own."""
    try:
        for files in libraries:
            report(f"building kernels: {files.name} for {made_for.name}")
            put(files, made_for, compile_library(compiler, files, options))
    except CompilerError as error:
        report(f"warning: kernels for {made_for.name} are left out: {error}")
        return False
    return True


def build_here(report: Report, sets: Sequence[InstructionSet] | None = None) -> None:
    """Build what is missing or out of date into the folder of kernels, and remove what is out of date.

    Args:
        sets: to build for, if the compiler can; None: the best one that this processor has and the compiler can.

    Raises:
        UserError: nothing can be built, or the folder cannot be written.
    """
    wanted, folder = usable_sets() if sets is None else sets, kernel_folder()
    if not wanted:
        needed = " or ".join(each.name for each in sets_of_machine()) or "a known architecture"
        raise UserError(f"there are none for this processor, which lacks {needed}", where="kernels", hint=f"{WITHOUT}.")
    done = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for made_for in wanted:
            missing = [files for files in LIBRARIES if not any(map(is_intact, files.built(made_for)))]
            options = (*made_for.flags, *_TUNED)
            done |= not missing or _build(find_compiler(), made_for, missing, options, _put, report)
            if done and sets is None:
                break
    except OSError as error:
        hint = "Run the command as the owner of the folder, or name another one in SPARSENMT_NATIVE_FOLDER."
        raise UserError(f"cannot be written: {error.strerror}", where=str(folder), hint=hint) from None
    if not done:
        hint = f"The lines above say why. {WITHOUT}."
        raise UserError("no library could be compiled", where="kernels", hint=hint)
    for path in {path for files in LIBRARIES for path in files.others()}:
        path.unlink(missing_ok=True)


def _put(files: SourceFiles, made_for: InstructionSet, data: bytes) -> None:
    """Put a library into the folder, in the place of others; processes that have them loaded keep them."""
    name = files.file_name(made_for, data)
    partial = kernel_folder() / f".{name}.{os.getpid()}"
    partial.write_bytes(data)
    partial.replace(kernel_folder() / name)
    for path in files.built(made_for):
        if path.name != name:
            path.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, with the progress on standard output; a message and 2 if nothing can be built."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="for every instruction set of this architecture")
    try:
        every = parser.parse_args(arguments).all
        build_here(lambda line: print(line, flush=True), sets_of_machine() if every else None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
