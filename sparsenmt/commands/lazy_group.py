"""A click group whose subcommands are a table; only the one that is called is imported."""

from __future__ import annotations

import ast
import importlib
import inspect
from contextlib import suppress
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import click

from sparsenmt.command import CommandEntry
from sparsenmt.commands.message_options import add_message_options
from sparsenmt.errors import UserError
from sparsenmt.plugins.record import explain_missing
from sparsenmt.plugins.table import EntryTable


class LazyGroup(click.Group):
    """A group that reads its subcommands from a table and imports the one that is called.

    `--help` and completion read only the table, so they stay fast: of a plugin that an entry point names they show the
    package in place of a description.

    Args:
        table: name -> entry of every subcommand.
    """

    def __init__(self, *args: Any, table: EntryTable[CommandEntry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        add_message_options(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._descriptions())

    def _descriptions(self) -> dict[str, str]:
        """Name -> short help of every subcommand."""
        return {
            name: f"Of the package {package}." if (entry := self.table.known(name)) is None else entry.help
            for name, package in self.table.names().items()
        }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        if entry.target is None:
            module = importlib.import_module(f"sparsenmt.commands.{entry.module}")
            command: click.Command = module.command
            command.help = command.help or _description(module)
        else:
            command = self.plugin_command(cmd_name, entry)
        add_message_options(command)
        return command

    def plugin_command(self, name: str, entry: CommandEntry) -> click.Command:
        """Return the command that a plugin registered."""
        command = entry.target
        if isinstance(command, click.Command):
            return command
        raise UserError(
            f"{self.table.title(name)} is no command of click",
            where=f"the plugin {entry.module}",
            hint="Write @click.command() below @register_command(...).",
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._descriptions().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = {name: text for name, text in self._descriptions().items() if name.startswith(incomplete)}
        items = [CompletionItem(name, help=text) for name, text in found.items()]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close = get_close_matches(name.lower(), self.list_commands(ctx), n=1, cutoff=0.5)
            hint = f"Did you mean '{close[0]}'?" if close else f"Commands: {', '.join(self.list_commands(ctx))}."
            ctx.fail(f"There is no command '{name}'. {explain_missing(self.table.kind, name)}{hint}")
        return super().resolve_command(ctx, args)


def _description(module: ModuleType) -> str | None:
    """Read the description of a module's command from its source: PYTHONOPTIMIZE=2 removes the docstrings."""
    with suppress(OSError, SyntaxError, TypeError):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.FunctionDef) and node.name == "command":
                return ast.get_docstring(node)
    return None
