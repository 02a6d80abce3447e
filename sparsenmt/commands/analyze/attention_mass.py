"""``sparsenmt analyze attention-mass``: how much cross-attention source words get."""

from __future__ import annotations

from typing import Literal

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.progress import progress_bar


@click.command("attention-mass", short_help="Summed cross-attention of source words.")
@click.option(
    "--unit",
    type=click.Choice(["piece", "word"]),
    default="piece",
    show_default=True,
    help="What a source word is; the mass of a word is that of its retained pieces.",
)
@click.option("--eos/--no-eos", default=True, show_default=True, help="Whether </s> counts, on both sides.")
@click.option(
    "--threshold", type=click.FloatRange(0), default=0.6, show_default=True, help="Words with less mass are counted."
)
@analysis_options(translates=True)
def command(job: AnalysisRequest, unit: Literal["piece", "word"], eos: bool, threshold: float) -> None:
    """Cross-attention of source words, summed over the model's own translation.

    Weights are averaged over heads and layers. The mass on closed positions, all of which hold the same zero vector, is
    the stand-in's.

    \b
    words            source words, dropped ones included
    mean             mass of all words and the stand-in, a word
    retained         words with an open gate
    retained mean    their mass, a word
    under threshold  share of them with less mass than --threshold
    stand in mean    mass of the stand-in, a sentence that has one
    stand in share   share of all mass
    """
    notes = job.notes_on_gates(needed=False)
    text = job.read()

    from dataclasses import replace

    from sparsenmt.analysis.cross_attention import attention_maps
    from sparsenmt.analysis.mass import MassCounter, panels, report
    from sparsenmt.report.plots import curves

    found = []
    for label, bundle in job.opened():
        sources = job.sources(bundle, text)
        outputs = job.outputs(label, bundle, text, sources)
        counter = MassCounter(bundle.tokenizers.source, unit=unit, eos=eos)
        with progress_bar(f"{label}: attention", len(sources)) as advance:
            limit = job.batch_limit(bundle)
            for _, seen in attention_maps(bundle, sources, outputs, batch_tokens=limit, advance=advance):
                counter.add(seen)
        found.append(counter.found(label, threshold))
    made = report(found, unit=unit, eos=eos, threshold=threshold)
    settings = {"unit": unit, "eos": eos, "threshold": threshold, "beam_size": job.beam_size}
    made = replace(made, notes=(*made.notes, *notes), settings=settings)
    job.finish(made, draw=lambda: curves(panels(found, threshold), share_y=True))
