"""``sparsenmt analyze alphas``: the entmax alphas that attention heads have learned, and their course over training."""

from __future__ import annotations

import re

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName

_HEAD = re.compile(rf"({'|'.join(SITES)}):([1-9]\d{{0,4}})\.([1-9]\d{{0,4}})", re.ASCII)


def _heads(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> list[tuple[SiteName, int, int]]:
    found: list[tuple[SiteName, int, int]] = []
    for value in values:
        match = _HEAD.fullmatch(value)
        if match is None:
            raise UserError(
                f"{value!r} names no head", where="--head", hint="Write site, layer and head, as in `encoder_self:2.8`."
            )
        found += [(site, int(match[2]), int(match[3])) for site in SITES if site == match[1]]
    return list(dict.fromkeys(found))


@click.command("alphas")
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="SITE:LAYER.HEAD",
    callback=_heads,
    help="Draw the course of this head, as in `encoder_self:2.8`; repeatable.  [default: all, with histograms]",
)
@analysis_options(text=False)
def command(arguments: AnalysisArguments, heads: list[tuple[SiteName, int, int]]) -> None:
    """Alphas that attention heads have learned (transform `entmax` with `alpha: learned`): 1 is softmax, 2 sparsemax.

    The course over training is read from the log (metrics.jsonl, every `training.log_every` updates); where that holds
    no alphas, from the checkpoints that a model directory still has (`training.keep_last`). Without final weights, the
    alphas are those of the newest update.
    """
    from sparsenmt.analysis.alphas import measure_alphas

    arguments.show(measure_alphas, heads=heads)
