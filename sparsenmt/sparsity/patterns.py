"""Common parts of attention patterns: options, distances, and the sites where positions can be compared.

Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.registry import Options

FARTHEST = 2**20  # the bound of `model.max_positions`


class PatternOptions(Options):
    k: int = Field(8, ge=1, le=FARTHEST, description="Number of positions that a query attends to, its own included.")


def once(rows: Tensor) -> Tensor:
    """(B, N) -> (1, N) if all rows are one expanded row, so that a pattern is computed once, not B times."""
    return rows[:1] if rows.stride(0) == 0 else rows


def distance(queries: Tensor, positions: Tensor) -> Tensor:
    """queries (B, Q), positions (B, K) -> (B or 1, 1, Q, K): distance of the key to the left of the query."""
    return once(queries)[:, None, :, None] - once(positions)[:, None, None, :]


def window_reach(k: int, *, causal: bool) -> tuple[int, int]:
    """The number of keys to the left and to the right in a window of k keys, the query's own included.

    The window is centred, with one more key on the left if k is even. Causal: the last k keys.
    """
    return (k - 1, 0) if causal else (k // 2, (k - 1) // 2)


def check_self_attention(site: str, only: str = "distances") -> None:
    """Raise ValueError at cross-attention, where positions of queries and keys belong to different sentences.

    only: what self-attention alone has.
    """
    if site == "cross":
        raise ValueError(
            "at cross-attention positions of the target and of the source cannot be compared; only self-attention has "
            f"{only}"
        )


def is_causal(site: str) -> bool:
    """Return True if queries of a self-attention site do not see later positions; errors as `check_self_attention`."""
    check_self_attention(site, "neighbours")
    return site == "decoder_self"
