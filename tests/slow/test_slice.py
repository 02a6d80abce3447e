"""A model that `sparsenmt slice` cut translates real sentences as the whole one does at that depth.

Needs Multi30k, and the model in the directory that the environment variable SPARSENMT_MODEL names: one with several
layers on each side.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sparsenmt.cli import run
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.store import open_model

pytestmark = pytest.mark.slow

SENTENCES = 500


@pytest.fixture(scope="module")
def whole() -> Path:
    named = os.environ.get("SPARSENMT_MODEL")
    if not named:
        pytest.skip("SPARSENMT_MODEL names no model")
    return Path(named)


@pytest.fixture(scope="module")
def sentences(real_data: Path) -> tuple[list[str], list[str]]:
    folder = real_data / "multi30k"
    both = [list(read_lines(folder / f"test_2016_flickr.{language}.gz"))[:SENTENCES] for language in ("en", "de")]
    return both[0], both[1]


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("from_end", [(1, 0), (1, 1), (0, 1)])
def test_a_slice_translates_as_the_model_at_that_depth(
    whole: Path, sentences: tuple[list[str], list[str]], tmp_path: Path, from_end: tuple[int, int], unroll: bool
) -> None:
    bundle = open_model(whole, device=torch.device("cpu"))
    deepest = bundle.model.plan.deepest
    depth = (max(deepest[0] - from_end[0], 1), max(deepest[1] - from_end[1], 1))
    options = ["-n", str(depth[0]), "-m", str(depth[1]), *(["--unroll"] if unroll else [])]
    assert run(["slice", str(whole), str(tmp_path / "cut"), *options]) == 0
    cut = open_model(tmp_path / "cut", device=torch.device("cpu"))
    found = [each.text for each in translate_lines(cut, input_lines(sentences[0]), cut.recipe.decoding)]
    at_depth = bundle.recipe.decoding.at(depth)
    assert found == [each.text for each in translate_lines(bundle, input_lines(sentences[0]), at_depth)]
    forced = [each.log_probability for each in score_pairs(cut, input_lines(sentences[0]), sentences[1])]
    assert forced == [
        each.log_probability for each in score_pairs(bundle, input_lines(sentences[0]), sentences[1], depth=depth)
    ]
    assert len(found) == len(forced) == SENTENCES
