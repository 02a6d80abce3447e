"""``sparsenmt doctor``: the compiled kernels of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.options import report_options, threads_option

if TYPE_CHECKING:
    from sparsenmt.report.output_files import ReportFiles


@click.command("doctor")
@click.option("--measure", is_flag=True, help="Measure every class of the table of choices here; takes minutes.")
@threads_option
@report_options(plot=None)
def command(files: ReportFiles, threads: int | None, measure: bool) -> None:
    """Examine this machine: the compiled kernels in use, their files, correctness and speed.

    Kernels come from the wheel of this platform, or are built when sparsenmt is installed, if there is GCC; otherwise
    PyTorch's operators are used, which are slower. Each library is compared with PyTorch. A table, which was measured
    when sparsenmt was made, says which kernels are used.

    \b
    deviation   largest deviation from PyTorch over the allowed one; at most 1
    gain        PyTorch's time over the kernel's, by the table; it is used where it is faster
    choice      with --measure: other, if another choice than the table's is clearly faster here

    The exit code is 0 if all kernels are in use or turned off (SPARSENMT_NATIVE=0), otherwise 2.
    """
    from sparsenmt.process.progress import notify
    from sparsenmt.workflows.doctor import check_examined, examine

    files.check([])
    report = examine(threads, measure=measure)
    click.echo(report)
    for path in files.write(report):
        notify(f"{path}: written")
    check_examined(report)
