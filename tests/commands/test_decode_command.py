"""`sparsenmt decode`: one output line for every input line, whatever the line; formats; mistakes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.report.output_files import check_outputs
from sparsenmt.storage.files import seal_text, unseal_text
from tests.commands.support import Run, program

# Each is one line: only \n ends one.
STRANGE = [
    "a\u2028b\u2029c",
    "carriage\rreturn",
    "windows\r",
    "nul\x00byte",
    "form\x0cfeed",
    "vertical\x0btab",
    "next\x85line",
    "\t",
    "   ",
    "\u3000",
    "\x00",
    "",
    "\ufeffmark",
    "emoji \U0001f600 and 漢字",
    "piece ▁ mark </s> <unk> ||| bars",
    "end",
]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_one_line_for_every_line(command: Run, workspace: Path, method: str) -> None:
    result = command("decode", "model", "--method", method, stdin=text(STRANGE))
    assert (result.code, len(result.lines)) == (0, len(STRANGE))
    for number, line in enumerate(STRANGE):
        assert line.strip(" \t\u3000") or not result.lines[number], "no text, no translation"
    (workspace / "in").write_bytes(text(STRANGE))
    assert command("decode", "model", "--method", method, "-i", "in", "-o", "out").code == 0
    assert (workspace / "out").read_bytes() == result.out


@pytest.mark.parametrize(
    ("given", "lines"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"a", 1), (b"a\n\n", 2), (b"   \n\n\t", 3)]
)
def test_the_end_of_the_text(command: Run, workspace: Path, given: bytes, lines: int) -> None:
    result = command("decode", "model", stdin=given)
    assert (result.code, len(result.lines), result.err) == (0, lines, "")
    (workspace / "in").write_bytes(given)
    assert command("decode", "model", "-i", "in", "-o", "out").code == 0
    assert (workspace / "out").read_bytes() == result.out


def test_order_does_not_depend_on_batches(command: Run, workspace: Path) -> None:
    lines = [line for line in (workspace / "corpus/train.en").read_text(encoding="utf-8").split("\n")[:40] if line]
    lines[5:5] = ["", "  "]
    expected = command("decode", "model", "--method", "greedy", stdin=text(lines)).lines
    assert len(set(expected)) > 1, "translations that tell lines apart"
    for options in (["--batch-tokens", "1"], ["--window", "1"], ["--window", "7", "--batch-tokens", "60"]):
        assert command("decode", "model", "--method", "greedy", *options, stdin=text(lines)).lines == expected
    backwards = command("decode", "model", "--method", "greedy", stdin=text(lines[::-1])).lines
    assert backwards[::-1] == expected


def test_a_line_that_is_too_long_is_cut(command: Run) -> None:
    given = text(["one", "a " * 3000, "two"])
    result = command("decode", "model", "--method", "greedy", "--max-length-factor", "0", "--long", "cut", stdin=given)
    assert (result.code, len(result.lines)) == (0, 3)
    assert result.err == "warning: line 2 is too long: 1023 of 3000 tokens are translated\n"


def test_gzip_and_pipes_as_input(command: Run, workspace: Path) -> None:
    expected = command("decode", "model", stdin=text(["a b", "", "c"])).out
    (workspace / "in.gz").write_bytes(gzip.compress(text(["a b", "", "c"])))
    assert command("decode", "model", "-i", "in.gz").out == expected
    reader, writer = os.pipe()
    os.write(writer, text(["a b", "", "c"]))
    os.close(writer)
    assert command("decode", "model", "-i", f"/dev/fd/{reader}").out == expected
    os.close(reader)


def test_n_best(command: Run) -> None:
    result = command("decode", "model", "--beam-size", "4", "--n-best", "3", stdin=text(["a b c", "", "d"]))
    rows = [line.split(" ||| ") for line in result.lines]
    assert all(len(row) == 3 for row in rows)
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    assert rows[3] == ["1", "", "0.000000"]
    as_json = command("decode", "model", "--beam-size", "4", "--n-best", "3", "--json", stdin=text(["a b c", "", "d"]))
    for line in map(json.loads, as_json.lines):
        ranked = [(each["ended"], each["score"]) for each in line["hypotheses"]]
        assert ranked == sorted(ranked, reverse=True), "those that were cut at the maximum length come last"
        own = [row[1:] for row in rows if row[0] == str(line["line"] - 1)]
        assert own == [[each["text"], f"{each['score']:.6f}"] for each in line["hypotheses"]]
    best = command("decode", "model", "--beam-size", "4", stdin=text(["a b c", "", "d"])).lines
    assert [rows[0][1], rows[3][1], rows[4][1]] == best


def test_json(command: Run) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    result = command("decode", "model", "--beam-size", "3", "--n-best", "3", "--json", stdin=text(STRANGE))
    objects = [json.loads(line, parse_constant=refuse) for line in result.lines]
    assert [each["line"] for each in objects] == list(range(1, len(STRANGE) + 1))
    assert [each["source"] for each in objects] == STRANGE
    assert [each["hypotheses"][0]["text"] for each in objects] == command(
        "decode", "model", "--beam-size", "3", stdin=text(STRANGE)
    ).lines
    for each in objects:
        for hypothesis in each["hypotheses"]:
            assert set(hypothesis) == {"text", "score", "log_probability", "pieces", "ended"}
            assert hypothesis["log_probability"] <= 0 and hypothesis["pieces"] >= 0


def test_sampling_is_fixed_by_its_seed(command: Run) -> None:
    def sample(*options: str) -> list[str]:
        return command("decode", "model", "--method", "sample", *options, stdin=text(["a b c d", "e f g"])).lines

    assert sample("--seed", "7") == sample("--seed", "7", "--batch-tokens", "1") != sample("--seed", "8")
    greedy = command("decode", "model", "--method", "greedy", stdin=text(["a b c d", "e f g"])).lines
    assert sample("--top-k", "1") == sample("--temperature", "1e-320") == sample("--top-p", "1e-9") == greedy
    assert len(sample("--temperature", "1e300")) == 2


def test_extreme_settings(command: Run) -> None:
    for options in (
        ["--beam-size", "200", "--n-best", "200"],  # more than there are pieces
        ["--max-length-factor", "1e308", "--max-length-offset", "0", "--method", "greedy"],
        ["--max-length-factor", "0", "--max-length-offset", "0"],
        ["--no-repeat-ngram", "1", "--min-length", "400"],  # more than there are different pieces
        ["--min-length", "5000", "--method", "greedy"],
        ["--threads", "100000"],
        ["--dtype", "bf16"],
        ["--dtype", "auto"],
    ):
        result = command("decode", "model", *options, stdin=b"a b\n")
        assert result.code == 0 and len(result.lines) >= 1, options


def test_int8_where_there_are_no_such_products(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", "0")
    assert "--dtype" in refused("decode", "model", "--dtype", "int8", stdin=b"a b\n")


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["nowhere"], ["nowhere: there is no such model directory"]),
        (["small.yaml"], ["small.yaml: this is not a model directory", "sparsenmt train"]),
        (["corpus"], ["corpus: this is not a model directory"]),
        (["prepared"], ["prepared: this is not a model directory"]),
        (["model", "-i", "nowhere"], ["nowhere: no such file"]),
        (["model", "-i", "corpus"], ["--input: corpus is a directory, not a file"]),
        (["model", "-i", "broken"], ["broken, line 2: invalid UTF-8", "iconv"]),
        (["model", "-i", "broken", "-o", "out"], ["broken, line 2: invalid UTF-8"]),
        (["model", "-i", "good", "-o", "good"], ["good: --output names a file that another option names"]),
        (["model", "-i", "good", "-o", "link"], ["link: --output names a file that another option names"]),
        (["model", "-i", "good", "--documents", "ids", "-o", "ids"], ["ids: --output names a file that another"]),
        (["model", "-i", "good", "-o", "corpus"], ["--output: corpus is a directory, not a file"]),
        (["model", "-i", "good", "-o", "no/where"], ["no: there is no such directory"]),
        (["model", "-i", "good", "-o", "good/out"], ["good: there is no such directory"]),
        (["model", "-i", "good", "-o", "/dev/full"], ["No space left"]),
        (["model", "-i", "good", "--n-best", "3"], ["--n-best: 3 hypotheses", "--beam-size"]),
        (["model", "-i", "good", "--method", "greedy", "--n-best", "2"], ["--n-best: 2 hypotheses"]),
        (["model", "-i", "good", "--alpha", "1e300"], ["--alpha: must be less than or equal to 10, not 1e+300"]),
        (["model", "-i", "good", "--beam-size", "20000"], ["20000 is not in the range 1<=x<=10000"]),
        (["model", "-i", "good", "--window", str(10**20)], ["--window"]),
        (["model", "-i", "cut.gz"], ["cut.gz: the gzip file ends early, after line 2", "copy it again"]),
        (["model", "-i", "cut.gz", "-o", "out"], ["cut.gz: the gzip file ends early, after line 2"]),
        (["model", "-i", "good", "--alpha", "nan"], ["--alpha: must be a finite number, not nan"]),
        (["model", "-i", "good", "--max-length-factor", "inf"], ["--max-length-factor: must be a finite number"]),
        (["model", "-i", "good", "--temperature", "nan"], ["--temperature"]),
        (["model", "-i", "good", "--temperature", "0"], ["--temperature"]),
        (["model", "-i", "good", "--seed", str(2**64)], ["--seed"]),
        (["model", "-i", "good", "--beam-size", "0"], ["--beam-size"]),
        (["model", "-i", "good", "--method", "magic"], ["magic", "greedy"]),
        (["model", "-i", "good", "--unknown"], ["--unknown"]),
        ([], ["MODEL_DIR"]),
    ],
)
def test_mistakes(refused: Callable[..., str], workspace: Path, arguments: list[str], messages: list[str]) -> None:
    (workspace / "good").write_bytes(b"a\n")
    (workspace / "ids").write_bytes(b"1\n")
    (workspace / "link").symlink_to("good")
    (workspace / "broken").write_bytes(b"a\n\xff\nb\n")
    (workspace / "cut.gz").write_bytes(gzip.compress(b"a\nb\n")[:-1])
    shown = refused("decode", *arguments)
    for message in messages:
        assert message in shown


@pytest.mark.parametrize("option", ["-i", "--tags", "--documents"])
@pytest.mark.parametrize("hidden", [".o.partial", ".o.journal", "..o.journal.partial"])
def test_an_input_under_a_hidden_name_of_the_output_is_kept(
    refused: Callable[..., str], workspace: Path, hidden: str, option: str
) -> None:
    for name in ("good", hidden):
        (workspace / name).write_bytes(b"a\n")
    (workspace / "link").symlink_to("o")
    given = ["-i", hidden] if option == "-i" else ["-i", "good", option, hidden]
    for output in ("o", "link"):
        shown = refused("decode", "model", *given, "-o", output)
        assert f"{output}: --output needs the temporary name {hidden}, which another option names" in shown
        assert (workspace / hidden).read_bytes() == b"a\n"


@pytest.mark.parametrize(
    "name", ["manifest.json", "recipe.yaml", "weights.safetensors", "metrics.jsonl", "tokenizers/x", "checkpoints/x"]
)
def test_no_part_of_a_model_is_replaced(refused: Callable[..., str], workspace: Path, name: str) -> None:
    output = workspace / "model" / name
    before = output.read_bytes() if output.exists() else None
    (workspace / "in").write_bytes(b"a\n")
    (workspace / "link").symlink_to(output)
    for given in (f"model/{name}", "link"):
        assert "--output names a part of the model in" in refused("decode", "model", "-i", "in", "-o", given)
    assert (output.read_bytes() if output.exists() else None) == before


def test_a_device_can_be_input_and_output(command: Run) -> None:
    assert command("decode", "model", "-i", "/dev/null", "-o", "/dev/null").code == 0


def test_a_link_to_the_standard_output_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it leads to a file where a shell redirects it."""
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    with pytest.raises(UserError, match="a device cannot be replaced by a file"):
        check_outputs({"--json": Path("/dev/stdout")})


def test_other_files_in_a_models_directory_can_be_written(command: Run, workspace: Path) -> None:
    (workspace / "in").write_bytes(b"a\n")
    for output in ("model/out", "recipe.yaml"):
        assert command("decode", "model", "-i", "in", "-o", output).code == 0
        assert (workspace / output).is_file()


def test_invalid_utf8_on_stdin(refused: Callable[..., str]) -> None:
    assert "stdin, line 3: invalid UTF-8" in refused("decode", "model", stdin=b"a\n\n\xe4\n")
    assert "stdin: this is gzip, not text" in refused("decode", "model", stdin=gzip.compress(b"a\n"))


def test_lines_of_a_megabyte(command: Run) -> None:
    """Words, one word, and zeros, which most tokenizers take for spaces or for a single unknown piece."""
    given = b"a\n" + b"ab c " * 200_000 + b"\n" + b"x" * 10**6 + b"\n" + bytes(10**6) + b"\nlast"
    arguments = ["--method", "greedy", "--max-length-factor", "0", "--long", "cut"]
    result = command("decode", "model", *arguments, stdin=given)
    assert (result.code, len(result.lines)) == (0, 5)
    cut = [line.split(" is too long: 1023 of ")[0] for line in result.err.split("\n")]
    assert cut[:2] == ["warning: line 2", "warning: line 3"]
    assert "1 of 5 lines are mostly unknown" in cut[2] and cut[3:] == [""]


def test_a_failure_leaves_an_old_output(refused: Callable[..., str], workspace: Path) -> None:
    (workspace / "out").write_bytes(b"old\n")
    refused("decode", "model", "-o", "out", "--window", "1", stdin=b"a\nb\n\xff\n")
    assert (workspace / "out").read_bytes() == b"old\n"


DAMAGES: list[tuple[str, bytes | None]] = [
    (name, content)
    for name in (
        "manifest.json",
        "recipe.yaml",
        "weights.safetensors",
        "tokenizers/tokenizers.json",
        "tokenizers/shared.json",
        "tokenizers/shared.model",
        "features/features.json",
    )
    for content in (None, b"", b"{}", b"[1]", b"\xff\xfe")
]


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_damaged_model_directories(
    refused: Callable[..., str], workspace: Path, name: str, content: bytes | None
) -> None:
    path = workspace / "model" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    shown = refused("decode", "model", stdin=b"a\n")
    assert "model" if name == "manifest.json" else f"model/{name}" in shown


def test_weights_that_are_cut_or_of_another_model(refused: Callable[..., str], workspace: Path) -> None:
    weights = workspace / "model/weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-10])
    assert "weights.safetensors: the tensors are damaged" in refused("decode", "model", stdin=b"a\n")
    weights.write_bytes(content)
    recipe = workspace / "model/recipe.yaml"
    text = unseal_text(recipe.read_text(encoding="utf-8"))
    assert text is not None
    recipe.write_text(seal_text(text.replace("dimension: 32", "dimension: 64")), encoding="utf-8", newline="\n")
    shown = refused("decode", "model", stdin=b"a\n")
    assert "weights do not fit" in shown and "(32, 32) instead of (64, 64)" in shown


def test_a_reader_that_goes_away(workspace: Path) -> None:
    process = program("decode", "model", "-i", "corpus/train.en", "--window", "1", "--method", "greedy")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().endswith(b"\n")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


@pytest.mark.thorough
def test_a_program_that_waits_for_each_answer(workspace: Path) -> None:
    process = program("decode", "model", "--window", "1", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    for line in (b"a b c\n", b"\n", b"d\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0
