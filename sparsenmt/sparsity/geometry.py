"""What patterns have in common: distances, the width of a window, and the sites where positions can be compared.

Shapes: B sentences, Q queries, K keys.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sparsenmt.sparsity.registry import Options

FARTHEST = 2**20  # as `model.max_positions`


class PatternOptions(Options):
    k: int = Field(8, ge=1, le=FARTHEST, description="Positions that a query attends to, its own included.")


def once(rows: Tensor) -> Tensor:
    """(B, N) -> (1, N) where all rows are one row expanded: then what depends on it is computed once, not B times."""
    return rows[:1] if rows.stride(0) == 0 else rows


def distance(queries: Tensor, positions: Tensor) -> Tensor:
    """queries (B, Q), positions (B, K) -> (B or 1, 1, Q, K): how far to the left of the query the key lies."""
    return once(queries)[:, None, :, None] - once(positions)[:, None, None, :]


def window_reach(k: int, *, causal: bool) -> tuple[int, int]:
    """Keys to the left and to the right in a window of k, the query's own included.

    Centred; of an even k the key too many lies on the left. Causal: the last k.
    """
    return (k - 1, 0) if causal else (k // 2, (k - 1) // 2)


def is_causal(site: str) -> bool:
    """Whether a query at a site of self-attention sees only what is before it.

    Raises:
        ValueError: at cross-attention, where a query's position and a key's count different sentences.
    """
    if site == "cross":
        raise ValueError(
            "at cross-attention positions of the target and of the source cannot be compared; only self-attention has "
            "neighbours"
        )
    return site == "decoder_self"
