"""Plots: files that are what their names say, the same bytes for the same values, and clear refusals."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from sparsenmt.errors import UserError
from sparsenmt.report.plots import (
    Heatmap,
    Panel,
    ShadedText,
    check_plot,
    curves,
    heatmaps,
    panel_grid,
    save,
    shaded_texts,
)

PNG = b"\x89PNG\r\n\x1a\n"
POINTS = [(0.0, 0.1), (0.5, None), (1.0, 0.3)]
PANELS = [
    Panel("x", "y", {"a": POINTS, "b": POINTS}, percent="xy"),
    Panel("x", "y", {"a": POINTS}, style="steps", title="$5"),
    Panel("x", "y", {"a": POINTS, "b": POINTS}, style="bars", ticks=[(0.0, "punctuation"), (1.0, "b")]),
    Panel("x", "y", {str(i): POINTS for i in range(9)}),
    Panel("x", "y", {"a": POINTS, "b": POINTS}, style="lines", x_range=(0.0, 2.0), y_range=(0.0, None)),
    Panel("x", "y", {"a": POINTS, "b": POINTS}, style="points", drawn=("b",)),
    Panel("", "", {}, title="nothing"),
]
MAP = Heatmap("t", ["a", "$b$"], ["c", "d$", "e"], np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]), [False, True, False])


def check_picture(path: Path) -> None:
    """PNG with its mark and its end, or SVG that is XML."""
    data = path.read_bytes()
    if path.suffix.lower() == ".png":
        assert data.startswith(PNG) and data.endswith(b"IEND\xaeB`\x82") and len(data) > 1000
    else:
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".SVG"])
def test_pictures_are_valid_and_reproducible(tmp_path: Path, suffix: str) -> None:
    for name, make in {"curves": lambda: curves(PANELS), "maps": lambda: heatmaps([[MAP, MAP], [MAP, MAP]])}.items():
        paths = [tmp_path / f"{name}{i}{suffix}" for i in range(2)]
        for path in paths:
            check_plot(path)
            save(make(), path)
        check_picture(paths[0])
        assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_shared_scale_holds_the_points_of_all_panels() -> None:
    """A later panel may have the largest value: its curve was cut off at the top."""
    low, high = ([(0.0, 0.1), (1.0, top)] for top in (0.2, 0.9))
    for style in ("curves", "steps"):
        panels = [Panel("x", "y", {"a": points}, percent="y", style=style) for points in (low, high, low)]
        for axis in curves(panels, share_y=True).axes:
            bottom, top = axis.get_ylim()
            assert bottom == 0 and 0.9 < top < 1.0


def test_values_far_from_0_have_room_above_them() -> None:
    """The scale began at 0 and ended at the values, so that half of each marker was cut off."""
    for panel in (Panel("x", "y", {"a": POINTS}, percent="y"), Panel("x", "y", {"a": POINTS}, y_range=(0.0, None))):
        flat = replace(panel, series={"a": [(0.0, 0.300), (1.0, 0.301)]})
        bottom, top = curves([flat]).axes[0].get_ylim()
        assert bottom == 0 and 0.31 < top < 0.33


def test_panels_stand_in_lines_of_equal_length(tmp_path: Path) -> None:
    figure = panel_grid([PANELS[:3], PANELS[3:6]])
    assert len(figure.axes) == 6
    save(figure, tmp_path / "a.png")
    check_picture(tmp_path / "a.png")


def test_values_stand_in_the_cells_but_for_what_was_not_measured(tmp_path: Path) -> None:
    weights = np.array([[0.125, np.nan, 1.0]])
    save(
        heatmaps([[Heatmap("t", ["r"], ["a", "b", "c"], weights, [False] * 3, percent=True)]], most=1.0),
        tmp_path / "a.svg",
    )
    text = (tmp_path / "a.svg").read_bytes().decode()
    assert "<!-- 12 -->" in text and "<!-- 100 -->" in text and "nan" not in text


def test_a_long_title_widens_its_map() -> None:
    narrow, wide = (heatmaps([[Heatmap(t, ["r"], ["a"], np.ones((1, 1)), [False])]]) for t in ("t", "t" * 60))
    assert wide.get_size_inches()[0] > 60 * 0.07 > narrow.get_size_inches()[0]


def test_names_stand_in_the_picture(tmp_path: Path) -> None:
    save(heatmaps([[MAP]]), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_bytes().decode()
    for name in ("$b$", "[d$]", "c"):  # matplotlib notes the text of every label in a comment
        assert f"<!-- {name} -->" in text or f"<!-- {name.replace('$', chr(92) + '$')} -->" in text


def test_only_exactly_0_is_white() -> None:
    """Weights below 1e-9 were white, too."""
    image = heatmaps([[replace(MAP, weights=np.array([[0.0, 1e-12, 1.0], [np.nan, 0.5, 0.0]]))]]).axes[0].images[0]
    colours = image.cmap(image.norm(image.get_array()))
    assert np.all(colours == 1.0, axis=-1).tolist() == [[True, False, False], [True, False, True]]


def test_markers_at_the_ends_of_an_axis_are_whole() -> None:
    """The dense model of a sweep, at 0, was cut in half."""
    for style in ("points", "curves"):
        panel = Panel("x", "y", {"a": [(0.0, 0.0), (0.5, 1.0)]}, percent="xy", style=style)
        (line,) = curves([panel]).axes[0].lines
        assert not line.get_clip_on()


def test_shaded_texts_break_between_words_and_mark_exact_zeros(tmp_path: Path) -> None:
    long = [" word"] * 15 + ["<", " $x$"]
    figure = shaded_texts([ShadedText("m, sentence 1", long, np.array([0.0, 1e-12, *[1.0] * 15]))], "gate")
    texts = {text.get_text(): text for text in figure.axes[0].texts}
    assert {"m, sentence 1", "[word]", "word", "<", r"\$x\$", "gate (white, in brackets: exactly 0)"} <= set(texts)
    faces = [patch.get_facecolor()[:3] for patch in figure.axes[0].patches]
    assert [face == (1.0, 1.0, 1.0) for face in faces] == [True] + [False] * 16 + [True] + [False] * 4
    assert len({patch.get_y() for patch in figure.axes[0].patches}) == 3  # two lines, and the scale
    save(figure, tmp_path / "a.svg")
    check_picture(tmp_path / "a.svg")


def test_large_and_empty_maps(tmp_path: Path) -> None:
    names = ["x"] * 900
    large = Heatmap("t", names[:2], names, np.ones((2, 900)), [False] * 900)
    empty = Heatmap("t", [], ["a"], np.zeros((0, 1)), [False])
    for name, grid in {"large": [[large]], "empty": [[empty]]}.items():
        save(heatmaps(grid), tmp_path / f"{name}.png")
        check_picture(tmp_path / f"{name}.png")


def test_another_suffix_is_refused() -> None:
    with pytest.raises(UserError, match="a plot is written as PNG or SVG"):
        check_plot(Path("a.pdf"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"matplotlib is not installed\n.*sparsenmt\[plots\]"):
        check_plot(Path("a.png"))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save(curves(PANELS), tmp_path / "missing" / "a.png")
