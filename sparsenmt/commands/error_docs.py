"""`sparsenmt error-docs`: every message of the program, what it means and what to do, from the source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from sparsenmt.commands.error_catalogue import COMPLAINT, ERROR, INTERRUPT, WARNING, Catalogue, Entry

_INTRODUCTION = """\
# Errors

<!-- Written by `sparsenmt error-docs --output docs/errors.md` from the source: do not edit. -->

Every message of the program, what it is about and what to do. To find one that you saw, search this page for a few
words of it. `<words in angle brackets>` stand for what differs from case to case: a file, a number, a name.

## How to read a message

```
error: runs/de-en: this is not a model directory
  Name a directory that `sparsenmt train` wrote.
```

After `error:` stands the place (a file, with line and column where there are some; a key of the recipe; an option of
the command line), then what is wrong; the line below says what to do. A recipe's mistakes are shown together, each with
its file, line and key.

| exit code | meaning |
|---|---|
| 0 | The work is done. |
| 1 | An error of the program. It shows one line, `error: unexpected <kind>: <reason>; details in <file>`. |
| 2 | Something that you can mend: everything on this page, and what the command line does not understand. |
| 130 | Interrupted: Ctrl-C, or the signal SIGINT. |
| 141 | What read the output went away, as in `sparsenmt decode ... \\| head`. |
| 143 | Terminated: the signal SIGTERM, for instance from a batch system. |

**Errors of the program** are not on this page. The traceback stands in `sparsenmt-error-<date>-<time>-<process>.log`,
in the working directory or, where that cannot be written, in the system's directory for temporary files. Please report
it.

**What is kept.** Files are written beside their place and renamed when they are complete and on the disk. After an
error, an interrupt, a full disk or a crash, what stands under its name is complete. The first Ctrl-C or SIGTERM stops
in good order, a second one at once, which loses no more than the work since the last save:

- `prepare`: data that were complete before stay; the same command makes what is missing.
- `train`: the state after the last finished update is saved as a checkpoint. The same command goes on from it, as if
  it had never stopped.
- `decode --output FILE`: the finished lines stay beside the place of the output. The same command goes on after them.
- `distill`, `depth-table`: the stages, and the depths, that are complete stay; the same command makes what is missing.
- `average`, `score`: nothing is changed before the end.
"""


class Group(NamedTuple):
    """A part of the page: its title, a sentence below it, and the beginnings of the paths of its files."""

    title: str
    text: str
    files: tuple[str, ...]


GROUPS = (
    Group(
        "Recipes: files and YAML",
        "What is said of a value names its place as `<file>:<line>: <key>`, or `override '<key>=<value>'`.",
        ("recipe/origins.py", "recipe/syntax.py", "recipe/merging.py"),
    ),
    Group(
        "Recipes: keys and values",
        "The place is `<file>:<line>: <key>`, or `override '<key>=<value>': <key>` for what the command line changes.",
        ("recipe/",),
    ),
    Group(
        "Recipes: methods and the model",
        "Found by `prepare` and `train`, also with `--dump-config`; the file and the line stand before the key.",
        ("assemble.py", "sparsity/"),
    ),
    Group("Text and `sparsenmt prepare`", "", ("commands/prepare.py", "data/")),
    Group(
        "`sparsenmt train`",
        "",
        ("commands/train.py", "commands/checks.py", "commands/validate.py", "training/"),
    ),
    Group("Model directories and other files", "", ("store.py", "files.py", "tensors.py", "commands/average.py")),
    Group("`sparsenmt decode`", "", ("commands/decode", "commands/documents.py", "commands/selected.py", "decoding/")),
    Group("`sparsenmt distill`", "", ("commands/distill",)),
    Group("`sparsenmt depth-table` and `sparsenmt slice`", "", ("commands/depth", "commands/slic")),
    Group("`sparsenmt select-depth`", "", ("commands/select_depth.py", "commands/selecting.py", "selection/")),
    Group("`sparsenmt contrast`", "", ("commands/contrast.py", "evaluation/contrast/")),
    Group("`sparsenmt score`", "", ("commands/score.py", "evaluation/")),
    Group("`sparsenmt analyze`", "", ("commands/analyz", "analysis/")),
    Group(
        "`sparsenmt compare` and `sparsenmt sweep`",
        "What is wrong with a sweep's file stands with the recipes. Where a variant's recipe is wrong, its name stands "
        "after the key.",
        ("commands/compar", "commands/sweep", "commands/evaluating.py", "commands/several.py"),
    ),
    Group("`sparsenmt demo`", "", ("commands/demo.py",)),
    Group(
        "The command line",
        "A command or an option that does not exist is answered with `Usage: ...` and `Error: ...`, which names the "
        "nearest one.",
        ("cli.py",),
    ),
    Group("Everything else", "", ("",)),
)

# Places that say again what another place found, whose messages are listed there.
SAID_AGAIN = {
    ("recipe/problems.py", "raise_together"): "shows the complaints of a recipe, which are listed one by one",
    ("recipe/overrides.py", "_value_complaint"): "an override's value is YAML, whose errors are listed",
    ("recipe/syntax.py", "compose"): "shows the complaint that `_syntax` found, with the place",
}

_SYSTEM = """\
## The system

`error: <file>: <reason of the system>`: the disk is full, or a file or directory may not be read or written. Nothing
that was complete is lost: make room or change the permissions, and start the same command again.

`error: out of memory (<reason>)`: lower `training.batch_tokens`, `decoding.batch_tokens` or the model's sizes, or use a
larger machine.
"""


@click.command("error-docs", short_help="Write the catalogue of all messages.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: the terminal.")
def command(output: Path | None) -> None:
    """Write the catalogue of all errors and warnings (docs/errors.md)."""
    text = document(Catalogue.of_package())
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8", newline="\n")


def document(catalogue: Catalogue) -> str:
    """`docs/errors.md` for these errors."""
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
        ("Warnings", "The work goes on.", WARNING),
        ("Interrupts", "After `interrupted;` or `terminated;`, with the command that goes on.", INTERRUPT),
    ):
        parts.append(_section(Group(title, text, ()), [entry for entry in entries if entry.kind == kind]))
    return "\n".join(parts)


def _section(group: Group, entries: Iterable[Entry]) -> str:
    """A heading and the messages in alphabetical order; what several places say alike stands once."""
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
    """Signs and placeholders at the beginning do not count."""
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
    """Text as it is, in Markdown."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _text(text: str) -> str:
    """Prose in Markdown: outside of code, angle brackets and stars mean themselves."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "\\<").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)
