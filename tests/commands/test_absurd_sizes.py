"""The memory of a device, and models that do not fit into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparsenmt.assemble import checks
from sparsenmt.assemble import model as assembled
from sparsenmt.assemble.checks import check_training_memory
from sparsenmt.assemble.model import build_model, choose_trained
from sparsenmt.errors import UserError
from sparsenmt.process import devices
from sparsenmt.process.devices import device_memory
from sparsenmt.process.progress import byte_text
from sparsenmt.recipe.schema import ModelSection, Training
from tests.assemble.test_model_directory import make_recipe

CPU = torch.device("cpu")
SIZES = {"source_size": 100, "target_size": 100}


@pytest.mark.parametrize(
    ("count", "text"),
    [(5, "5 B"), (25_276_502_016, "25.3 GB"), (4.14e11, "414.0 GB"), (1.7e12, "1.7 TB"), (1e19, "10000.0 PB")],
)
def test_bytes_for_readers(count: float, text: str) -> None:
    assert byte_text(count) == text


def test_a_container_limits_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_bytes(b"123456\n")
    (tmp_path / "unlimited").write_bytes(b"max\n")
    found = device_memory(CPU)
    monkeypatch.setattr(devices, "_CONTAINER_LIMITS", (str(tmp_path / "unlimited"), str(tmp_path / "absent")))
    assert (device_memory(CPU) or 0) >= (found or 0)
    monkeypatch.setattr(devices, "_CONTAINER_LIMITS", (str(tmp_path / "memory.max"),))
    assert device_memory(CPU) == 123456


def test_a_model_that_does_not_fit_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of 824 GB are counted without one of them."""
    model = ModelSection(preset="base", dimension=65536, feed_forward=262144)
    for module in (checks, assembled):
        monkeypatch.setattr(module, "device_memory", lambda device: 10**11)
    with pytest.raises(UserError, match=r"parameters take 2\.\d TB of memory; this machine has 100.0 GB") as caught:
        build_model(model, **SIZES)
    assert caught.value.where == "model" and caught.value.hint


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({}, "{count} parameters take .* in training"),
        ({"freeze": ["encoder", "embeddings"]}, "{count} parameters, {trained} of them trained, take .* in training"),
        ({"lora": {"rank": 2}}, "{count} parameters, {trained} of them trained, take .* in training"),
    ],
)
def test_the_bound_counts_what_is_kept(
    training: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 bytes of each parameter (weight, copy for validation), and 12 more if it is trained (gradient, moments)."""
    recipe = make_recipe()
    recipe = recipe.model_copy(update={"training": Training.model_validate(training)})
    model = build_model(recipe.model, **SIZES)
    choose_trained(recipe, model)
    numbers = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    count, trained = sum(number for number, _ in numbers), sum(number for number, learns in numbers if learns)
    assert (trained < count) is bool(training)
    words = words.format(count=f"{count:,}", trained=f"{trained:,}")
    state = torch.get_rng_state()
    for memory, fits in ((8 * count + 12 * trained, False), (8 * count + 12 * trained + 1, True)):
        for module in (checks, assembled):
            monkeypatch.setattr(module, "device_memory", lambda device, memory=memory: memory)
        if fits:
            check_training_memory(recipe, **SIZES, device=CPU)
        else:
            with pytest.raises(UserError, match=f"^model: {words}"):
                check_training_memory(recipe, **SIZES, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    for module in (checks, assembled):
        monkeypatch.setattr(module, "device_memory", lambda device: None)
    check_training_memory(recipe, **SIZES, device=CPU)


def test_training_writes_nothing(refused: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, assembled):
        monkeypatch.setattr(module, "device_memory", lambda device: 10**9)
    message = refused("train", "small.yaml", "model.dimension=32768", "directory=giant")
    assert "error: model: " in message and "1.0 GB" in message
    assert not Path("giant").exists()
