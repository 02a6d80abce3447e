"""`sparsenmt slice`, and `decode` and `score` at a depth: a cut model is what the whole one does at that depth."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import read_manifest, read_recipe
from sparsenmt.cli import run
from tests.commands.support import Run
from tests.examples import examples

TEXT = "corpus/test.en"
MODELS: dict[str, list[str]] = {
    "tied": [
        "model.depth={name: tied_multi}",
        "model.memory=[{name: l0drop, per: exit}, {name: l0drop, at: between}]",
        "model.attention.cross.transform={name: entmax, per: application}",
        "losses={l0: {weight: 0.3}}",
    ],
    "recurrent": [
        "model.depth={name: tied_multi, recurrent: both, sample: {encoder: 1}}",
        "model.norm=post",
        "model.attention.decoder_self.transform={name: entmax}",
    ],
}


@pytest.fixture(scope="session")
def tied_models(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of `MODELS`, of 3 + 2 layers, trained for a few updates."""
    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        layers = ["model.encoder_layers=3", "model.decoder_layers=2"]
        few = ["training.max_updates=4", "training.validation.metric=loss"]
        for name, overrides in MODELS.items():
            assert run(["train", "small.yaml", f"directory={name}", *layers, *few, *overrides]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def models(tied_models: Path, workspace: Path) -> None:
    for name in MODELS:
        shutil.copytree(tied_models / name, workspace / name)


def layers(n: int, m: int) -> tuple[str, ...]:
    return "--encoder-layers", str(n), "--decoder-layers", str(m)


@examples("unroll", [False, True])
@examples("depth", [(2, 1), (1, 1), (3, 2)])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("models")
def test_a_slice_is_the_model_at_that_depth(
    command: Run, workspace: Path, name: str, depth: tuple[int, int], unroll: bool
) -> None:
    cut = command("slice", name, "-n", str(depth[0]), "-m", str(depth[1]), "cut", *(["--unroll"] if unroll else []))
    assert (cut.code, cut.out) == (0, b"") and "warning" not in cut.err, cut.err
    shutil.move(name, "elsewhere")  # the new directory needs nothing of the old one
    assert command("decode", "cut", "-i", TEXT, "-o", "of-cut", "--n-best", "2").code == 0
    assert command("decode", "elsewhere", "-i", TEXT, "-o", "at-depth", "--n-best", "2", *layers(*depth)).code == 0
    assert Path("of-cut").read_bytes() == Path("at-depth").read_bytes() != b""
    forced = ("--source", TEXT, "--target", "corpus/test.de")
    found = command("score", "--model", "cut", *forced)
    assert found.out == command("score", "--model", "elsewhere", *forced, *layers(*depth)).out
    bundle = open_model("cut", dtype=None)
    assert (bundle.recipe.model.encoder_layers, bundle.recipe.model.decoder_layers) == depth
    assert bundle.model.plan.pairs() == {depth: 1.0} and bundle.recipe.directory == "cut"
    assert bundle.recipe.losses.keys() == ({"l0"} if name == "tied" else set())
    blocks = (1, 1) if name == "recurrent" and not unroll else depth
    assert (len(bundle.model.encoder.layers), len(bundle.model.decoder.layers)) == blocks
    assert read_manifest(Path("cut"))["cut_from"]["layers"] == list(depth)


@pytest.mark.usefixtures("models")
def test_a_slice_is_an_ordinary_model(command: Run, workspace: Path) -> None:
    """It can be cut again, scored, and its recipe trains such a model."""
    assert command("slice", "tied", "-n", "2", "cut").code == 0
    assert command("slice", "cut", "cut-again").code == 0
    assert read_recipe(Path("cut")).model.memory == read_recipe(Path("cut-again")).model.memory
    model = ("score", "--model", "cut-again", "--source", TEXT, "-r", "corpus/test.de", "-m", "chrf", "--json")
    whole = ("score", "--model", "tied", "--source", TEXT, "-r", "corpus/test.de", "-m", "chrf", "--json")
    assert json.loads(command(*model).out) == json.loads(command(*whole, "--encoder-layers", "2").out)
    again = command("train", "cut/recipe.yaml", "directory=trained-again", "training.max_updates=1")
    assert again.code == 0, again.err


@pytest.mark.usefixtures("models")
def test_the_recipe_may_name_the_depth(command: Run, workspace: Path) -> None:
    overrides = ["model.encoder_layers=3", "model.decoder_layers=2", *MODELS["tied"], "training.max_updates=4"]
    depth = ["decoding.encoder_layers=1", "decoding.decoder_layers=2"]
    trained = command("train", "small.yaml", "directory=other", *overrides, "training.validation.metric=loss", *depth)
    assert trained.code == 0, trained.err
    forced = ("--source", TEXT, "--target", "corpus/test.de")
    by_recipe = command("score", "--model", "other", *forced)
    assert by_recipe.out == command("score", "--model", "tied", *forced, *layers(1, 2)).out
    assert by_recipe.out != command("score", "--model", "other", *forced, "--encoder-layers", "3").out
    validated = {name: _validation(name) for name in ("tied", "other")}
    assert validated["tied"] != validated["other"], "validation looks at the depth that is decoded"


def _validation(name: str) -> float:
    lines = (Path(name) / "metrics.jsonl").read_bytes().decode().split("\n")
    found = [json.loads(line) for line in lines if line]
    return float(next(line["loss"] for line in found if line["kind"] == "validation"))


@pytest.mark.usefixtures("models")
def test_a_decode_goes_on_only_at_the_same_depth(command: Run, workspace: Path) -> None:
    decode = ("decode", "tied", "-i", TEXT, "-o", "out.de")
    assert command(*decode, *layers(1, 1)).code == 0
    shallow = Path("out.de").read_bytes()
    assert command(*decode).code == 0
    assert Path("out.de").read_bytes() != shallow


@pytest.mark.usefixtures("models")
def test_depths_that_were_not_trained_are_warned_of(command: Run, workspace: Path) -> None:
    said = "was not trained to stop after 1 encoder and 1 decoder layers, only after 3 and 2"
    assert command("slice", "tied", "plain").code == 0
    for arguments in (
        ("decode", "plain", "-i", TEXT, *layers(1, 1)),
        ("score", "--model", "plain", "--source", TEXT, "--target", TEXT, *layers(1, 1)),
        ("slice", "plain", "-n", "1", "-m", "1", "cut"),
    ):
        result = command(*arguments)
        assert result.code == 0 and result.err.count("warning: ") == 1 and said in result.err, result.err


BAD: list[tuple[tuple[Any, ...], str, str]] = [
    (("decode", "tied", "-i", TEXT, "--encoder-layers", 4), "the encoder has 3 layers: 4 cannot", "--encoder-layers 4"),
    (("decode", "tied", "-i", TEXT, "--decoder-layers", 0), "the decoder has 2 layers: 0 cannot", "--decoder-layers 0"),
    (("score", "--model", "tied", "--source", TEXT, "-r", TEXT, "--decoder-layers", 3), "2 layers: 3", "1 to 2"),
    (("score", "--model", "tied", "--source", TEXT, "--target", TEXT, "--encoder-layers", -1), "-1 cannot", "1 to 3"),
    (("score", TEXT, "-r", TEXT, "--decoder-layers", 1), "needs --model", "--decoder-layers"),
    (("slice", "tied", "-n", 4, "cut"), "the encoder has 3 layers: 4 cannot", "--encoder-layers 4"),
    (("slice", "tied", "-m", 0, "cut"), "the decoder has 2 layers: 0 cannot", "1 to 2"),
    (("slice", "tied", "recurrent"), "the directory exists", "recurrent"),
    (("slice", "corpus", "cut"), "not a model directory", "corpus"),
    (("train", "small.yaml", "decoding.encoder_layers=2"), "2 layers cannot run", "decoding.encoder_layers"),
    (("train", "small.yaml", "decoding.decoder_layers=0"), "decoding.decoder_layers", "greater than 0"),
    (("train", "small.yaml", "model.depth={name: tied_multi, weights: [[1, 1]]}"), "1 rows of 1", "model.depth"),
    (("train", "small.yaml", "model.depth={name: tied_multi, weights: [[-1]]}"), "some weight", "model.depth"),
    (("train", "small.yaml", "model.depth={name: tied_multi, sample: {encoder: 2}}"), "2 exits cannot", "model.depth"),
    (("train", "small.yaml", "model.depth={name: tied_multi, sample: {middle: 1}}"), "middle", "model.depth"),
    (("train", "small.yaml", "model.depth={name: recurrent, side: none}"), "none", "model.depth"),
    (
        ("train", "small.yaml", "model.encoder_layers=2", "model.memory=[{name: l0drop, at: between, per: exit}]"),
        "before all later exits",
        "per",
    ),
]


@pytest.mark.parametrize(("arguments", "what", "where"), BAD)
@pytest.mark.usefixtures("models")
def test_what_has_no_meaning_is_refused(
    refused: Callable[..., str], arguments: tuple[Any, ...], what: str, where: str
) -> None:
    message = refused(*map(str, arguments))
    assert what in message and where in message
