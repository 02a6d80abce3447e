"""Recipe to model: what is built, and what is refused with its key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparsenmt.assemble import build_model, required_features
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.toys import registered


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    with registered():
        yield


def section(**values: object) -> schema.Model:
    sizes = {"dimension": 16, "feed_forward": 32, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    return schema.Model.model_validate({**sizes, **values})


def site(**values: object) -> dict[str, object]:
    return {"attention": {"encoder_self": values}}


@pytest.mark.parametrize(
    ("values", "where", "what"),
    [
        (site(heads={"count": 3}), "model.attention.encoder_self.heads.count", "3 heads do not divide dimension 16"),
        (
            site(heads={"count": 1, "given": {"name": "toy_left"}}),
            "model.attention.encoder_self.heads.given",
            "given heads do not fit into 1",
        ),
        (
            site(heads={"count": 2, "given": {"name": "toy_left"}}, transform={"name": "toy_temperature"}),
            "model.attention.encoder_self.transform",
            "toy_temperature has no meaning here",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(values: dict[str, object], where: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        build_model(section(**values), source_size=9, target_size=9)
    assert caught.value.where == where


def test_features_are_those_of_the_chosen_methods() -> None:
    data = {"directory": "d", "train": [{"source": "s", "target": "t"}], "dev": {"source": "s", "target": "t"}}
    plain = schema.Recipe.model_validate({"name": "x", "directory": "m", "data": data})
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
