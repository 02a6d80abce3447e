"""Models that all tests of the Python API read."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparsenmt
from tests.api.support import write_models


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def models(directories: dict[str, Path]) -> dict[str, sparsenmt.Model]:
    """A dense model with entmax at cross-attention, one with gates, and a language model."""
    return {name: sparsenmt.load(path, device="cpu") for name, path in directories.items()}


@pytest.fixture
def dense(models: dict[str, sparsenmt.Model]) -> sparsenmt.Model:
    return models["dense"]


@pytest.fixture
def gated(models: dict[str, sparsenmt.Model]) -> sparsenmt.Model:
    return models["gated"]


@pytest.fixture
def language(models: dict[str, sparsenmt.Model]) -> sparsenmt.Model:
    return models["language"]
