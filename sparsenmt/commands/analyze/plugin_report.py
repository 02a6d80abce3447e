"""The command of a report that a plugin registers: the options of its text, and one for each of its own settings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from sparsenmt.command import REPORTS, CommandEntry
from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.commands.options import PATH, Decorator, stacked
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.analysis.session import AnalysisSession

_TYPES: dict[Any, Any] = {int: int, float: float, str: str, bool: bool, Path: PATH}


def report_command(name: str, entry: CommandEntry) -> click.Command:
    """Make the command of a report.

    Args:
        entry: its ``target`` is the function that measures it, or a command that the plugin has made of
            `analysis_options` itself.

    Raises:
        UserError: it is neither, or a setting has no default, or no type of which an option can be made.
    """
    measure, place = entry.target, f"the plugin {entry.module}"
    if isinstance(measure, click.Command):
        return measure
    if not inspect.isfunction(measure):
        hint = "Write @register_report(...) above a function that takes a session and returns its result."
        raise UserError(f"{REPORTS.title(name)} is no function", where=place, hint=hint)

    def measured(session: AnalysisSession, /, **settings: Any) -> Any:
        from sparsenmt.analysis.session import AnalysisResult

        result = measure(session, **settings)
        if isinstance(result, AnalysisResult):
            return result
        raise UserError(
            f"{REPORTS.title(name)} returns {type(result).__name__} in place of an AnalysisResult",
            where=place,
            hint="Return session.result(report, draw).",
        )

    def call(arguments: AnalysisArguments, **settings: Any) -> None:
        arguments.show(measured, **settings)

    options = [_option(REPORTS.title(name), place, each) for each in _settings(measure)]
    decorated = stacked(*options, analysis_options(**entry.reads))(call)
    return click.command(name, help=inspect.getdoc(measure) or entry.help, short_help=entry.help)(decorated)


def _settings(measure: Any) -> list[inspect.Parameter]:
    """The parameters behind the session, with their types."""
    types = get_type_hints(measure, include_extras=True)
    parameters = list(inspect.signature(measure).parameters.values())[1:]
    return [each.replace(annotation=types.get(each.name, str)) for each in parameters]


def _option(title: str, place: str, setting: inspect.Parameter) -> Decorator:
    """The option of a setting."""
    kind, text = setting.annotation, ""
    if get_origin(kind) is Annotated:
        kind, text = get_args(kind)[:2]
    kinds = [each for each in get_args(kind) if each is not type(None)] if type(None) in get_args(kind) else [kind]
    usual, flag = setting.default, f"--{setting.name.replace('_', '-')}"
    type_ = click.Choice(get_args(kind)) if get_origin(kind) is Literal else _TYPES.get(kinds[0])
    if len(kinds) != 1 or type_ is None or usual is inspect.Parameter.empty:
        raise UserError(
            f"{title}: no option can be made of its setting '{setting.name}'",
            where=place,
            hint="Give it a default, and one of the types int, float, str, bool, Path or Literal, or None beside it.",
        )
    if type_ is bool:
        flag += f"/--no-{setting.name.replace('_', '-')}"
    shown = usual is not None and type_ is not bool
    return click.option(flag, setting.name, type=type_, default=usual, show_default=shown, help=text)
