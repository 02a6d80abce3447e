"""``--quiet`` and ``--log-file``, which every command and group has: before a subcommand or behind it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from sparsenmt import __version__
from sparsenmt.errors import UserError
from sparsenmt.process.log_file import OPTION, LogFile
from sparsenmt.process.progress import log, send_messages
from sparsenmt.process.runtime import is_main_process

_QUIET = f"{__name__}.quiet"
_LOG_FILE = f"{__name__}.log_file"


def add_message_options(command: click.Command) -> None:
    """Give a command or group the two options, unless it has them; a command obeys them before it begins."""
    if any(OPTION in option.opts for option in command.params):
        return
    command.params += [
        click.Option(
            ["--quiet"],
            is_flag=True,
            expose_value=False,
            callback=lambda context, _option, value: _keep(context, _QUIET, value),
            help="Show no progress and no notes; warnings and errors are shown.",
        ),
        click.Option(
            [OPTION],
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=lambda context, _option, value: _keep(context, _LOG_FILE, value),
            help="Append progress, notes, warnings and errors to this file, each with the time.",
        ),
    ]
    body = command.callback
    if isinstance(command, click.Group) or body is None:
        return

    @functools.wraps(body)
    def call(*arguments: Any, **named: Any) -> Any:
        _begin(click.get_current_context())
        return body(*arguments, **named)

    command.callback = call


def _keep(context: click.Context, key: str, value: object) -> None:
    """Keep a value that is given; that of a subcommand replaces that of its group."""
    if value:
        context.meta[key] = value


def _begin(context: click.Context) -> None:
    """Set the places of the command's messages, and begin its log."""
    path = context.meta.get(_LOG_FILE)
    file = None
    if path is not None and is_main_process():
        _check(path, context.params.values())
        file = LogFile(path)
    send_messages(quiet=context.meta.get(_QUIET, False), log=file)
    log(f"sparsenmt {__version__}: {context.obj or context.command_path}")


def _check(path: Path, values: Iterable[object]) -> None:
    """Refuse a log file that is a part of a model, or a file that the command reads or writes."""
    # By its name: the command line starts without the packages that this module imports.
    check_outputs = importlib.import_module("sparsenmt.report.output_files").check_outputs
    named = [each for value in values for each in (value if isinstance(value, tuple) else (value,))]
    try:
        check_outputs({OPTION: path}, [each for each in named if isinstance(each, Path)])
    except UserError as error:
        error.where = f"{OPTION} {error.where}"
        raise
