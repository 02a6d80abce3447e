"""The colours of pages: texts have a contrast of 4.5 at least in both themes, lines of diagrams one of 3 (WCAG 2.2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparsenmt

STYLE = Path(sparsenmt.__file__).parent / "report" / "page" / "templates" / "page.css"
PLAIN = ("paper", "panel")
"""Backgrounds of elements without one of their own."""


def colours() -> dict[str, tuple[str, str]]:
    """Name -> the colour in the light and in the dark theme."""
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", STYLE.read_text(encoding="utf-8"))
    return {name: (light, dark) for name, light, dark in found}


def rules() -> list[tuple[str, dict[str, str]]]:
    """Selector and declarations of every rule."""
    text = re.sub(r"/\*.*?\*/", "", STYLE.read_text(encoding="utf-8"), flags=re.S)
    found = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        pairs = (part.split(":", 1) for part in body.split(";") if ":" in part)
        found.append((selector.strip(), {name.strip(): value.strip() for name, value in pairs}))
    return found


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def named(value: str) -> str | None:
    found = re.fullmatch(r"var\(--([\w-]+)\)", value)
    return found[1] if found else None


def test_the_formula() -> None:
    """Black on white is 21, #767676 on white 4.54: the examples of WCAG."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#ffffff", "#767676") == pytest.approx(4.54, abs=0.01)


def test_every_colour_is_a_pair_of_the_two_themes() -> None:
    body = STYLE.read_text(encoding="utf-8").split("}", 1)[1]
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgb|\bhsl", body)
    for selector, rule in rules():
        for name in ("color", "background", "fill", "stroke"):
            value = rule.get(name, "none")
            assert value in ("none", "var(--own)") or named(value) in colours(), f"{selector}: {name}"


def test_texts_can_be_read() -> None:
    known, pairs = colours(), set()
    for selector, rule in rules():
        text, ground = named(rule.get("color", "")), named(rule.get("background", ""))
        if ground and not text:
            assert selector == "body" or ground in PLAIN, f"{selector} has a background, and no colour of its text"
        if text and not text.startswith("on-"):
            pairs |= {(text, each) for each in ([ground] if ground else PLAIN)}
        if text and text.startswith("on-"):
            pairs.add((text, ground or "paper"))
    assert len(pairs) > 15
    for text, ground in sorted(pairs):
        for theme in (0, 1):
            found = contrast(known[text][theme], known[ground][theme])
            assert found >= 4.5, f"{text} on {ground}: {found:.2f} in theme {theme}"


def test_lines_of_diagrams_can_be_seen() -> None:
    series = {name: pair for name, pair in colours().items() if name.startswith("series-")}
    assert len(series) == 8
    for name, pair in series.items():
        for theme in (0, 1):
            assert contrast(pair[theme], colours()["paper"][theme]) >= 3, name
