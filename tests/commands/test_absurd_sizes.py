"""The memory of a device, and models that do not fit into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparsenmt import assemble, devices
from sparsenmt.assemble import build_model, check_training_memory
from sparsenmt.devices import device_memory
from sparsenmt.errors import UserError
from sparsenmt.progress import byte_text
from sparsenmt.recipe.schema import Model

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
    model = Model(preset="base", dimension=65536, feed_forward=262144)
    monkeypatch.setattr(assemble, "device_memory", lambda device: 10**11)
    with pytest.raises(UserError, match=r"parameters take 2\.\d TB of memory; this machine has 100.0 GB") as caught:
        build_model(model, **SIZES)
    assert caught.value.where == "model" and caught.value.hint


def test_the_bound_is_the_number_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(dimension=16, feed_forward=32, heads=2, encoder_layers=2, decoder_layers=1)
    count = sum(parameter.numel() for parameter in build_model(model, **SIZES).parameters())
    state = torch.get_rng_state()
    for memory, fits in ((20 * count, False), (20 * count + 1, True)):
        monkeypatch.setattr(assemble, "device_memory", lambda device, memory=memory: memory)
        if fits:
            check_training_memory(model, **SIZES, device=CPU)
        else:
            with pytest.raises(UserError, match=f"^model: {count:,} parameters take .* in training"):
                check_training_memory(model, **SIZES, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(assemble, "device_memory", lambda device: None)
    check_training_memory(model, **SIZES, device=CPU)


def test_training_writes_nothing(refused: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "device_memory", lambda device: 10**9)
    message = refused("train", "small.yaml", "model.dimension=32768", "directory=giant")
    assert "error: model: " in message and "1.0 GB" in message
    assert not Path("giant").exists()
