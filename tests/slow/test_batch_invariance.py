"""Design rule 9 on real sentences: what a sentence is translated to does not depend on its company.

Needs Multi30k; takes the model in the directory that the environment variable SPARSENMT_MODEL names, or trains a small
one for a few minutes.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.store import Bundle, open_model

pytestmark = pytest.mark.slow

SENTENCES = 500
RELATIVE = 1e-4  # forced log-probabilities in fp32
NEAR_TIE = 1e-3  # score gap of translations that differ in fp32
SHARE = 0.005  # of sentences that may differ


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> Path:
    named = os.environ.get("SPARSENMT_MODEL")
    if named:
        return Path(named)
    from sparsenmt.cli import run

    os.environ["SPARSENMT_DATA"] = str(real_data)
    directory = tmp_path_factory.mktemp("invariance")
    recipe = str(Path(__file__).parents[2] / "recipes" / "multi30k-en-de.yaml")
    places = [f"directory={directory / 'model'}", f"data.directory={directory / 'data'}"]
    short = [
        "model.preset=tiny",
        "training.max_updates=400",
        "training.warmup_updates=100",
        "training.validation.every=400",
        "training.save_every=400",
        "training.average_last=0",
        "training.compute_dtype=fp32",
    ]
    assert run(["prepare", recipe, *places, *short]) == 0
    assert run(["train", recipe, *places, *short]) == 0
    return directory / "model"


@pytest.fixture(scope="module")
def sentences(real_data: Path) -> tuple[list[str], list[str]]:
    folder = real_data / "multi30k"
    both = [list(read_lines(folder / f"test_2016_flickr.{language}.gz"))[:SENTENCES] for language in ("en", "de")]
    return both[0], both[1]


def wide(directory: Path) -> Bundle:
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None)
    return replace(bundle, model=bundle.model.double())


def translate(bundle: Bundle, lines: list[str], batch_tokens: int) -> list[str]:
    options = bundle.recipe.decoding.model_copy(update={"batch_tokens": batch_tokens})
    return [t.text for t in translate_lines(bundle, input_lines(lines), options)]


def test_float64_translations_are_identical_alone_shuffled_and_batched(
    model_directory: Path, sentences: tuple[list[str], list[str]]
) -> None:
    bundle, (sources, _) = wide(model_directory), sentences
    alone = translate(bundle, sources, 1)
    assert translate(bundle, sources, 2048) == alone
    assert translate(bundle, sources, 16384) == alone
    order = list(range(len(sources)))
    random.Random(1).shuffle(order)
    shuffled = translate(bundle, [sources[i] for i in order], 4096)
    assert [shuffled[order.index(i)] for i in range(len(sources))] == alone


def test_fp32_forced_log_probabilities_agree(model_directory: Path, sentences: tuple[list[str], list[str]]) -> None:
    bundle, (sources, targets) = open_model(model_directory, device=torch.device("cpu")), sentences
    alone = [s.log_probability for s in score_pairs(bundle, input_lines(sources), targets, batch_tokens=1)]
    for batch_tokens in (512, 4096, 32768):
        batched = [
            s.log_probability for s in score_pairs(bundle, input_lines(sources), targets, batch_tokens=batch_tokens)
        ]
        worst = max(abs(a - b) / abs(a) for a, b in zip(alone, batched, strict=True))
        print(f"batches of {batch_tokens}: largest relative difference {worst:.2e}")
        assert worst < RELATIVE


def test_fp32_translations_differ_only_at_near_ties(
    model_directory: Path, sentences: tuple[list[str], list[str]]
) -> None:
    bundle, exact, (sources, _) = (
        open_model(model_directory, device=torch.device("cpu")),
        wide(model_directory),
        sentences,
    )
    alone = translate(bundle, sources, 1)
    for batch_tokens in (512, 4096, 32768):
        batched = translate(bundle, sources, batch_tokens)
        differing = [i for i, (a, b) in enumerate(zip(alone, batched, strict=True)) if a != b]
        for i in differing:
            first, second = (score(exact, sources[i], text) for text in (alone[i], batched[i]))
            print(f"line {i + 1}: {alone[i]!r} {first:.6f}, in a batch {batched[i]!r} {second:.6f}")
            assert abs(first - second) < NEAR_TIE
        assert len(differing) <= SHARE * len(sources)


def score(bundle: Bundle, source: str, target: str) -> float:
    """The score that the search ranks by, in float64."""
    from sparsenmt.decoding.scores import length_penalty

    (pair,) = score_pairs(bundle, input_lines([source]), [target])
    return pair.log_probability / length_penalty(len(pair.tokens), bundle.recipe.decoding)
