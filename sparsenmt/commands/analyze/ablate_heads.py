"""``sparsenmt analyze ablate-heads``: what every head is worth in translation quality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import SITES
from sparsenmt.commands.options import metrics_option, resamples_option
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.model.sites import SiteName

METRICS = ("bleu", "chrf", "ter")


@click.command("ablate-heads", short_help="Quality with each head disabled in turn.")
@click.option(
    "--reference", "-r", type=click.Path(path_type=Path), required=True, help="Reference translation of the text."
)
@click.option(
    "--site", type=click.Choice(SITES), default="encoder_self", show_default=True, help="Attention site of the heads."
)
@click.option(
    "--head", "heads", multiple=True, type=click.IntRange(1), help="Only this head, from 1; repeatable.  [default: all]"
)
@metrics_option(METRICS, ".  [default: bleu chrf]")
@resamples_option
@analysis_options(translates=True)
def command(
    job: AnalysisRequest,
    reference: Path,
    site: SiteName,
    heads: tuple[int, ...],
    metrics: tuple[str, ...],
    resamples: int,
) -> None:
    """Translate the text with all heads, and with each head of a site disabled in all layers in turn.

    A disabled head gives zeros. Given heads come first, and are called by what they do. Each row is compared with all
    heads by paired bootstrap.
    """
    text = job.read()
    references = job.read_beside(reference, len(text.lines), job.text_name)

    from dataclasses import replace

    from sparsenmt.analysis.ablation import measure, panels, report
    from sparsenmt.report.plots import curves

    found = []
    for label, bundle in job.opened():
        names = dict(enumerate(bundle.model.head_names(site), start=1))
        if heads and max(heads) > len(names):
            raise UserError(
                f"{label} has {len(names)} heads at {site}, not {max(heads)}",
                where="--head",
                hint="Numbers count from 1; given heads come first, then learned ones.",
            )
        translations: dict[int | None, list[str]] = {None: [each.text for each in job.translate(label, bundle, text)]}
        for head in sorted(set(heads)) or names:
            with bundle.model.disable_heads(site, [head]):
                without = job.translate(f"{label}, without head {head}", bundle, text)
            translations[head] = [each.text for each in without]
        wanted = tuple(dict.fromkeys(metrics)) or ("bleu", "chrf")
        found.append(measure(label, site, translations, references, names, metrics=wanted, resamples=resamples))
    settings = {"reference": str(reference), "site": site, "resamples": resamples, "beam_size": job.beam_size}
    job.finish(replace(report(found), settings=settings), draw=lambda: curves(panels(found)))
