"""What the reports on attention heads share: sites, and reading a text while observers listen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import Job, Text, progress

if TYPE_CHECKING:
    from sparsenmt.analysis.observe import Observer, Output
    from sparsenmt.decoding.inputs import SourceLine
    from sparsenmt.model.interfaces import SiteName
    from sparsenmt.store import Bundle

# As `model.interfaces.SITES`, which takes PyTorch to read.
SITES: tuple[SiteName, ...] = ("encoder_self", "decoder_self", "cross")
sites_option = click.option(
    "--site", "sites", multiple=True, type=click.Choice(SITES), help="Only this attention site; repeatable."
)


def read_along(
    job: Job, label: str, bundle: Bundle, text: Text, sites: Collection[SiteName]
) -> tuple[list[SourceLine], list[Output] | None]:
    """The text as pieces, and what is read along it; None where no site of the decoder is asked for."""
    sources = job.sources(bundle, text)
    decoding = any(site != "encoder_self" for site in sites)
    return sources, job.outputs(label, bundle, text, sources) if decoding else None


def attend(
    job: Job,
    label: str,
    bundle: Bundle,
    sources: Sequence[SourceLine],
    outputs: Sequence[Output] | None,
    observers: Sequence[Observer],
    sites: Collection[SiteName],
) -> None:
    """Let a model read a text, and what goes along it, while observers listen."""
    from sparsenmt.analysis.observe import observe

    with progress(f"{label}: attention", len(sources)) as advance:
        limit = job.batch_limit(bundle)
        observe(bundle, sources, outputs, observers, sites=sites, batch_tokens=limit, advance=advance)
