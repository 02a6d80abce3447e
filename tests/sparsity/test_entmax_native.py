"""The compiled kernel: kept in the cache, built again when that is damaged, and never in the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparsenmt.native import build
from sparsenmt.native.cache import folder
from sparsenmt.sparsity.simplex import native
from sparsenmt.sparsity.simplex.function import entmax
from sparsenmt.storage.files import directory_lock
from tests.native.libraries import IN_USE, build_or_skip, builds, simplex_kernel, simplex_library

SCORES = torch.linspace(-2, 2, 24).view(1, 2, 3, 4)


@pytest.fixture(autouse=True)
def found_again() -> Iterator[None]:
    """What a test finds is forgotten after it."""
    native._found.cache_clear()
    yield
    native._found.cache_clear()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library, compiled once for all tests."""
    return build_or_skip(simplex_library(), "any processor", tmp_path_factory).read_bytes()


@pytest.fixture(scope="module", params=builds(fast=["avx2", "any processor"]))
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> native.SimplexKernel:
    """The kernel that is in use, and others as they are built elsewhere."""
    if request.param == IN_USE:
        return simplex_kernel()
    return native.SimplexKernel(build_or_skip(simplex_library(), request.param, tmp_path_factory))


def test_it_is_right(kernel: native.SimplexKernel) -> None:
    """By the check of every start, with one thread and with several."""
    assert native.error(kernel) <= 1e-5


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bytes) -> Path:
    """An empty cache, beside a compiler that takes no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build.Library, "_compile", lambda *arguments: compiled)
    return tmp_path / "sparsenmt" / "kernels"


def test_it_is_built_once_and_agrees(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = native.native(SCORES)
    assert built is not None and native.error(built) <= 1e-5
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".so"]
    assert native.native(SCORES) is built
    native._found.cache_clear()
    monkeypatch.setattr(build.Library, "_compile", lambda *arguments: pytest.fail("it is in the cache"))
    assert native.native(SCORES) is not None


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no seal"])
def test_a_damaged_cache_is_not_used(cache: Path, damage: str) -> None:
    assert native.native(SCORES) is not None
    (library,) = cache.glob("*.so")
    content = library.read_bytes()
    library.unlink()
    if damage == "cut":
        library.write_bytes(content[:-100])
    elif damage == "changed":
        library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no seal":
        library.write_bytes(content)
        (seal,) = cache.glob("*.json")
        seal.unlink()
    native._found.cache_clear()
    assert native.native(SCORES) is not None
    assert library.read_bytes() == content


def test_without_a_compiler_or_a_cache_pytorch_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native.native(SCORES) is None
    torch.testing.assert_close(entmax(SCORES, 1.3).sum(-1), torch.ones(1, 2, 3))
    native._found.cache_clear()
    monkeypatch.delenv("CXX")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.native(SCORES) is None


def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "compiler"
    broken.write_bytes(b"#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert native.native(SCORES) is None


def test_a_kernel_that_is_wrong_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "error", lambda kernel: 1.0)
    assert native.native(SCORES) is None
    assert not list(cache.glob("*.so"))


def test_what_another_process_builds_is_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder()
    monkeypatch.setattr(build, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(build, "_WAITS", 3)
    with directory_lock(cache, "builds"):
        assert native.native(SCORES) is None, "it took too long"
    native._found.cache_clear()
    assert native.native(SCORES) is not None


def test_it_is_for_single_precision_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.native(SCORES.double()) is None
    assert native.native(torch.zeros(0)) is None
    monkeypatch.setenv(build.SWITCH, "0")
    assert native.native(SCORES) is None


@torch.no_grad()
def test_strides_of_scores_and_masks() -> None:
    simplex_kernel()
    scores = torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0)
    visible = torch.rand(5, 2) < 0.7
    visible[0] = True
    turned = visible.t()[:, None, None]
    torch.testing.assert_close(
        entmax(scores, 1.4, turned), entmax(scores.contiguous(), 1.4, turned.expand(2, 3, 4, 5).contiguous())
    )


@pytest.mark.parametrize("keys", [1, 13, 16, 24, 25, 128, 129])
def test_neighbours_do_not_matter(kernel: native.SimplexKernel, keys: int) -> None:
    """Short rows are solved together: each gives what it gives alone, whatever it sees, and whatever its alpha is."""
    rng = torch.Generator().manual_seed(1)
    shape = (3, 4, 5, keys)
    scores, given = torch.randn(shape, generator=rng) * 3, torch.randn(shape, generator=rng)
    visible = torch.rand(3, 1, 5, keys, generator=rng) < 0.7
    visible[1, :, 2] = False
    counts = torch.randint(1, 4, (3, keys), generator=rng).float()
    alphas = torch.tensor([1.0, 1.3, 1.5, 2.0])
    mass = kernel.forward(scores, visible, counts, alphas)
    gradient, sums = kernel.backward(mass, given, counts, alphas, of_alpha=True)
    assert sums is not None and not bool(mass[1, :, 2].any())
    for batch, head, query in itertools.product(range(3), range(4), range(5)):
        one = (slice(batch, batch + 1), slice(head, head + 1), slice(query, query + 1))
        own = counts[batch : batch + 1]
        alone = kernel.forward(scores[one], visible[batch : batch + 1, :, one[2]], own, alphas[one[1]])
        slope, bend = kernel.backward(alone, given[one], own, alphas[one[1]], of_alpha=True)
        assert bend is not None
        assert torch.equal(alone, mass[one]) and torch.equal(slope, gradient[one]) and torch.equal(bend, sums[one])
