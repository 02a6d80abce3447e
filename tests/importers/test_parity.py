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


@pytest.mark.parametrize("variant", ["bart", "pegasus", "t5"])
def test_prefixes_and_drafts_are_those_of_constrained_and_assisted_generation(variant: str) -> None:
    """Transformers: `prefix_allowed_tokens_fn` with a greedy search and a beam, and `assistant_model`."""
    imported = Imported.of(GOLDEN / variant)
    required = imported.prefixes()
    assert (required >= 0).any() and (required[:, 0] < 0).any()
    for beam in (1, BEAM):
        theirs = imported.their_outputs(beam, "constrained")
        ours = imported.outputs(beam, required)
        assert ours or beam == BEAM  # of this, searches that end by themselves are compared
        assert all(output == theirs[number] for number, output in ours.items())
    assisted = imported.their_outputs(1, "constrained", "assisted")
    for draft_tokens in (1, 4):
        ours = imported.outputs(1, method="speculative", draft_tokens=draft_tokens)
        assert [ours[number] for number in range(len(assisted))] == assisted == imported.their_outputs(1)


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
