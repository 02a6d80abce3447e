"""Recipe to model: what is built, and what is refused with its key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sparsenmt.assemble.checks import check_losses, check_recipe
from sparsenmt.assemble.estimates import filters_without_gain
from sparsenmt.assemble.methods import required_features
from sparsenmt.assemble.model import build_model
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.sparsity.registry import Options, register
from tests.toys import registered


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    with registered():
        yield


def section(**values: object) -> schema.ModelSection:
    sizes = {"dimension": 16, "feed_forward": 32, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    return schema.ModelSection.model_validate({**sizes, **values})


def recipe(model: schema.ModelSection | None = None, **losses: float) -> schema.Recipe:
    data = {"directory": "d", "train": [{"source": "s", "target": "t"}], "dev": {"source": "s", "target": "t"}}
    weights = {name: {"weight": weight} for name, weight in losses.items()}
    whole = schema.Recipe.model_validate({"name": "x", "directory": "m", "data": data, "losses": weights})
    return whole.model_copy(update={"model": model or section()})


def site(**values: object) -> dict[str, object]:
    return {"attention": {"encoder_self": values}}


@pytest.mark.parametrize(
    ("values", "where", "what"),
    [
        (site(heads={"count": 3}), "model.attention.encoder_self.heads.count", "3 heads do not divide dimension 16"),
        (
            site(heads={"count": 1, "given": {"name": "toy_left"}}),
            "model.attention.encoder_self.heads.given",
            "fixed heads do not fit into 1",
        ),
        (
            site(heads={"count": 2, "given": {"name": "toy_left"}}, transform={"name": "toy_temperature"}),
            "model.attention.encoder_self.transform",
            "toy_temperature has no effect",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(values: dict[str, object], where: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        build_model(section(**values), source_size=9, target_size=9)
    assert caught.value.where == where


def test_features_are_those_of_the_chosen_methods() -> None:
    plain = recipe()
    assert required_features(plain) == frozenset()
    filtered = plain.model_copy(update={"model": section(memory=[{"name": "toy_tags"}])})
    assert required_features(filtered) == {"pos"}


def test_filters_between_stand_after_every_layer_but_the_last() -> None:
    model = build_model(
        section(encoder_layers=3, memory=[{"name": "toy_tags"}, {"name": "toy_faint", "at": "between"}]),
        source_size=9,
        target_size=9,
    )
    assert len(model.memory.output) == 1
    assert [len(filters) for filters in model.memory.between] == [1, 1]


def reader(site: str, **values: object) -> dict[str, object]:
    return {"attention": {site: values}}


FAINT, FAINT_BETWEEN = {"name": "toy_faint"}, {"name": "toy_faint", "at": "between"}


@pytest.mark.parametrize(
    ("values", "filters", "notes"),
    [
        ({}, [FAINT, FAINT_BETWEEN], []),
        (
            reader("cross", pattern={"name": "toy_lookback"}),
            [FAINT, {**FAINT_BETWEEN, "closed": "mask"}],
            [
                "model.memory.0 (toy_faint): dropped outputs stay as zeros, no time is saved: "
                "cross-attention has a pattern",
                "model.memory.1 (toy_faint): dropped outputs stay masked, no time is saved: "
                "cross-attention has a pattern",
            ],
        ),
        (
            reader("encoder_self", heads={"given": {"name": "toy_left"}}),
            [FAINT, FAINT_BETWEEN],
            [
                "model.memory.1 (toy_faint): dropped outputs stay as zeros, no time is saved: "
                "the encoder's self-attention has fixed heads"
            ],
        ),
        (
            reader("cross", transform={"name": "toy_recency"}),
            [FAINT],
            [
                "model.memory.0 (toy_faint): dropped outputs stay as zeros, no time is saved: "
                "cross-attention has a transform that depends on positions"
            ],
        ),
        (reader("decoder_self", pattern={"name": "toy_lookback"}), [FAINT, FAINT_BETWEEN], []),
        (
            {},
            [FAINT, {"name": "toy_tags"}, FAINT_BETWEEN],
            [
                "model.memory.0 (toy_faint): dropped outputs stay as zeros, no time is saved: "
                "a filter after it decides by position or feature",
                "model.memory.2 (toy_faint): dropped outputs stay as zeros, no time is saved: "
                "a filter decides by position or feature",
            ],
        ),
    ],
)
def test_filters_that_save_no_time_say_so(
    values: dict[str, object], filters: list[dict[str, object]], notes: list[str]
) -> None:
    chosen = section(**values, memory=filters, encoder_layers=3)
    model = build_model(chosen, source_size=9, target_size=9)
    assert filters_without_gain(chosen, model) == notes
    assert model.compacts == (len(notes) < len(filters))


WHOLE = {
    "attention": {
        "encoder_self": {"pattern": {"name": "toy_lookback"}, "heads": {"given": {"name": "toy_left"}}},
        "decoder_self": {"transform": {"name": "toy_recency"}},
        "cross": {"transform": {"name": "toy_temperature"}, "heads": {"count": 8}},
    },
    "memory": [{"name": "toy_faint"}, {"name": "toy_tags"}, {"name": "toy_faint", "at": "between"}],
    "depth": {"name": "toy_revisit"},
}
LOSSES = {"toy_strength": 0.1, "toy_openness": 0.0}


def test_a_recipe_is_checked_without_a_draw_and_without_the_whole_model() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_recipe(recipe(section(**WHOLE), **LOSSES))
    large = section(**WHOLE, feed_forward=2**20, encoder_layers=200, max_positions=2**20)
    check_recipe(recipe(large, **LOSSES))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("socket", "model", "where"),
    [
        ("pattern", {"attention": {"cross": {"pattern": {"name": "toy_stern"}}}}, "model.attention.cross.pattern"),
        (
            "transform",
            {"attention": {"cross": {"transform": {"name": "toy_stern"}}}},
            "model.attention.cross.transform",
        ),
        ("heads", site(heads={"given": {"name": "toy_stern"}}), "model.attention.encoder_self.heads.given"),
        ("memory", {"memory": [{"name": "toy_faint"}, {"name": "toy_stern"}]}, "model.memory.1"),
        ("memory", {"memory": [{"name": "toy_stern", "at": "between"}]}, "model.memory.0"),
        ("depth", {"depth": {"name": "toy_stern"}}, "model.depth"),
    ],
)
def test_a_method_that_refuses_is_heard(socket: str, model: dict[str, object], where: str) -> None:
    @register(socket, "toy_stern")  # type: ignore[arg-type]
    def build(options: Options, **context: object) -> None:
        raise ValueError(f"no use for {sorted(context)}.")

    chosen = recipe(section(**model))
    for attempt in (check_recipe, lambda whole: build_model(whole.model, source_size=9, target_size=9)):
        with pytest.raises(UserError, match="toy_stern: no use for") as caught:
            attempt(chosen)
        assert caught.value.where == where
        assert caught.value.hint and not caught.value.message.endswith(".")


def test_methods_get_the_sizes_that_they_will_have() -> None:
    seen = []

    @register("memory", "toy_listener")
    def build(options: Options, *, dimension: int) -> None:
        seen.append(dimension)
        raise ValueError("seen")

    with pytest.raises(UserError):
        check_recipe(recipe(section(dimension=48, memory=[{"name": "toy_listener"}])))
    assert seen == [48]


@pytest.mark.parametrize(
    ("losses", "where", "what"),
    [
        ({"toy_strength": 1.0, "other": 1.0}, "losses.other", "no method of the recipe has a loss 'other'"),
        ({}, "losses", "the loss 'toy_strength' has no weight"),
    ],
)
def test_losses_are_those_of_the_methods(losses: dict[str, float], where: str, what: str) -> None:
    chosen = recipe(section(memory=[{"name": "toy_faint"}]), **losses)
    model = build_model(chosen.model, source_size=9, target_size=9)
    for attempt in (check_recipe, lambda whole: check_losses(whole, model)):
        with pytest.raises(UserError, match=what) as caught:
            attempt(chosen)
        assert caught.value.where == where and caught.value.hint


def test_a_loss_of_parameters_has_no_target() -> None:
    spans = section(attention={"decoder_self": {"span": {"name": "adaptive_span", "maximum": 8, "ramp": 4}}})
    chosen = recipe(spans, span=0.1)
    model = build_model(chosen.model, source_size=9, target_size=9)
    check_recipe(chosen)
    check_losses(chosen, model)
    aimed = chosen.model_copy(update={"losses": {"span": schema.AuxiliaryLoss(target=0.4)}})
    for attempt in (check_recipe, lambda whole: check_losses(whole, model)):
        with pytest.raises(UserError, match="depends on parameters alone") as caught:
            attempt(aimed)
        assert caught.value.where == "losses.span.target" and caught.value.hint


def test_a_method_that_needs_its_real_size_is_left_to_training() -> None:
    @register("memory", "toy_large")
    def build(options: Options, *, dimension: int) -> torch.nn.Module:
        if dimension < 16:
            raise RuntimeError("too small for it")
        from tests.toys.faint_filter import FaintFilter, FaintOptions

        return FaintFilter(FaintOptions(), dimension)

    check_recipe(recipe(section(memory=[{"name": "toy_large"}], heads=2)))
    with pytest.raises(UserError, match="has no weight"):
        check_recipe(recipe(section(memory=[{"name": "toy_large"}], heads=16)))


def test_a_fault_of_a_method_is_no_mistake_of_the_user() -> None:
    @register("memory", "toy_broken")
    def build(options: Options, *, dimension: int) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        check_recipe(recipe(section(memory=[{"name": "toy_broken"}])))
