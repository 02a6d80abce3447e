"""``sparsenmt import``: a model of Transformers as a model directory. What it computes, tests/importers compares."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import read_manifest, read_recipe
from sparsenmt.importers.families.table import FAMILIES
from sparsenmt.process.interrupts import listening
from sparsenmt.storage.tensors import load_foreign_tensors, save_tensors
from sparsenmt.workflows.conversion import import_model
from tests.commands.support import Run

HINT = "Test."


@pytest.fixture
def exported(command: Run, workspace: Path) -> Path:
    """The trained model in the format of Transformers."""
    assert command("export", "model", "--to", "safetensors-hf", "hf").code == 0
    return Path("hf")


def test_an_exported_model_comes_back(command: Run, exported: Path) -> None:
    result = command("import", exported, "back", "--source-language", "en", "--target-language", "de")
    assert result.code == 0 and result.out == b"", result.err
    assert "1 encoder and 1 decoder layers of dimension 32" in result.err and "sparsenmt decode back" in result.err
    ours, again = (open_model(Path(name), dtype=None).model.state_dict() for name in ("model", "back"))
    assert ours.keys() == again.keys() and all(torch.equal(ours[name], again[name]) for name in ours)
    arguments = ("--length-penalty", "gnmt", "--max-length-factor", "0.5", "--max-length-offset", "5")
    text = Path("corpus/test.en").read_bytes()
    translations = [command("decode", name, *arguments, stdin=text).out for name in ("model", "back")]
    assert translations[0] == translations[1] and translations[0].strip()
    assert list(read_manifest(Path("back"))["imported_from"]["weights"]) == ["model.safetensors"]
    assert command("export", "back", "--to", "safetensors-hf", "hf2").code == 0
    first, second = (load_foreign_tensors(Path(name, "model.safetensors"), hint=HINT) for name in ("hf", "hf2"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_training_goes_on_with_its_own_vocabularies(command: Run, exported: Path, refused: Callable[..., str]) -> None:
    assert command("import", exported, "back").code == 0
    recipe = read_recipe(Path("back"))
    assert recipe.data.tokenizer.from_model == str(Path("back").resolve())
    changes = ("data.tokenizer={from_model: back, shared: true}", "data.directory=again")
    assert command("prepare", "small.yaml", *changes).code == 0
    gates = ("model.memory=[{name: l0drop}]", "losses={l0: {weight: 0.1}}", "training.warmup_updates=0")
    options = ("--restart", "--updates", "2", "--output", "tuned")
    tuned = command("finetune-l0", "back", "small.yaml", *options, *changes, *gates)
    assert tuned.code == 0, tuned.err
    assert command("decode", "tuned", stdin=b"a house\n").code == 0
    message = refused("prepare", "small.yaml", "data.tokenizer={from_model: nowhere, shared: true}")
    assert "there are no tokenizers of a model" in message
    two = ("data.tokenizer={from_model: back, shared: false}", "model.tie_embeddings=none", "data.directory=other")
    assert "the tokenizers are one for both languages" in refused("prepare", "small.yaml", *two)


def test_other_weights_of_the_same_model(command: Run, exported: Path) -> None:
    weights = load_foreign_tensors(exported / "model.safetensors", hint=HINT)
    for name, files in {"pickle": 1, "shards": 2}.items():
        folder = Path(shutil.copytree(exported, name))
        (folder / "model.safetensors").unlink()
        if files == 1:
            torch.save(weights, folder / "pytorch_model.bin")
        else:
            parts = [sorted(weights)[::2], sorted(weights)[1::2]]
            for number, part in enumerate(parts):
                save_tensors(folder / f"part-{number}.safetensors", {each: weights[each] for each in part})
            table = {each: f"part-{number}.safetensors" for number, part in enumerate(parts) for each in part}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        assert command("import", folder, f"of-{name}").code == 0
    states = [open_model(Path(f"of-{name}"), dtype=None).model.state_dict() for name in ("pickle", "shards")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


class _Other:
    pass


def _without(folder: Path, name: str) -> None:
    weights = load_foreign_tensors(folder / "model.safetensors", hint=HINT)
    del weights[name]
    save_tensors(folder / "model.safetensors", weights)


def _with(folder: Path, name: str, tensor: torch.Tensor) -> None:
    weights = load_foreign_tensors(folder / "model.safetensors", hint=HINT)
    save_tensors(folder / "model.safetensors", {**weights, name: tensor})


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Other()}))


def _configured(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


LAYER = "model.encoder.layers.0."
MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unknown architecture": (lambda at: _configured(at, model_type="led"), "models of the type 'led' cannot be"),
    "an unknown activation": (lambda at: _configured(at, activation_function="mish"), "the activation 'mish'"),
    "no size": (lambda at: _configured(at, d_model=None), "the size d_model is missing"),
    "no configuration": (lambda at: (at / "config.json").unlink(), "is no model that can be imported"),
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "there are no weights: neither model.safetensors"),
    "a tensor too few": (lambda at: _without(at, f"{LAYER}fc1.bias"), f"{LAYER}fc1.bias is missing; expected: a"),
    "a tensor too many": (lambda at: _with(at, "classifier.weight", torch.zeros(2)), "classifier.weight belong to no"),
    "another shape": (
        lambda at: _with(at, f"{LAYER}fc1.bias", torch.zeros(5)),
        f"{LAYER}fc1.bias has the shape 5; expected: 64",
    ),
    "a pickle of other objects": (_pickled, "holds other objects than tensors"),
    "a truncated file": (
        lambda at: (at / "model.safetensors").write_bytes((at / "model.safetensors").read_bytes()[:-9]),
        "the file has another size than its header says",
    ),
    "no tokenizer": (lambda at: (at / "source.spm").unlink(), "a file of the model's tokenizer is missing"),
}


@pytest.fixture
def damaged(exported: Path) -> Callable[[str], Path]:
    def make(mistake: str) -> Path:
        folder = Path(shutil.copytree(exported, mistake.replace(" ", "-")))
        MISTAKES[mistake][0](folder)
        return folder

    return make


def test_what_is_refused(damaged: Callable[[str], Path], refused: Callable[..., str]) -> None:
    for mistake, (_, message) in MISTAKES.items():
        folder = damaged(mistake)
        assert message in refused("import", folder, "out"), mistake
    assert "the directory exists" in refused("import", "hf", "model")
    assert "there is no such file or folder" in refused("import", "nowhere", "out")


def test_arguments_without_meaning(exported: Path, refused: Callable[..., str]) -> None:
    for code in ("../../x", "", "d e", "a/b", "-", "de_"):
        message = refused("import", exported, "out", "--source-language", code)
        assert f"--source-language: {code!r} is no code of a language" in message
    message = refused("import", exported, "out", "--vocabulary", "nothing.spm")
    assert "--vocabulary: hf has its tokenizers beside its weights" in message
    for output in ("hf/out", "./nowhere/../hf/deep/out"):
        assert "it is inside of hf, which is read and not written to" in refused("import", exported, output)
    _configured(exported, d_model=10**9)
    message = refused("import", exported, "out")
    assert "d_model is 1000000000; expected" in message and "this program cannot import the model" in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_leaves_nothing(
    command: Run, exported: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The signal comes when everything is written but the weights."""
    before = sorted(Path().iterdir())

    def interrupted(*given: object, **options: object) -> None:
        signal.raise_signal(number)
        raise AssertionError("it went on")

    monkeypatch.setattr(import_model.model_directory, "write_weights", interrupted)
    with listening():
        result = command("import", exported, "out")
    assert result.code == 128 + number and "Traceback" not in result.err
    assert sorted(Path().iterdir()) == before


def test_a_full_disk_leaves_nothing(command: Run, exported: Path) -> None:
    resource = pytest.importorskip("resource", reason="Unix only")
    before, limits = sorted(Path().iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        result = command("import", exported, "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.code == 2 and "File too large" in result.err and "Traceback" not in result.err, result.err
    assert sorted(Path().iterdir()) == before


def test_the_page_lists_every_family() -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "import.md"
    rows = [line.split("|")[1] for line in page.read_bytes().decode().split("\n") if line.startswith("| `")]
    assert set(FAMILIES) <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}
