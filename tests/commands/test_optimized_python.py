"""Without docstrings and assertions (`python -OO`, PYTHONOPTIMIZE=2) every command has its help, and does the same."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sparsenmt.cli import cli
from tests.commands.support import Run, python
from tests.commands.test_pipes import commands

HELP = """
from click import Context, Group
from sparsenmt.cli import cli

def walk(group):
    print(group.get_help(Context(group)))
    for name in group.list_commands(Context(group)):
        command = group.get_command(Context(group), name)
        walk(command) if isinstance(command, Group) else print(name, command.get_help(Context(command)))

walk(cli)
"""


def test_help_is_the_same() -> None:
    found = []
    for option in ("-B", "-OO"):
        process = python(option, "-c", HELP)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
        found.append(out.decode())
    assert found[0] == found[1] and found[0].count("Usage: ") > 35
    assert all(command.help for _, command in commands()) and cli.help


def test_a_description_is_read_from_the_source() -> None:
    group = click.Context(cli)
    command = cli.get_command(group, "score")
    assert command is not None and command.help
    described, command.help = command.help, None
    assert cli.get_command(group, "score") is command and command.help
    assert command.help.replace("\b", "").split() == described.replace("\b", "").split()


@pytest.mark.thorough
def test_commands_do_the_same(command: Run, workspace: Path) -> None:
    for arguments in (
        ("decode", "model", "--input", "corpus/test.en"),
        ("score", "corpus/test.de", "-r", "corpus/test.de", "-m", "bleu"),
        ("decode", "nowhere"),
    ):
        expected = command(*arguments)
        process = python("-OO", "-m", "sparsenmt", *arguments)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (expected.code, expected.out), err.decode()
