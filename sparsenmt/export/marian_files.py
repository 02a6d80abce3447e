"""Marian's model files, written as Marian itself writes them: `.npz`, and `.bin` in fp32 or in Bergamot's 8 bits.

`sparsenmt.importers.marian_files` describes the formats. In a `.bin` the tensors stand in the order of their names, and
their data begin and end at multiples of 256 bytes. In 8 bits, a value is rounded to the integer next to its product
with 127 over the greatest value of its matrix; that multiplier follows the integers.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.importers.marian_files import ALPHA, CONFIGURATION, FLOAT, INTGEMM8, TABLE, TEXT

_ALIGNED = 256  # bytes
_LEVELS = 127
_WORD = re.compile("[a-z][a-z0-9.-]*")  # that stands without quotes in YAML
_NPY = 16  # bytes; Marian aligns the headers of arrays as NumPy did first


def multiplier_of(matrix: Tensor) -> float:
    """The multiplier of a matrix in 8 bits; 1 of a matrix of zeros."""
    greatest = np.float32(matrix.abs().max())
    return float(np.float32(_LEVELS) / greatest) if greatest else 1.0


def levels_of(name: str, matrix: Tensor, multiplier: float) -> NDArray[np.int8]:
    """The integers of a matrix (in, out) in the order in which they are stored: transposed, unless it is a table."""
    levels = (matrix * torch.tensor(multiplier, dtype=torch.float32)).round().clamp(-_LEVELS, _LEVELS)
    found: NDArray[np.int8] = (levels if name.endswith(TABLE) else levels.t()).contiguous().to(torch.int8).numpy()
    return found


def has_levels(matrix: Tensor, multiplier: float) -> bool:
    """Return True if a matrix is what its 8 bits with this multiplier say, exactly."""
    scale = torch.tensor(multiplier, dtype=torch.float32)
    levels = (matrix * scale).round()
    return bool((levels.abs() <= _LEVELS).all()) and torch.equal(levels / scale, matrix)


def is_matrix(name: str) -> bool:
    """Return True if Bergamot's converter stores the tensor in 8 bits: a table, or a matrix of a product."""
    return name.endswith(TABLE) or name.rpartition("_")[2] in ("W", "Wf", "Wq", "Wk", "Wv", "Wo", "W1", "W2")


def npz_file(configuration: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of an `.npz`: arrays as they are, without times, in the order of their names."""
    arrays: dict[str, NDArray[Any]] = {name: tensors[name].numpy() for name in sorted(tensors)}
    arrays[CONFIGURATION] = np.frombuffer(_configuration(configuration), np.int8)
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 0, 0, 0, 0, 0))
            info.create_system = 0
            archive.writestr(info, _array_header(array) + array.tobytes())
        for info in archive.infolist():
            info.external_attr = 0
    return stream.getvalue()


def _array_header(array: NDArray[Any]) -> bytes:
    shape = ", ".join(map(str, array.shape)) + ("," if array.ndim == 1 else "")
    descr = array.dtype.str.replace("|", "<")  # also of bytes
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}"
    text += " " * (-(len(text) + 11) % _NPY) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def bin_file(
    configuration: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    multipliers: Mapping[str, float] | None = None,
    alphas: Mapping[str, float] | None = None,
) -> bytes:
    """The bytes of a `.bin`.

    Args:
        multipliers: of the matrices that are stored in 8 bits.
        alphas: by the name of a matrix, the multiplier of what it is multiplied with.
    """
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if multipliers and name in multipliers:
            own = multipliers[name]
            data = levels_of(name, tensor, own).tobytes() + np.float32(own).tobytes()
            items.append((name, INTGEMM8, shape, data))
        else:
            items.append((name, FLOAT, shape, tensor.numpy().tobytes()))
    for name, alpha in (alphas or {}).items():
        if name.endswith(TABLE):  # Bergamot's converter takes it for a table
            data = np.int8(_LEVELS).tobytes() + np.float32(_LEVELS / alpha).tobytes()
            items.append((name + ALPHA, INTGEMM8, (1, 1), data))
        else:
            items.append((name + ALPHA, FLOAT, (1, 1), np.float32(alpha).tobytes()))
    items.sort()
    text = _configuration(configuration)
    padded = [(*item[:3], item[3] + bytes(-len(item[3]) % _ALIGNED)) for item in items]
    padded.append((CONFIGURATION, TEXT, (len(text),), text))
    headers = [struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data)) for name, kind, shape, data in padded]
    names = [f"{name}\0".encode() for name, *_ in padded]
    shapes = [struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in padded]
    begin = b"".join([struct.pack("<2Q", 1, len(padded)), *headers, *names, *shapes])
    gap = -(len(begin) + 8) % _ALIGNED
    return b"".join([begin, struct.pack("<Q", gap), bytes(gap), *(data for *_, data in padded)])


def _configuration(values: Mapping[str, Any]) -> bytes:
    """The text of a configuration, with NULs after it to a multiple of 256 bytes."""

    def shown(value: Any) -> str:
        return value if isinstance(value, str) and _WORD.fullmatch(value) else json.dumps(value)

    text = "\n".join(f"{key}: {shown(value)}" for key, value in values.items()).encode() + b"\0"
    return text + bytes(-len(text) % _ALIGNED)
