"""`sparsenmt verify`: six kinds of models keep all equalities, and planted faults are found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.methods import load_resolved_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.export import to_transformers
from sparsenmt.native import packing
from sparsenmt.native.kernels import Kernels, kernels
from sparsenmt.native.sources import kernel_folder
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.storage.tensors import load_tensors
from sparsenmt.testing import trained_model
from sparsenmt.workflows.conversion.import_model import import_model
from sparsenmt.workflows.evaluation.verify import Certificate, verify
from tests.commands.support import Run
from tests.examples import examples
from tests.importers import sources

SECTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "entmax": {"attention": {"cross": {"transform": {"name": "entmax", "alpha": 1.5}}}},
    "l0drop": {"memory": [{"name": "l0drop"}]},
    "tied": {"encoder_layers": 2, "decoder_layers": 2, "depth": {"name": "tied_multi"}},
}
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")


def made(like: Path, directory: Path, section: dict[str, Any], data: dict[str, Any] | None = None) -> Path:
    """Write a model with random weights, and the vocabularies of another one."""
    bundle = open_model(like, device="cpu", dtype=None)
    values = bundle.recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if data is not None:  # of another task, which lacks most of the keys
        values = {"name": "text", "model": {"preset": "tiny"}}
    values |= {"directory": str(directory), "model": values["model"] | section, "data": data or values["data"]}
    recipe = load_resolved_recipe(values, origin="a test")
    sizes = {"source_size": bundle.tokenizers.source.size, "target_size": bundle.tokenizers.target.size}
    weights = build_model(recipe.model, **sizes, seed=3).state_dict()
    model_directory.initialise(directory, recipe, bundle.tokenizers, bundle.features, "of a test")
    model_directory.write_weights(directory, weights, after=0, made_of=[])
    return directory


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a model of a kind in a folder of this test."""

    def make(kind: str) -> Path:
        directory = tmp_path / kind
        if kind == "marian":
            import_model(sources.marian(tmp_path / "foreign"), directory, languages=("en", "de"))
            return directory
        if kind == "language model":
            own = {"task": "language_model", "directory": "none", "target_language": "de", "dev": {"text": "dev"}}
            text = {**own, "train": [{"name": "text", "text": "train"}], "tokenizer": {"vocabulary_size": 150}}
            return made(trained / "model", directory, {"dimension": 32, "heads": 2, "decoder_layers": 2}, text)
        return made(trained / "model", directory, SECTIONS[kind])

    return make


def run(directory: Path, **options: Any) -> Certificate:
    return verify(directory, **{"lines": 4, "threads": 1, **options})


def failed(certificate: Certificate) -> set[str]:
    return {name for name, figures in certificate.checks.items() if not all(each.holds for each in figures)}


@examples("kind", [*SECTIONS, "marian", "language model"], fast=["entmax", "tied"])
def test_all_kinds_of_models_keep_the_equalities(kind: str, model: Callable[[str], Path]) -> None:
    directory = model(kind)
    certificate = run(directory)
    assert certificate.holds and not failed(certificate), certificate
    measured = {name for name, figures in certificate.checks.items() if figures}
    assert {"steps", "batch", "engines"} <= measured
    assert ("compaction" in measured) == (kind == "l0drop")
    assert ("search" in measured) == (kind != "language model")
    assert ("export" in measured) == (kind in ("softmax", "tied"))
    stored = (directory / "certificate.json").read_bytes()
    assert run(directory).holds and (directory / "certificate.json").read_bytes() == stored
    assert "equalities hold on 4 lines" in (directory / "README.md").read_text()


# Faults of the program


def broken(directory: Path, check: str) -> None:
    with pytest.MonkeyPatch.context() as patch:  # alone: the others cost time
        for name in trained_model.CHECKS.keys() - {check}:
            patch.delitem(trained_model.CHECKS, name)
        certificate = run(directory)
    assert not certificate.holds and check in failed(certificate), certificate


@needs_kernels
def test_a_wrong_scale_of_quantized_weights(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    levels = packing._levels

    def wrong(weight: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        numbers, scales, sums = levels(weight, most)
        return numbers, scales.index_fill(0, torch.tensor([1]), float(scales[1]) * 1.1), sums

    monkeypatch.setattr(packing, "_levels", wrong)
    broken(model("softmax"), "rounding")


@needs_kernels
def test_a_library_that_computes_wrongly(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    product = Kernels.product
    monkeypatch.setattr(Kernels, "product", lambda *given, **named: product(*given, **named) * 1.001)
    broken(model("softmax"), "engines")


@needs_kernels
@pytest.mark.thorough
def test_a_damaged_library(model: Callable[[str], Path], tmp_path: Path) -> None:
    """It is not used, which is said, and the certificate names other numerics than those of the whole library."""
    directory, folder = model("softmax"), tmp_path / "kernels"
    shutil.copytree(kernel_folder(), folder)
    command = [sys.executable, "-m", "sparsenmt", "verify", str(directory), "--lines", "2", "--threads", "1"]
    made = []
    for damage in (False, True):
        for path in folder.glob("*.so") if damage else ():
            whole = path.read_bytes()
            middle = len(whole) // 2
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        environment = {**os.environ, "SPARSENMT_NATIVE_FOLDER": str(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        assert ("not used: damaged" in done.stderr) == damage
        made.append(read_sealed(directory / "certificate.json")["asked"]["numerics"])
    assert made[0] != made[1]


def test_a_cache_that_forgets(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    step = TorchEngine.step

    def forgetful(self: TorchEngine, tokens: Tensor, cache: Any) -> Tensor:
        return step(self, tokens, cache if cache.at_once else self.new_cache(cache.memory, exits=cache.exits))

    monkeypatch.setattr(TorchEngine, "step", forgetful)
    broken(model("softmax"), "steps")


def test_a_mask_that_is_ignored(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encode = TorchEngine.encode

    def unmasked(self: TorchEngine, source: Any, **options: Any) -> Any:
        return encode(self, replace(source, valid=torch.ones_like(source.valid)), **options)

    monkeypatch.setattr(TorchEngine, "encode", unmasked)
    broken(model("softmax"), "batch")


def test_an_output_that_depends_on_the_batch(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    project = TorchEngine.project
    monkeypatch.setattr(TorchEngine, "project", lambda self, x: project(self, x * (1 + 1e-3 * len(x))))
    broken(model("softmax"), "batch")


def test_a_compaction_that_drops_a_kept_position(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encode = TorchEngine.encode

    def narrow(self: TorchEngine, source: Any, **options: Any) -> Any:
        found = encode(self, source, **options)
        if not options.get("compact"):
            return found
        hide = {n: replace(m, valid=m.valid & (m.positions != 0)) for n, m in found.memories.items()}
        return replace(found, memories=hide)

    monkeypatch.setattr(TorchEngine, "encode", narrow)
    broken(model("l0drop"), "compaction")


def test_an_engine_that_disagrees(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    product = trained_model.packed

    def other(network: Any) -> Any:
        with torch.no_grad():
            next(iter(network.decoder.layers)).feed_forward.inner.weight[0] *= 2
        return product(network)

    monkeypatch.setattr(trained_model, "packed", other)
    broken(model("entmax"), "engines")


def test_an_export_that_differs(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    weights = to_transformers.transformers_weights

    def other(plain: Any) -> dict[str, Tensor]:
        found = weights(plain)
        name = next(each for each in found if each.endswith("fc1.bias"))
        return found | {name: found[name] + 1e-3}

    monkeypatch.setattr(to_transformers, "transformers_weights", other)
    broken(model("softmax"), "export")


def test_a_search_that_reports_other_scores(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    following = TorchEngine.next_tokens

    def other(self: TorchEngine, *given: Any) -> Any:
        values, parents, tokens = following(self, *given)
        return values - 1e-3, parents, tokens

    monkeypatch.setattr(TorchEngine, "next_tokens", other)
    broken(model("entmax"), "search")


def test_states_that_are_not_finite(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = trained_model.difference(torch.tensor([-1.0, torch.nan]), torch.tensor([-1.0, -1.0]))
    assert found == trained_model.UNSOUND and json.loads(json.dumps(found)) == found


# Files that were changed


def test_a_changed_weight(command: Run, workspace: Path) -> None:
    assert command("verify", "model", "--lines", "2", "--threads", "1").code == 0
    path, whole = Path("model/weights.safetensors"), Path("model/weights.safetensors").read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    result = command("verify", "model", "--lines", "2")
    assert result.code == 2 and "weights.safetensors" in result.err and "damaged" in result.err
    path.write_bytes(whole)
    weights = load_tensors(path, hint="")
    weights["decoder.layers.0.self.q.weight"][0, 0] += 1
    model_directory.write_weights(Path("model"), weights, after=12, made_of=[12])  # with a new seal
    result = command("verify", "model", "--lines", "2")
    assert (
        result.code == 2
        and "is not the one that was certified" in result.err
        and "weights.safetensors differs" in result.err
    )
    assert "--renew" in result.err
    assert command("verify", "model", "--lines", "2", "--renew", "--threads", "1").code == 0


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizers/tokenizers.json"])
def test_a_changed_file(name: str, command: Run, workspace: Path) -> None:
    path = Path("model") / name
    path.write_bytes(path.read_bytes() + b"\n")
    result = command("verify", "model", "--lines", "2")
    assert result.code == 2 and name in result.err and not Path("model/certificate.json").exists()


def test_a_changed_recipe_with_a_new_seal(model: Callable[[str], Path]) -> None:
    directory = model("softmax")
    run(directory)
    recipe = model_directory.read_recipe(directory)
    decoding = recipe.decoding.model_copy(update={"beam_size": 3})
    model_directory.write_recipe(directory, recipe.model_copy(update={"decoding": decoding}))
    with pytest.raises(Exception, match=r"is not the one that was certified: recipe\.yaml differs"):
        run(directory)


def test_a_changed_certificate(command: Run, workspace: Path) -> None:
    assert command("verify", "model", "--lines", "2", "--threads", "1").code == 0
    path = Path("model/certificate.json")
    whole = path.read_text()
    path.write_text(whole.replace('"lines": 2', '"lines": 9'))
    result = command("verify", "model", "--lines", "2")
    assert result.code == 2 and "certificate.json" in result.err and "damaged" in result.err
    path.write_text(whole)
    record = read_sealed(path)
    write_sealed(path, record | {"checks": 7})
    assert command("verify", "model", "--lines", "2").code == 2


# The command


def test_the_exit_code_and_the_certificate(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_model, "RELATIVE", 0.0)
    result = command("verify", "model", "--source", "corpus/test.en", "--lines", "3", "--threads", "1")
    assert result.code == 1 and "FAILS" in result.out.decode()
    assert read_sealed(Path("model/certificate.json"))["holds"] is False
    assert read_sealed(Path("model/certificate.json"))["asked"]["text"]["name"] == "test.en"
    Path("blank").write_text("\n \n")
    shutil.rmtree("prepared")  # nothing but the model directory is read
    assert "no text" in command("verify", "model", "--source", "blank").err


def test_an_interrupt_loses_nothing(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    directory, calls = model("entmax"), list[str]()

    def counted(name: str, interrupt: bool) -> Callable[[Any], Any]:
        check = trained_model.CHECKS[name]

        def call(given: Any) -> Any:
            calls.append(name)
            if interrupt:
                raise KeyboardInterrupt
            return check(given)

        return call

    names = list(trained_model.CHECKS)
    with monkeypatch.context() as patch:
        for name in names:
            patch.setitem(trained_model.CHECKS, name, counted(name, name == "engines"))
        with pytest.raises(KeyboardInterrupt):
            run(directory)
    assert calls[-1] == "engines" and not (directory / "certificate.json").exists()
    calls.clear()
    with monkeypatch.context() as patch:
        for name in names:
            patch.setitem(trained_model.CHECKS, name, counted(name, False))
        assert run(directory).holds
    assert calls == names[names.index("engines") :]
    assert not list(directory.glob(".certificate*"))
