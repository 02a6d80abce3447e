"""Marian's model files: named tensors and the model's configuration, in `.bin` or `.npz`.

A `.bin` file is: the version and the number of tensors; for each the lengths of its name, shape and data, and its type;
all names; all shapes; an offset to where the data begin, and the data (Marian, `src/common/binary.cpp`). All lengths
are checked against the size of the file before memory is taken. An `.npz` file is an archive of NumPy's arrays, which
are read without pickle. Both hold the configuration as text in a tensor of its own.

8-bit matrices of intgemm are dequantised: a value is the integer over the matrix's multiplier, which follows the
integers. They are stored transposed, except for the table of embeddings.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import check_weights, read_settings
from sparsenmt.storage.files import regular_file

CONFIGURATION = "special:model.yml"
_MOST_TENSORS, _MOST_NAME = 1 << 20, 1 << 12
_MAGIC = b"PK\x03\x04"  # of an archive
_FLOATS = {0x402: np.float16, 0x404: np.float32, 0x408: np.float64}
FLOAT, TEXT, INTGEMM8 = 0x404, 0x101, 0x4101
INT8 = "int8"
TABLE = "Wemb"  # the end of the names of tables: they are also multiplied with from their other side
ALPHA = "_QuantMultA"  # the end of the names of multipliers of the inputs of products, which fp32 does not need
_AGAIN = "Copy it again from where it comes from."


@dataclass(frozen=True)
class Values:
    """The place of the values of a tensor in a model file.

    Args:
        begin, length: in bytes.
        kind: `INT8`, or NumPy's name of the type.
        by_columns: True if the first axis varies fastest.
    """

    name: str
    begin: int
    length: int
    kind: str
    by_columns: bool = False


@dataclass
class MarianFile:
    """The contents of a model file.

    Args:
        tensors: in fp32.
        places: of the values of all tensors.
        multipliers: of 8-bit matrices: a value is the integer over its matrix's multiplier.
        alphas: by the name of a matrix, the multiplier of what it is multiplied with, in files that have them.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    places: list[Values] = field(default_factory=list)
    multipliers: dict[str, float] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _StoredTensor:
    name: str
    type: int
    shape: tuple[int, ...]
    length: int  # bytes of data, with the padding after them


def read_marian_file(path: Path) -> MarianFile:
    """Read a model file.

    Raises:
        UserError: it cannot be read, is damaged or incomplete, holds types of another kind, or no configuration.
    """
    try:
        with open(path, "rb", opener=regular_file) as stream:
            begins = stream.read(len(_MAGIC))
            stream.seek(0)
            read = _read_npz if begins == _MAGIC else _read_bin
            found = read(stream, path)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), hint="Check the path.") from None
    if not found.configuration:
        raise _damaged(path, f"it holds no configuration ({CONFIGURATION})")
    check_weights(found.tensors, path)
    return found


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"not a model file of Marian, or a damaged one: {reason}", where=str(path), hint=_AGAIN)


def _read_bin(stream: BinaryIO, path: Path) -> MarianFile:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)

    def take(count: int) -> bytes:
        if count < 0 or stream.tell() + count > size:
            raise _damaged(path, f"it ends after {size:,} bytes, where more should follow")
        return stream.read(count)

    def numbers(form: str, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{form}", take(struct.calcsize(f"<{count}{form}")))

    version, count = numbers("Q", 2)
    if version != 1 or count > _MOST_TENSORS:
        raise _damaged(path, f"version {version} with {count:,} tensors")
    headers = [numbers("Q", 4) for _ in range(count)]
    if any(name > _MOST_NAME or rank > 8 for name, _, rank, _ in headers):
        raise _damaged(path, "the lengths of its names or shapes are absurd")
    names = [take(header[0]).rstrip(b"\0").decode("utf-8", "replace") for header in headers]
    if len(set(names)) != len(names):
        raise _damaged(path, "a name occurs twice")
    shapes = [numbers("i", header[2]) for header in headers]
    take(numbers("Q", 1)[0])  # the padding before the data
    entries = [
        _StoredTensor(name, header[1], shape, header[3])
        for name, header, shape in zip(names, headers, shapes, strict=True)
    ]
    if stream.tell() + sum(entry.length for entry in entries) > size:
        raise _damaged(path, f"it ends after {size:,} bytes, where more should follow")
    found = MarianFile()
    for entry in entries:
        begin, data = stream.tell(), take(entry.length)
        if entry.name == CONFIGURATION:
            found.configuration = _configuration(data, path)
            continue
        if entry.name.endswith(ALPHA):
            flat = _StoredTensor(entry.name, entry.type, (1, 1), entry.length)  # the shape differs among versions
            found.alphas[entry.name.removesuffix(ALPHA)] = float(_array(flat, data, path)[0, 0])
            continue
        array = _array(entry, data, path)
        found.tensors[entry.name] = torch.from_numpy(array)
        count, kind = array.size, INT8
        if entry.type == INTGEMM8:
            found.multipliers[entry.name] = float(np.frombuffer(data, np.float32, 1, count)[0])
        else:
            kind = np.dtype(_FLOATS[entry.type]).str
            count *= np.dtype(kind).itemsize
        found.places.append(Values(entry.name, begin, count, kind))
    return found


def _array(entry: _StoredTensor, data: bytes, path: Path) -> NDArray[np.float32]:
    """The values of a tensor as fp32."""
    if any(axis < 1 for axis in entry.shape):
        raise _damaged(path, f"{entry.name} has the shape {entry.shape}")
    count = math.prod(entry.shape)
    if entry.type != INTGEMM8 and entry.type not in _FLOATS:
        raise UserError(
            f"{entry.name} is of Marian's type {entry.type:#x}, which is made for one kind of processor",
            where=str(path),
            hint="Import the float32 file, or the one that `marian-conv --gemm-type intgemm8` wrote.",
        )
    item = 1 if entry.type == INTGEMM8 else np.dtype(_FLOATS[entry.type]).itemsize
    needed = count * item + (4 if entry.type == INTGEMM8 else 0)
    if needed > len(data):
        raise _damaged(path, f"{entry.name} has {len(data):,} bytes instead of {needed:,}")
    if entry.type != INTGEMM8:
        return np.frombuffer(data, _FLOATS[entry.type], count).reshape(entry.shape).astype(np.float32)
    levels = np.frombuffer(data, np.int8, count).astype(np.float32)
    multiplier = np.frombuffer(data, np.float32, 1, count)[0]
    if len(entry.shape) != 2:
        raise _damaged(path, f"{entry.name} of 8 bits has the shape {entry.shape}")
    if not math.isfinite(multiplier) or multiplier < np.finfo(np.float32).tiny:
        raise _damaged(path, f"the multiplier of {entry.name} is {multiplier}")
    values: NDArray[np.float32] = levels / multiplier
    if entry.name.endswith(TABLE):
        return values.reshape(entry.shape)
    return np.ascontiguousarray(values.reshape(entry.shape[::-1]).T)


def _read_npz(stream: BinaryIO, path: Path) -> MarianFile:
    size = stream.seek(0, io.SEEK_END)
    found = MarianFile()
    try:
        with zipfile.ZipFile(stream) as archive, np.errstate(over="ignore"):
            members = archive.infolist()
            if sum(info.file_size for info in members) > size or len(members) != len(set(archive.namelist())):
                raise _damaged(path, "its arrays overlap, or are compressed, or a name occurs twice")
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise _damaged(path, f"{info.filename} is compressed; Marian stores arrays as they are")
                with archive.open(info) as member:
                    array = _member(member, info, path)
                name = info.filename.removesuffix(".npy")
                if name == CONFIGURATION:
                    found.configuration = _configuration(array.tobytes(), path)
                elif array.dtype.kind != "f":
                    raise _damaged(path, f"{name} holds {array.dtype}")
                elif name.endswith(ALPHA) and array.size == 1:
                    found.alphas[name.removesuffix(ALPHA)] = float(array.flat[0])
                else:
                    by_columns = not array.flags.c_contiguous
                    begin = _end_of_member(stream, info) - array.nbytes
                    found.places.append(Values(name, begin, array.nbytes, array.dtype.str, by_columns))
                    found.tensors[name] = torch.from_numpy(array.astype(np.float32))
    except (zipfile.BadZipFile, ValueError, EOFError, OverflowError, RuntimeError) as error:  # RuntimeError: encrypted
        raise _damaged(path, str(error)) from None
    return found


def _end_of_member(stream: BinaryIO, info: zipfile.ZipInfo) -> int:
    """The place in an archive where a stored member ends, behind its header, whose name and extra field vary."""
    stream.seek(info.header_offset + 26)
    name, extra = struct.unpack("<2H", stream.read(4))
    return info.header_offset + 30 + int(name) + int(extra) + info.file_size


def _member(member: Any, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    """An array of an archive, whose size is checked before it is read."""
    version = np.lib.format.read_magic(member)
    read: Callable[..., Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version, np.lib.format.read_array_header_2_0)
    shape, by_columns, dtype = read(member)
    left = info.file_size - member.tell()
    if dtype.hasobject or dtype.kind not in "fib":
        raise _damaged(path, f"{info.filename} holds {dtype}")
    if math.prod(shape) * dtype.itemsize != left:
        raise _damaged(path, f"{info.filename} has {left:,} bytes, which do not fit its shape {shape}")
    array = np.frombuffer(member.read(), dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def _configuration(data: bytes, path: Path) -> dict[str, Any]:
    """The configuration inside a model file."""
    text = data.split(b"\0", 1)[0]
    try:
        return read_settings(text, path)
    except UserError as error:
        raise _damaged(path, f"its configuration is {error.message}") from None
