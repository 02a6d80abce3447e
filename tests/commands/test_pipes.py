"""Every option of every command that names a file, given a pipe or a directory: it is read, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sparsenmt.cli import cli
from sparsenmt.commands.options import FilePath
from sparsenmt.data.text import read_lines
from tests.commands.support import Result, Run

SOURCE, TARGET = "corpus/test.en", "corpus/test.de"
SCORE = ("score", "--model", "model", "--source", SOURCE)
CONTRAST = ("contrast", "model", "--source", SOURCE, "--correct", TARGET, "--incorrect", "other")
ONCE: dict[tuple[str, str], tuple[str, ...]] = {
    ("decode", "--input"): ("decode", "model", "--input", SOURCE),
    ("score", "HYP"): ("score", TARGET, "-r", "other"),
    ("score", "--reference"): ("score", TARGET, "--reference", "other"),
    ("score", "--baseline"): ("score", TARGET, "-r", TARGET, "--baseline", "other"),
    ("score", "--source"): (*SCORE, "-r", TARGET, "--source", SOURCE),
    ("score", "--target"): (*SCORE, "--target", "other"),
    ("contrast", "--source"): (*CONTRAST[:2], "--correct", TARGET, "--incorrect", "other", "--source", SOURCE),
    ("contrast", "--correct"): (*CONTRAST, "--correct", TARGET),
    ("contrast", "--incorrect"): (*CONTRAST[:-2], "--incorrect", "other"),
    ("analyze ablate-heads", "--reference"): (
        "analyze",
        "ablate-heads",
        "model",
        "--input",
        SOURCE,
        "--reference",
        TARGET,
    ),
    ("analyze by-length", "--reference"): ("analyze", "by-length", "other", "--reference", TARGET),
    ("shortlist", "--test"): ("shortlist", "model", SOURCE, TARGET, "--output", "list", "--test", "other"),
}
"""Options that are read once, with a command line that ends with the file; of the reports of `analyze`, some."""
WRITTEN_ONCE = {("decode", "--output")}
"""A program may read it while it is written, as in ``>(command)``."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands by name, those of groups as "analyze pos"."""

    def walk(group: click.Group, before: str) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            if isinstance(found, click.Group):
                yield from walk(found, f"{before}{name} ")
            else:
                yield f"{before}{name}", found

    return walk(cli, "")


def named(parameter: click.Parameter) -> str:
    """The option, or the argument as it is shown."""
    if isinstance(parameter, click.Option):
        return parameter.opts[0]
    return parameter.human_readable_name.strip("[]. ")


FILES = [
    (name, parameter)
    for name, command in commands()
    for parameter in command.params
    if isinstance(parameter.type, click.Path)
]


@pytest.fixture
def pipe() -> Iterator[tuple[str, int]]:
    """A pipe as a shell names it in ``<(command)``, and its end for writing."""
    reader, writer = os.pipe()
    yield f"/dev/fd/{reader}", writer
    os.close(reader)


def test_all_files_are_looked_at() -> None:
    assert len(FILES) > 150 and len({name for name, _ in FILES}) > 35


def is_read_once(name: str, parameter: click.Parameter) -> bool:
    option = named(parameter)
    if option == "--log-file":
        return True  # it is only appended to
    if name == "score" and option in ("--text", "--alignments"):
        return True  # tests/commands/test_language_models.py, test_alignments.py
    if name.startswith("analyze"):
        return option == "--reference"
    return (name, option) in {*ONCE, *WRITTEN_ONCE}


@pytest.mark.parametrize(
    ("name", "parameter"), [pytest.param(*each, id=f"{each[0]} {named(each[1])}") for each in FILES]
)
def test_a_pipe_that_cannot_be_read_once_is_refused(
    name: str, parameter: click.Parameter, command: Run, pipe: tuple[str, int]
) -> None:
    path, _ = pipe
    if is_read_once(name, parameter):
        assert not isinstance(parameter.type, FilePath) or parameter.type.pipes
        return
    given = [parameter.opts[0], path] if isinstance(parameter, click.Option) else [path]
    before = [other.name for other in context_arguments(name, parameter)]
    result = command(*name.split(), *["x"] * len(before), *given)
    assert result.code == 2 and result.err.count("\n") == 2
    assert f"error: {named(parameter)}: {path} is a pipe, which cannot be read twice, nor replaced\n" in result.err


TEXTS = [(name, each) for name, each in FILES if isinstance(each.type, FilePath) and not each.type.directories]


def test_texts_are_many() -> None:
    options = {named(parameter) for _, parameter in TEXTS}
    assert {"HYP", "--source", "--reference", "--input", "--text", "--target", "--tags", "--documents"} <= options


@pytest.mark.parametrize(
    ("name", "parameter"), [pytest.param(*each, id=f"{each[0]} {named(each[1])}") for each in TEXTS]
)
def test_a_directory_in_the_place_of_a_text_is_refused(name: str, parameter: click.Parameter, command: Run) -> None:
    given = [parameter.opts[0], "model"] if isinstance(parameter, click.Option) else ["model"]
    result = command(*name.split(), *["x"] * len(context_arguments(name, parameter)), *given)
    assert result.code == 2 and result.err.count("\n") == 2
    assert f"error: {named(parameter)}: model is a directory, not a file\n" in result.err
    assert ("Name a model directory with --model" in result.err) is (named(parameter) == "HYP")


def context_arguments(name: str, parameter: click.Parameter) -> list[click.Parameter]:
    """The arguments that stand before another one."""
    found: list[click.Parameter] = []
    for each in dict(commands())[name].params:
        if each is parameter or isinstance(parameter, click.Option):
            break
        if isinstance(each, click.Argument):
            found.append(each)
    return found


@pytest.mark.parametrize(("name", "option"), ONCE)
def test_a_pipe_is_read_like_the_file(
    name: str, option: str, command: Run, workspace: Path, pipe: tuple[str, int]
) -> None:
    lines = list(read_lines(TARGET))
    (workspace / "other").write_text("".join(f"{line} so\n" for line in lines))
    *arguments, file = ONCE[name, option]
    if option == "HYP":
        _, file, *rest = ONCE[name, option]
        arguments = [*rest]
        first = command("score", file, *arguments)
    else:
        first = command(*arguments, file)
    assert first.code == 0, first.err
    path, writer = pipe
    os.write(writer, Path(file).read_bytes())
    os.close(writer)
    again = command("score", path, *arguments) if option == "HYP" else command(*arguments, path)
    assert _outcome(again, path) == _outcome(first, file)


def _outcome(result: Result, file: str) -> tuple[int, bytes]:
    return result.code, result.out.replace(file.encode(), b"FILE")
