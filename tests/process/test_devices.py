"""Deterministic algorithms while a run trains, and copies to a device."""

from __future__ import annotations

import os

import pytest
import torch

from sparsenmt.errors import UserError
from sparsenmt.process.devices import deterministic_algorithms, upload

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "other")  # what a test sets is undone


@pytest.mark.parametrize("before", [False, True])
def test_what_was_set_comes_back(before: bool) -> None:
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with deterministic_algorithms(True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert os.environ[VARIABLE] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_without_it_nothing_changes() -> None:
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ[VARIABLE] == "other"


def test_an_operator_without_such_an_algorithm() -> None:
    with pytest.raises(UserError, match="no deterministic put_ here") as caught, deterministic_algorithms(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert caught.value.where == "training.deterministic" and not torch.are_deterministic_algorithms_enabled()


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="shapes"), deterministic_algorithms(True):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_cuda_must_not_have_started_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=f"CUDA was started without {VARIABLE}"), deterministic_algorithms(True):
        pass
    monkeypatch.setenv(VARIABLE, ":16:8")
    with deterministic_algorithms(True):
        assert os.environ[VARIABLE] == ":16:8"


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.ones(3)
    assert upload(tensor, torch.device("cpu")) is tensor
