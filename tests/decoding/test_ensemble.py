"""Ensembles give what a plain loop over the average of their members' probabilities gives, in every search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.build import build
from sparsenmt.engine.ensemble import Average, EnsembleEngine, Member
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding, TokenizerSection
from tests.decoding import support
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle, tiny_model
from tests.native.libraries import decoding_kernels

LINES, WEIGHTS = invented_lines(9, 3), (0.5, 0.2, 0.3)
METHODS: list[dict[str, Any]] = [
    {"method": "beam", "beam_size": 3},
    {"method": "greedy"},
    {"method": "sample", "seed": 5},
    {"method": "beam", "beam_size": 2, "no_repeat_ngram": 2, "min_length": 2},
    {"method": "speculative", "draft_tokens": 2},
]


def three(average: Average = "log", *, packed: bool = False) -> TinyBundle:
    """Three models of other sizes and sources: the second reads other source tokens."""
    first = tiny_bundle(1, ending=0.5, dtype=torch.float32 if packed else torch.float64)
    size = first.tokenizers.target.size
    words = train_tokenizer(TokenizerSection.model_validate({"kind": "word", "vocabulary_size": 16}), LINES)
    second = tiny_bundle(2, ending=1.0)
    model = tiny_model(4, vocabulary=size, ending=1.0)
    table = torch.randn(words.size, 16, generator=torch.Generator().manual_seed(7))
    model.embeddings["source"] = torch.nn.Parameter(table.to(model.output_table.dtype))
    second = replace(second, model=model, tokenizers=Tokenizers(words, first.tokenizers.target, False))
    third = tiny_bundle(3, ending=0.0)
    bundles = [first, second, third]
    if packed:
        for bundle in bundles:
            bundle.model.float()
        bundles = [replace(bundle, built=build(bundle.model)) for bundle in bundles]
    members = [Member(each.engine, weight, 16) for each, weight in zip(bundles, WEIGHTS, strict=True)]
    return replace(bundles[0], others=tuple(bundles[1:]), built=EnsembleEngine(members, average))


def options(**values: Any) -> Decoding:
    return Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, **values})


def translate(bundle: TinyBundle, lines: Sequence[str], **values: Any) -> list[TranslatedLine]:
    return list(translate_lines(bundle, input_lines(lines), options(**values)))  # type: ignore[arg-type]


def averaged(bundle: TinyBundle, average: Average, line: str, prefix: Sequence[int]) -> list[float]:
    """The log-probabilities of every token after a prefix, from those of each member by itself."""
    rows = []
    for each in (bundle, *bundle.others):
        source = [*each.tokenizers.source.encode(line), EOS]
        memory = support.encode(each.model, [source])
        rows.append(support.next_log_probabilities(each.model, memory, prefix))
    if average == "linear":
        return [
            math.log(sum(w * math.exp(p) for w, p in zip(WEIGHTS, column, strict=True)))
            for column in zip(*rows, strict=True)
        ]
    means = [sum(w * p for w, p in zip(WEIGHTS, column, strict=True)) for column in zip(*rows, strict=True)]
    whole = math.log(sum(map(math.exp, means)))
    return [mean - whole for mean in means]


@pytest.mark.parametrize("average", ["log", "linear"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_a_plain_loop(method: dict[str, Any], average: Average, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, chosen = three(average), options(**method)
    found = translate(bundle, LINES[:2], **method)
    for number, (line, own) in enumerate(zip(LINES[:2], found, strict=True)):
        limit = min(len(own.source.ids) - 1, 10**9) // 2 + 3
        with monkeypatch.context() as patch:
            values = {}

            def remembered(model: Any, memory: Any, prefix: Sequence[int]) -> list[float]:
                key = tuple(prefix)
                if key not in values:  # noqa: B023
                    with pytest.MonkeyPatch.context() as undone:
                        undone.setattr(support, "encode", ENCODE)
                        undone.setattr(support, "next_log_probabilities", NEXT)
                        values[key] = averaged(bundle, average, line, prefix)  # noqa: B023
                return values[key]  # noqa: B023

            patch.setattr(support, "encode", lambda model, rows: None)
            patch.setattr(support, "next_log_probabilities", remembered)
            model: Transformer = bundle.model
            if chosen.method == "beam":
                expected = support.naive_beam(model, [], limit, chosen)
            elif chosen.method == "sample":
                generator = torch.Generator().manual_seed(chosen.seed * 1_000_003 + number)
                draws = torch.rand(limit, generator=generator, dtype=torch.float64).tolist()
                expected = [support.naive_sample(model, [], limit, chosen, draws)]
            else:
                expected = [support.naive_greedy(model, [], limit, chosen)]
        assert [(each.tokens, each.ended) for each in own.hypotheses] == [(e.tokens, e.ended) for e in expected]
        for ours, theirs in zip(own.hypotheses, expected, strict=True):
            assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-9)


ENCODE, NEXT = support.encode, support.next_log_probabilities


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_company_does_not_matter(method: dict[str, Any]) -> None:
    bundle = three()
    together = translate(bundle, LINES, **method)
    for changed in ({"batch_tokens": 1}, {"batch_tokens": 60}):
        again = translate(bundle, LINES, **method, **changed)
        assert [each.best_texts(1) for each in again] == [each.best_texts(1) for each in together]
        for ours, theirs in zip(again, together, strict=True):
            assert ours.hypotheses[0].score == pytest.approx(theirs.hypotheses[0].score, abs=1e-9)


@pytest.mark.parametrize("average", ["log", "linear"])
def test_with_compiled_kernels(average: Average) -> None:
    decoding_kernels(torch.float32)
    method = {"method": "beam", "beam_size": 2}
    found, expected = (translate(three(average, packed=packed), LINES, **method) for packed in (True, False))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.hypotheses[0].score == pytest.approx(theirs.hypotheses[0].score, abs=1e-3)


@pytest.mark.parametrize("average", ["log", "linear"])
def test_shortlists_restrict_the_average(average: Average) -> None:
    bundle = three(average)
    hidden = torch.randn(3, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = torch.tensor([0, 1, 2, 3, 7, 9])
    engine = bundle.engine
    assert isinstance(engine, EnsembleEngine)
    whole = engine.project(hidden)
    torch.testing.assert_close(engine._product_of(tokens)(hidden), whole[:, tokens], rtol=0, atol=0)


def test_one_model_twice_is_that_model() -> None:
    single = tiny_bundle(1, ending=0.5)
    members = [Member(TorchEngine(single.model), 0.5, 16)] * 2
    for average in ("log", "linear"):
        double = replace(single, others=(single,), built=EnsembleEngine(members, average))  # type: ignore[arg-type]
        found, expected = translate(double, LINES, beam_size=3), translate(single, LINES, beam_size=3)
        assert [each.best_texts(3) for each in found] == [each.best_texts(3) for each in expected]


@pytest.mark.parametrize("average", ["log", "linear"])
def test_forced_decoding_scores_what_the_search_found(average: Average) -> None:
    bundle = three(average)
    found = translate(bundle, LINES, method="beam", beam_size=3)
    scored = score_pairs(bundle, input_lines(LINES), [each.text for each in found])  # type: ignore[arg-type]
    compared = 0
    for own, pair in zip(found, scored, strict=True):
        if own.hypotheses[0].ended and list(pair.ids[:-1]) == own.hypotheses[0].tokens:
            compared += 1
            assert pair.log_probability == pytest.approx(own.hypotheses[0].log_probability, abs=1e-9)
    assert compared > 0
