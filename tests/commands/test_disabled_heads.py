"""``--disable-heads`` of `decode` and `score`, and ``heads.disabled`` of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.support import Run

TEXT = "corpus/test.en"


def test_decode_and_score_leave_heads_out(command: Run, workspace: Path) -> None:
    forced = ("score", "--model", "model", "--source", TEXT, "--target", "corpus/test.de")
    plain = command(*forced)
    one = command(*forced, "--disable-heads", "encoder_self:2")
    twice = command(*forced, "--disable-heads", "encoder_self:2", "--disable-heads", "encoder_self:2")
    every = command(*forced, "--disable-heads", "encoder_self:1,2", "--disable-heads", "cross:1")
    assert {plain.code, one.code, twice.code, every.code} == {0}
    assert one.out == twice.out and len({plain.out, one.out, every.out}) == 3

    model = ("score", "--model", "model", "--source", TEXT, "-r", "corpus/test.de", "--json", "-m", "chrf")
    assert command(*model).out != command(*model, "--disable-heads", "cross:1,2").out


def test_a_decode_goes_on_only_with_the_same_heads(command: Run, workspace: Path) -> None:
    decode = ("decode", "model", "-i", TEXT, "-o", "out.de")
    heads = ("--disable-heads", "cross:1,2")
    assert command(*decode, *heads).code == 0
    disabled = Path("out.de").read_bytes()
    assert command(*decode).code == 0
    assert Path("out.de").read_bytes() != disabled
    assert command(*decode, *heads).code == 0
    assert Path("out.de").read_bytes() == disabled


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("2,4", "is not a site and numbers of heads"),
        ("encoder:1", "is not a site"),
        ("encoder_self", "is not a site"),
        ("encoder_self:0", "is not a site"),
        ("encoder_self:1,", "is not a site"),
        ("cross:a", "is not a site"),
        ("encoder_self:1,3", "there is no head 3 at encoder_self: it has 2"),
    ],
)
def test_what_is_no_head(refused: Callable[..., str], value: str, what: str) -> None:
    for arguments in (("decode", "model", "-i", TEXT), ("score", "--model", "model", "--source", TEXT, "-r", TEXT)):
        message = refused(*arguments, "--disable-heads", value)
        assert what in message and f"--disable-heads {value}" in message


def test_files_have_no_heads(refused: Callable[..., str]) -> None:
    message = refused("score", TEXT, "-r", TEXT, "--disable-heads", "cross:1")
    assert "needs --model" in message


def test_a_recipe_names_heads_that_are_not_there(refused: Callable[..., str]) -> None:
    key = "model.attention.encoder_self.heads.disabled"
    message = refused("train", "small.yaml", f"{key}=[1, 3]")
    assert "there is no head 3: the site has 2" in message and "disabled" in message
    message = refused("train", "small.yaml", f"{key}=[0]")
    assert "disabled" in message
