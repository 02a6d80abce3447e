"""``sparsenmt doctor``: the compiled kernels of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.options import report_options, threads_option

if TYPE_CHECKING:
    from sparsenmt.report.output_files import ReportFiles


@click.command("doctor")
@threads_option
@report_options(plot=None)
def command(files: ReportFiles, threads: int | None) -> None:
    """Examine this machine: the compiled kernels in use, their origin, correctness and speed.

    Kernels come from the installed wheel, or are built at first use where a C++ compiler is found; otherwise PyTorch's
    operators are used, which are slower. Each library is compared with PyTorch, and a few kernels are timed.

    \b
    deviation   largest deviation from PyTorch over the allowed one; at most 1
    gain        PyTorch's time over the kernel's; a kernel is used where it is faster

    The exit code is 0 if all kernels are in use or turned off (SPARSENMT_NATIVE=0), otherwise 2.
    """
    from sparsenmt.process.progress import notify
    from sparsenmt.report.tables import render
    from sparsenmt.workflows.doctor import check_examined, examine

    files.check([])
    report = examine(threads)
    click.echo(render(report))
    for path in files.write(report):
        notify(f"{path}: written")
    check_examined(report)
