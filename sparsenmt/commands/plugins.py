"""``sparsenmt plugins``: what plugins have registered, and which could not be loaded."""

from __future__ import annotations

import click

_KINDS = "method, strategy, metric, report, command"


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object: plugins, and failures.")
@click.option("--all", "built_in", is_flag=True, help="List what is built in, too.")
def command(as_json: bool, built_in: bool) -> None:
    """List what plugins have registered: methods, decoding strategies, metrics, reports and commands.

    A plugin is a module that an entry point names, in one of the groups sparsenmt.methods, sparsenmt.strategies,
    sparsenmt.metrics, sparsenmt.reports and sparsenmt.commands, or the environment variable SPARSENMT_PLUGINS (modules,
    separated by commas). All are loaded to be listed.

    \b
    kind      method, strategy, metric, report or command
    name      of a method behind its socket
    module    that registered it, and its file
    package   that the module belongs to, and its version; none: a module of no package

    The exit code is 2 if a plugin could not be loaded.
    """
    import json

    from sparsenmt.command import COMMANDS, REPORTS
    from sparsenmt.metric import METRICS
    from sparsenmt.plugins.modules import failures, package_of
    from sparsenmt.plugins.table import EntryTable
    from sparsenmt.report.tables import Column, Report, Table
    from sparsenmt.sparsity.registry import METHODS
    from sparsenmt.strategy import STRATEGIES

    rows = []
    tables: list[EntryTable[object]] = [METHODS, STRATEGIES, METRICS, REPORTS, COMMANDS]  # type: ignore[list-item]
    for table in tables:
        for name in table:
            origin = table.origin(name)
            if origin is not None and (built_in or origin.outside):
                file = origin.file if origin.outside else None
                rows.append((table.kind, name, origin.module, file, *package_of(origin.module)))
    failed = [(each.source, each.module, each.error.where, each.error.message, each.error.hint) for each in failures()]
    names = ("kind", "name", "module", "file", "package", "version")
    places = ("source", "module", "where", "error", "hint")
    if as_json:
        found = {
            "plugins": [dict(zip(names, row, strict=True)) for row in rows],
            "failures": [dict(zip(places, row, strict=True)) for row in failed],
        }
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        listed = Table("plugins", "plugins", tuple(map(Column, names)), rows)
        wrong = Table("failures", "plugins that could not be loaded", tuple(map(Column, places)), failed)
        notes = () if rows else ("no plugin is registered",)
        click.echo(Report("plugins", (listed, wrong), notes))
    if failed:
        raise click.exceptions.Exit(2)
