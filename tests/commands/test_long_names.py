"""Names at the limits of file systems: 250 bytes are a name like any other, 300 are refused with a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sparsenmt.cli import cli
from tests.commands.support import Run

TOO_LONG, LONG = "n" * 300, "n" * 250
SOURCE, REFERENCE = "corpus/test.en", "corpus/test.de"
TEXT = ("--source", SOURCE, "--reference", REFERENCE)
GIVEN = {
    "prepare": ["small.yaml"],
    "train": ["small.yaml"],
    "finetune-l0": ["model", "small.yaml", "-o", "out"],
    "decode": ["model", "-i", SOURCE, "-o", "out"],
    "score": [REFERENCE, "-r", REFERENCE],
    "contrast": ["model", "--source", SOURCE, "--correct", REFERENCE, "--incorrect", REFERENCE],
    "select-depth": ["model", *TEXT],
    "compare": ["model", *TEXT],
    "sweep": ["sweep.yaml"],
    "distill": ["model", "small.yaml", "directory=student", "data.directory=distilled", "--until", "corpus"],
    "depth-table": ["model", *TEXT, "-o", "out"],
    "slice": ["model", "out"],
    "average": ["model", "-o", "out"],
    "export": ["model", "out"],
    "import": ["model", "out"],
    "benchmark": ["model"],
    "demo": ["training.max_updates=1"],
    "analyze ablate-heads": ["model", "-i", SOURCE, "-r", REFERENCE],
    "analyze by-length": ["model", "-i", SOURCE, "-r", REFERENCE],
}
"""A valid command line of every command; other reports read a model and a text."""


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        elif command is not None:
            yield before + name, command


def lines(name: str, command: click.Command, path: str) -> Iterator[list[str]]:
    """Command lines with a path in the place of each path that a command takes."""
    given = GIVEN.get(name, ["model", "-i", SOURCE])
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    for parameter in command.params:
        if not isinstance(parameter.type, click.Path):
            continue
        if isinstance(parameter, click.Argument):
            place = arguments.index(parameter)
            if place < len(given):
                yield [*name.split(), *given[:place], path, *given[place + 1 :]]
        else:
            yield [*name.split(), *given, parameter.opts[0], path]


def test_no_command_takes_a_name_that_is_too_long(command: Run) -> None:
    tried = [(name, line) for name, each in commands(cli) for line in lines(name, each, TOO_LONG)]
    tried += [("prepare", ["prepare", "small.yaml", f"{key}={TOO_LONG}"]) for key in DATA_KEYS]
    tried += [("train", ["train", "small.yaml", f"{key}={TOO_LONG}"]) for key in ("directory", *DATA_KEYS)]
    assert len(tried) > 150
    for name, line in tried:
        result = command(*line)
        assert result.code == 2 and "unexpected" not in result.err, f"{name}: {result.err}"


DATA_KEYS = ("data.directory", "data.train[0].source", "data.dev.target")
OUTPUTS = {
    "average": ["average", "model", "-o", LONG],
    "slice": ["slice", "model", LONG],
    "export": ["export", "model", LONG, "--to", "safetensors-hf"],
    "decode": ["decode", "model", "-i", SOURCE, "-o", LONG],
    "prepare": ["prepare", "small.yaml", f"data.directory={LONG}"],
    "train": ["train", "small.yaml", f"directory={LONG}", "training.max_updates=1"],
    "a report": ["analyze", "density", "model", "-i", SOURCE, "--target", REFERENCE, "--json", LONG],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_long_name_is_a_name(command: Run, workspace: Path, name: str) -> None:
    """Though that of its temporary file or directory would be too long."""
    for again in range(2 if name in ("prepare", "decode") else 1):
        result = command(*OUTPUTS[name])
        assert result.code == 0, f"{again}: {result.err}"
    assert (workspace / LONG).exists()
    assert not [path.name for path in workspace.iterdir() if path.name.startswith(".")], "nothing is left"
