"""``sparsenmt analyze maps``: attention of single sentences, several models side by side."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.commands.attending import SITES, attend
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.analysis.cross_attention import Pick
    from sparsenmt.model.sites import SiteName
    from sparsenmt.store import Bundle

_MOST_DRAWN = 64
_COLUMNS = 120
"""Of a line, where the output is no terminal."""


@click.command("maps", short_help="Attention maps of sentences.")
@click.option("--site", type=click.Choice(SITES), default="cross", show_default=True, help="Attention site.")
@click.option(
    "--layer", "layers", multiple=True, type=click.IntRange(1), help="Only this layer; repeatable.  [default: all]"
)
@click.option(
    "--head", "heads", multiple=True, type=click.IntRange(1), help="Only this head; repeatable.  [default: all]"
)
@click.option("--apart", is_flag=True, help="A map for every head of every layer.  [default: their mean]")
@analysis_options(sentences=True, translates=True, targets=True)
def command(job: AnalysisRequest, site: SiteName, layers: tuple[int, ...], heads: tuple[int, ...], apart: bool) -> None:
    """Attention maps of sentences, several models side by side.

    Each model translates the sentences itself, or reads those of --target along them; weights are averaged over the
    heads and layers that are named. At cross-attention dropped words stand in brackets (in the plot: red) and get
    nothing; what their stand-in gets is the column "(dropped)". Rows are the pieces that look, weights are percent, a
    dot is exactly 0. Name a few sentences: --sentence, or --input with --limit.
    """
    notes = job.notes_on_gates(needed=False)
    given = job.read()
    job.check_few(given)

    from dataclasses import replace

    from sparsenmt.analysis.cross_attention import Pick, PickedAttention
    from sparsenmt.analysis.gates import gated_lines
    from sparsenmt.analysis.maps import grid, named_maps, report, text
    from sparsenmt.report.plots import heatmaps

    pick = Pick(site, tuple(sorted(set(layers))), tuple(sorted(set(heads))), apart)
    maps = []
    for label, bundle in job.opened():
        _check(label, bundle, pick)
        sources = job.sources(bundle, given)
        outputs = job.outputs(label, bundle, given, sources)
        lines = gated_lines(bundle, sources, batch_tokens=job.batch_limit(bundle))
        seen = PickedAttention(pick)
        attend(job, label, bundle, sources, outputs, [seen], [site])
        maps += named_maps(label, lines, outputs, seen, pick, bundle.tokenizers)
    maps.sort(key=lambda each: each.sentence)  # models and heads stay in their order
    if job.files["--plot"] is not None and len(maps) > _MOST_DRAWN:
        raise UserError(
            f"{len(maps):,} maps are too many for one picture: it holds {_MOST_DRAWN}",
            where="--plot",
            hint="Choose with --layer and --head, or name fewer sentences.",
        )
    made = replace(report(maps, pick), notes=tuple(notes))
    told = notes if site == "cross" else []
    shown = [text(maps, shutil.get_terminal_size((_COLUMNS, 24)).columns), *(["\n".join(told)] if told else [])]
    job.finish(made, draw=lambda: heatmaps(grid(maps)), text="\n\n".join(shown))


def _check(label: str, bundle: Bundle, pick: Pick) -> None:
    """Refuse layers and heads that a model does not have.

    Raises:
        UserError: there are some.
    """
    side, count = ("encoder", bundle.depth[0]) if pick.site == "encoder_self" else ("decoder", bundle.depth[1])
    if pick.layers and pick.layers[-1] > count:
        raise UserError(
            f"{label} has {count} {side} layer{'' if count == 1 else 's'}, not {pick.layers[-1]}",
            where="--layer",
            hint="Name one that there is.",
        )
    heads = len(bundle.model.head_names(pick.site))
    if pick.heads and pick.heads[-1] > heads:
        raise UserError(
            f"{label} has {heads} heads at {pick.site}, not {pick.heads[-1]}",
            where="--head",
            hint="Numbers count from 1; given heads come first, then learned ones.",
        )
