"""Lines in, translations out: one for each, in order, whatever company a line has."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from sparsenmt.data.input_line import input_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding import translate as translate_module
from sparsenmt.decoding.translate import TranslatedLine, one_line, sparsity_rate, translate_lines
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, MemoryFilter
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import TinyBundle, invented_lines, naive_beam, tiny_bundle
from tests.decoding.support import packed as engine_of

METHODS = [{"method": "beam", "beam_size": 3}, {"method": "greedy"}, {"method": "sample", "seed": 5}]
LINES = invented_lines(17, 3)


def options(**values: object) -> Decoding:
    return Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, **values})


def translate(bundle: TinyBundle, lines: Sequence[str], **values: object) -> list[TranslatedLine]:
    return list(translate_lines(bundle, input_lines(lines), options(**values)))


def all_texts(translations: Sequence[TranslatedLine]) -> list[list[str]]:
    return [each.best_texts(len(each.hypotheses)) for each in translations]


def assert_same(found: Sequence[TranslatedLine], expected: Sequence[TranslatedLine]) -> None:
    assert all_texts(found) == all_texts(expected)
    for mine, theirs in zip(found, expected, strict=True):
        for a, b in zip(mine.hypotheses, theirs.hypotheses, strict=True):
            assert a.tokens == b.tokens
            assert a.score == pytest.approx(b.score, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_order_is_kept(method: dict[str, object]) -> None:
    bundle, told = tiny_bundle(), list[int]()
    found = list(translate_lines(bundle, input_lines(iter(LINES)), options(**method), advance=told.append, window=5))
    assert [each.source.text for each in found] == LINES
    assert [each.source.number for each in found] == list(range(len(LINES)))
    assert sum(told) == len(LINES)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_company_does_not_matter(method: dict[str, object], packed: bool) -> None:
    """In float64: together, in small batches, in small windows, and (but for sampling, where the number counts) alone
    and shuffled."""
    bundle = tiny_bundle(2)
    if packed:
        bundle = engine_of(bundle, torch.float64)
    together = translate(bundle, LINES, **method)
    assert_same(translate(bundle, LINES, **method, batch_tokens=1), together)
    assert_same(translate(bundle, LINES, **method, batch_tokens=150), together)
    assert_same(list(translate_lines(bundle, input_lines(LINES), options(**method), window=4)), together)
    if method["method"] != "sample":
        assert_same([translate(bundle, [line], **method)[0] for line in LINES], together)
        order = random.Random(1).sample(range(len(LINES)), len(LINES))
        shuffled = translate(bundle, [LINES[i] for i in order], **method)
        assert_same(shuffled, [together[i] for i in order])


@pytest.mark.parametrize("method", METHODS)
def test_goes_on_after_whole_windows(method: dict[str, object]) -> None:
    """In fp32 too, to the last bit: the same batches."""
    bundle = tiny_bundle(2, dtype=torch.float32)
    whole = list(translate_lines(bundle, input_lines(LINES), options(**method), window=5))
    for first in (5, 15):
        rest = list(translate_lines(bundle, input_lines(LINES[first:], first=first), options(**method), window=5))
        assert rest == whole[first:]


def test_long_runs_begin_windows_without_old_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The translations are the same, to the last bit; the first windows of a short run keep their buffers."""
    bundle, chosen, seen = tiny_bundle(2, dtype=torch.float32), options(beam_size=3), list[str]()
    whole = list(translate_lines(bundle, input_lines(LINES), chosen, window=5))
    release = TorchEngine.release
    monkeypatch.setattr(translate_module, "trim_heap", lambda: seen.append("trimmed"))
    monkeypatch.setattr(TorchEngine, "release", lambda self: (seen.append("released"), release(self)))
    monkeypatch.setattr(translate_module, "_TRIM_AFTER", math.inf)
    assert list(translate_lines(bundle, input_lines(LINES), chosen, window=5)) == whole and not seen
    monkeypatch.setattr(translate_module, "_TRIM_AFTER", -1.0)
    assert list(translate_lines(bundle, input_lines(LINES), chosen, window=5)) == whole
    assert seen == ["released", "trimmed"] * 4


def test_equals_plain_loops_from_text_to_text() -> None:
    bundle, chosen = tiny_bundle(3), options(beam_size=2)
    for translation, line in zip(translate_lines(bundle, input_lines(LINES[:6]), chosen), LINES, strict=False):
        ids = [*bundle.tokenizers.source.encode(line), EOS]
        limit = int(0.5 * (len(ids) - 1)) + 3
        expected = naive_beam(bundle.model, ids, limit, chosen)
        assert translation.best_texts(9) == [bundle.tokenizers.target.decode(each.tokens) for each in expected]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_empty_lines_stay_empty(kind: str, method: dict[str, object]) -> None:
    bundle = tiny_bundle(4, kind=kind)
    lines = ["", "alte Haus", "   ", "", "nie"]
    found = translate(bundle, lines, **method)
    assert [each.source.empty for each in found] == [True, False, True, True, False]
    assert [each.text for each in found if each.source.empty] == ["", "", ""]
    assert translate(bundle, ["", " "], **method)[1].text == ""
    assert translate(bundle, []) == []


def test_odd_line_ends_inside_a_line_are_data() -> None:
    bundle = tiny_bundle(5)
    lines = ["alte\u2028Haus", "am\rFluss", "a\x0cb\x00c", "\u2028", "zwei"]
    found = translate(bundle, lines)
    assert [each.source.text for each in found] == lines
    assert all("\n" not in each.text for each in found)
    assert one_line("a\nb\u2028c\rd") == "a b\u2028c\rd"


def test_too_long_lines_are_cut_and_named() -> None:
    bundle = tiny_bundle(6, max_positions=10)
    line = "Katzen spielen dort"
    (found,) = translate(bundle, [line], long="cut")
    assert found.source.cut == len(bundle.tokenizers.source.encode(line)) - 9
    assert len(found.source.ids) == 10
    cut = bundle.tokenizers.source.decode(found.source.ids[:-1])
    assert translate(bundle, [cut])[0].best_texts(9) == found.best_texts(9)
    assert translate(bundle, ["am"])[0].source.cut == 0


def test_minimum_length_beyond_the_positions() -> None:
    bundle = tiny_bundle(7, max_positions=12)
    for method in METHODS:
        for found in translate(bundle, LINES[:3], **method, min_length=50, long="cut"):
            assert all(len(each.tokens) == 12 and not each.ended for each in found.hypotheses)


def test_a_broken_model_is_reported() -> None:
    bundle = tiny_bundle(8)
    with torch.no_grad():
        bundle.model.embeddings["output"].fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        translate(bundle, LINES[:2], beam_size=2)


class DropOdd(MemoryFilter):
    """Closes every second position."""

    def forward(self, memory: Memory) -> Gates:
        return Gates((memory.positions % 2 == 0).to(memory.states.dtype))


@pytest.mark.parametrize("method", METHODS)
def test_closed_positions_are_counted(method: dict[str, object]) -> None:
    bundle = tiny_bundle()
    assert sparsity_rate(translate(bundle, LINES, **method)) is None, "not measured is not zero"
    bundle.model.memory.output.append(DropOdd())
    found = translate(bundle, [*LINES, ""], **method)
    assert [each.closed for each in found] == [*(len(each.source.ids) // 2 for each in found[:-1]), None]
    real = found[:-1]
    assert sparsity_rate(found) == sum(len(t.source.ids) // 2 for t in real) / sum(len(t.source.ids) for t in real)


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_are_not_numbers_are_reported(method: dict[str, object]) -> None:
    bundle = tiny_bundle()
    with torch.no_grad():
        bundle.model.encoder.norm.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        translate(bundle, LINES, **method)
