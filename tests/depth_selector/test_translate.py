"""Groups of equal depth: the lines' order, and the very translations of decoding each group at its depth."""

from __future__ import annotations

import pytest

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.depth_selector.selector import translate_at_depths
from sparsenmt.recipe.schema import Decoding
from tests.depth_selector.support import DEPTHS, LINES, deep_bundle, random_selector

OPTIONS = Decoding(method="greedy", max_length_factor=0.5, max_length_offset=4)
TEXT = [*LINES[:10], "", *LINES[10:20], "   ", LINES[0]]


def test_every_group_is_decoded_at_its_depth_and_the_order_is_restored() -> None:
    bundle = deep_bundle()
    depths = [DEPTHS[i % len(DEPTHS)] for i in range(len(TEXT))]
    found = translate_at_depths(bundle, input_lines(TEXT), depths, OPTIONS)
    assert [each.source.text for each in found] == TEXT
    assert [each.source.number for each in found] == list(range(len(TEXT)))
    assert [each.depth or depth for each, depth in zip(found, depths, strict=True)] == depths
    assert [each.depth is None for each in found] == [not text.strip() for text in TEXT]
    for depth in DEPTHS:
        members = [i for i, each in enumerate(depths) if each == depth]
        alone = translate_lines(bundle, input_lines([TEXT[i] for i in members]), OPTIONS.at(depth))
        assert [found[i].text for i in members] == [each.text for each in alone]
    full = [each.text for each in translate_lines(bundle, input_lines(TEXT), OPTIONS)]
    assert full != [each.text for each in found], "the test must see a difference"


@pytest.mark.parametrize("window", [1, 7])
def test_a_depth_does_not_depend_on_the_batch(window: int) -> None:
    bundle = deep_bundle()
    selector = random_selector(bundle)
    found = list(selector.translate(bundle, input_lines(TEXT, first=100), OPTIONS, window=window))
    assert [each.source.number for each in found] == list(range(100, 100 + len(TEXT)))
    sources = [source for source in read_sources(bundle, input_lines(TEXT)) if not source.empty]
    expected = [selector.choose([source.ids])[0] for source in sources]
    assert [each.depth for each in found if not each.source.empty] == expected
    assert len(set(expected)) >= 3, "the test must see several depths"
    assert sum(selector.counts.values()) == len(sources), "lines without words have no depth"
    for each, depth in zip([each for each in found if not each.source.empty], expected, strict=True):
        (alone,) = translate_lines(bundle, input_lines([each.source.text]), OPTIONS.at(depth))
        assert each.text == alone.text
