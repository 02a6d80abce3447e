"""``sparsenmt verify``: the certificate of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.commands.options import PATH, TEXT, count_option, report_options, threads_option

if TYPE_CHECKING:
    from sparsenmt.report.output_files import ReportFiles


@click.command("verify")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option("--source", type=TEXT, help="Text to check on.  [default: lines made from the vocabulary]")
@count_option("--lines", 16, "Number of lines, from the beginning of the text.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of lines and targets that are made.")
@click.option(
    "--renew", is_flag=True, help="Verify a model that was changed since it was certified, and replace its certificate."
)
@threads_option
@report_options(plot=None)
@click.pass_context
def command(context: click.Context, /, model: Path, files: ReportFiles, **options: Any) -> None:
    """Check that the model in MODEL_DIR computes what it promises, and write MODEL_DIR/certificate.json.

    \b
    steps       decoding step by step gives what decoding at once gives
    batch       a line alone gives what it gives in a batch
    compaction  dropped encoder outputs may be removed
    engines     the compiled kernels, PyTorch's operators and the trained model agree
    rounding    products in bf16 and int8 have no larger errors than rounding has
    search      beam search reports what forced decoding computes, alone and in batches
    export      the model that `export` writes for Transformers computes the same

    Figures are differences of log-probabilities, relative below -1. The tolerance in float64 is 1e-9, in fp32 1e-4; in
    bf16 and int8 it is what rounding does to these lines. The certificate has the hashes of all files that the model is
    read from: a later run compares them first, and measures again.

    The exit code is 0 if all holds, 1 if an equality does not, and 2 if files are damaged or others than those of the
    certificate.
    """
    from sparsenmt.process.progress import notify
    from sparsenmt.workflows.evaluation.verify import verify

    files.check([options["source"]])
    certificate = verify(model, **options)
    report = certificate.report()
    click.echo(report)
    for path in files.write(report):
        notify(f"{path}: written")
    if not certificate.holds:
        context.exit(1)
