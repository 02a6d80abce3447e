"""The compiled kernel: `native.cpp`, built at its first use, kept in the user's cache, and used only if it is right.

It needs a C++ compiler and nothing else: a shared library without PyTorch's headers takes seconds to build, and is
called through ctypes. Whatever goes wrong (no compiler, no cache, another result than PyTorch's), `newton` does the
work. SPARSENMT_NATIVE=0 in the environment turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.files import locked, make_directories, read_sealed, sha256_file, sha256_text, write_bytes, write_sealed
from sparsenmt.sparsity.simplex import newton

SWITCH = "SPARSENMT_NATIVE"
_SOURCE = Path(__file__).with_name("native.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
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
_TOLERANCE = 1e-5
_ROW_WORK = 1 << 13  # scores that a thread is worth waking for


class Native:
    """The library's functions on tensors: fp32, on the CPU."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._forward = library.sparsenmt_simplex_forward
        self._forward.argtypes, self._forward.restype = [pointer] * 7 + [number], None
        self._backward = library.sparsenmt_simplex_backward
        self._backward.argtypes, self._backward.restype = [pointer] * 7 + [number], None

    def forward(self, scores: Tensor, visible: Tensor | None, counts: Tensor | None, alphas: Tensor) -> Tensor:
        """scores (B, H, Q, K), visible broadcastable to it, counts (B, K), alphas (H) -> mass (B, H, Q, K)."""
        scores = scores.contiguous()
        mass = torch.empty_like(scores)
        strides: tuple[int, ...] = (0, 0, 0, 0)
        if visible is not None:
            visible = visible.expand(scores.shape)
            strides = visible.stride()
        self._forward(
            scores.data_ptr(),
            None if visible is None else visible.data_ptr(),
            (ctypes.c_int64 * 4)(*strides),
            None if counts is None else counts.data_ptr(),
            alphas.data_ptr(),
            mass.data_ptr(),
            (ctypes.c_int64 * 4)(*scores.shape),
            _threads(scores),
        )
        return mass

    def backward(
        self, mass: Tensor, given: Tensor, counts: Tensor | None, alphas: Tensor, *, of_alpha: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of scores (B, H, Q, K) and, if wanted, of each row's alpha (B, H, Q), from that of the mass."""
        given = given.contiguous()
        gradient = torch.empty_like(mass)
        sums = mass.new_empty(mass.shape[:3]) if of_alpha else None
        self._backward(
            mass.data_ptr(),
            given.data_ptr(),
            None if counts is None else counts.data_ptr(),
            alphas.data_ptr(),
            gradient.data_ptr(),
            None if sums is None else sums.data_ptr(),
            (ctypes.c_int64 * 4)(*mass.shape),
            _threads(mass),
        )
        return gradient, sums


def _threads(scores: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), scores.numel() // _ROW_WORK))


def native(scores: Tensor) -> Native | None:
    """The kernel, if it can work on such scores."""
    if scores.dtype != torch.float32 or scores.device.type != "cpu" or not scores.numel():
        return None
    return _found() if os.environ.get(SWITCH, "1") != "0" else None


@functools.cache
def _found() -> Native | None:
    """The kernel from the cache, or a new one that is put there; None if there is none that is right."""
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        folder = _cache()
        name = _name(compiler)
        kept = _load(folder, name)
        return kept if kept is not None else _build_alone(compiler, folder, name)
    except (OSError, RuntimeError, UserError):  # no home, no space, no permission
        return None


def _compiler() -> Path | None:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    return None


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparsenmt" / "kernels"


def _name(compiler: Path) -> str:
    """What the library depends on: its source, how it is built, and the processor, as caches may be shared."""
    stat = compiler.stat()
    parts = [
        _SOURCE.read_bytes().decode(),
        repr((_FLAGS, _VARIANTS)),
        f"{compiler} {stat.st_size} {stat.st_mtime_ns}",
        f"{platform.system()} {platform.machine()} {torch.__version__} {_processor()}",
    ]
    return "simplex-" + sha256_text("\n".join(parts))[:24]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_bytes().decode(errors="replace").split("\n") if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _load(folder: Path, name: str) -> Native | None:
    """The library that the cache has, if it is whole and right."""
    try:
        kept = read_sealed(folder / f"{name}.json")
        library = folder / str(kept["file"])
        if kept["sha256"] != sha256_file(library):
            return None
    except (OSError, UserError, KeyError):
        return None
    return _checked(library)


def _build_alone(compiler: Path, folder: Path, name: str) -> Native | None:
    """What another process builds now is waited for, not built twice."""
    make_directories(folder)
    for _ in range(_WAITS):
        try:
            with locked(folder, "builds the kernel"):
                kept = _load(folder, name)
                return kept if kept is not None else _build(compiler, folder, name)
        except UserError:  # it has the lock
            time.sleep(_WAIT)
    return None


def _build(compiler: Path, folder: Path, name: str) -> Native | None:
    """The first variant that can be built, loaded, and is right."""
    for number, variant in enumerate(_VARIANTS):
        library = folder / f"{name}-{number}.so"  # a name of its own: what was loaded stays loaded under its name
        with tempfile.TemporaryDirectory(prefix="sparsenmt-") as scratch:
            built = _compile(compiler, variant, Path(scratch))
            if built is None:
                continue
            write_bytes(library, built)
        found = _checked(library)
        if found is not None:
            write_sealed(folder / f"{name}.json", {"file": library.name, "sha256": sha256_file(library)})
            return found
        library.unlink(missing_ok=True)
    return None


def _compile(compiler: Path, variant: tuple[str, ...], folder: Path) -> bytes | None:
    """The bytes of a shared library; None where the compiler refuses."""
    made, linked = folder / "native.o", folder / "native.so"
    commands = (
        [str(compiler), *_FLAGS, *variant, "-c", str(_SOURCE), "-o", str(made)],
        [str(compiler), "-shared", str(made), "-o", str(linked)],
    )
    for command in commands:
        try:
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=True)
        except subprocess.SubprocessError:
            return None
    return linked.read_bytes()


def _checked(library: Path) -> Native | None:
    """The library, if it agrees with `newton` on rows of every kind."""
    try:
        found = Native(library)
    except (OSError, AttributeError):  # a symbol that PyTorch does not bring after all
        return None
    return found if error(found) <= _TOLERANCE else None


def error(kernel: Native) -> float:
    """How far the kernel is from `newton` in float64, over values and gradients of a small problem."""
    shape = (2, 6, 5, 37)
    steps = torch.arange(2 * 6 * 5 * 37, dtype=torch.float32).view(shape)
    scores, given = (steps * 0.7).sin() * 3 + (steps * 0.013).cos(), (steps * 1.3).cos()
    visible = (steps % 7 != 3) & (steps[..., :1] % 3 != 1)
    alphas = torch.tensor([1.0, 1.01, 1.3, 1.5, 1.8, 2.0])
    worst = 0.0
    for counts in (None, 1.0 + torch.arange(2 * 37, dtype=torch.float32).view(2, 37) % 4):
        mass = kernel.forward(scores, visible, counts, alphas)
        gradient, sums = kernel.backward(mass, given, counts, alphas, of_alpha=True)
        rows = alphas.double()[None, :, None].expand(shape[:3]).reshape(-1, 1)
        hidden = scores.double().masked_fill(~visible, -torch.inf).flatten(0, 2)
        spread = None if counts is None else counts.double()[:, None, None].expand(shape).flatten(0, 2)
        expected = newton.weights(hidden, rows, spread)
        slopes, bends = newton.gradients(expected, given.double().flatten(0, 2), rows, spread, of_alpha=True)
        assert sums is not None and bends is not None
        pairs = ((mass, expected), (gradient, slopes), (sums, bends))
        worst = max(worst, *(_distance(a.double().flatten(), b.flatten()) for a, b in pairs))
    return worst


def _distance(found: Tensor, expected: Tensor) -> float:
    """The largest, relative where values are above 1; infinite where there is none."""
    return float(((found - expected).abs() / expected.abs().clamp_min(1)).nan_to_num(nan=float("inf")).max())
