"""Small models with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.engine.packing import take_over
from sparsenmt.model.protocol import Source
from sparsenmt.model.stacks import Decoder, Encoder
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from tests.toys import registered

SOURCE_SIZE, TARGET_SIZE = 24, 20


def section(**keys: Any) -> schema.ModelSection:
    """The ``model`` section of a recipe for a small model without dropout."""
    sizes = {"dimension": 16, "feed_forward": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    return schema.ModelSection.model_validate({**sizes, "tie_embeddings": "none", "dropout": {"residual": 0.0}, **keys})


def fresh_model(seed: int = 1, **keys: Any) -> Transformer:
    """As assembly leaves it."""
    with registered():
        model = section(**keys)
        sizes = (TARGET_SIZE, TARGET_SIZE) if model.shares_vocabulary else (SOURCE_SIZE, TARGET_SIZE)
        return build_model(model, source_size=sizes[0], target_size=sizes[1], seed=seed)


def random_model(dtype: torch.dtype = torch.float64, seed: int = 1, **keys: Any) -> Transformer:
    """Biases and norms are random too, so that a mistake in them shows; in evaluation mode."""
    model = fresh_model(seed, **keys).eval()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return model.to(dtype)


def random_source(lengths: tuple[int, ...] = (7, 4, 6), seed: int = 1) -> Source:
    rng = torch.Generator().manual_seed(seed)
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(4, TARGET_SIZE, valid.shape, generator=rng)
    return Source(tokens * valid, valid, {"pos": torch.randint(0, 5, valid.shape, generator=rng)})


def random_target(rows: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(4, TARGET_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))


def layer_by_layer(model: Transformer) -> None:
    """Let a packed encoder and decoder go on without the calls that compute all of their layers."""
    for name, kind in (("encoder", Encoder), ("decoder", Decoder)):
        part = getattr(model, name)
        made = kind.__new__(kind)
        torch.nn.Module.__init__(made)
        take_over(made, part)
        setattr(model, name, made)


def assert_same_function(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Two outputs are the same to 1e-9, and so are the gradients of a random projection of them."""
    assert float((found - expected).detach().abs().max()) < 1e-9
    direction = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((found * direction).sum(), leaves)
    theirs = torch.autograd.grad((expected * direction).sum(), leaves)
    for own, other in zip(ours, theirs, strict=True):
        assert float((own - other).abs().max()) < 1e-9
