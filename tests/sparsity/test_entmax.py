"""The transforms: which parameters there are, who shares them, how they begin, and what a recipe may say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparsenmt.assemble.model import build_model
from sparsenmt.engine.build import build
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.recipe.load import load_resolved
from sparsenmt.sparsity.entmax import AdaptiveEntmax, EntmaxOptions, alpha_of
from sparsenmt.sparsity.registry import methods
from sparsenmt.sparsity.simplex.transform import EntmaxTransform
from sparsenmt.storage.tensors import load_tensors, save_tensors
from sparsenmt.testing.bench import attention_steps
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.state import make_optimizer
from tests.native.libraries import simplex_kernel
from tests.toys import registered


def model_with(*, depth: str = "plain", seed: int = 1, sites: tuple[str, ...] = SITES, **options: Any) -> Transformer:
    section = {
        **{"dimension": 16, "feed_forward": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 3},
        "attention": {site: {"transform": {"name": "entmax", **options}} for site in sites},
        "depth": {"name": depth},
    }
    with registered():
        return build_model(schema.ModelSection.model_validate(section), source_size=20, target_size=20, seed=seed)


def learned(model: nn.Module) -> dict[str, int]:
    """Name -> how many numbers."""
    return {name: value.numel() for name, value in model.state_dict().items() if ".transform." in name}


def test_names_and_sizes() -> None:
    names = [f"encoder.steps.{i}.self" for i in range(2)]
    names += [f"decoder.steps.{i}.{key}" for i in range(3) for key in ("self", "cross")]
    assert learned(model_with()) == {f"{name}.transform.alpha": 4 for name in names}
    assert learned(model_with(tie="layer")) == {f"{name}.transform.alpha": 1 for name in names}
    first = [f"{site}.transform.alpha" for site in ("encoder.steps.0.self", "decoder.steps.0.self")]
    assert learned(model_with(tie="site")) == dict.fromkeys([*first, "decoder.steps.0.cross.transform.alpha"], 1)
    assert learned(model_with(tie="all")) == {first[0]: 1}
    assert learned(model_with(alpha=1.3)) == {}


def test_a_layer_that_is_applied_twice_has_one_alpha_or_two() -> None:
    """The toy runs the encoder's first layer twice, and the decoder's first layer again at the end."""
    shared, own = learned(model_with(depth="toy_revisit")), learned(model_with(depth="toy_revisit", per="application"))
    assert (
        "encoder.steps.1.self.transform.alpha" not in shared and "decoder.steps.3.cross.transform.alpha" not in shared
    )
    assert len(shared) == 2 + 2 * 3 and len(own) == 3 + 2 * 4
    tied = learned(model_with(depth="toy_revisit", per="application", tie="layer"))
    assert tied == dict.fromkeys(own, 1)


@pytest.mark.parametrize("tie", ["none", "layer", "site", "all"])
def test_alphas_of_every_head(tie: str) -> None:
    model = model_with(tie=tie, depth="toy_revisit")
    found: dict[tuple[str, int], torch.Tensor] = {}
    for site, step in attention_steps(model):
        assert isinstance(step.transform, AdaptiveEntmax)
        found[site, step.step] = step.transform.alphas.detach()
        assert found[site, step.step].shape == (4,)
    different = {tuple(alphas.tolist()) for alphas in found.values()}
    assert len(different) == {"none": 8, "layer": 8, "site": 3, "all": 1}[tie]
    assert all(1.01 <= alpha <= 2 for alphas in different for alpha in alphas)


def test_shared_weights_survive_a_file_and_a_copy(tmp_path: Any) -> None:
    model = model_with(tie="site", seed=1)
    save_tensors(tmp_path / "weights.safetensors", model.state_dict())
    other = model_with(tie="site", seed=2)
    other.load_state_dict(load_tensors(tmp_path / "weights.safetensors", hint=""))
    twin = copy.deepcopy(other)
    with torch.no_grad():
        other.state_dict()["encoder.steps.0.self.transform.alpha"].zero_()
    for (_, step), (_, copied), (_, changed) in zip(*map(attention_steps, (model, twin, other)), strict=True):
        assert torch.equal(step.transform.alphas, copied.transform.alphas)
        assert torch.equal(step.transform.alphas, changed.transform.alphas) == (changed.site != "encoder_self")


@pytest.mark.parametrize("sites", [SITES, SITES[:1], SITES[1:2], SITES[2:]])
@pytest.mark.parametrize("engine", [build, TorchEngine])
def test_every_engine_gives_its_transforms_the_kernel(engine: Callable[[Transformer], Any], sites: Any) -> None:
    kernel = simplex_kernel()
    model = model_with(sites=sites)
    transforms = [module for module in model.modules() if isinstance(module, EntmaxTransform)]
    engine(model)
    assert transforms and all(each.solver is kernel for each in transforms)


def test_beginnings() -> None:
    drawn = torch.cat([value for name, value in model_with(seed=3).state_dict().items() if ".transform." in name])
    assert drawn.numel() == 32 and float(drawn.mean().abs()) < 0.6 and 0.6 < float(drawn.std()) < 1.4, "normal"
    for _, step in attention_steps(model_with(init=1.2)):
        torch.testing.assert_close(step.transform.alphas, torch.full((4,), 1.2))
    assert alpha_of(torch.tensor([-1e4, 0.0, 1e4])).tolist() == pytest.approx([1.01, 1.505, 2.0])


def test_weight_decay_leaves_alphas_alone() -> None:
    weights = MasterWeights(model_with(), torch.bfloat16)
    optimizer = make_optimizer(weights, schema.Optimizer(weight_decay=0.1))
    alphas = {id(value): value for name, value in weights.named.items() if ".transform." in name}
    assert len(alphas) == 8 and all(value.dtype == torch.float32 for value in alphas.values())
    for group in optimizer.param_groups:
        if any(id(parameter) in alphas for parameter in group["params"]):
            assert group["weight_decay"] == 0


def recipe_with(site: str = "cross", **options: Any) -> dict[str, Any]:
    corpus = {"source": "/a", "target": "/b"}
    return {
        "name": "test",
        "directory": "unused",
        "model": {"attention": {site: {"transform": {"name": "entmax", **options}}}},
        "data": {"directory": "unused", "train": [corpus], "dev": corpus},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.9}, "must be at least 1 .softmax., not 0.9"),
        ({"alpha": 3}, "must be at most 2, not 3"),
        ({"alpha": "learnt"}, "alpha"),
        ({"alpha": 1.5, "tie": "site"}, "`tie` is about a learned alpha, but alpha is 1.5"),
        ({"alpha": 1.5, "init": 1.5}, "`init` is about a learned alpha"),
        ({"alpha": 1.5, "per": "application"}, "`per` is about a learned alpha"),
        ({"init": 1.0}, "must lie between 1.01 and 2"),
        ({"init": 2.0}, "must lie between 1.01 and 2"),
        ({"tie": "heads"}, "must be one of none, layer, site, all"),
        ({"k": 4}, "k"),
    ],
)
def test_what_has_no_meaning_is_refused_when_the_recipe_loads(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_resolved(recipe_with(**options), methods())
    assert "model.attention.cross.transform" in f"{caught.value.where} {caught.value}"


def test_sites_that_share_begin_alike() -> None:
    section = schema.ModelSection.model_validate(
        {
            "attention": {
                "encoder_self": {"transform": {"name": "entmax", "tie": "all", "init": 1.5}},
                "cross": {"transform": {"name": "entmax", "tie": "all", "init": 1.2}},
            }
        }
    )
    with pytest.raises(UserError, match="begin with one `init`") as caught:
        build_model(section, source_size=20, target_size=20)
    assert caught.value.where == "model.attention.cross.transform"


def test_defaults() -> None:
    assert EntmaxOptions() == EntmaxOptions(alpha="learned", init=None, tie="none", per="block")
    recipe = load_resolved(recipe_with(alpha=1), methods())
    assert recipe.model.attention.cross.transform.options["alpha"] == 1
