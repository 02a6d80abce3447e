"""Small files of strangers that once took minutes, all memory or a traceback: one message, soon, and exit code 2."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.tokenizers.wire_format import without_field
from sparsenmt.storage.files import read_sealed, seal_text, write_sealed
from sparsenmt.storage.records import file_entry
from sparsenmt.training.state import Progress
from sparsenmt.training.training_log import training_speed, truncate_log
from tests.commands.support import ROOT

Refused = Callable[..., str]
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 8)
)
LAUGHS += "model: *a7\n"
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))

COMMANDS = [
    ["decode", "model", "-i", "corpus/test.en"],
    ["score", "--model", "model", "--source", "corpus/test.en", "--target", "corpus/test.de"],
    ["average", "model", "-o", "mean"],
    ["slice", "model", "part", "--encoder-layers", "1", "--decoder-layers", "1"],
    ["export", "model", "exported", "--to", "safetensors-hf"],
    ["compare", "model"],
    ["analyze", "layers", "model", "-i", "corpus/test.en"],
    ["contrast", "model", "--source", "corpus/test.en", "--correct", "corpus/test.de", "--incorrect", "corpus/test.de"],
    ["select-depth", "model", "-s", "corpus/test.en", "-r", "corpus/test.de"],
    ["depth-table", "model"],
]


def refused_in_time(arguments: list[str], folder: Path, *, memory: int | None = None) -> str:
    """Run a command in a process of its own, which is killed after a minute; the message with which it refuses.

    Args:
        memory: bytes that it may allocate.
    """
    limit = (
        "" if memory is None else f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}));"
    )
    code = f"import sys; {limit} from sparsenmt import cli; sys.exit(cli.run(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.thorough
def test_a_recipe_of_aliases_is_refused_in_time(workspace: Path) -> None:
    assert len(LAUGHS) < 457
    (workspace / "model/recipe.yaml").write_text(seal_text(LAUGHS), encoding="utf-8")
    assert "model/recipe.yaml: the recipe has more than 100,000 values" in refused_in_time(COMMANDS[0], workspace)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: str(arguments[0]))
def test_every_command_reads_the_recipe_with_limits(arguments: list[str], refused: Refused, workspace: Path) -> None:
    (workspace / "model/recipe.yaml").write_text(seal_text("name: a\nname: b\n"), encoding="utf-8")
    assert "recipe.yaml:2: name: the key occurs twice" in refused(*arguments)


@pytest.mark.parametrize(
    "text",
    [
        *(MERGES, "[" * 10_000, "- " * 10_000, "x: 1e999\n", f"x: {'9' * 100_000}\n", "x: 2001-99-99\n"),
        *("name: a\nname: b\n", "x: !!python/object/apply:os.system [date]\n", "x: a\0b\n", "\ufeffname: x\n"),
        *(
            'x: "\\ud800"\n',
            "&a [*a]\n",
            "? [a]\n: b\n",
            "- a\n",
            "",
            "x: !!timestamp 2001-99-99\n",
            f"#{' ' * 1_000_000}\n",
        ),
    ],
    ids=lambda text: repr(str(text)[:12]),
)
def test_a_sealed_recipe_of_any_content_is_one_message(text: str, refused: Refused, workspace: Path) -> None:
    (workspace / "model/recipe.yaml").write_bytes(seal_text(text).encode("utf-8"))
    assert "model/recipe.yaml" in refused("decode", "model", "-i", "corpus/test.en")


# --- lines -------------------------------------------------------------------------------------------------------

LONG = 40_000_000


@pytest.fixture
def long_line(workspace: Path) -> Path:
    """A gzip file of 40 KB whose second line has 40 MB."""
    path = workspace / "long.gz"
    path.write_bytes(gzip.compress(b"a_N\n" + b"b " * (LONG // 2) + b"\nc\n", 1))
    assert path.stat().st_size < 1_000_000
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", "model", "-i", "long.gz"],
        ["decode", "model", "-i", "corpus/test.en", "--tags", "long.gz"],
        ["score", "long.gz", "-r", "corpus/test.de"],
        ["score", "corpus/test.de", "-r", "long.gz"],
        ["score", "--model", "model", "--source", "long.gz", "--target", "long.gz"],
        ["contrast", "model", "--source", "long.gz", "--correct", "long.gz", "--incorrect", "long.gz"],
        ["analyze", "diversity", "model", "-i", "long.gz"],
        ["prepare", "small.yaml", "data.dev.source=long.gz", "data.directory=other"],
        ["prepare", "small.yaml", "data.train.0.target=long.gz", "data.directory=other"],
    ],
    ids=" ".join,
)
def test_a_long_line_is_refused_where_it_is(arguments: list[str], refused: Refused, long_line: Path) -> None:
    assert "long.gz, line 2: the line is longer than 10,000,000 bytes" in refused(*arguments)


def test_a_long_line_on_stdin(refused: Refused) -> None:
    message = refused("decode", "model", stdin=b"b" * 11_000_000)
    assert "stdin, line 1: the line is longer than 10,000,000 bytes" in message


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce limits of memory")
@pytest.mark.thorough
def test_a_long_line_takes_no_memory(workspace: Path) -> None:
    (workspace / "long.gz").write_bytes(gzip.compress(b"b " * 150_000_000, 1))
    # PyTorch alone takes up to 1 GB of it; before, tokens of 300 MB took 17 GB.
    assert "line 1" in refused_in_time(["decode", "model", "-i", "long.gz"], workspace, memory=3 << 30)


# --- tokenizers --------------------------------------------------------------------------------------------------


def message(number: int, content: bytes) -> bytes:
    """A field of bytes in the wire format of Protocol Buffers."""
    length, digits = len(content), b""
    while length >= 0x80:
        digits, length = digits + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + digits + bytes([length]) + content


def with_normalizer(model: bytes, charsmap: bytes) -> bytes:
    """A SentencePiece model whose rules of normalisation are replaced; field 3, of which the map is field 2."""
    return without_field(model, [3]) + message(3, message(1, b"nmt_nfkc") + message(2, charsmap))


def _maps() -> dict[str, Callable[[bytes], bytes]]:
    unit = struct.pack("<I", 0x80000041)
    tries = {
        "no trie": b"\0\0\0",
        "a trie larger than the map": struct.pack("<I", 1 << 30) + b"x" * 50,
        "a trie of no units": struct.pack("<I", 0) + b"x\0",
        "offsets out of the trie": struct.pack("<I", 1024) + b"\xff" * 1024 + b"x\0",
        "texts out of the map": struct.pack("<I", 1024) + unit * 256 + b"x\0",
        "a text without end": struct.pack("<I", 1024) + unit * 256 + b"x",
    }
    others: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda model: b"",
        "truncated": lambda model: model[: len(model) // 2],
        "foreign": lambda model: b"\x89PNG\r\n\x1a\n" + model,
        "zeros": lambda model: bytes(1000),
        "no tokens": lambda model: without_field(model, [1]),
        "a token that is not UTF-8": lambda model: model + message(1, message(1, b"\xff\xfe")),
    }
    return {**others, **{name: lambda model, trie=trie: with_normalizer(model, trie) for name, trie in tries.items()}}


MAPS = _maps()


def replace_tokenizer(model: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the tokenizer of a model directory, with the right hash in its manifest."""
    path = next((model / "tokenizers").glob("*.model"))
    path.write_bytes(change(path.read_bytes()))
    manifest = read_sealed(model / "manifest.json")
    manifest["files"][f"tokenizers/{path.name}"] = file_entry(path)
    write_sealed(model / "manifest.json", manifest)


def test_a_crafted_tokenizer_is_refused(workspace: Path) -> None:
    """All in one process of its own, since a fault of native code ends it."""
    code = (
        "import sys; from pathlib import Path; from sparsenmt.data.tokenizers.tokenizer import Tokenizers\n"
        "from sparsenmt.errors import UserError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print('used', Tokenizers.load(Path(name)).source.encode('a\\u00e4\\ufb01\\uff21\\u3300 A'))\n"
        "    except UserError as error: print(name) if 'not a SentencePiece model' in str(error) else print(error)\n"
    )
    for number, change in enumerate(MAPS.values()):
        folder = workspace / f"tokenizers-{number}"
        folder.mkdir()
        for path in (workspace / "model/tokenizers").iterdir():
            content = path.read_bytes()
            (folder / path.name).write_bytes(change(content) if path.suffix == ".model" else content)
    names = [f"tokenizers-{number}" for number in range(len(MAPS))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=workspace, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{list(MAPS)[done.stdout.count(chr(10))]}: {done.stderr}"
    assert done.stdout.split() == names


def test_a_command_refuses_a_crafted_tokenizer(refused: Refused, workspace: Path) -> None:
    replace_tokenizer(workspace / "model", MAPS["a token that is not UTF-8"])
    assert "not a SentencePiece model" in refused("decode", "model", "-i", "corpus/test.en")


# --- JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 200_000, '[{"a":' * 100_000, f"[{'9' * 100_000}]", "[NaN", '["\\ud800"]'])
def test_json_of_any_depth_is_one_message(text: str, refused: Refused, workspace: Path) -> None:
    (workspace / "suite.json").write_text(text, encoding="utf-8")
    assert "suite.json" in refused("contrast", "model", "suite.json")


def test_nested_brackets_in_a_log_are_skipped(workspace: Path) -> None:
    with (workspace / "model/metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write("[" * 200_000 + "\n" + json.dumps({"kind": []}) + "\n")
    training_speed(workspace / "model")
    truncate_log(workspace / "model", Progress())
    assert (workspace / "model/metrics.jsonl").read_bytes() == b""
