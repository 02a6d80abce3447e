"""Named tensors on disk: safetensors files with a hash of their contents, which is verified when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.storage.files import DamagedFileError, atomic_writer, changed_file, regular_file

# One JSON entry of the file's metadata, because the library does not keep the order of several entries.
_ENTRY, _KEY = "sparsenmt", "sha256"
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}
_LENGTH = 8  # bytes of the header's length
_MOST_HEADER = 100_000_000  # bytes; the same limit as in the safetensors library
Shapes = Mapping[str, tuple[int, ...]]


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    notes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write tensors atomically; returns the hash of the contents. Equal contents give equal bytes.

    The writer of the safetensors library does not flush its temporary file, leaves it behind if the process is killed,
    and raises errors without an error number. So the bytes are written here: the length of the header, the header in
    JSON, the tensors' bytes (https://github.com/huggingface/safetensors, "Format").

    Args:
        notes: stored with the tensors, see `read_header`.
        metadata: further metadata for other programs, not part of the hash.

    Raises:
        OSError: with the name of the file.
    """
    whole = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    digest = digest_of(whole, notes)
    # Wide types first, so that every tensor is aligned to its element size.
    order = sorted(whole, key=lambda name: (-whole[name].element_size(), name))
    entry = json.dumps({**(notes or {}), _KEY: digest}, sort_keys=True)
    header: dict[str, object] = {"__metadata__": {_ENTRY: entry, **(metadata or {})}}
    end = 0
    for name in order:
        tensor = whole[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_writer(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            stream.write(_bytes(whole[name]))
    return digest


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def read_into(path: Path, targets: Mapping[str, Tensor], *, hint: str) -> str:
    """Copy what `save_tensors` wrote, one tensor at a time, into tensors of the same names and shapes.

    Returns the hash of the contents.

    Raises:
        DamagedFileError: the file is missing or has changed; ``targets`` are then invalid.
        ValueError: it contains other names or shapes than ``targets``; the message names them.
    """

    shapes = {name: tuple(tensor.shape) for name, tensor in targets.items()}

    def copy(name: str, tensor: Tensor) -> None:
        targets[name].copy_(tensor)

    return _read_all(path, hint, shapes, copy)


def load_tensors(
    path: Path, *, hint: str, shapes: Shapes | None = None, content: bytes | None = None
) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote.

    Args:
        content: the bytes of the file, where they were read before.
        hint: what the user can do about a damaged file.
        shapes: names and shapes that the file must have, checked before any tensor is read.

    Raises:
        DamagedFileError: the file is missing or has changed.
        ValueError: it contains other names or shapes than ``shapes``; the message names them.
    """
    tensors: dict[str, Tensor] = {}
    _read_all(path, hint, shapes, tensors.__setitem__, content)
    return tensors


def load_foreign_tensors(path: Path, *, hint: str) -> dict[str, Tensor]:
    """Read a safetensors file of another program, which has no hash of its contents.

    Raises:
        DamagedFileError: the file is missing, truncated or not one of safetensors.
    """
    with _open_file(path, hint, sealed=False) as (stream, header):
        return {name: _read_tensor(stream, entry) for name, entry in header.entries.items()}


def read_header(path: Path, *, hint: str, content: bytes | None = None) -> tuple[str, dict[str, str]]:
    """The recorded hash and the notes of the file, without reading its tensors; only `load_tensors` verifies them.

    content: the bytes of the file, where they were read before.

    Raises:
        DamagedFileError: the file is missing or cannot be read.
    """
    with _open_file(path, hint, content=content) as (_, header):
        return header.digest, header.notes


def tensor_sizes(path: Path, *, hint: str) -> dict[str, tuple[int, int]]:
    """Return name -> elements and bytes of every tensor, without reading them; only `load_tensors` verifies them.

    Raises:
        DamagedFileError: the file is missing or cannot be read.
    """
    with _open_file(path, hint) as (_, header):
        return {name: (math.prod(entry.shape), entry.size) for name, entry in header.entries.items()}


def _read_all(
    path: Path, hint: str, shapes: Shapes | None, use: Callable[[str, Tensor], object], content: bytes | None = None
) -> str:
    """Pass every tensor to a function, in the order of names; returns the hash, which is verified at the end."""
    with _open_file(path, hint, content=content) as (stream, header):
        found = {name: entry.shape for name, entry in header.entries.items()}
        if shapes is not None and dict(shapes) != found:
            raise ValueError(differing_shapes(shapes, found))
        digest = _begin(header.notes)
        for name in sorted(found):
            tensor = _read_tensor(stream, header.entries[name])
            _add(digest, name, tensor)
            use(name, tensor)
        if digest.hexdigest() != header.digest:
            raise changed_file(path, hint)
        return header.digest


@dataclass(frozen=True)
class _Entry:
    """The dtype and shape of a tensor in a file, and the offset of its bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """The number of its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class _Header:
    digest: str
    notes: dict[str, str]
    entries: dict[str, _Entry]


@contextmanager
def _open_file(
    path: Path, hint: str, *, sealed: bool = True, content: bytes | None = None
) -> Iterator[tuple[BufferedReader | BytesIO, _Header]]:
    """Open a file of tensors, or its content, and read its header.

    The safetensors library maps files into memory: a file that another program overwrites or truncates meanwhile would
    end this process with SIGBUS. So it is read here.
    """
    try:
        with BytesIO(content) if content is not None else open(path, "rb", opener=regular_file) as stream:
            yield stream, _parse_header(stream, sealed=sealed)
    except FileNotFoundError:
        raise DamagedFileError("no such file", where=str(path), hint=hint) from None
    except _InvalidFileError as error:
        raise DamagedFileError(f"the tensors are damaged ({error})", where=str(path), hint=hint) from None
    except OSError as error:
        raise DamagedFileError(f"the tensors cannot be read ({error.strerror})", where=str(path), hint=hint) from None


class _InvalidFileError(Exception):
    """A file does not have the format."""


def _parse_header(stream: BufferedReader | BytesIO, *, sealed: bool) -> _Header:
    """Read and check the header: every tensor's bytes must lie in the file, without gap or overlap.

    sealed: it has a hash of the contents.
    """
    rest = stream.seek(0, os.SEEK_END) - _LENGTH
    stream.seek(0)
    length = int.from_bytes(stream.read(_LENGTH), "little")
    if not 0 < length <= min(rest, _MOST_HEADER):
        raise _InvalidFileError("the length of the header is wrong")
    try:
        values = json.loads(stream.read(length), object_pairs_hook=_unique)
        metadata = values.pop("__metadata__", {})
        entry = json.loads(metadata.get(_ENTRY, "{}"))
        notes = {str(key): value for key, value in entry.items() if isinstance(value, str)}
        entries = {str(name): _entry(value, _LENGTH + length) for name, value in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _InvalidFileError(f"the header cannot be read: {error}") from None
    if sealed and (len(notes) != len(entry) or _KEY not in notes):
        raise _InvalidFileError("it was not written by this version of the program")
    end = _LENGTH + length
    for each in sorted(entries.values(), key=lambda entry: (entry.start, entry.size)):
        if each.start != end:
            raise _InvalidFileError("the tensors overlap, or there are gaps between them")
        end += each.size
    if end != _LENGTH + rest:
        raise _InvalidFileError("the file has another size than its header says")
    return _Header(notes.pop(_KEY, ""), notes, entries)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(value: Mapping[str, Any], offset: int) -> _Entry:
    """Check the description of a tensor; the errors are those of `_parse_header`."""
    dtype, shape, (start, end) = _DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    numbers = (*shape, start, end)
    # PyTorch's sizes and strides are 64-bit numbers, also those of a tensor without elements.
    if any(type(each) is not int or each < 0 for each in numbers) or math.prod(max(1, n) for n in shape) >= 1 << 60:
        raise ValueError("a shape or an offset is not a number, or too large")
    found = _Entry(dtype, shape, offset + start)
    if end - start != found.size:
        raise ValueError("a shape and its number of bytes differ")
    return found


def _read_tensor(stream: BufferedReader | BytesIO, entry: _Entry) -> Tensor:
    flat = torch.empty(math.prod(entry.shape), dtype=entry.dtype)
    stream.seek(entry.start)
    left = _bytes(flat)
    while left:
        count = stream.readinto(left)
        if not count:
            raise _InvalidFileError("the file ends too early")
        left = left[count:]
    return flat.view(entry.shape)


FITTING = "The weights must come from a recipe with the same `model` section and vocabularies of the same sizes."


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a model; UserError unless names and shapes are the same."""
    check_shapes(model.state_dict(), weights, where)
    model.load_state_dict(dict(weights))


def check_shapes(own: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Raise UserError unless the names and shapes of given weights are those of a model's own."""
    wanted, found = ({name: tuple(each.shape) for name, each in weights.items()} for weights in (own, given))
    if wanted != found:
        raise UserError(differing_shapes(wanted, found), where=where, hint=FITTING)


def differing_shapes(wanted: Shapes, found: Shapes) -> str:
    """Describe the difference of two sets of names and shapes: their number and the first five."""
    names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    detail = "; ".join(f"{n}: {found.get(n, 'missing')} instead of {wanted.get(n, 'nothing')}" for n in names[:5])
    return f"{len(names)} weights do not fit the recipe: {detail}{'; ...' if len(names) > 5 else ''}"


def digest_of(tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> str:
    """SHA-256 over notes, names, dtypes, shapes and bytes, independent of the order of the tensors."""
    digest = _begin(notes or {})
    for name in sorted(tensors):
        _add(digest, name, tensors[name].detach().cpu().contiguous())
    return digest.hexdigest()


def _begin(notes: Mapping[str, str]) -> hashlib._Hash:
    return hashlib.sha256(json.dumps(dict(notes), sort_keys=True).encode())


def _add(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(_bytes(tensor))
