"""``sparsenmt analyze last-token``: the cross-attention on the end of the source."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("last-token")
@analysis_options(translates=True, target=True)
def command(arguments: AnalysisArguments) -> None:
    """Cross-attention mass on the last source token, </s>, by decoder layer; mean over heads and target positions.

    Decoders read the model's own translations, or those of --target. Positions that a filter has closed get nothing.

    \b
    last         mass on </s>
    before last  mass on the token before it
    even         mass on </s> if all visible positions had the same weight
    largest      share of heads at target positions where no token gets more than </s>
    """
    from sparsenmt.analysis.last_token import measure_last_token

    arguments.show(measure_last_token)
