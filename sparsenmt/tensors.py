"""Named tensors on disk: safetensors files that carry a hash of what they hold and are checked before they are used."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsenmt.files import Damaged, aside, make_readable, naming, place, sync

_KEY = "sha256"
Shapes = Mapping[str, tuple[int, ...]]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, notes: Mapping[str, str] | None = None) -> str:
    """Write tensors, complete or not at all; returns the hash of the contents.

    Args:
        notes: kept with them, see `read_notes`.

    Raises:
        OSError: with the name of the file.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digest, partial = digest_of(whole, notes), aside(path)
    with naming(path):
        try:
            try:
                save_file(whole, partial, metadata={**(notes or {}), _KEY: digest})
            except SafetensorError as error:  # the library hides the number of the system's error in its text
                raise _system_error(error) from None
            make_readable(partial)
            sync(partial)
            place(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return digest


def load_tensors(path: Path, *, hint: str, shapes: Shapes | None = None) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote.

    Args:
        hint: what the user can do about a damaged file.
        shapes: names and shapes that the file must have; looked at before memory is taken for any tensor.

    Raises:
        Damaged: the file is missing, or is not what was written.
        ValueError: it holds something else than ``shapes``; says what.
    """
    recorded, notes = _check_header(path, hint, shapes)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"the tensors cannot be read ({error})", where=str(path), hint=hint) from None
    if digest_of(tensors, notes) != recorded:
        raise Damaged("damaged: its contents changed after it was written", where=str(path), hint=hint)
    return tensors


def recorded_digest(path: Path, *, hint: str) -> str:
    """The hash that the file carries, without reading its tensors.

    Raises:
        Damaged: there is no such file, or it cannot be read.
    """
    return _check_header(path, hint, None)[0]


def read_notes(path: Path, *, hint: str) -> dict[str, str]:
    """The notes that were written with the tensors, without reading these; checked only by `load_tensors`.

    Raises:
        Damaged: there is no such file, or it cannot be read.
    """
    return _check_header(path, hint, None)[1]


def _check_header(path: Path, hint: str, shapes: Shapes | None) -> tuple[str, dict[str, str]]:
    """The recorded hash, and the notes."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = dict(file.metadata() or {})
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise Damaged("no such file", where=str(path), hint=hint) from None
    except (OSError, SafetensorError) as error:
        raise Damaged(f"the tensors are damaged ({error})", where=str(path), hint=hint) from None
    digest = notes.pop(_KEY, None)
    if digest is None:
        raise Damaged("damaged, or not written by this version of the program", where=str(path), hint=hint)
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
    digest = hashlib.sha256(json.dumps(dict(notes or {}), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _system_error(error: SafetensorError) -> OSError:
    text = str(error)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES):
        if f"os error {number})" in text:
            return OSError(number, errno.errorcode[number])
    return OSError(errno.EIO, text)
