"""The sites at which queries and keys are positions of one text, so that they have a distance."""

from __future__ import annotations


def check_self_attention(site: str) -> None:
    """Raise ValueError at cross-attention, where positions belong to different sentences."""
    if site == "cross":
        raise ValueError(
            "at cross-attention positions of the target and of the source cannot be compared; only self-attention has "
            "distances"
        )
