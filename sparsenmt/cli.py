"""The command `sparsenmt`: a table of subcommands, imported when they are called; errors -> messages, exit codes.

Exit codes: 0 success; 1 an error of the program (the traceback goes to a file); 2 an error that the user can fix;
130 interrupted (SIGINT), 143 terminated (SIGTERM), 129 hung up (SIGHUP); 141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import datetime
import errno
import io
import os
import platform
import select
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

import click

from sparsenmt import __version__
from sparsenmt.command import COMMANDS
from sparsenmt.commands.lazy_group import LazyGroup
from sparsenmt.errors import UserError, is_out_of_memory, printable_lines
from sparsenmt.plugins.failure import plugin_error, plugin_titles
from sparsenmt.process.interrupts import Interrupted, listening, received
from sparsenmt.process.progress import duration, log, own_messages
from sparsenmt.process.runtime import (
    check_thread_variable,
    is_main_process,
    limit_kernel_caches,
    limit_thread_spinning,
    share_heap,
)

_BEGINS_AGAIN = "  No file is half-written: the same command begins again, and uses what is complete."
# Errors of the system that the user can fix; others are reported with a traceback.
_KEPT = "run the same command again: completed work is kept."
_SYSTEM_ERROR_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"Free disk space, and {_KEPT}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Change the permissions, or name another place."),
    **dict.fromkeys(
        (errno.ENAMETOOLONG, errno.ELOOP), "Name another place: this name is too long, or its links form a loop."
    ),
    errno.EIO: f"Check the disk, and {_KEPT}",
}


class Program(LazyGroup):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            os.getcwd()
        except OSError:  # libraries would end the process without a clear message
            hint = "Change to a directory that exists."
            raise UserError("the working directory was removed", where=".", hint=hint) from None
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # `sparsenmt decode ... | head`
            raise click.exceptions.Exit(141) from None


@click.group(
    cls=Program,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, run and analyze neural machine translation with sparse Transformers.",
    epilog="Run `sparsenmt COMMAND --help` for the options of a command.",
)
@click.version_option(__version__, message="sparsenmt %(version)s")
def cli() -> None:
    """Check the environment, before every command."""
    check_thread_variable()


class _StandardError(io.FileIO):
    """Standard error. Messages that cannot be written are dropped: a lost message must not end hours of work."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            written = super().write(data)
            if written is not None:  # None: a terminal that does not block is busy
                return written
        return len(data)


class _StandardOutput(io.FileIO):
    """Standard output. Everything is written, or the error names the stream: errors of the system do not."""

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left:
                written = super().write(left)
                if written is None:  # a pipe or terminal that does not block is full
                    select.select([], [self], [])
                else:
                    left = left[written:]
            return len(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"cannot be written: {error.strerror}",
                where="standard output",
                hint="Send it to another place, or free disk space; files that the command wrote are kept.",
            ) from None


def secure_streams() -> None:
    """Replace the standard streams: lost messages on stderr are ignored, lost results on stdout are errors."""
    # A descriptor that is closed (`2>&-`) would be given to the next file that is opened, and messages would be written
    # into that file. With these modes, reading and writing fail as before.
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest free descriptor is this one
    sys.stdout = _stream_like(sys.stdout, _StandardOutput(1, "w", closefd=False))
    sys.stderr = _stream_like(sys.stderr, _StandardError(2, "w", closefd=False))


def _stream_like(stream: TextIO | None, raw: io.FileIO) -> TextIO:
    """Make a text stream over a file, with the encoding and buffering of another one; None: those of stderr."""
    if not isinstance(stream, io.TextIOWrapper):
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True
        )
    unbuffered = isinstance(stream.buffer, io.RawIOBase)  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def main() -> None:
    """Run the command line of the process, and exit with its code."""
    secure_streams()
    limit_thread_spinning()
    limit_kernel_caches()
    share_heap()
    try:
        with listening():
            code = run(sys.argv[1:])
    except Interrupted as interrupt:  # between two commands of `run`
        code = interrupt.exit_code
    try:
        sys.stdout.flush()
    except (OSError, UserError):
        # The error was reported: discard the rest of the buffer, or the interpreter would report it again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line, given as the words after the program's name. Returns the exit code; shows no traceback."""
    began = time.monotonic()
    with own_messages():
        code = _run(arguments)
        log(f"exit code {code} after {duration(time.monotonic() - began)}")
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        result = cli.main(args=list(arguments), prog_name="sparsenmt", standalone_mode=False, obj=shlex.join(arguments))
    except UserError as error:
        if error.repeated:
            return 2
        _tell(f"error: {error}")
        if error.resumable:
            _tell(_resume_line(arguments))
        return 2
    except click.Abort as abort:  # click turns KeyboardInterrupt into it, and EOFError, which is no interrupt
        if isinstance(abort.__cause__, EOFError):
            _tell(_report_bug(abort.__cause__, list(arguments)))
            return 1
        return _report_interrupt(abort.__cause__, arguments)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = click.UsageError(f"{error.message}{_similar_options(error)}", error.ctx)
        shown = io.StringIO()
        error.show(shown)
        _tell(shown.getvalue().rstrip("\n").replace("\n\t", "\n    "))  # click's lists of choices
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _SYSTEM_ERROR_HINTS:
            place = f"{error.filename}: " if error.filename else ""
            _tell(f"error: {place}{os.strerror(error.errno)}\n  {_SYSTEM_ERROR_HINTS[error.errno]}")
            return 2
        if is_out_of_memory(error):
            _tell(
                f"error: out of memory ({' '.join(str(error).split())[:200]})\n  "
                "Lower training.batch_tokens, decoding.batch_tokens or the model's sizes, or use a larger machine."
            )
            return 2
        if (number := received()) is not None:
            log("".join(traceback.format_exception(error)))
            return _report_interrupt(Interrupted(number), arguments)
        if outside := plugin_error(error):
            _tell(f"error: {outside}")
            log("".join(traceback.format_exception(error)))
            return 2
        _tell(_report_bug(error, list(arguments)))
        return 1
    # Without standalone mode click returns the code of `ctx.exit(code)`, and what a command returns.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _report_interrupt(interrupt: BaseException | None, arguments: Sequence[str]) -> int:
    """Report what is kept, and the command that resumes the work; returns the exit code."""
    lines = ["interrupted"]
    code = 130
    if isinstance(interrupt, Interrupted):
        code = interrupt.exit_code
        lines[0] = "interrupted" if code == 130 else "terminated"
        lines[0] += f"; {interrupt.note}" if interrupt.note else ""
    if is_main_process():
        resumes = isinstance(interrupt, Interrupted) and interrupt.resumable
        lines.append(_resume_line(arguments) if resumes else _BEGINS_AGAIN)
    _tell("\n".join(lines))
    return code


_OTHER_OPTIONS = {"--sparsity": "--target", "--lambda": "--weight", "--gpu": "--device", "--beam": "--beam-size"}
"""Options as papers and other toolkits call them."""


def _similar_options(error: click.NoSuchOption) -> str:
    """Return a sentence with the option that may have been meant; click would offer ``--restart`` for ``--targets``."""
    names = [] if error.ctx is None else [name for each in error.ctx.command.params for name in each.opts]
    close = get_close_matches(error.option_name, names, n=1, cutoff=0.8)
    other = _OTHER_OPTIONS.get(error.option_name)
    meant = other if other in names else close[0] if close else None
    return f" Did you mean '{meant}'?" if meant else ""


def _tell(text: str) -> None:
    """Print lines on stderr, with control characters as escapes: names in them may come from strangers."""
    click.echo(printable_lines(text), err=True)
    log(text)


def _resume_line(arguments: Sequence[str]) -> str:
    return f"  Resume with: {shlex.join(['sparsenmt', *arguments])}"


def _report_bug(error: Exception, arguments: list[str]) -> str:
    """Write the traceback to a file; returns the line that the user sees."""
    what = " ".join(str(error).split())[:200]
    summary = f"error: unexpected {type(error).__name__}{f': {what}' if what else ''}"
    if others := plugin_titles():
        summary += f" (registered from outside: {', '.join(others)})"
    text = "\n".join(
        [
            f"sparsenmt {__version__}, Python {platform.python_version()}, {platform.platform()}",
            f"arguments: {arguments}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    # With the process id: several processes of one run may fail at the same time.
    name = f"sparsenmt-error-{stamp}-{os.getpid()}.log"
    for folder in (Path.cwd, tempfile.gettempdir):  # called one by one: the working directory may not exist
        try:
            path = Path(folder()) / name
            # Only a new file ("x"): the name can be guessed, and other users may write to the folder.
            with path.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
                stream.write(printable_lines(text))
            return f"{summary}; details in {path}"
        except OSError:
            continue
    return f"{summary}\n{text}"
