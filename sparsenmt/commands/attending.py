"""What the reports on attention heads share: sites, and reading a text while observers listen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from sparsenmt.commands.analyzing import AnalysisRequest, Text
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sparsenmt.analysis.observe import Observer, Output
    from sparsenmt.decoding.inputs import SourceLine
    from sparsenmt.model.sites import SiteName
    from sparsenmt.report.tables import Report
    from sparsenmt.store import Bundle

Listener = TypeVar("Listener", bound="Observer")

# As `model.interfaces.SITES`, which takes PyTorch to read.
SITES: tuple[SiteName, ...] = ("encoder_self", "decoder_self", "cross")
sites_option = click.option(
    "--site", "sites", multiple=True, type=click.Choice(SITES), help="Only this attention site; repeatable."
)


def read_along(
    job: AnalysisRequest, label: str, bundle: Bundle, text: Text, sites: Collection[SiteName]
) -> tuple[list[SourceLine], list[Output] | None]:
    """The text as pieces, and what is read along it; None where no site of the decoder is asked for."""
    sources = job.sources(bundle, text)
    decoding = any(site != "encoder_self" for site in sites)
    return sources, job.outputs(label, bundle, text, sources) if decoding else None


def attend(
    job: AnalysisRequest,
    label: str,
    bundle: Bundle,
    sources: Sequence[SourceLine],
    outputs: Sequence[Output] | None,
    observers: Sequence[Observer],
    sites: Collection[SiteName],
) -> None:
    """Let a model read a text, and what goes along it, while observers listen."""
    from sparsenmt.analysis.observe import observe

    with progress_bar(f"{label}: attention", len(sources)) as advance:
        limit = job.batch_limit(bundle)
        observe(bundle, sources, outputs, observers, sites=sites, batch_tokens=limit, advance=advance)


def each_attended(
    job: AnalysisRequest, text: Text, observer: Callable[[], Listener], sites: Collection[SiteName]
) -> Iterator[tuple[str, Bundle, Listener]]:
    """The models of a job, each with an observer that has listened while the model read the text."""
    for label, bundle in job.opened():
        listener = observer()
        sources, outputs = read_along(job, label, bundle, text, sites)
        attend(job, label, bundle, sources, outputs, [listener], sites)
        yield label, bundle, listener


def finish(job: AnalysisRequest, report: Report, sites: Collection[SiteName], *, draw: Callable[[], Figure]) -> None:
    """Print and write a report on sites, which its settings then name."""
    settings = {"sites": list(sites), "target": str(job.target_file) if job.target_file else None}
    job.finish(replace(report, settings=settings), draw=draw)
