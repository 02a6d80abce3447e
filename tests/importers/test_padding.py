"""Padding of OPUS-MT has no share of the softmax, whatever takes it: searches, forced decoding, all dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import numbered_lines
from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.decoding.forced_decoding import score_alternatives, score_pairs
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.model.protocol import Source
from sparsenmt.workflows.conversion.import_model import import_model
from tests.importers.odd_folders import FOLDERS, LINES

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.6, torch.int8: 0.6}
METHODS = {"beam": {"beam_size": 4}, "greedy": {}, "sample": {}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose padding, with a logit of 0 among others about -6, would have most of the softmax."""
    folder = tmp_path_factory.mktemp("padding")
    FOLDERS["opus-mt, low biases"].write(folder / "source")
    import_model(folder / "source", folder / "model")
    return folder / "model"


def expected(bundle: Bundle) -> Callable[[int, list[int]], float]:
    """The log-probability of an output of a line, from the logits of all tokens but padding and BOS."""
    lines = bundle.tokenizers.source.encode_batch(LINES)

    @torch.no_grad()
    def of(number: int, tokens: list[int]) -> float:
        source = torch.tensor([[*lines[number], EOS]])
        memory = bundle.model.encode(Source(source, torch.ones_like(source).bool())).memories[
            bundle.model.plan.deepest[0]
        ]
        (states,) = bundle.model.decode(torch.tensor([[BOS, *tokens[:-1]]]), memory).values()
        logits = bundle.model.project(states)[0].double()
        logits[:, [PAD, BOS]] = -torch.inf
        return float(logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum())

    return of


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("method", METHODS)
def test_searches(model: Path, dtype: torch.dtype, method: str) -> None:
    of, bundle = expected(open_model(model, device="cpu", dtype=None)), open_model(model, device="cpu", dtype=dtype)
    options = bundle.recipe.decoding.model_copy(update={"method": method, **METHODS[method]})
    for number, found in enumerate(translate_lines(bundle, numbered_lines(LINES), options)):
        best = found.hypotheses[0]
        tokens = [*best.tokens, *([EOS] if best.ended else [])]
        assert best.log_probability == pytest.approx(of(number, tokens), abs=TOLERANCE[dtype])


def test_a_search_with_a_shortlist(model: Path) -> None:
    bundle = open_model(model, device="cpu")
    of, lines = expected(bundle), bundle.tokenizers.source.encode_batch(LINES)
    options = bundle.recipe.decoding.model_copy(update={"method": "beam", "beam_size": 3})
    for number, line in enumerate(lines):
        source = torch.tensor([[*line, EOS]])
        with torch.no_grad():
            memory = bundle.model.encode(Source(source, torch.ones_like(source).bool()))
        everything = torch.ones(1, bundle.tokenizers.target.size, dtype=torch.bool)
        batch = EncodedBatch(
            *(memory.memories[bundle.model.plan.deepest[0]], torch.tensor([20]), [0], [0]), allowed=everything
        )
        (found,) = [
            results[0]
            for results in strategy_of(options).search(
                bundle.engine, [batch], lambda chosen: pytest.MonkeyPatch.context()
            )
            if results
        ]
        tokens = [*found[0].tokens, *([EOS] if found[0].ended else [])]
        assert found[0].log_probability == pytest.approx(of(number, tokens), abs=1e-3)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_forced_decoding(model: Path, dtype: torch.dtype) -> None:
    of, bundle = expected(open_model(model, device="cpu", dtype=None)), open_model(model, device="cpu", dtype=dtype)
    lines, target = numbered_lines(LINES), bundle.tokenizers.target
    texts = LINES[::-1]
    wanted = [of(number, [*ids, EOS]) for number, ids in enumerate(target.encode_batch(list(texts)))]
    pairs = [each.log_probability for each in score_pairs(bundle, list(lines), list(texts))]
    others = score_alternatives(bundle, list(numbered_lines(LINES)), [[text] for text in texts])
    assert pairs == pytest.approx(wanted, abs=TOLERANCE[dtype] * 5)
    assert [each.targets[0].log_probability for each in others] == pytest.approx(pairs, abs=1e-3)
