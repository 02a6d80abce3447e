"""The depth classifier: a self-attention encoder with a class token (Dabre, Rubino and Fujita 2020, Section 4.2).

It is built from the engine's own encoder, pre-norm, as deep pre-norm stacks train with plain SGD.

Shapes: B sentences, S source pieces with ``</s>`` and the class token, V vocabulary, D dimension, K depths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsenmt.data.batching import pad
from sparsenmt.model.embeddings import Positions, embed
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.linear import Linear, Packing
from sparsenmt.model.memory import Memory
from sparsenmt.model.stacks import Encoder, SiteModules
from sparsenmt.sparsity.softmax import Softmax

FEED_FORWARD = 2048
DROPOUT = 0.1  # of residuals; the paper does not say


class DepthClassifier(nn.Module):
    """Source pieces to a logit for every depth.

    Args:
        vocabulary: V, the pieces of the model's source vocabulary.
        dimension: D, that of the model's embeddings.
        depths: K.
        layers: of the encoder.
        heads: of its attention; they must divide the dimension.
    """

    def __init__(self, *, vocabulary: int, dimension: int, depths: int, layers: int, heads: int) -> None:
        super().__init__()
        options = BlockOptions(dimension, FEED_FORWARD, "pre", "relu", DROPOUT, 0.0, 0.0)
        self.embeddings = nn.Parameter(torch.empty(vocabulary + 1, dimension))  # the class token is the last
        self.positions = Positions("sinusoidal", dimension, 0)
        self.encoder = Encoder(options, range(layers), SiteModules(SiteHeads(heads), lambda *place: Softmax()), [])
        self.output = Linear(dimension, depths)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the engine: Glorot-uniform matrices, zero biases, embeddings N(0, 1/D)."""
        nn.init.normal_(self.embeddings, std=self.embeddings.shape[1] ** -0.5)
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def take_embeddings(self, table: Tensor) -> None:
        """Begin with the model's embeddings of source pieces (V, D)."""
        with torch.no_grad():
            self.embeddings[:-1].copy_(table)

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """tokens (B, S), the class token last of what is valid; valid (B, S) bool -> logits (B, K)."""
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
        """Source pieces, each ended by ``</s>`` -> logits (B, K)."""
        device = self.embeddings.device
        tokens, valid = pad([[*pieces, self.embeddings.shape[0] - 1] for pieces in sentences])
        found: Tensor = self(tokens.to(device), valid.to(device))
        return found

    def pack(self) -> None:
        """Prepare for decoding; training is not possible afterwards."""
        self.eval().requires_grad_(False)
        self.encoder.pack(Packing())
        self.output.pack()
