"""How many CPU threads a command uses."""

from __future__ import annotations

import os


def use_threads(wanted: int) -> None:
    """Let PyTorch compute with so many threads, but no more than there are processors: more of them only wait."""
    import torch

    torch.set_num_threads(max(min(wanted, os.cpu_count() or wanted), 1))
