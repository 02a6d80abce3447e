"""Named tensors on disk: safetensors files with a hash of their contents, which is verified when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from sparsenmt.files import DamagedFileError, atomic_writer, changed_file

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

    Mapped pages count as memory of the process while the file is mapped: so it is opened anew for every tensor, and is
    never completely in memory beside ``targets``.

    Raises:
        DamagedFileError: the file is missing or has changed; ``targets`` are then invalid.
        ValueError: it contains other names or shapes than ``targets``; the message names them.
    """
    recorded, notes = _check_header(path, hint, {name: tuple(tensor.shape) for name, tensor in targets.items()})
    digest = _begin(notes)
    for name in sorted(targets):
        try:
            with safe_open(path, framework="pt") as file:
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error, hint) from None
        _add(digest, name, tensor)
        targets[name].copy_(tensor)
    if digest.hexdigest() != recorded:
        raise changed_file(path, hint)
    return recorded


def load_tensors(path: Path, *, hint: str, shapes: Shapes | None = None) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote.

    Args:
        hint: what the user can do about a damaged file.
        shapes: names and shapes that the file must have, checked before any tensor is read.

    Raises:
        DamagedFileError: the file is missing or has changed.
        ValueError: it contains other names or shapes than ``shapes``; the message names them.
    """
    recorded, notes = _check_header(path, hint, shapes)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error, hint) from None
    if digest_of(tensors, notes) != recorded:
        raise changed_file(path, hint)
    return tensors


def _unreadable(path: Path, error: Exception, hint: str) -> DamagedFileError:
    return DamagedFileError(f"the tensors cannot be read ({error})", where=str(path), hint=hint)


def read_header(path: Path, *, hint: str) -> tuple[str, dict[str, str]]:
    """The recorded hash and the notes of the file, without reading its tensors; only `load_tensors` verifies them.

    Raises:
        DamagedFileError: the file is missing or cannot be read.
    """
    return _check_header(path, hint, None)


def _check_header(path: Path, hint: str, shapes: Shapes | None) -> tuple[str, dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            entry = json.loads((file.metadata() or {}).get(_ENTRY, "{}"))
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DamagedFileError("no such file", where=str(path), hint=hint) from None
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedFileError(f"the tensors are damaged ({error})", where=str(path), hint=hint) from None
    notes = entry if isinstance(entry, dict) else {}
    digest = notes.pop(_KEY, None)
    if digest is None:
        raise DamagedFileError("damaged, or not written by this version of the program", where=str(path), hint=hint)
    if shapes is not None and dict(shapes) != found:
        raise ValueError(differing_shapes(shapes, found))
    return str(digest), notes


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
