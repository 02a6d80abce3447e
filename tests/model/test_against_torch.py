"""Encoder and decoder against `torch.nn.Transformer` with the same weights: outputs and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.model.embeddings import Positions, embed
from sparsenmt.model.transformer import Transformer
from tests.model.support import random_model, random_source, random_target

HEADS, WIDTH = 4, 16
NAMES = {  # ours -> theirs, within a block
    "self.o": "self_attn.out_proj",
    "cross.o": "multihead_attn.out_proj",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
}
ENCODER_NORMS = {"self_norm": "norm1", "feed_forward_norm": "norm2"}
DECODER_NORMS = {"self_norm": "norm1", "cross_norm": "norm2", "feed_forward_norm": "norm3"}


def in_their_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our weights (or gradients) of both stacks under the names of `torch.nn.Transformer`."""
    found = {}
    for name, value in weights.items():
        parts = name.split(".")
        if parts[0] not in ("encoder", "decoder"):
            continue
        if parts[1] == "norm":
            found[name] = value
            continue
        head, inner, kind = ".".join(parts[:3]), ".".join(parts[3:-1]), parts[-1]
        names = NAMES | (ENCODER_NORMS if parts[0] == "encoder" else DECODER_NORMS)
        if inner in names:
            found[f"{head}.{names[inner]}.{kind}"] = value
        elif inner.endswith(".q"):
            site = {"self.q": "self_attn", "cross.q": "multihead_attn"}[inner]
            stacked = [weights[f"{head}.{inner[:-1]}{projection}.{kind}"] for projection in "qkv"]
            found[f"{head}.{site}.in_proj_{kind}"] = torch.cat(stacked)
    return found


def their_model(model: Transformer, norm: str, activation: str) -> nn.Transformer:
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 2, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    if norm == "post":  # theirs normalises once more at the end, which the original does not
        theirs.encoder.norm = theirs.decoder.norm = None
    theirs.load_state_dict(in_their_names(dict(model.state_dict())))
    return theirs.to(next(model.parameters()).dtype).train()  # no fast path, which would leave out padding


def vectors(model: Transformer, tokens: Tensor, side: str) -> Tensor:
    """Embedded tokens (B, T, D), computed apart from the model."""
    return embed(tokens, model.embeddings[side], Positions("sinusoidal", WIDTH, 64))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    ("norm", "activation", "dtype"),
    list(itertools.product(("pre", "post"), ("relu", "gelu"), (torch.float32, torch.float64))),
)
def test_equals_torch(norm: str, activation: str, dtype: torch.dtype) -> None:
    model = random_model(dtype, norm=norm, activation=activation)
    theirs = their_model(model, norm, activation)
    source, target = random_source((7, 4, 6)), random_target(3, 5)
    target_valid = torch.arange(5) < torch.tensor([5, 3, 4])[:, None]
    padding = ~source.valid

    memory = model.encode(source).memories[2]
    hidden = model.decode(target, memory)[2]
    their_memory = theirs.encoder(vectors(model, source.tokens, "source"), src_key_padding_mask=padding)
    future = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    their_hidden = theirs.decoder(
        vectors(model, target, "target"),
        their_memory,
        tgt_mask=future,
        memory_key_padding_mask=padding,
        tgt_key_padding_mask=~target_valid,
    )
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(memory.states[source.valid], their_memory[source.valid], atol=tolerance, rtol=0)
    torch.testing.assert_close(hidden[target_valid], their_hidden[target_valid], atol=tolerance, rtol=0)

    weigh = torch.randn(hidden[target_valid].shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    model.zero_grad()
    (hidden[target_valid] * weigh).sum().backward(retain_graph=True)
    ours = in_their_names({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    (their_hidden[target_valid] * weigh).sum().backward()
    expected = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        scale = float(expected[name].abs().max().clamp_min(1.0))
        torch.testing.assert_close(gradient, expected[name], atol=10 * tolerance * scale, rtol=0, msg=name)
