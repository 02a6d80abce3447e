"""Decoding at a depth: exactly so many layers run, and only they keep a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_alternatives, score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.memory import Memory
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle
from tests.model.support import random_model

LINES, TARGETS = invented_lines(6, 3), invented_lines(6, 4)
METHODS: list[dict[str, Any]] = [{"method": "beam", "beam_size": 3}, {"method": "greedy"}, {"method": "sample"}]
DEPTHS = [(1, 1), (1, 3), (4, 1), (3, 2), (4, 3)]
LAYERS = {"encoder_layers": 4, "decoder_layers": 3}


def bundle_of(**keys: Any) -> TinyBundle:
    """The bundle of the other tests with another model."""
    base = tiny_bundle()
    model = random_model(tie_embeddings="all", **{**LAYERS, "depth": {"name": "tied_multi"}, **keys})
    size = base.tokenizers.source.size
    table = torch.randn(size, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model.embeddings["shared"] = torch.nn.Parameter(table)
    return replace(base, model=model)


@contextmanager
def counted(model: Transformer) -> Iterator[Counter[str]]:
    """How often every layer's feed-forward network ran, by its name."""
    runs: Counter[str] = Counter()
    handles = [
        module.register_forward_hook(lambda *_, name=name: runs.update([name]))
        for name, module in model.named_modules()
        if name.endswith(".feed_forward")
    ]
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def names(encoder: int, decoder: int) -> set[str]:
    sides = {"encoder": encoder, "decoder": decoder}
    return {f"{side}.layers.{i}.feed_forward" for side, count in sides.items() for i in range(count)}


def options(depth: tuple[int, int] | None, **values: Any) -> Decoding:
    usual = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, **values})
    return usual.at(depth)


def noting(make: Callable[..., Any], caches: list[KVCache]) -> Callable[..., KVCache]:
    """A function that makes caches and keeps them in a list."""

    def note(memory: Memory, **options: Any) -> KVCache:
        caches.append(make(memory, **options))
        return caches[-1]

    return note


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_exactly_so_many_layers_run(
    depth: tuple[int, int], method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, caches = bundle_of(), list[KVCache]()
    monkeypatch.setattr(bundle.model, "new_cache", noting(bundle.model.new_cache, caches))
    seen: list[Any] = []
    with counted(bundle.model) as runs, bundle.model.listen(seen.append):
        list(translate_lines(bundle, input_lines(LINES), options(depth, **method)))
    assert set(runs) == names(*depth)
    assert {(each.site, each.step) for each in seen} == {
        *(("encoder_self", step) for step in range(depth[0])),
        *((site, step) for step in range(depth[1]) for site in ("decoder_self", "cross")),
    }
    for cache in caches:
        assert set(cache._steps) == set(cache._memory_kv) == set(range(depth[1])), "caches only of what runs"


def test_one_layer_runs_several_times_and_the_memory_is_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, caches = bundle_of(depth={"name": "tied_multi", "recurrent": "both"}), list[KVCache]()
    monkeypatch.setattr(bundle.model, "new_cache", noting(bundle.model.new_cache, caches))
    with counted(bundle.model) as runs:
        list(translate_lines(bundle, input_lines(LINES[:1]), options((3, 2), method="greedy")))
    steps = caches[0].length
    assert runs == {"encoder.layers.0.feed_forward": 3, "decoder.layers.0.feed_forward": 2 * steps}
    assert set(caches[0]._steps) == {0, 1} and set(caches[0]._memory_kv) == {0}


@pytest.mark.parametrize("depth", DEPTHS)
def test_forced_scores_are_those_of_the_exits(depth: tuple[int, int]) -> None:
    bundle = bundle_of(memory=[{"name": "l0drop", "per": "exit"}])
    with counted(bundle.model) as runs:
        found = [each.log_probability for each in score_pairs(bundle, input_lines(LINES), TARGETS, depth=depth)]
        choices = score_alternatives(bundle, input_lines(LINES), [[target] for target in TARGETS], depth=depth)
    assert set(runs) == names(*depth)
    assert [each.targets[0].log_probability for each in choices] == pytest.approx(found, abs=1e-9)
    assert len({round(value, 9) for value in found}) > 1
    deepest = [each.log_probability for each in score_pairs(bundle, input_lines(LINES), TARGETS)]
    assert (found == pytest.approx(deepest, abs=1e-9)) == (depth == (4, 3))


def test_without_a_depth_the_deepest_trained_exits_run() -> None:
    rows = [[1.0, 1.0, 0.0]] * 3 + [[0.0] * 3]
    bundle = bundle_of(depth={"name": "tied_multi", "weights": rows})
    assert bundle.model.plan.deepest == (3, 2) and len(bundle.model.plan.pairs()) == 6
    with counted(bundle.model) as runs:
        list(translate_lines(bundle, input_lines(LINES[:2]), options(None)))
    assert set(runs) == names(3, 2)
    with counted(bundle.model) as runs:
        list(translate_lines(bundle, input_lines(LINES[:2]), options((4, 3))))
    assert set(runs) == names(4, 3), "what is not trained can run"


def test_one_side_alone() -> None:
    bundle = bundle_of()
    with counted(bundle.model) as runs:
        list(
            translate_lines(
                bundle, input_lines(LINES[:2]), Decoding.model_validate({"encoder_layers": 2, "max_length_offset": 2})
            )
        )
    assert set(runs) == names(2, 3)
