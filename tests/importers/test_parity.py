"""Models of Transformers compute here what they compute there: golden logits, greedy and beam outputs of a family."""

from __future__ import annotations

import pytest
import torch

from tests.importers.parity import DOUBLE, GOLDEN, SINGLE, VARIANTS, Imported

BEAM = 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_outputs(variant: str) -> None:
    imported = Imported.of(GOLDEN / variant)
    assert imported.difference(torch.float64) < DOUBLE
    assert imported.difference(torch.float32) < SINGLE
    for beam in (1, BEAM):
        theirs = imported.their_outputs(beam)
        for number, output in imported.outputs(beam).items():
            assert output == theirs[number]


@pytest.mark.parametrize("variant", ["bart", "marian"])
def test_the_longest_lines_are_those_of_the_settings(variant: str) -> None:
    found = Imported.of(GOLDEN / variant).found
    assert found.text is not None
    assert found.text.longest == (found.recipe["model"]["max_positions"] - 1,) * 2, "`</s>` is not counted"


def test_every_family_is_tried() -> None:
    assert {variant.partition("-")[0] for variant in VARIANTS} == {
        "marian",
        "bart",
        "mbart",
        "pegasus",
        "m2m_100",
        "t5",
        "mt5",
    }


def test_some_beams_end_by_themselves() -> None:
    found = [len(Imported.of(GOLDEN / variant).outputs(BEAM)) for variant in ("bart", "pegasus", "marian")]
    assert any(found)
