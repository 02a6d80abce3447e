"""Two fixed heads that look to the left only: the previous position, and the mean of everything before."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsenmt.model.sockets import Keys
from sparsenmt.sparsity.registry import Options, register


class LeftHeads:
    """Head 0 reads position i - 1, head 1 the mean of the positions before i; both are zero where there is nothing.

    Keys stand at consecutive positions: no stand-ins come here.
    """

    heads = 2
    names = ("previous", "mean of those before")

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        valid = keys.valid.expand(values.shape[0], -1)
        values = values * valid[:, None, :, None]
        before = (keys.queries - keys.positions[:, :1]).clamp(0, values.shape[2])  # (B, Q) keys left of the query
        index = before[:, :, None].expand(values.shape[0], -1, values.shape[3])
        none = values.new_zeros(values.shape[0], 1, values.shape[3])
        previous = torch.cat([none, values[:, 0]], 1)
        # A query behind the last key has no previous one.
        beyond = keys.queries - keys.positions[:, :1] > values.shape[2]
        sums = torch.cat([none, values[:, 1].cumsum(1)], 1)
        counts = torch.cat([none[:, :, 0], valid.to(values.dtype).cumsum(1)], 1).gather(1, before).clamp_min(1)
        first = previous.gather(1, index).masked_fill(beyond[:, :, None], 0.0)
        return torch.stack([first, sums.gather(1, index) / counts[:, :, None]], 1)

    def weights(self, keys: Keys) -> Tensor:
        back = keys.queries[:, :, None] - keys.positions[:, None, :]
        valid = keys.valid[:, None, :]
        left = ((back > 0) & valid).double()
        return torch.stack([((back == 1) & valid).double(), left / left.sum(-1, keepdim=True).clamp_min(1)], 1)


@register("heads", "toy_left")
def build(options: Options, *, site: str, heads: int) -> LeftHeads:
    return LeftHeads()
