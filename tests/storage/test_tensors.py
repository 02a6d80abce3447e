"""Tensors on disk: what is written is what is read; anything else is refused before it is used."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.storage.files import DamagedFileError
from sparsenmt.storage.tensors import digest_of, load_tensors, read_header, read_into, save_tensors

ROOT = Path(__file__).resolve().parents[1]
HINT = "Take it from a copy."
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def sample() -> dict[str, Tensor]:
    """All types and odd shapes; odd sizes, so that alignment matters."""
    torch.manual_seed(1)
    tensors = {str(dtype): (100 * torch.randn(3, 5)).to(dtype) for dtype in DTYPES}
    return {
        **tensors,
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0),
        "empty.wide": torch.zeros(3, 0, 2, dtype=torch.bfloat16),
        "transposed": torch.arange(6.0).view(2, 3).T,
        "slice": torch.arange(20)[3:17:2],
        "not numbers": torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64),
        "ünïcode \u2028 name": torch.ones(1, 1, 1, dtype=torch.int8),
    }


def same(a: Tensor, b: Tensor) -> bool:
    """To the last bit: NaN is NaN, and -0 is not 0."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and digest_of({"x": a}) == digest_of({"x": b})


def small(path: Path) -> dict[str, Tensor]:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b.c": torch.ones(2, dtype=torch.bfloat16), "d": torch.zeros(0, 4)}
    save_tensors(path, tensors, notes={"after": "7"})
    return tensors


@pytest.mark.parametrize("notes", [None, {}, {"after": "12", "ü\n": '"'}])
def test_round_trip(tmp_path: Path, notes: dict[str, str] | None) -> None:
    path, tensors = tmp_path / "file", sample()
    digest = save_tensors(path, tensors, notes=notes)
    found = load_tensors(path, hint=HINT)
    assert found.keys() == tensors.keys()
    assert [name for name in tensors if not same(found[name], tensors[name])] == []
    assert digest == read_header(path, hint=HINT)[0] == digest_of(tensors, notes)
    assert read_header(path, hint=HINT)[1] == (notes or {})
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_into_tensors_that_are_there(tmp_path: Path) -> None:
    path, tensors = tmp_path / "file", sample()
    save_tensors(path, tensors, notes={"after": "12"})
    places = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    read_into(path, places, hint=HINT)
    assert [name for name in tensors if not same(places[name], tensors[name])] == []


def test_into_others(tmp_path: Path) -> None:
    tensors = small(tmp_path / "file")
    for places in ({"a": torch.zeros(2, 3)}, {**tensors, "d": torch.zeros(4, 0)}, {**tensors, "e": torch.zeros(1)}):
        with pytest.raises(ValueError, match="instead of"):
            read_into(tmp_path / "file", places, hint=HINT)


def test_no_tensors_at_all(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {})
    assert load_tensors(tmp_path / "file", hint=HINT, shapes={}) == {}


def test_parameters_on_a_graph(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    save_tensors(tmp_path / "file", {"x": parameter, "y": parameter * 2})
    found = load_tensors(tmp_path / "file", hint=HINT)
    assert torch.equal(found["y"], torch.full((2,), 2.0)) and not found["x"].requires_grad


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    tensors = sample()
    save_tensors(tmp_path / "file", tensors)
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys() and all(same(found[name], tensors[name]) for name in tensors)
    header = int.from_bytes((tmp_path / "file").read_bytes()[:8], "little")
    assert header % 8 == 0, "so that the tensors begin at addresses that suit them"


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    tensors = sample()
    save_tensors(tmp_path / "a", tensors, notes={"x": "1", "y": "2"})
    save_tensors(tmp_path / "b", dict(reversed(tensors.items())), notes={"y": "2", "x": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(2, 3)},
        {"a": torch.zeros(6), "b": torch.zeros(2)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.float64)},
        {"a": torch.zeros(2, 3), "c": torch.zeros(2)},
        {"a": torch.zeros(2, 3), "b": torch.tensor([0.0, -0.0])},
    ],
)
def test_the_hash_is_of_everything(other: dict[str, Tensor]) -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(2)}
    assert digest_of(tensors) == digest_of({name: tensors[name].clone() for name in ("b", "a")})
    assert digest_of(tensors) != digest_of(other)
    assert digest_of(tensors) != digest_of(tensors, {"x": "1"})


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        load_tensors(path, hint=HINT)
    assert (caught.value.where, caught.value.hint) == (str(path), HINT)
    with pytest.raises((DamagedFileError, ValueError)):  # a name in the header may have changed
        read_into(path, shapes_of(path), hint=HINT)


def shapes_of(path: Path) -> dict[str, Tensor]:
    """Places for what the file seems to hold; nothing where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: torch.zeros(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Length, header, padding, tensors: every byte, and of a larger file 300 places drawn by chance."""
    path, draw = tmp_path / "file", random.Random(1)
    small(path)
    whole = path.read_bytes()
    places = [(place, draw.randrange(8)) for place in range(len(whole))]
    save_tensors(tmp_path / "large", sample(), notes={"after": "12"})
    large = (tmp_path / "large").read_bytes()
    cases = [(whole, *place) for place in places]
    cases += [(large, draw.randrange(len(large)), draw.randrange(8)) for _ in range(300)]
    for content, place, bit in cases:
        refused(path, content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    small(path)
    content = path.read_bytes()
    for end in range(0, len(content), 3):
        refused(path, content[:end])
    for more in (b"\0", b"x" * 4096):
        refused(path, content + more)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 1 << 62]}},
        {"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}},
        {"a": {"dtype": "OF_TOMORROW", "shape": [1], "data_offsets": [0, 4]}},
        {"a": 3},
        [],
        3,
    ],
)
@pytest.mark.parametrize("notes", [{}, {"sparsenmt": '{"sha256": "0"}'}, {"sparsenmt": "["}, {"sparsenmt": "[]"}])
def test_headers_that_somebody_invented(tmp_path: Path, header: object, notes: dict[str, str]) -> None:
    """Huge sizes take no memory, types that there are not no traceback."""
    if isinstance(header, dict):
        header = {"__metadata__": notes, **header}
    text = json.dumps(header).encode()
    refused(tmp_path / "file", len(text).to_bytes(8, "little") + text + b"\0\0\0\0")


@pytest.mark.parametrize("length", [0, 1, 8, 1 << 40, (1 << 64) - 1])
def test_lengths_of_headers(tmp_path: Path, length: int) -> None:
    refused(tmp_path / "file", length.to_bytes(8, "little") + b"{}")


def test_files_of_other_programs(tmp_path: Path) -> None:
    """Nothing vouches for what they hold."""
    save_file({"a": torch.zeros(2)}, tmp_path / "file", metadata={"format": "pt"})
    with pytest.raises(DamagedFileError, match="not written by this version"):
        load_tensors(tmp_path / "file", hint=HINT)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        for read in (load_tensors, read_header):
            with pytest.raises(DamagedFileError) as caught:
                read(path, hint=HINT)
            assert (caught.value.where, caught.value.hint) == (str(path), HINT)


def test_shapes_are_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    shapes = {name: tuple(tensor.shape) for name, tensor in small(path).items()}
    assert load_tensors(path, hint=HINT, shapes=shapes).keys() == shapes.keys()

    def never(*arguments: object) -> None:
        pytest.fail("tensors were read")

    monkeypatch.setattr("sparsenmt.storage.tensors._read_tensor", never)
    others: list[tuple[dict[str, tuple[int, ...]], str]] = [
        ({**shapes, "a": (3, 2)}, r"^1 weights do not fit the recipe: a: \(2, 3\) instead of \(3, 2\)$"),
        ({**shapes, "e": (1,)}, r"^1 weights .*: e: missing instead of \(1,\)$"),
        ({"a": (2, 3)}, r"^2 weights .*: b.c: \(2,\) instead of nothing; d: \(0, 4\) instead of nothing$"),
        ({str(i): () for i in range(9)}, r"^12 weights .*; \.\.\.$"),
    ]
    for wanted, message in others:
        with pytest.raises(ValueError, match=message):
            load_tensors(path, hint=HINT, shapes=wanted)


FULL = """
import errno, os, resource, signal, sys
from pathlib import Path
import torch
from sparsenmt.storage import files
from sparsenmt.storage.tensors import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, size = Path(sys.argv[1]), int(sys.argv[2])
tensors = {"x": torch.ones(1000), "y": torch.ones(3, dtype=torch.bfloat16)}
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for name, limit in (("new", 100), ("old", 3000), ("old", size - 1), ("fits", size)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        save_tensors(folder / name, tensors)
    except OSError as error:
        assert error.filename == str(folder / name), error
        print(errno.errorcode[error.errno], flush=True)
    else:
        print("written", flush=True)
files.publish_file = lambda partial, path: os.kill(os.getpid(), signal.SIGKILL)
save_tensors(folder / "old", {"x": torch.ones(10)})
"""


def test_a_full_disk_and_a_killed_process(tmp_path: Path) -> None:
    """Wherever in the file the room ends: an error that has a number, nothing left aside, and the old file as it was.

    Then the process is killed just before a whole file gets its name: the old file is still there.
    """
    whole, old = tmp_path / "whole", tmp_path / "old"
    save_tensors(whole, {"x": torch.ones(1000), "y": torch.ones(3, dtype=torch.bfloat16)})
    small(old)
    before = old.read_bytes()
    command = [sys.executable, "-c", FULL, str(tmp_path), str(whole.stat().st_size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, timeout=120)
    assert done.stdout == b"EFBIG\nEFBIG\nEFBIG\nwritten\n"
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == [".old.partial", "fits", "old", "whole"]
    assert old.read_bytes() == before
    assert (tmp_path / "fits").read_bytes() == whole.read_bytes()
    small(old)
    assert not (tmp_path / ".old.partial").exists(), "what it left was used up by the next"


def test_a_type_that_has_no_name_on_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        save_tensors(tmp_path / "file", {"x": torch.zeros(2, dtype=torch.complex64)})
    assert not list(tmp_path.iterdir())


def test_damage_is_a_users_error() -> None:
    assert issubclass(DamagedFileError, UserError)


@pytest.mark.thorough
def test_a_file_that_is_overwritten_while_it_is_read(tmp_path: Path) -> None:
    """A message, not SIGBUS, which ends a process that has mapped a file that becomes shorter."""
    path = tmp_path / "file"
    save_tensors(path, {name: torch.ones(1 << 16) for name in "abc"})
    program = """
        import sys, sparsenmt.storage.tensors as module
        from sparsenmt.errors import UserError
        original = module._read_tensor
        def truncating(*arguments):
            found = original(*arguments)
            with open(sys.argv[1], "r+b") as stream:
                stream.truncate(1000)
            return found
        module._read_tensor = truncating
        try:
            module.load_tensors(module.Path(sys.argv[1]), hint="")
        except UserError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "the file ends too early" in done.stdout


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file and the bytes after it."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": {"data_offsets": [8, 32]}}, "overlap, or there are gaps"),
        ({"a": {"data_offsets": [0, 20]}}, "a shape and its number of bytes differ"),
        ({"a": {"shape": [6, 2]}}, "a shape and its number of bytes differ"),
        ({"a": {"shape": [-2, -3]}}, "not a number, or too large"),
        ({"a": {"shape": [True, 6]}}, "not a number, or too large"),
        ({"a": {"shape": "23"}}, "not a number, or too large"),
        ({"a": {"dtype": "F8_E5M2"}}, "the header cannot be read"),
        ({"a": {"dtype": ["F32"]}}, "the header cannot be read"),
        ({"d": {"shape": [0, 1 << 62, 1 << 62]}}, "not a number, or too large"),
        ({"__metadata__": {"sparsenmt": "[]"}}, "the header cannot be read"),
        ({"__metadata__": {"sparsenmt": "[" * 200_000}}, "the header cannot be read"),
        ({"__metadata__": {"sparsenmt": "{}"}}, "not written by this version"),
        ({"__metadata__": {"sparsenmt": '{"sha256": 3}'}}, "not written by this version"),
        ({"e": {"dtype": "F32", "shape": [1], "data_offsets": [28, 32]}}, "another size|overlap"),
    ],
)
def test_forged_headers(tmp_path: Path, change: dict[str, dict[str, Any]], message: str) -> None:
    path = tmp_path / "file"
    small(path)
    header, rest = header_of(path)
    text = json.dumps({**header, **{name: {**header.get(name, {}), **values} for name, values in change.items()}})
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + rest)
    for read in (lambda: load_tensors(path, hint=HINT), lambda: read_header(path, hint=HINT)):
        with pytest.raises(DamagedFileError, match=message):
            read()


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "file"
    small(path)
    header, rest = header_of(path)
    text = json.dumps(header)[:-1] + ', "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + rest)
    with pytest.raises(DamagedFileError, match="a name occurs twice"):
        load_tensors(path, hint=HINT)


# --- headers of strangers ------------------------------------------------------------------------------------------


def with_header(path: Path, header: bytes, length: int | None = None) -> None:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    length = len(header) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + header + content[start:])


VALUES: list[object] = [
    None,
    -1,
    2**63,
    2**64,
    "",
    "I4",
    "F4",
    "F8_E8M0",
    "C64",
    [0],
    [-1],
    [2**40, 2**40],
    [0, 2**63],
    {},
]
NOTES = ["[" * 200_000, '{"a":' * 50_000, "[]", "null", '{"sha256": 3}', '{"sha256": "x", "after": null}']
NOTES += [f'{{"sha256": "x", "after": {"9" * 5000}}}', '{"sha256": "x", "after": [1]}', '"\\ud800"']


def headers(header: dict[str, object]) -> list[tuple[bytes, int | None]]:
    """Headers with other values and notes, with lies about their length, with doubled names, and damaged."""
    made = [header | {"__metadata__": {"sparsenmt": note}} for note in NOTES]
    for name, entry in header.items():
        made += [header | {name: value} for value in VALUES]
        if isinstance(entry, dict):
            made += [header | {name: entry | {key: value}} for key in entry for value in VALUES]
    texts = [json.dumps(each).encode() for each in made]
    whole, draw = json.dumps(header).encode(), random.Random(1)
    texts += [whole[:-1] + b',"a":' + json.dumps(header["a"]).encode() + b"}", b'{"a":' * 100_000]
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.randrange(256)
        texts.append(bytes(damaged))
    return [(text, None) for text in texts] + [
        (whole, length) for length in (0, 1, 7, len(whole) - 1, 2**31, 2**64 - 1)
    ]


def test_any_header_is_read_or_one_message(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = small(path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    for text, length in headers(header):
        path.write_bytes(content)
        with_header(path, text, length)
        for read in (
            lambda: int(read_header(path, hint=HINT)[1].get("after", "0")),
            lambda: load_tensors(path, hint=HINT),
            lambda: read_into(path, {name: torch.zeros_like(each) for name, each in tensors.items()}, hint=HINT),
        ):
            try:
                read()
            except DamagedFileError as error:
                assert error.where == str(path)
            except ValueError as error:
                assert "do not fit the recipe" in str(error)
