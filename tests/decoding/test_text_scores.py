"""Scores of a text by a language model: streams with memory, segments alone, and prompts that are continued."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.text_scores import TextReading, score_text
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.model.support import TARGET_SIZE, random_model
from tests.no_source import no_source

CPU = torch.device("cpu")
TEXT = np.random.default_rng(1).integers(4, TARGET_SIZE, 53)
NOWHERE = contextlib.nullcontext


def model_of(memory: int, **site: Any) -> Transformer:
    positions = "none" if "position" in site else "sinusoidal"
    return random_model(
        encoder_layers=0,
        tie_embeddings="all",
        positions=positions,
        segment_memory=memory,
        attention={"decoder_self": site},
    )


def scores(model: Transformer, length: int, memory: int, rows: int = 4) -> Tensor:
    parts = score_text(TorchEngine(model), TEXT, TextReading(length, memory, rows, None), CPU)
    return torch.cat(list(parts))


def at_once(model: Transformer, tokens: np.ndarray[Any, Any], before: int = EOS) -> Tensor:
    wanted = torch.from_numpy(tokens)
    inputs = torch.cat([torch.tensor([before]), wanted[:-1]])[None]
    hidden = model.decode(inputs, no_source(model, 1))[2]
    return model.project(hidden[0]).log_softmax(-1).gather(1, wanted[:, None]).squeeze(1).detach()


@pytest.mark.parametrize("length", [1, 7, 53, 100])
def test_a_stream_with_memory_equals_one_pass(length: int) -> None:
    model = model_of(64, position={"name": "transformer_xl"})
    torch.testing.assert_close(scores(model, length, 64), at_once(model, TEXT), atol=1e-9, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_without_memory_each_segment_is_read_alone_after_the_token_before_it(rows: int) -> None:
    model = model_of(0)
    expected = [
        at_once(model, TEXT[first : first + 8], EOS if first == 0 else int(TEXT[first - 1]))
        for first in range(0, len(TEXT), 8)
    ]
    torch.testing.assert_close(scores(model, 8, 0, rows), torch.cat(expected), atol=1e-9, rtol=0)


def test_a_longer_memory_than_that_of_training() -> None:
    model = model_of(3, position={"name": "transformer_xl"})
    assert not torch.allclose(scores(model, 5, 3), at_once(model, TEXT))
    torch.testing.assert_close(scores(model, 5, 60), at_once(model, TEXT), atol=1e-9, rtol=0)


def test_probabilities_that_are_not_finite_are_refused() -> None:
    model = model_of(0)
    with torch.no_grad():
        next(iter(model.decoder.norm.parameters()))[0] = torch.nan
    with pytest.raises(UserError, match="tokens 1 to 32 are not finite"):
        scores(model, 8, 0)


@pytest.mark.parametrize("lines", [1, 3, 0])
@pytest.mark.parametrize("options", [{"method": "greedy"}, {"method": "beam", "beam_size": 3}, {"method": "sample"}])
def test_prompts_are_continued(options: dict[str, Any], lines: int) -> None:
    """The log-probability of an output is that of its tokens after the prompt."""
    model = model_of(16, position={"name": "transformer_xl"}).eval()
    prompts = torch.from_numpy(TEXT[:14]).view(2, 7)
    batch = EncodedBatch(no_source(model, 2), torch.tensor([12, 20]), [0, 1], [0, 1], prompts)
    decoding = Decoding(**options, length_penalty="none", max_lines=lines)
    found = {}
    for results in strategy_of(decoding).search(TorchEngine(model), [batch], lambda numbers: NOWHERE()):
        found.update(results)
    for number, limit in ((0, 12), (1, 20)):
        for each in found[number]:
            text = np.array([*prompts[number].tolist(), *each.tokens, *([3] if each.ended else [])])
            cut = torch.cat(list(score_text(TorchEngine(model), text, TextReading(1, 16, 1, None), CPU)))
            assert float(cut[7:].sum()) == pytest.approx(each.log_probability, abs=1e-9)
            assert len(each.tokens) + each.ended <= limit
            ends = each.tokens.count(EOS)
            assert ends == lines - 1 if each.ended else ends < lines or (lines == 0 and len(each.tokens) == limit)


def test_beam_search_finds_the_best_two_lines() -> None:
    model, prompt, limit = model_of(16, position={"name": "transformer_xl"}).eval(), TEXT[:4], 3
    words = [token for token in range(TARGET_SIZE) if token not in (PAD, BOS, EOS)]
    candidates = [[EOS, EOS], *([word, EOS, EOS] for word in words), *([EOS, word, EOS] for word in words)]

    def log_probability(tokens: list[int]) -> float:
        return float(at_once(model, np.array([*prompt, *tokens]))[len(prompt) :].sum())

    wanted = sorted(map(log_probability, candidates), reverse=True)
    batch = EncodedBatch(
        no_source(model, 1),
        torch.tensor([limit]),
        [0],
        [0],
        torch.from_numpy(prompt)[None],
    )
    decoding = Decoding(beam_size=TARGET_SIZE**3, length_penalty="none", max_lines=2)
    found, *_ = strategy_of(decoding).search(TorchEngine(model), [batch], lambda numbers: NOWHERE())
    ended = [each for each in found[0] if each.ended]
    assert [each.log_probability for each in ended] == pytest.approx(wanted, abs=1e-9)
