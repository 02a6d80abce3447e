"""Models of Transformers compute here what they compute there: golden logits, greedy and beam outputs of each family."""

from __future__ import annotations

import pytest
import torch

from tests.importers.parity import DOUBLE, SINGLE, VARIANTS, Imported

BEAM = 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_outputs(variant: str) -> None:
    from tests.importers.parity import GOLDEN

    imported = Imported.of(GOLDEN / variant)
    assert imported.difference(torch.float64) < DOUBLE
    assert imported.difference(torch.float32) < SINGLE
    for beam in (1, BEAM):
        assert imported.outputs(beam) == imported.their_outputs(beam)


def test_every_family_is_tried() -> None:
    assert {variant.partition("-")[0] for variant in VARIANTS} == {"marian", "bart", "mbart", "pegasus", "m2m_100"}
