"""Write docs/reference/errors.md, the catalogue of all messages with their hints, from the source.

python -m tools.error_docs --output docs/reference/errors.md
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from tools.error_catalogue import COMPLAINT, ERROR, INTERRUPT, WARNING, Catalogue, Entry

_INTRODUCTION = """\
# Errors

<!-- Generated from the source by `make docs`: do not edit. -->

Every message of the program and what to do about it. To find a message, search this page for a few of its words.
`<words in angle brackets>` are placeholders for a file, a number, a name, ...

## How to read a message

```
error: runs/de-en: this is not a model directory
  Name a directory that `sparsenmt train` wrote.
```

After `error:` comes the place (a file, if possible with line and column; a key of the recipe; an option of the command
line), then what is wrong. The line below says what to do. All mistakes in a recipe are shown together, each with its
file, line and key.

| exit code | meaning |
|---|---|
| 0 | Success. |
| 1 | A bug in the program. It prints one line, `error: unexpected <kind>: <reason>; details in <file>`. |
| 2 | An error that you can fix: everything on this page, and invalid command lines. |
| 129 | Hung up: the terminal was closed (the signal SIGHUP). |
| 130 | Interrupted: Ctrl-C, or the signal SIGINT. |
| 141 | The reader of the output has exited, as in `sparsenmt decode ... \\| head`. |
| 143 | Terminated: the signal SIGTERM, for instance from a batch system. |

**Bugs** are not on this page. The traceback is written to `sparsenmt-error-<date>-<time>-<process>.log` in the working
directory or, if that is not writable, in the system's temporary directory. Please report it.

**What is kept.** Files are written under a temporary name and renamed when they are complete and on the disk. After an
error, an interrupt, a full disk or a crash, every file under its final name is complete. The first Ctrl-C, SIGTERM or
closed terminal stops cleanly; a second one stops at once and loses no more than the work since the last save:

- `prepare`: complete data are kept; the same command makes what is missing.
- `train`: the state after the last finished update is saved as a checkpoint. The same command resumes from it, and the
  result is that of an uninterrupted run.
- `decode --output FILE`: finished lines are kept in a file beside the output. The same command resumes after them.
- `distill`, `depth-table`: complete stages and depths are kept; the same command makes what is missing.
- `average`, `score`: nothing is written before the end.

**Messages that cannot be printed** (standard error closed, its disk full, its reader gone) are dropped, and the command
continues. A result that cannot be printed on standard output is an error.

**Several processes** (torchrun) wait for each other when they start, up to 30 minutes; the environment variable
`SPARSENMT_JOIN_SECONDS` changes that. If one of them ends, the others end with a message, and training continues from
the newest checkpoint when all are started again, with as many processes or with another number. If one hangs, the
others end after 6 hours (`SPARSENMT_WAIT_SECONDS`). A mistake that all of them find is shown by one
([scale](../guides/scale.md)).
"""


class Group(NamedTuple):
    """A section of the page: its title, an introduction, and the path prefixes of its files."""

    title: str
    text: str
    files: tuple[str, ...]


_FOLDERS = ("commands", *(f"workflows/{room}" for room in ("training", "decoding", "evaluation", "conversion")))


def _application(*names: str) -> tuple[str, ...]:
    """The prefixes of a command's files and of its workflow's."""
    return tuple(f"{folder}/{name}" for name in names for folder in _FOLDERS)


GROUPS = (
    Group(
        "Recipes: files and YAML",
        "The place of a value is `<file>:<line>: <key>`, or `override '<key>=<value>'`.",
        ("recipe/yaml_tree.py",),
    ),
    Group(
        "Recipes: keys and values",
        "The place is `<file>:<line>: <key>`, or `override '<key>=<value>': <key>` for overrides on the command line.",
        ("recipe/",),
    ),
    Group(
        "Recipes: methods and the model",
        "Reported by `prepare` and `train`, also with `--dump-config`; the file and the line come before the key.",
        ("assemble/checks.py", "assemble/estimates.py", "assemble/model.py", "sparsity/"),
    ),
    Group("Text and `sparsenmt prepare`", "", (*_application("prepare"), "data/")),
    Group(
        "`sparsenmt train` and `sparsenmt finetune-l0`",
        "",
        (
            *_application("train", "run_checks", "validate", "finetune", "continue_training"),
            "training/",
            "process/workers.py",
        ),
    ),
    Group(
        "Model directories and other files",
        "",
        ("assemble/", "storage/files.py", "storage/tensors.py", *_application("average")),
    ),
    Group(
        "`sparsenmt decode`",
        "",
        (*_application("decode", "documents", "selected"), "decoding/", "storage/resumable_output.py"),
    ),
    Group("`sparsenmt distill`", "", _application("distill")),
    Group("`sparsenmt depth-table` and `sparsenmt slice`", "", _application("depth", "slice")),
    Group("`sparsenmt select-depth`", "", (*_application("select_depth"), "depth_selector/")),
    Group("`sparsenmt contrast`", "", (*_application("contrast"), "evaluation/contrast/")),
    Group("`sparsenmt score`", "", (*_application("score"), "evaluation/")),
    Group("`sparsenmt analyze`", "", (*_application("analyz"), "analysis/")),
    Group(
        "`sparsenmt compare` and `sparsenmt sweep`",
        "Errors in a sweep's file are listed with the recipes. An error in the recipe of a variant names the variant "
        "after the key.",
        _application("compare", "sweep", "evaluate", "several"),
    ),
    Group("`sparsenmt demo`", "", _application("demo")),
    Group(
        "The command line",
        "An unknown command or option is answered with `Usage: ...` and `Error: ...`, which names the nearest one.",
        ("cli.py",),
    ),
    Group("Other errors", "", ("",)),
)

# Functions that repeat messages of other places, which list them.
SAID_AGAIN = {
    ("recipe/errors.py", "raise_together"): "shows the problems of a recipe, which are listed one by one",
    ("recipe/resolve.py", "_parse_override"): "the value of an override is YAML, whose errors are listed",
    ("recipe/yaml_tree.py", "_compose"): "adds the place to a complaint of `_syntax_complaint`",
    ("workflows/decoding/shared_windows.py", "SharedWindows.lead"): "the error of another process",
}

_SYSTEM = """\
## The system

`error: <file>: <reason of the system>`: the disk is full, or a file or directory cannot be read or written. Complete
files are kept: free disk space or change the permissions, and run the same command again.

`error: out of memory (<reason>)`: lower `training.batch_tokens`, `decoding.batch_tokens` or the model's sizes, or use a
larger machine.
"""


@click.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [default: stdout]")
def command(output: Path | None) -> None:
    """Write the catalogue of all errors and warnings (docs/reference/errors.md)."""
    text = error_reference(Catalogue.of_package())
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8", newline="\n")


def error_reference(catalogue: Catalogue) -> str:
    """The page for these errors."""
    entries = [entry for entry in catalogue.entries() if (entry.file, entry.function) not in SAID_AGAIN]
    parts = [_INTRODUCTION]
    rest = [entry for entry in entries if entry.kind in (ERROR, COMPLAINT)]
    for group in GROUPS:
        own = [entry for entry in rest if entry.file.startswith(group.files)]
        rest = [entry for entry in rest if entry not in own]
        if own:
            parts.append(_section(group, own))
    parts.append(_SYSTEM)
    for title, text, kind in (
        ("Warnings", "The command continues.", WARNING),
        ("Interrupts", "After `interrupted;` or `terminated;`, with the command that resumes.", INTERRUPT),
    ):
        parts.append(_section(Group(title, text, ()), [entry for entry in entries if entry.kind == kind]))
    return "\n".join(parts)


def _section(group: Group, entries: Iterable[Entry]) -> str:
    """A heading and the messages in alphabetical order; a message of several places is listed once."""
    places: dict[str, list[Entry]] = {}
    for entry in entries:
        for message in entry.messages:
            places.setdefault(message, []).append(entry)
    rows = [_cells(message, places[message]) for message in sorted(places, key=_alphabetical)]
    used = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    header = ["message", "place", "what to do", "source"]
    table = "\n".join(_row([row[column] for column in used]) for row in [header, ["---"] * 4, *rows])
    return "\n\n".join(filter(None, [f"## {group.title}", group.text, table])) + "\n"


def _alphabetical(message: str) -> tuple[str, str]:
    """The sort key of a message, without the signs and placeholders at its beginning."""
    letters = message.lower().removeprefix(f"{WARNING}: ")
    while letters.startswith("<") and ">" in letters:
        letters = letters.partition(">")[2]
    return letters.lstrip("`'\"-<>:;, ") or letters, message


def _cells(message: str, entries: list[Entry]) -> list[str]:
    where = _unique(text for entry in entries if entry.kind == ERROR for text in entry.where)
    hints = _unique(text for entry in entries for text in entry.hints)
    functions = _unique(f"{entry.file}: {entry.function}".rstrip(": ") for entry in entries)
    places = [", ".join(map(_code, texts)) for texts in (where, functions)]
    return [_code(message), places[0], " Or: ".join(map(_text, hints)), places[1]]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _code(text: str) -> str:
    """A literal text in Markdown."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _text(text: str) -> str:
    """Prose in Markdown: angle brackets and stars outside of code are escaped."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "\\<").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    command()
