"""Named tensors on disk: safetensors files that carry a hash of what they hold and are checked before they are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from sparsenmt.files import DamagedFileError, atomic_writer

# One entry of the file's metadata, JSON: of several the library writes now one first, now another.
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
    """Write tensors, complete or not at all; returns the hash of the contents. Equal contents give equal bytes.

    The safetensors library writes a file of its own that it renames itself: it is not brought to the disk before, stays
    when the process is killed, and its errors have no number. So the bytes are written here: the length of the header,
    the header (JSON), the tensors' bytes (https://github.com/huggingface/safetensors, "Format").

    Args:
        notes: kept with them, see `read_notes`.
        metadata: further entries of the file, for other programs; no part of the hash.

    Raises:
        OSError: with the name of the file.
    """
    whole = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    digest = digest_of(whole, notes)
    # Wide types first, so that every tensor begins at a multiple of its own size.
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


def read_into(path: Path, places: Mapping[str, Tensor], *, hint: str) -> None:
    """Copy what `save_tensors` wrote, one tensor at a time, into tensors of the same names and shapes.

    Mapped pages count as a process's memory as long as any of the file is mapped: so it is opened for every tensor
    anew, and never is the whole of it in memory beside ``places``.

    Raises:
        DamagedFileError: the file is missing, or is not what was written; what is in ``places`` is of no use then.
        ValueError: it holds something else than ``places``; says what.
    """
    recorded, notes = _check_header(path, hint, {name: tuple(tensor.shape) for name, tensor in places.items()})
    digest = _begin(notes)
    for name in sorted(places):
        try:
            with safe_open(path, framework="pt") as file:
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error, hint) from None
        _add(digest, name, tensor)
        places[name].copy_(tensor)
    if digest.hexdigest() != recorded:
        raise _changed(path, hint)


def load_tensors(path: Path, *, hint: str, shapes: Shapes | None = None) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote.

    Args:
        hint: what the user can do about a damaged file.
        shapes: names and shapes that the file must have; looked at before memory is taken for any tensor.

    Raises:
        DamagedFileError: the file is missing, or is not what was written.
        ValueError: it holds something else than ``shapes``; says what.
    """
    recorded, notes = _check_header(path, hint, shapes)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error, hint) from None
    if digest_of(tensors, notes) != recorded:
        raise _changed(path, hint)
    return tensors


def _unreadable(path: Path, error: Exception, hint: str) -> DamagedFileError:
    return DamagedFileError(f"the tensors cannot be read ({error})", where=str(path), hint=hint)


def _changed(path: Path, hint: str) -> DamagedFileError:
    return DamagedFileError("damaged: its contents changed after it was written", where=str(path), hint=hint)


def recorded_digest(path: Path, *, hint: str) -> str:
    """The hash that the file carries, without reading its tensors.

    Raises:
        DamagedFileError: there is no such file, or it cannot be read.
    """
    return _check_header(path, hint, None)[0]


def read_notes(path: Path, *, hint: str) -> dict[str, str]:
    """The notes that were written with the tensors, without reading these; checked only by `load_tensors`.

    Raises:
        DamagedFileError: there is no such file, or it cannot be read.
    """
    return _check_header(path, hint, None)[1]


def _check_header(path: Path, hint: str, shapes: Shapes | None) -> tuple[str, dict[str, str]]:
    """The recorded hash, and the notes."""
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
    """How many names or shapes differ, and the first of them."""
    names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    detail = "; ".join(f"{n}: {found.get(n, 'missing')} instead of {wanted.get(n, 'nothing')}" for n in names[:5])
    return f"{len(names)} weights do not fit the recipe: {detail}{'; ...' if len(names) > 5 else ''}"


def digest_of(tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> str:
    """SHA-256 over notes, names, types, shapes and bytes, whatever the order."""
    digest = _begin(notes or {})
    for name in sorted(tensors):
        _add(digest, name, tensors[name].detach().cpu().contiguous())
    return digest.hexdigest()


def _begin(notes: Mapping[str, str]) -> hashlib._Hash:
    return hashlib.sha256(json.dumps(dict(notes), sort_keys=True).encode())


def _add(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(_bytes(tensor))
