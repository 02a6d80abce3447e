"""``sparsenmt completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes the commands and options of sparsenmt.

    \b
    bash   eval "$(sparsenmt completion bash)"           in ~/.bashrc
    zsh    eval "$(sparsenmt completion zsh)"            in ~/.zshrc, after compinit
    fish   sparsenmt completion fish | source            in ~/.config/fish/config.fish

    bash needs version 4.4 or later.
    """
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    kind, program = kinds[shell], "sparsenmt"
    made = kind(context.find_root().command, {}, program, f"_{program.upper()}_COMPLETE")
    # Not `source()`: of bash it starts the one on this machine, which need not be the one that reads the script.
    click.echo(kind.source_template % made.source_vars())
