"""``sparsenmt analyze maps``: cross-attention of single sentences, several models side by side."""

from __future__ import annotations

import click

from sparsenmt.commands.analyzing import Job, analysis_options, progress
from sparsenmt.errors import UserError


@click.command("maps", short_help="Cross-attention maps of sentences.")
@click.option("--layer", type=click.IntRange(1), help="Only this decoder layer.  [default: the mean of all]")
@analysis_options(sentences=True, translates=True)
def command(job: Job, layer: int | None) -> None:
    """Cross-attention maps of sentences, several models side by side.

    Each model translates the sentences itself; weights are averaged over heads and layers. Dropped words stand in
    brackets (in the plot: red) and get nothing; what their stand-in gets is the column "(dropped)". Rows are target
    pieces, weights are percent, a dot is exactly 0. Name a few sentences: --sentence, or --input with --limit.
    """
    notes = job.notes_on_gates(needed=False)
    given = job.read()
    job.check_few(given)

    from dataclasses import replace

    from sparsenmt.analysis.cross_attention import attention_maps
    from sparsenmt.analysis.maps import grid, name_map, report, text
    from sparsenmt.analysis.plots import heatmaps

    maps = []
    for label, bundle in job.opened():
        layers = bundle.model.plan.decoder_exits[-1]
        if layer is not None and layer > layers:
            raise UserError(
                f"{label} has {layers} decoder layer{'' if layers == 1 else 's'}, not {layer}",
                where="--layer",
                hint="Name one that there is.",
            )
        sources = job.sources(bundle, given)
        outputs = job.translate(label, bundle, given)
        limit = job.batch_limit(bundle)
        with progress(f"{label}: attention", len(sources)) as advance:
            found = list(attention_maps(bundle, sources, outputs, layer=layer, batch_tokens=limit, advance=advance))
        maps += [name_map(label, seen, bundle.tokenizers) for _, seen in sorted(found, key=lambda pair: pair[0])]
    maps.sort(key=lambda each: each.sentence)  # models stay in their order
    made = replace(report(maps, layer=layer), notes=tuple(notes))
    shown = "\n\n".join([*map(text, maps), *(["\n".join(notes)] if notes else [])])
    job.finish(made, draw=lambda: heatmaps(grid(maps)), text=shown)
