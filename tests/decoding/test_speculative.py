"""Speculative search gives the output of greedy search, whatever is drafted, and leaves the cache of its tokens."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.speculative import SpeculativeRun
from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import encode, sources
from tests.model.support import random_model
from tests.native.libraries import decoding_kernels

VOCABULARY, LENGTHS, LIMITS = 20, (4, 8, 2, 6, 5, 7, 3), [14, 20, 5, 1, 9, 20, 17]
LAYERS: dict[str, Any] = {"decoder_layers": 3, "depth": {"name": "tied_multi"}}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, one layer three times": {"norm": "post", "depth": {"name": "tied_multi", "recurrent": "both"}},
    "a window": {"attention": {"decoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "the first keys": {"attention": {"decoder_self": {"pattern": {"name": "global", "k": 3}}}},
    "a filter": {"memory": [{"name": "toy_faint"}]},
    "the best two": {"attention": {"decoder_self": {"transform": {"name": "topk", "k": 2}}}},
    "distances": {"attention": {"decoder_self": {"position": {"name": "transformer_xl"}}}, "positions": "none"},
}
RULES: list[dict[str, Any]] = [
    {},
    {"draft_tokens": 1},
    {"draft_tokens": 9, "draft_layers": 2},
    {"min_length": 4, "no_repeat_ngram": 2, "unknown": "forbid"},
    {"no_repeat_ngram": 1, "draft_layers": 2},
]


def model_of(seed: int = 3, **keys: Any) -> Transformer:
    """A model whose layers above the first change little, so that some drafts are right, and with clear ends."""
    model = random_model(seed=seed, **{**LAYERS, **keys})
    with torch.no_grad():
        for block in model.decoder.layers[1:]:
            for part in (block.feed_forward.outer, block.cross.o):
                part.weight.mul_(0.3)
    return model


def search(engine: Engine, batch: EncodedBatch, method: str, **keys: Any) -> Results:
    options = Decoding.model_validate({"method": method, **keys})
    (found,) = strategy_of(options).search(engine, [batch], lambda numbers: nullcontext())
    return found


def batch_of(model: Transformer, *, allowed: Tensor | None = None, copies: int = 1) -> EncodedBatch:
    lengths = LENGTHS * copies
    rows = sources(5, lengths, VOCABULARY)
    numbers = list(range(len(lengths)))
    return EncodedBatch(encode(model, rows), torch.tensor(LIMITS * copies), numbers, numbers, allowed=allowed)


def texts(found: Results) -> dict[int, tuple[list[int], bool]]:
    return {number: (each.tokens, each.ended) for number, (each,) in found.items()}


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
def test_equals_greedy_search(keys: dict[str, Any], rules: dict[str, Any]) -> None:
    model = model_of(**keys)
    engine, batch = TorchEngine(model), batch_of(model)
    found, expected = search(engine, batch, "speculative", **rules), search(engine, batch, "greedy", **rules)
    assert texts(found) == texts(expected) and len({len(each[0].tokens) for each in found.values()}) > 1
    for number, (own,) in found.items():
        assert own.log_probability == pytest.approx(expected[number][0].log_probability, abs=1e-9)
        assert own.score == pytest.approx(expected[number][0].score, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("listed", [False, True])
def test_equals_greedy_search_with_compiled_kernels(dtype: torch.dtype, listed: bool) -> None:
    decoding_kernels(dtype)
    model = model_of(dimension=64, feed_forward=96, heads=4).float()
    batch = batch_of(model, copies=3)
    allowed = torch.arange(VOCABULARY) % (2 + torch.arange(len(batch.numbers))[:, None] % 3) < 2
    allowed[:, :4] = True
    if listed:
        batch = batch_of(model, copies=3, allowed=allowed)
    engine = build(model, dtype)
    found = search(engine, batch, "speculative")
    assert texts(found) == texts(search(engine, batch, "greedy"))


def test_equal_scores_are_decided_alike() -> None:
    """Two tokens with one row of the output table tie at every position, to the last bit in the compiled product."""
    decoding_kernels(torch.float32)
    model = model_of(tie_embeddings="none", dimension=64, feed_forward=96, heads=4).float()
    with torch.no_grad():
        model.output_table[5::2] = model.output_table[4:-1:2]
    batch, engine = batch_of(model), build(model)
    found = search(engine, batch, "speculative", draft_tokens=3)
    assert texts(found) == texts(search(engine, batch, "greedy"))


def test_a_sentence_alone_gives_what_it_gives_in_a_batch() -> None:
    model = model_of()
    engine, batch = TorchEngine(model), batch_of(model)
    together = search(engine, batch, "speculative")
    for number in batch.numbers:
        row = torch.tensor([number])
        alone = EncodedBatch(batch.memory.select(row), batch.limits[row], [number], [number])
        assert texts(search(engine, alone, "speculative")) == {number: texts(together)[number]}


@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_the_cache_holds_the_tokens_of_the_outputs_and_no_others(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every round the next states are those of a new cache that was given the output alone."""
    model = model_of(**keys)
    run = SpeculativeRun(TorchEngine(model), batch_of(model), Decoding.model_validate({"draft_tokens": 3}))
    remove, rounds = SpeculativeRun._remove_finished, list[int]()

    def checked(self: SpeculativeRun, refused: list[int]) -> None:
        remove(self, refused)
        if not self._open:
            return
        cache = copy.deepcopy(self._cache)
        found = self._engine.step(self._outputs()[:, -1:], cache)[:, -1]
        for row, output in enumerate(self._open):
            tokens = torch.tensor([[self._batch.given[-1], *output.tokens]])
            memory = self._cache.memory.select(torch.tensor([row]))
            (whole,) = model.decode(tokens, memory).values()
            torch.testing.assert_close(found[row], whole[0, -1], atol=1e-10, rtol=0)
        starts = self._cache.kept.starts
        rounds.append(0 if starts is None else len(set(starts.tolist())))

    monkeypatch.setattr(SpeculativeRun, "_remove_finished", checked)
    run.run()
    assert run.drafted > run.accepted > 0 and run.rounds < max(LIMITS)
    assert keys or max(rounds) > 1, "sentences accept different numbers of tokens"


def test_scores_that_are_not_numbers_have_no_output() -> None:
    model = model_of()
    with torch.no_grad():
        model.output_table[EOS] = torch.nan
    batch = batch_of(model)
    assert search(TorchEngine(model), batch, "speculative") == {number: [] for number in batch.numbers}
