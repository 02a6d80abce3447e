"""What recipes for summarization may say about markers and about long sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from tests.recipe.support import MINIMAL, load_text


def data(extra: str) -> str:
    """The minimal recipe with more below `data`."""
    return f"{MINIMAL}  {extra}\n"


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ('[""]', "data.tokenizer.user_symbols.0: is empty"),
        ('["<n>", "a b"]', "data.tokenizer.user_symbols.1: 'a b' contains white space"),
        ('["a\\tb"]', "contains white space, U+2581 or a control character"),
        ('["a\\u0000b"]', "contains white space, U+2581 or a control character"),
        ('["\\u2581a"]', "contains white space, U+2581 or a control character"),
        ('["</s>"]', "data.tokenizer.user_symbols.0: '</s>' is a special token of every vocabulary"),
        ('["<pad>"]', "'<pad>' is a special token"),
        ('["<n>", "<q>", "<n>"]', "data.tokenizer.user_symbols.2: '<n>' occurs twice"),
        ("[1]", "data.tokenizer.user_symbols.0: must be text"),
        ('"<n>"', "data.tokenizer.user_symbols: must be a list"),
        ('["<N>"], lowercase: true', "'<N>' does not occur in lowercased text"),
        (
            '["a", "b"], vocabulary_size: 6',
            "must be greater than 6, the number of special tokens and user symbols",
        ),
    ],
)
def test_symbols_that_are_refused(tmp_path: Path, symbols: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, head=data(f"tokenizer: {{user_symbols: {symbols}}}"))
    assert expected in str(caught.value)
    assert str(caught.value).count("error") <= 1


def test_symbols_that_are_taken(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, head=data('tokenizer: {user_symbols: ["<n>", "#P1#", "|", "ß", "<doc>"]}'))
    assert recipe.data.tokenizer.user_symbols == ["<n>", "#P1#", "|", "ß", "<doc>"]


@pytest.mark.parametrize(
    ("filters", "model", "expected"),
    [
        ("{max_source_length: 8193}", "{}", "data.filters.max_source_length: must be at most 8192, not 8193"),
        ("{max_source_length: 0}", "{}", "data.filters.max_source_length: must be greater than 0, not 0"),
        (
            "{max_source_length: 400}",
            "{}",
            "data.filters.max_source_length: sources cut to 400 tokens would be left out, because `max_length` is 256",
        ),
        (
            "{max_length: null, max_source_length: 1024}",
            "{}",
            "data.filters.max_source_length: 1024 tokens and the end do not fit 1024 positions",
        ),
        ("{max_length: null, max_source_length: 80}", "{max_positions: 80}", "Set `model.max_positions` to 81 or more"),
    ],
)
def test_lengths_that_contradict_each_other(tmp_path: Path, filters: str, model: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, f"model: {model}\n", head=data(f"filters: {filters}"))
    assert expected in str(caught.value)


def test_the_longest_source(tmp_path: Path) -> None:
    filters = "filters: {max_length: null, max_source_length: 8192}"
    recipe = load_text(tmp_path, "model: {max_positions: 8193}\n", head=data(filters))
    assert recipe.data.filters.max_source_length == 8192
