"""Fonts of plots: chosen by the glyphs that they have, and the package that is named where there are none."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from sparsenmt.report import fonts, plots
from sparsenmt.report.fonts import FontChoice, Glyphs, choose_fonts, fonts_for, scripts_of
from sparsenmt.report.plot_labels import label, shortened
from sparsenmt.report.plots import Heatmap, Panel, curves, describe, heatmaps, save

JAPANESE, KOREAN, CHINESE, THAI, HEBREW = "誰が一番。", "한국漢字", "谁知道", "ภาษา", "שלום"


def has(characters: str) -> Glyphs:
    def glyphs(wanted: Collection[str]) -> set[str]:
        return set(wanted) & set(characters)

    return glyphs


def chosen(text: str, installed: Mapping[str, str]) -> FontChoice:
    return choose_fonts(set(text), {name: has(own) for name, own in installed.items()}, has("abc…"))


def test_a_font_follows_only_for_characters_that_it_has() -> None:
    assert chosen("abc…", {"Noto Sans CJK JP": JAPANESE}) == FontChoice()
    both = {"IPAexGothic": JAPANESE, "Noto Sans CJK JP": JAPANESE, "Loma": THAI, "Amiri": ""}
    assert chosen(JAPANESE + "a", both).families == ("Noto Sans CJK JP",)  # the first of the list
    assert chosen(JAPANESE, {"IPAexGothic": JAPANESE, "Noto Sans CJK JP": ""}).families == ("IPAexGothic",)
    assert chosen(THAI + JAPANESE, both) == FontChoice(("Noto Sans CJK JP", "Loma"))


def test_several_fonts_make_up_for_one_another() -> None:
    found = chosen(JAPANESE, {"Noto Sans CJK JP": "誰が", "IPAexGothic": "一番"})
    assert found == FontChoice(("Noto Sans CJK JP", "IPAexGothic"), "。")


def test_a_font_that_no_list_names_is_better_than_none() -> None:
    """The one that has most comes first; math fonts have other signs under the codes, Last Resort has boxes."""
    installed = {"Odd": "誰", "Own": JAPANESE, "STIXNonUnicode": JAPANESE, "Last Resort High-Efficiency": JAPANESE}
    assert chosen(JAPANESE, installed) == FontChoice(("Own",))
    assert chosen(JAPANESE, {"Noto Color Emoji": JAPANESE}).missing == "".join(sorted(JAPANESE))


def test_han_belongs_to_the_language_of_the_other_characters() -> None:
    three = {f"Noto Sans CJK {name}": JAPANESE + CHINESE + KOREAN for name in ("SC", "JP", "KR")}
    for text, name in ((JAPANESE, "JP"), (CHINESE, "SC"), (KOREAN, "KR")):
        assert chosen(text, three).families == (f"Noto Sans CJK {name}",)
    assert {script.name for script in scripts_of("「誰」が😀")} == {"Japanese", "emoji and symbols"}


def test_one_message_names_script_characters_and_package() -> None:
    message = FontChoice((), "".join(sorted(JAPANESE + "くにかさ" + THAI))).message("p.png")
    assert message is not None
    first, *others = message.split("\n")
    assert first == "p.png: no installed font has these characters, which are drawn as boxes:"
    thai, japanese = sorted(others, key=lambda line: "Japanese" in line)
    assert japanese.startswith("  Japanese (") and "`fonts-ipaexfont` or `fonts-noto-cjk`" in japanese
    assert " and 1 more): install" in japanese and japanese.endswith("or the font Noto Sans CJK JP")
    assert "Thai (" in thai and "`fonts-thai-tlwg`" in thai
    assert FontChoice(("Loma",)).message("p.png") is None


@pytest.mark.parametrize(
    ("name", "character"),
    [
        *(("Khmer", "ក"), ("Lao", "ກ"), ("Burmese", "က"), ("Tibetan", "ཀ"), ("Ethiopic", "አ"), ("Cherokee", "Ꭰ")),
        *(("Tamil", "த"), ("Arabic", "ا"), ("Korean", "한"), ("Chinese", "中"), ("Bengali", "ক"), ("Georgian", "ქ")),
    ],
)
def test_every_script_has_advice(name: str, character: str) -> None:
    message = FontChoice((), character).message("p")
    assert message is not None and f"  {name} ({character}): install `fonts-" in message and "font Noto S" in message


def test_an_old_matplotlib_says_that_it_does_not_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_shapes", lambda: False)
    message = fonts_for([HEBREW]).message("p.png")  # matplotlib's own font has Hebrew
    assert message == "p.png: matplotlib before 3.11 neither joins nor reorders letters (Hebrew): install a newer one"


def panel(**changes: object) -> Panel:
    series = {"_best": [(0.0, 0.2), (1.0, None), (2.0, 0.4)], "模型 $x$": [(0.0, 0.3), (1.0, 0.1), (2.0, 0.2)]}
    return Panel("品詞", "割合", series, title="a$b$\\frac", **changes)  # type: ignore[arg-type]


TOKENS = ["誰が", "a\nb", "\x1b[31m", "$x$", "\\frac{", "x" * 300, "\u0e48", "e\u0301", "", "שלום", "😀\ufe0f"]
TICKS = [(0.0, "名詞\n1,000"), (1.0, "動詞\n20"), (2.0, "助詞, a long name of it that is cut\n3")]
SPANS: dict[str, list[tuple[float, float] | None]] = {"_best": [(0.1, 0.3), None, (0.2, 0.5)]}


def every_kind() -> dict[str, Figure]:
    weights = np.linspace(0, 1, len(TOKENS) ** 2).reshape(len(TOKENS), -1)
    dropped = [True, *([False] * (len(TOKENS) - 1))]
    attention = Heatmap("モデル, 文 1", TOKENS, TOKENS, weights, dropped, row_label="原文", column_label="訳")
    values = plots.ValueMap("深さ", "n", ["1"], "m", ["1", "2"], np.array([[1.0, np.nan]]))
    return {
        "curves": curves([panel(percent="y", intervals=SPANS, level=("全体", 0.2))]),
        "points": curves([panel(style="points", percent="xy")]),
        "lines": curves([panel(style="lines"), Panel("x", "y", {"一": [(0.0, 1.0)]})]),
        "steps": curves([panel(style="steps", x_range=(0.0, 9.0))]),
        "bars": curves([panel(style="bars", ticks=TICKS, intervals=SPANS)]),
        "maps": heatmaps([[attention, attention]]),
        "values": plots.value_maps([[values, values]]),
        "empty": curves([Panel("", "", {}, title="無")]),
    }


def test_every_kind_of_plot_is_drawn_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glyph that no font has is a warning of matplotlib, here an error: unless the one message has told it."""
    told: list[str] = []
    monkeypatch.setattr(plots, "notify", told.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in every_kind().items():
            told.clear()
            path = tmp_path / f"{name}.png"
            save(describe(figure, "ファイル\na $long$ name " * 9, caption="注"), path)
            assert path.stat().st_size > 1000 and len(told) <= 1
            assert not told or "fonts-" in told[0]


def test_without_a_font_the_plot_is_written_and_one_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(plots, "notify", told.append)
    monkeypatch.setattr(fonts, "_installed", dict)
    monkeypatch.setattr(fonts, "_list_new_fonts", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("png", "svg"):
            save(curves([panel()]), tmp_path / f"p.{suffix}")
    assert len(told) == 2 and all("fonts-noto-cjk" in each for each in told)
    assert (tmp_path / "p.png").exists() and (tmp_path / "p.svg").exists()


def test_names_that_begin_with_an_underscore_stand_in_the_legend() -> None:
    figure = curves([panel()])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_best", r"模型 \$x\$"]


def test_the_scale_of_colours_grows_darker_steadily() -> None:
    red, green, blue = plots._scale()(np.linspace(0, 1, 64))[:, :3].T
    assert (np.diff(0.2126 * red + 0.7152 * green + 0.0722 * blue) < 0).all()


def test_axes_do_not_waste_half_of_the_picture() -> None:
    series = {"m": [(0.0, 0.0), (0.5, 0.0), (0.75, 1.0), (1.0, 0.0)]}
    (axis,) = curves([Panel("x", "y", series, style="steps", x_range=(0.0, 1.0))]).axes
    assert axis.get_xlim() == (0.5, 1.0)
    (axis,) = curves([Panel("x", "y", {"m": [(0.4, 0.5), (0.9, 0.2)]}, percent="xy")]).axes
    assert axis.get_xlim()[0] == 0 == axis.get_ylim()[0]  # shares begin at 0 ...
    (axis,) = curves([Panel("x", "y", {"m": [(0.8, 0.5), (0.9, 0.2)]}, percent="xy")]).axes
    assert axis.get_xlim()[0] > 0.7  # ... unless half of the axis were empty


def test_labels_are_text() -> None:
    assert label("a\nb\x1b$") == "a\nb\\x1b\\$"
    assert label("\u0e48") == "\u25cc\u0e48" and label("e\u0301") == "e\u0301"
    assert label("x\ufe0f") == "x"
    assert shortened("abcdefghij", 7) == "abc…hij" and shortened("abc", 3) == "abc"
    assert shortened("誰が一番に着くか", 9) == "誰が…くか"
