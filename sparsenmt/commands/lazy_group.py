"""A click group whose subcommands are a table; only the one that is called is imported."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NamedTuple

import click

from sparsenmt.commands.message_options import add_message_options


class CommandEntry(NamedTuple):
    """A row of the table: the module below `sparsenmt.commands` that holds ``command``, and its short help."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A group that reads its subcommands from a table and imports the one that is called.

    `--help` and completion read only the table, so they stay fast.

    Args:
        table: name -> entry of every subcommand.
    """

    def __init__(self, *args: Any, table: Mapping[str, CommandEntry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        add_message_options(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"sparsenmt.commands.{entry.module}")
        command: click.Command = module.command
        command.help = command.help or _description(module)
        add_message_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.table[name].help) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.table[name].help) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close = get_close_matches(name.lower(), self.list_commands(ctx), n=1, cutoff=0.5)
            hint = f"Did you mean '{close[0]}'?" if close else f"Commands: {', '.join(self.list_commands(ctx))}."
            ctx.fail(f"There is no command '{name}'. {hint}")
        return super().resolve_command(ctx, args)


def _description(module: ModuleType) -> str | None:
    """Read the description of a module's command from its source: PYTHONOPTIMIZE=2 removes the docstrings."""
    with suppress(OSError, SyntaxError, TypeError):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.FunctionDef) and node.name == "command":
                return ast.get_docstring(node)
    return None
