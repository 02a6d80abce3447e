"""A model that `sparsenmt slice` cut translates real sentences as the whole one does at that depth.

The model, with several layers on each side, is that of `conftest`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import open_model
from sparsenmt.cli import run
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("from_end", [(1, 0), (1, 1), (0, 1)])
def test_a_slice_translates_as_the_model_at_that_depth(
    model_directory: Path,
    sentences: tuple[list[str], list[str]],
    tmp_path: Path,
    from_end: tuple[int, int],
    unroll: bool,
) -> None:
    bundle = open_model(model_directory, device=torch.device("cpu"))
    deepest = bundle.model.plan.deepest
    assert min(deepest) > 1, "a model of one layer cannot be cut"
    depth = (deepest[0] - from_end[0], deepest[1] - from_end[1])
    options = ["-n", str(depth[0]), "-m", str(depth[1]), *(["--unroll"] if unroll else [])]
    assert run(["slice", str(model_directory), str(tmp_path / "cut"), *options]) == 0
    cut = open_model(tmp_path / "cut", device=torch.device("cpu"))
    found = [each.text for each in translate_lines(cut, input_lines(sentences[0]), cut.recipe.decoding)]
    at_depth = bundle.recipe.decoding.at(depth)
    assert found == [each.text for each in translate_lines(bundle, input_lines(sentences[0]), at_depth)]
    forced = [each.log_probability for each in score_pairs(cut, input_lines(sentences[0]), sentences[1])]
    assert forced == [
        each.log_probability for each in score_pairs(bundle, input_lines(sentences[0]), sentences[1], depth=depth)
    ]
    assert len(found) == len(forced) == len(sentences[0])
