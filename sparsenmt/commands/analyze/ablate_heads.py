"""``sparsenmt analyze ablate-heads``: the translation quality without each head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options, reference_option, site_option
from sparsenmt.commands.options import documents_option, scoring_options, significance_options
from sparsenmt.model.sites import SiteName


@click.command("ablate-heads")
@reference_option
@site_option("encoder_self")
@click.option(
    "--head", "heads", multiple=True, type=click.IntRange(1), help="Only this head, from 1; repeatable.  [default: all]"
)
@scoring_options("bleu chrf")
@documents_option
@significance_options
@analysis_options(translates=True)
def command(
    arguments: AnalysisArguments, reference: Path, site: SiteName, heads: tuple[int, ...], **options: Any
) -> None:
    """Translate the text with all heads, and with each head of a site disabled in all layers in turn.

    A disabled head gives zeros. Fixed heads come first, and are named by their pattern. Each row is compared with all
    heads.
    """
    from sparsenmt.analysis.head_ablation import measure_head_ablation

    arguments.show(measure_head_ablation, reference, site=site, heads=heads, **options)
