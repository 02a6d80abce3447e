"""Depth methods: sizes as published, what recurrent layers share, which exits there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsenmt.assemble.model import build_model
from sparsenmt.model.protocol import Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.recipe.choices import PRESETS
from tests.model.support import fresh_model, random_model, random_source, random_target

BOTH = {"name": "recurrent"}


def published(**depth: Any) -> int:
    """Parameters of the paper's shape: base, one table of 33k pieces for source, target and output."""
    section = schema.ModelSection.model_validate({**PRESETS["base"], "tie_embeddings": "all", "depth": depth})
    with torch.device("meta"):
        model = build_model(section, source_size=33_000, target_size=33_000)
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_those_published() -> None:
    """Table 3 counts parameters and Adam's two moments: 183M tied, 73M recurrent; 36 plain models 4,608M."""
    tied, recurrent = published(name="tied_multi"), published(name="tied_multi", recurrent="both")
    assert (round(tied / 1e6, 1), round(recurrent / 1e6, 1)) == (61.0, 24.3)
    assert (round(3 * tied / 1e6), round(3 * recurrent / 1e6)) == (183, 73)
    assert (published(name="plain"), published(name="recurrent")) == (tied, recurrent)
    assert recurrent / tied == pytest.approx(0.40, abs=0.005)


def test_one_layer_is_stored_once() -> None:
    for side, stored in (("both", (1, 1)), ("encoder", (1, 3)), ("decoder", (4, 1))):
        model = fresh_model(encoder_layers=4, decoder_layers=3, depth={**BOTH, "side": side})
        assert (len(model.encoder.layers), len(model.decoder.layers)) == stored
        blocks = {name.split(".")[2] for name in model.state_dict() if name.startswith("encoder.layers")}
        assert blocks == {str(i) for i in range(stored[0])}


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recurrent_is_the_plain_model_whose_layers_are_equal(norm: str) -> None:
    recurrent = random_model(norm=norm, encoder_layers=3, decoder_layers=2, depth=BOTH)
    plain = random_model(norm=norm, encoder_layers=3, decoder_layers=2, seed=5)
    own = recurrent.state_dict()
    plain.load_state_dict({name: own[_first(name)] for name in plain.state_dict()})
    source, target = random_source(), random_target(3, 5)
    torch.testing.assert_close(outputs(recurrent, source, target), outputs(plain, source, target), rtol=0, atol=1e-12)


def _first(name: str) -> str:
    parts = name.split(".")
    return ".".join([*parts[:2], "0", *parts[3:]]) if parts[1] == "layers" else name


def outputs(model: Transformer, source: Source, target: torch.Tensor) -> torch.Tensor:
    (memory,) = model.encode(source).memories.values()
    (hidden,) = model.decode(target, memory).values()
    return hidden


def alphas(**transform: Any) -> set[str]:
    section = {site: {"transform": {"name": "entmax", **transform}} for site in ("encoder_self", "cross")}
    model = fresh_model(encoder_layers=3, decoder_layers=2, depth=BOTH, attention=section)
    return {name for name in model.state_dict() if name.endswith("alpha")}


def test_a_learned_alpha_is_shared_by_the_applications_or_not() -> None:
    first = {"encoder.steps.0.self.transform.alpha", "decoder.steps.0.cross.transform.alpha"}
    assert alphas() == first
    later = {*(f"encoder.steps.{i}.self.transform.alpha" for i in (1, 2)), "decoder.steps.1.cross.transform.alpha"}
    assert alphas(per="application") == first | later


def test_exits() -> None:
    model = fresh_model(encoder_layers=3, depth={"name": "tied_multi"})
    assert (model.plan.encoder_exits, model.plan.decoder_exits) == ((1, 2, 3), (1, 2))
    assert set(model.plan.pairs().values()) == {1 / 6} and model.plan.drawn == (None, None)
    weights = [[0, 0], [0, 2], [1, 1]]
    model = fresh_model(
        encoder_layers=3,
        depth={"name": "tied_multi", "weights": weights, "sample": {"encoder": 1}, "recurrent": "decoder"},
    )
    assert model.plan.pairs() == {(2, 2): 0.5, (3, 1): 0.25, (3, 2): 0.25}
    assert (model.plan.drawn, model.plan.encoder, model.plan.decoder) == ((1, None), (0, 1, 2), (0, 0))


def test_every_exit_passes_the_last_normalisation() -> None:
    """A pre-norm stack; a post-norm stack has none."""
    for norm in ("pre", "post"):
        model = random_model(norm=norm, encoder_layers=3, depth={"name": "tied_multi"})
        encoded = model.encode(random_source(), exits=(1, 2, 3))
        hidden = model.decode(random_target(3, 5), encoded.memories[1], exits=(1, 2))
        for states in (*[memory.states for memory in encoded.memories.values()], *hidden.values()):
            if norm == "pre":
                stack = model.encoder.norm if states.shape[1] == 7 else model.decoder.norm
                states = (states - stack.bias) / stack.weight
                torch.testing.assert_close(states.mean(-1), torch.zeros_like(states[..., 0]), rtol=0, atol=1e-9)
        assert isinstance(model.encoder.norm, torch.nn.LayerNorm) == (norm == "pre")


def test_gates_of_an_exit_are_its_own_or_shared() -> None:
    """What is told of the filters at the encoder's exits: the penalty is the mean over them, memories are compacted
    exit by exit."""
    shared = random_model(encoder_layers=3, depth={"name": "tied_multi"}, memory=[{"name": "l0drop"}])
    own = random_model(encoder_layers=3, depth={"name": "tied_multi"}, memory=[{"name": "l0drop", "per": "exit"}])
    assert [len({id(model.memory.at_exit(n)[0]) for n in (1, 2, 3)}) for model in (shared, own)] == [1, 3]
    for model in (shared, own):
        encoded = model.encode(random_source(), exits=(1, 2, 3), compact=True)
        mean = torch.stack([decided.losses["l0"] for decided in encoded.decided.values()]).mean(0)
        torch.testing.assert_close(encoded.losses["l0"], mean)
        for memory in encoded.memories.values():
            assert memory.gates is not None
            assert (
                int((memory.gates > 0).sum(1).max())
                <= memory.states.shape[1]
                <= int((memory.gates > 0).sum(1).max()) + 1
            )
    assert own.memory.at_exit(2)[0] is own.memory.output[0]["2"]  # type: ignore[index]
