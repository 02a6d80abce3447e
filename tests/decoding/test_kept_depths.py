"""Translations at every depth that are kept: what was stopped goes on, and nothing of other work is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding import kept_translations as kept_depths
from sparsenmt.decoding.kept_translations import KeptTranslations
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.recipe.schema import Decoding
from tests.depth_selector.support import LINES, deep_bundle

OPTIONS = Decoding(method="greedy", max_length_factor=0.5, max_length_offset=3)
TEXT = [*LINES[:11], "", LINES[0]]
MODEL = ModelIdentity("weights", {}, {}, 64)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_depths, "_WINDOW", 5)


def test_the_fastest_come_first() -> None:
    plan = DepthPlan((0, 1, 2), (0, 1), (1, 3), (1, 2))
    assert plan.depths() == [(1, 1), (3, 1), (1, 2), (3, 2)]
    assert DepthPlan((0, 1), (0, 1), (1, 2), (1, 2), ((0.0, 1.0), (1.0, 1.0))).depths() == [(2, 1), (1, 2), (2, 2)]


def test_translations_are_those_of_decoding_at_the_depth(tmp_path: Path) -> None:
    bundle = deep_bundle()
    for depth in ((1, 1), (2, 3)):
        told: list[int] = []
        found = KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS).at(bundle, depth, advance=told.append)
        assert found == [each.text for each in translate_lines(bundle, input_lines(TEXT), OPTIONS.at(depth))]
        assert sum(told) == len(TEXT)


def test_goes_on_after_the_last_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, real, calls = deep_bundle(), translate_lines, [0]

    def stopped(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(kept_depths, "translate_lines", stopped)
    kept = KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        kept.at(bundle, (2, 2))
    assert len(kept.cached((2, 2))) == 10 and kept.cached((1, 2)) == []
    again = KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS)
    assert again.at(bundle, (2, 2)) == [
        each.text for each in translate_lines(bundle, input_lines(TEXT), OPTIONS.at((2, 2)))
    ]
    assert calls[0] == 4, "one window was left"
    assert again.at(bundle, (2, 2)) == again.cached((2, 2)) and calls[0] == 4


def test_only_the_same_work_counts(tmp_path: Path) -> None:
    bundle = deep_bundle()
    kept = KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS)
    kept.at(bundle, (1, 1))
    assert len(KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS.at((2, 2))).cached((1, 1))) == len(TEXT)
    for other in (
        KeptTranslations(tmp_path, replace(MODEL, weights="other"), TEXT, OPTIONS),
        KeptTranslations(tmp_path, replace(MODEL, max_source_length=63), TEXT, OPTIONS),
        KeptTranslations(tmp_path, MODEL, TEXT[:-1], OPTIONS),
        KeptTranslations(tmp_path, MODEL, TEXT, OPTIONS.model_copy(update={"min_length": 2})),
    ):
        assert other.cached((1, 1)) == []
    (path,) = tmp_path.rglob("1-1.json")
    path.write_bytes(path.read_bytes().replace(b"translations", b"translation5"))
    assert kept.cached((1, 1)) == []
