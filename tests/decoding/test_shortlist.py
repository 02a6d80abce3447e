"""Decoding with shortlists: each sentence uses its own tokens, whatever company it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.data.documents import separator_id
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.tokenizers.frame import Frame, FramePair
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.engine.build import packs
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.native.kernels import kernels
from sparsenmt.recipe.schema import Decoding, TokenizerSection
from tests.decoding.support import TinyBundle, invented_lines, packed, tiny_bundle, tiny_model

METHODS: list[dict[str, Any]] = [
    {"method": "beam", "beam_size": 3},
    {"method": "beam", "beam_size": 1},
    {"method": "beam", "beam_size": 2, "no_repeat_ngram": 2, "min_length": 3},
    {"method": "beam", "beam_size": 2, "unknown": "forbid"},
    {"method": "greedy", "no_repeat_ngram": 1},
    {"method": "sample", "seed": 5, "top_p": 0.9},
]
LINES = invented_lines(12, 3)


def translate(bundle: TinyBundle, lines: list[str], method: dict[str, Any], **values: object) -> list[TranslatedLine]:
    options = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, **method, **values})
    return list(translate_lines(bundle, input_lines(lines), options))  # type: ignore[arg-type]


def with_shortlist(bundle: TinyBundle, *, whole: bool = False) -> TinyBundle:
    """Give every source token three tokens by its number, or all of them."""
    tokenizer = bundle.tokenizers.source
    size = tokenizer.size
    lists = [range(size) if whole else {4 + (7 * id_ + k) % (size - 4) for k in range(3)} for id_ in range(size)]
    return replace(bundle, given_shortlist=Shortlist.of([5], lists, tokenizer, tokenizer))


@pytest.mark.parametrize(
    ("method", "dtype"),
    [*((method, torch.float64) for method in METHODS), (METHODS[0], torch.float32), (METHODS[1], torch.int8)],
    ids=str,
)
def test_a_shortlist_of_all_tokens_changes_nothing(method: dict[str, Any], dtype: torch.dtype) -> None:
    bundle = tiny_bundle(2, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    if not packs(bundle.model, dtype):
        pytest.skip("this machine has no such products")
    bundle = packed(bundle, dtype)
    expected = translate(bundle, LINES, method, batch_tokens=60)
    found = translate(with_shortlist(bundle, whole=True), LINES, method, batch_tokens=60)
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.tokens for each in mine.hypotheses] == [each.tokens for each in theirs.hypotheses]
        for ours, others in zip(mine.hypotheses, theirs.hypotheses, strict=True):
            assert ours.score == pytest.approx(others.score, abs=1e-9 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_sentence_uses_its_own_tokens_in_any_company(method: dict[str, Any]) -> None:
    bundle = with_shortlist(tiny_bundle(2))
    shortlist = bundle.given_shortlist
    assert shortlist is not None
    together = translate(bundle, LINES, method)
    allowed = shortlist.allowed([each.source.ids for each in together])
    for own, row in zip(together, allowed, strict=True):
        assert all(bool(row[token]) for each in own.hypotheses for token in each.tokens)
    parts = translate(bundle, LINES, method, batch_tokens=24)
    assert [[h.tokens for h in each.hypotheses] for each in parts] == [
        [h.tokens for h in each.hypotheses] for each in together
    ]
    if method["method"] != "sample":  # where the number of a line counts
        for line, expected in list(zip(LINES, together, strict=True))[:3]:
            (alone,) = translate(bundle, [line], method)
            assert [h.tokens for h in alone.hypotheses] == [h.tokens for h in expected.hypotheses]
            for ours, theirs in zip(alone.hypotheses, expected.hypotheses, strict=True):
                assert ours.score == pytest.approx(theirs.score, abs=1e-9)
    assert [each.text for each in together] != [each.text for each in translate(tiny_bundle(2), LINES, method)]


@pytest.mark.parametrize("listed", [True, False])
def test_kernels_read_the_rows_of_the_batch_only(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 the same is found as in float64, row by row or with rows that are gathered once a batch."""
    monkeypatch.setenv("SPARSENMT_NATIVE", "always")
    method = METHODS[0]
    expected = [each.text for each in translate(with_shortlist(tiny_bundle(2)), LINES, method)]
    gathered: list[int] = []
    gather = NativeEngine._product_of

    def noting(engine: NativeEngine, tokens: torch.Tensor) -> Any:
        gathered.append(len(tokens))
        return gather(engine, tokens)

    monkeypatch.setattr(NativeEngine, "_product_of", noting)
    bundle = packed(with_shortlist(tiny_bundle(2, dtype=torch.float32)), torch.float32)
    if not listed:
        monkeypatch.setattr(NativeEngine, "_listed", None)
    elif (found := kernels()) is None or torch.float32 not in found.layout.dtypes:
        pytest.skip("this machine has no such products")
    assert [each.text for each in translate(bundle, LINES, method)] == expected
    if listed:
        assert not gathered
        return
    size = bundle.tokenizers.target.size
    assert 1 <= len(gathered) <= 3 and all(len(SPECIAL_TOKENS) < each <= size for each in gathered)
    translate(bundle, ["nie"], method)
    assert gathered[-1] < size


@pytest.mark.parametrize("method", METHODS[:2], ids=str)
def test_languages_that_are_given_need_not_be_in_a_shortlist(method: dict[str, Any]) -> None:
    frames = FramePair(Frame((5, 7), (8,)), Frame((6, 9), start=10))
    plain = replace(tiny_bundle(2), frames=frames)
    small, whole = with_shortlist(plain), with_shortlist(plain, whole=True)
    assert small.given_shortlist is not None
    found, every = translate(small, LINES, method), translate(whole, LINES, method)
    for own, line, expected in zip(found, every, translate(plain, LINES, method), strict=True):
        assert [each.tokens for each in line.hypotheses] == [each.tokens for each in expected.hypotheses]
        allowed = small.given_shortlist.allowed([own.source.ids])[0]
        assert all(bool(allowed[token]) for each in own.hypotheses for token in each.tokens)
    rows = small.given_shortlist.allowed([each.source.ids for each in found])
    apart = rows[:, list(frames.target.given)].logical_not()
    assert apart.any(), "the decoder is given tokens that may not come out"
    (alone,) = translate(small, LINES[:1], method)
    assert [each.tokens for each in alone.hypotheses] == [each.tokens for each in found[0].hypotheses]


def test_unknown_tokens_are_copied_with_a_shortlist() -> None:
    """The unknown token is one of the special ones, which may always come out."""
    plain = tiny_bundle(3, kind="word", ending=0.0)
    with torch.no_grad():  # a model that likes unknown tokens
        norm, output = plain.model.decoder.norm, plain.model.embeddings["output"]
        output[UNK] += 3 * norm.bias / norm.bias.norm()
    lines = ["Жук Haus Щука", "am Дом"]
    expected = translate(plain, lines, METHODS[1], unknown="copy")
    found = translate(with_shortlist(plain, whole=True), lines, METHODS[1], unknown="copy")
    assert [each.text for each in found] == [each.text for each in expected]
    own = translate(with_shortlist(plain), lines, METHODS[1], unknown="copy")
    assert all(UNK in each.hypotheses[0].tokens and UNKNOWN_SURFACE not in each.text for each in own)


def test_the_separator_of_documents_may_come_out() -> None:
    options = TokenizerSection.model_validate({"kind": "word", "vocabulary_size": 60, "user_symbols": ["<sep>"]})
    tokenizer = train_tokenizer(options, iter(invented_lines(200, 1)))
    model = tiny_model(1, vocabulary=tokenizer.size, ending=0.5, max_positions=64)
    separator = separator_id(tokenizer, "<sep>")
    with torch.no_grad():  # a model that likes the separator
        model.embeddings["output"][separator] += torch.ones(16) / 4
    tokenizers = Tokenizers(tokenizer, tokenizer, True)
    bundle = replace(tiny_bundle(), model=model, tokenizers=tokenizers, separator="<sep>")
    lists: list[list[int]] = [[4, 5]] * tokenizer.size
    listed = Shortlist.of([6], [[id_ for id_ in each if id_ != separator] for each in lists], tokenizer, tokenizer)
    found = translate(replace(bundle, given_shortlist=listed), LINES, METHODS[1])
    assert any(separator in each.hypotheses[0].tokens for each in found)
    assert {token for each in found for token in each.hypotheses[0].tokens} <= {UNK, 4, 5, 6, separator}
