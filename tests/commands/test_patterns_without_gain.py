"""A pattern that only masks works, and the commands say once that it saves no time; what has no meaning is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.assemble.estimates import patterns_without_gain, without_gain
from sparsenmt.assemble.model import build_model
from sparsenmt.recipe import schema
from tests.commands.support import Run
from tests.toys import registered

SITE = "model.attention"
SAID = "it only masks, no time is saved"


def test_train_and_decode_say_it_once(command: Run, workspace: Path) -> None:
    masks = f"{SITE}.encoder_self.pattern={{name: random, k: 4}}"
    trained = command("train", "small.yaml", "directory=masked", "training.max_updates=2", masks)
    decoded = command("decode", "masked", stdin=b"a house\nthe river\n")
    note = f"warning: {SITE}.encoder_self.pattern (random): {SAID}\n"
    assert trained.code == 0 and trained.err.count(note) == trained.err.count(SAID) == 1, trained.err
    assert decoded.code == 0 and decoded.err.count(note) == decoded.err.count(SAID) == 1, decoded.err
    assert decoded.out.count(b"\n") == 2


def test_nothing_is_said_where_bands_are_gathered(command: Run, workspace: Path) -> None:
    local = [f"{SITE}.encoder_self.pattern={{name: window, k: 4}}", f"{SITE}.cross.transform={{name: topk, k: 2}}"]
    trained = command("train", "small.yaml", "directory=local", "training.max_updates=2", *local)
    decoded = command("decode", "local", stdin=b"a house\n")
    assert trained.code == decoded.code == 0
    assert "no time is saved" not in trained.err + decoded.err


def test_every_site_that_only_masks_is_named() -> None:
    values = {
        "attention": {
            "encoder_self": {"pattern": {"name": "bigbird"}},
            "decoder_self": {"pattern": {"name": "dilated"}},
            "cross": {"pattern": {"name": "toy_lookback"}},  # it has a reach, but hypotheses are no positions
        },
        "memory": [{"name": "l0drop"}],
    }
    section = schema.ModelSection.model_validate({"preset": "tiny", **values})
    with registered():
        model = build_model(section, source_size=9, target_size=9)
        notes = [f"{SITE}.encoder_self.pattern (bigbird): {SAID}", f"{SITE}.cross.pattern (toy_lookback): {SAID}"]
        assert patterns_without_gain(section, model) == notes
        assert without_gain(section, model)[:2] == notes and "(l0drop)" in without_gain(section, model)[2]


@pytest.mark.parametrize(("position", "span", "notes"), [(False, False, 0), (True, False, 1), (True, True, 1)])
def test_the_first_keys_are_gathered_where_scores_do_not_depend_on_distances(
    position: bool, span: bool, notes: int
) -> None:
    site: dict[str, object] = {"pattern": {"name": "global", "k": 2}}
    site |= {"position": {"name": "transformer_xl"}} if position else {}
    site |= {"span": {"name": "adaptive_span"}} if span else {}
    section = schema.ModelSection.model_validate({"preset": "tiny", "attention": {"encoder_self": site}})
    assert len(patterns_without_gain(section, build_model(section, source_size=9, target_size=9))) == notes


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("encoder_self.transform={name: topk, k: 0}", "at least 1"),
        ("encoder_self.transform={name: topk_oow, k: 1}", "at least 2"),
        ("encoder_self.pattern={name: window, k: -1}", "at least 1"),
        ("encoder_self.pattern={name: dilated, k: 4, rate: 0}", "at least 1"),
        ("encoder_self.pattern={name: bigbird, k: 3}", "at least 4"),
        ("cross.pattern={name: block, k: 3}", "positions of the target and of the source cannot be compared"),
        ("cross.transform={name: topk_oow, k: 4}", "positions of the target and of the source cannot be compared"),
    ],
)
def test_what_has_no_meaning_is_refused_when_the_recipe_loads(
    refused: Callable[..., str], choice: str, message: str
) -> None:
    shown = refused("prepare", "small.yaml", f"{SITE}.{choice}", "data.directory=new")
    print(shown)
    assert message in shown and f"{SITE}.{choice.split('=')[0]}" in shown
