"""Sources that the recipe cuts are cut alike wherever they are read, and it is said how many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.prepared_data import PreparedData
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.decoding.inputs import read_sources
from tests.commands.support import Result, Run

LIMIT = 4
MARKED = "data.tokenizer={kind: word, vocabulary_size: 1000, user_symbols: [<doc>]}"
CHANGES = [MARKED, f"data.filters.max_source_length={LIMIT}", "data.directory=cut-data", "directory=cut"]


@pytest.fixture
def cut(command: Run, workspace: Path) -> Result:
    """What `prepare` says; `cut` is a model whose sources are cut to `LIMIT` words."""
    for part in ("train", "dev", "test"):  # two documents, of which the second begins beyond the limit for some lines
        path = workspace / "corpus" / f"{part}.en"
        write_lines(path, [line.replace(" ", " <doc> ", 1) for line in list(read_lines(path))])
    prepared = command("prepare", "small.yaml", *CHANGES)
    assert prepared.code == 0, prepared.err
    changes = ["training.max_updates=2", "training.save_every=2", "training.validation.every=2"]
    trained = command("train", "small.yaml", *CHANGES, *changes)
    assert trained.code == 0, trained.err
    return prepared


def test_every_reader_cuts_alike(cut: Result, command: Run, workspace: Path) -> None:
    data, bundle = PreparedData.open("cut-data"), open_model(Path("cut"))
    symbol = data.tokenizers.source.encode("<doc>")
    assert len(symbol) == 1
    for name, dataset in (("train", data.train[0]), ("dev", data.dev)):
        lines = list(read_lines(f"corpus/{name}.en"))
        read = read_sources(bundle, input_lines(lines))
        assert len(dataset) == len(lines)
        for index, line in enumerate(read):
            assert dataset.source(index).tolist() == line.ids
            assert line.cut == max(len(line.text.split(" ")) - LIMIT, 0)
            assert line.ids[1:2] == symbol
        many = sum(line.cut > 0 for line in read)
        assert many and f"{len(lines):,} pairs kept, {many:,} sources cut," in (cut.out.decode() + cut.err)

    texts = list(read_lines("corpus/test.en"))
    write_lines("short", [" ".join(line.split(" ")[:LIMIT]) for line in texts])
    many = sum(len(line.split(" ")) > LIMIT for line in texts)
    told = f"{many} sources were cut to {LIMIT} tokens (data.filters.max_source_length)\n"
    for arguments in (
        ["decode", "cut", "-i", "FILE"],
        ["score", "--model", "cut", "--source", "FILE", "--target", "corpus/test.de"],
        ["score", "--model", "cut", "--source", "FILE", "-r", "corpus/test.de", "-m", "rougeL"],
    ):
        long, short = (
            command(*(part.replace("FILE", file) for part in arguments)) for file in ("corpus/test.en", "short")
        )
        assert long.code == short.code == 0
        assert long.out == short.out
        assert long.err.count(told) == 1 and _known(long.err).replace(told, "") == _known(short.err)
        assert "warning" not in _known(long.err)


def _known(messages: str) -> str:
    """Return messages without the one about lines that are mostly unknown to the small vocabulary."""
    return "".join(f"{line}\n" for line in messages.splitlines() if "mostly unknown" not in line)


def test_one_line_of_a_stream_is_cut(cut: Result, command: Run) -> None:
    result = command("decode", "cut", "--json", stdin=b"a b c d e\nf\n")
    assert [json.loads(line)["source"] for line in result.lines] == ["a b c d e", "f"]
    assert _known(result.err) == f"1 source was cut to {LIMIT} tokens (data.filters.max_source_length)\n"


def test_what_the_positions_cut_is_named_line_by_line(command: Run, workspace: Path) -> None:
    write_lines("long", ["a " * 3000])
    result = command("decode", "model", "-i", "long", "--batch-tokens", "9999", "--long", "cut")
    assert result.err == "warning: line 1 is too long: 1023 of 3000 tokens are translated\n"
