"""The depth classifier: a self-attention encoder with a class token (Dabre, Rubino and Fujita 2020, Section 4.2).

It is built from the encoder of `sparsenmt.model`, pre-norm, because deep pre-norm stacks train with plain SGD.

Shapes: B sentences, S source tokens with ``</s>`` and the class token, V vocabulary, D dimension, K depths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsenmt.data.batching import pad
from sparsenmt.engine.packing import PackedLinear, Packing
from sparsenmt.model.embeddings import Positions, embed
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.linear import Linear
from sparsenmt.model.memory import Memory
from sparsenmt.model.stacks import Encoder, SiteModules
from sparsenmt.sparsity.softmax import Softmax

FEED_FORWARD = 2048
DROPOUT = 0.1  # of residuals; the paper does not say


class DepthClassifier(nn.Module):
    """The classifier of a source sentence: one logit for every depth.

    Args:
        embeddings: (V, D) the model's source embeddings, with which those of the classifier begin.
        depths: K.
        layers: number of encoder layers.
        heads: number of attention heads; it must divide the dimension.
    """

    def __init__(self, embeddings: Tensor, *, depths: int, layers: int, heads: int) -> None:
        super().__init__()
        vocabulary, dimension = embeddings.shape
        options = BlockOptions(dimension, FEED_FORWARD, "pre", "relu", DROPOUT, 0.0, 0.0)
        self.embeddings = nn.Parameter(torch.empty(vocabulary + 1, dimension))  # the class token is the last
        self.positions = Positions("sinusoidal", dimension, 0)
        self.encoder = Encoder(options, range(layers), SiteModules(SiteHeads(heads), lambda *place: Softmax()), [])
        self.output = Linear(dimension, depths)
        # as `build_model`: Glorot-uniform matrices, zero biases, embeddings N(0, 1/D)
        nn.init.normal_(self.embeddings, std=dimension**-0.5)
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.embeddings[:-1].copy_(embeddings)

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """Return logits (B, K) of tokens (B, S); the class token is the last valid one of valid (B, S) bool."""
        states = embed(tokens, self.embeddings, self.positions)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)
        memory = Memory(states, valid, positions)
        for step in range(len(self.encoder.plan)):
            memory = self.encoder.step(step, memory)
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        last = memory.states[rows, valid.sum(1) - 1]
        logits: Tensor = self.output(self.encoder.norm(last))
        return logits

    def read(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return logits (B, K) of sentences of source tokens, each ended by ``</s>``."""
        device = self.embeddings.device
        tokens, valid = pad([[*sentence, self.embeddings.shape[0] - 1] for sentence in sentences])
        found: Tensor = self(tokens.to(device), valid.to(device))
        return found

    def pack(self) -> None:
        """Pack the weights for inference; training is not possible afterwards."""
        self.eval().requires_grad_(False)
        how = Packing.of(self.embeddings)
        how.blocks(self.encoder.layers)
        self.output = PackedLinear(self.output, how)  # type: ignore[assignment]
