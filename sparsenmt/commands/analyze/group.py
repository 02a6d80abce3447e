"""``sparsenmt analyze``: reports on what gates drop, where attention goes, and what heads do."""

from __future__ import annotations

import click

from sparsenmt.commands.lazy_group import CommandEntry, LazyGroup

REPORTS = {
    "pos": CommandEntry("analyze.pos", "Sparsity rate by part of speech."),
    "position": CommandEntry("analyze.position", "Sparsity rate by position in the word."),
    "attention-mass": CommandEntry("analyze.attention_mass", "Summed cross-attention of source words."),
    "entropy": CommandEntry("analyze.entropy", "Entropy of self-attention, of kept and dropped positions."),
    "maps": CommandEntry("analyze.maps", "Attention maps of sentences."),
    "alphas": CommandEntry("analyze.alphas", "Learned alphas of entmax, and their course over training."),
    "spans": CommandEntry("analyze.spans", "Learned spans, and the quality that they were reached at."),
    "density": CommandEntry("analyze.density", "Share of visible positions that heads give weight to."),
    "diversity": CommandEntry("analyze.diversity", "Jensen-Shannon divergence between heads."),
    "roles": CommandEntry("analyze.roles", "Positional, BPE-merging and interrogation heads."),
    "dense-sentences": CommandEntry("analyze.dense_sentences", "Sentences on which sparse heads are unusually dense."),
    "last-token": CommandEntry("analyze.last_token", "Cross-attention mass on the last source token."),
    "ablate-heads": CommandEntry("analyze.ablate_heads", "Quality with each head disabled in turn."),
    "by-length": CommandEntry("analyze.by_length", "Quality by the length of sentences."),
    "layers": CommandEntry("analyze.layers", "Rates of every filter, by encoder layer."),
    "annotate": CommandEntry("analyze.annotate", "Sentences with kept and dropped words marked."),
}


@click.group("analyze", cls=LazyGroup, table=REPORTS)
def command() -> None:
    """Report what the gates of trained models drop, where their attention goes, and what their heads do.

    Every report prints a table; --json and --csv write its values, --plot draws it (PNG or SVG, with matplotlib).
    Several models are put side by side. The sparsity rate is the share of source positions, </s> included, whose gate
    is 0.
    """
