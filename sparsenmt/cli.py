"""The command `sparsenmt`: a table of subcommands, imported when they are called; errors -> messages, exit codes.

Exit codes: 0 success; 1 an error of the program (the traceback goes to a file); 2 something that the user can mend;
130 interrupted (SIGINT), 143 terminated (SIGTERM); 141 the reader of the output went away.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.lazy_group import CommandEntry, LazyGroup
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.interrupts import Interrupted, listening
from sparsenmt.runtime import limit_thread_spinning

COMMANDS: dict[str, CommandEntry] = {
    "prepare": CommandEntry("prepare", "Read a recipe's text, train its tokenizer, write binary data."),
    "train": CommandEntry("train", "Train a recipe's model on prepared data."),
    "finetune-l0": CommandEntry("finetune_l0", "Add gates to a trained model and train on; sweeps."),
    "decode": CommandEntry("decode", "Translate text with a trained model."),
    "score": CommandEntry("score", "Score translations, or a model on a test set."),
    "contrast": CommandEntry("contrast", "Contrastive test suites: is the correct translation more probable?"),
    "select-depth": CommandEntry("select_depth", "Train what chooses a depth for each sentence, and measure it."),
    "analyze": CommandEntry("analyze.group", "Report what gates drop, and where attention goes."),
    "analyze-pos": CommandEntry("analyze.pos", "The same as `sparsenmt analyze pos`: sparsity rate by part of speech."),
    "compare": CommandEntry("compare", "Compare trained models: quality, size, attention, speed."),
    "sweep": CommandEntry("sweep", "Train and evaluate the variants of a recipe; print their table."),
    "distill": CommandEntry("distill", "Train a student on a teacher's translations."),
    "depth-table": CommandEntry("depth_table", "Quality and time at every depth, and the oracle."),
    "slice": CommandEntry("slice", "Cut a model to fewer layers."),
    "average": CommandEntry("average", "Average checkpoints into one model."),
    "export": CommandEntry("export", "Write a model for CTranslate2 or Transformers."),
    "benchmark": CommandEntry("benchmark", "Measure decoding and training speed, and the share of the limit."),
    "demo": CommandEntry("demo", "Prepare, train, decode and score on the built-in demo corpus."),
}

# What the user can mend; other errors of the system are reported with a traceback.
_FULL = "Make room, and start the same command again: what was complete is kept."
_FORBIDDEN = "Allow it, or name another place."
_BROKEN = "Look after the disk, and start the same command again: what was complete is kept."
_USERS_SYSTEM_ERRORS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EIO: _BROKEN,
}


class Program(LazyGroup):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        _check_working_directory()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # `sparsenmt decode ... | head`: the rest has no reader. What the buffer still holds goes nowhere, or the
            # interpreter would complain about it on exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(141) from None


def _check_working_directory() -> None:
    """Libraries end the process without a word of use where there is none."""
    try:
        os.getcwd()
    except OSError:
        raise UserError(
            "the working directory is gone", where=".", hint="Change into a directory that exists."
        ) from None


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"sparsenmt {version()}")
        ctx.exit()


def version() -> str:
    """The package's version."""
    from sparsenmt import __version__

    return __version__


@click.group(
    cls=Program,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`sparsenmt COMMAND --help` says more.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Sparse Transformers for translation: from raw text to a scored translation."""


def main() -> None:
    """The entry point of the program: run the command line of the process and exit with its code."""
    limit_thread_spinning()
    try:
        with listening():
            code = run(sys.argv[1:])
    except Interrupted as interrupt:  # between two commands of `run`
        code = interrupt.exit_code
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line, given as the words after the program's name; returns the exit code, shows no traceback."""
    try:
        result = cli.main(args=list(arguments), prog_name="sparsenmt", standalone_mode=False)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except click.Abort as abort:  # click turns KeyboardInterrupt into it, and EOFError, which is no interrupt
        if isinstance(abort.__cause__, EOFError):
            click.echo(_report_bug(abort.__cause__, list(arguments)), err=True)
            return 1
        return _tell_of_interrupt(abort.__cause__, arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _USERS_SYSTEM_ERRORS:
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"error: {place}{os.strerror(error.errno)}\n  {_USERS_SYSTEM_ERRORS[error.errno]}", err=True)
            return 2
        if is_out_of_memory(error):
            click.echo(
                f"error: out of memory ({' '.join(str(error).split())[:200]})\n  "
                "Lower training.batch_tokens, decoding.batch_tokens or the model's sizes, or use a larger machine.",
                err=True,
            )
            return 2
        click.echo(_report_bug(error, list(arguments)), err=True)
        return 1
    # Without standalone mode click returns the code of `ctx.exit(code)`, and what a command returns.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _tell_of_interrupt(interrupt: BaseException | None, arguments: Sequence[str]) -> int:
    """Say what is kept and which command goes on; returns the exit code."""
    lines = ["interrupted"]
    code = 130
    if isinstance(interrupt, Interrupted):
        code = interrupt.exit_code
        lines[0] = "interrupted" if code == 130 else "terminated"
        lines[0] += f"; {interrupt.note}" if interrupt.note else ""
        if interrupt.resumable:
            lines.append(f"  Go on with: {shlex.join(['sparsenmt', *arguments])}")
    click.echo("\n".join(lines), err=True)
    return code


def _report_bug(error: Exception, arguments: list[str]) -> str:
    """Write the traceback to a file; returns the one line that the user sees."""
    import datetime
    import platform
    import traceback

    what = " ".join(str(error).split())[:200]
    summary = f"error: unexpected {type(error).__name__}{f': {what}' if what else ''}"
    text = "\n".join(
        [
            f"sparsenmt {version()}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {arguments}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    # The process's number: several processes of one run may fail in the same second.
    name = f"sparsenmt-error-{stamp}-{os.getpid()}.log"
    for folder in (Path.cwd, tempfile.gettempdir):  # called one by one: the working directory may be gone
        try:
            path = Path(folder()) / name
            path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
            return f"{summary}; details in {path}"
        except OSError:
            continue
    return f"{summary}\n{text}"
