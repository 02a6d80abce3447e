"""Fonts of a plot: for each script the installed ones that have its characters, and the package to install for others.

matplotlib draws a text with a list of fonts, each glyph from the first font that has it. The list of a figure begins
with matplotlib's own font; others follow only for characters that it has not, chosen by the glyphs of their files.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.ft2font import FT2Font

Glyphs = Callable[[Collection[str]], set[str]]
"""Returns those of some characters that a font has."""


@dataclass(frozen=True)
class Script:
    """A script, or another group of characters.

    Args:
        name: the name in messages.
        fonts: families that have it, the best first.
        packages: Debian's, one of which is enough.
        shaped: True if letters are joined, or stand in another order than they are stored.
    """

    name: str
    fonts: tuple[str, ...]
    packages: tuple[str, ...]
    shaped: bool = False

    @property
    def advice(self) -> str:
        """A sentence that names what to install."""
        named = " or ".join(f"`{package}`" for package in self.packages)
        return f"install {named} (Debian, Ubuntu), or the font {self.fonts[0]}"


_CORE, _CJK = "fonts-noto-core", "fonts-noto-cjk"
_JAPANESE = Script(
    "Japanese",
    (
        *("Noto Sans CJK JP", "Noto Sans JP", "IPAexGothic", "IPAGothic", "TakaoGothic", "VL Gothic", "Hiragino Sans"),
        *("Yu Gothic", "MS Gothic", "Noto Serif CJK JP", "IPAexMincho"),
    ),
    ("fonts-ipaexfont", _CJK),
)
_CHINESE = Script(
    "Chinese",
    (
        *("Noto Sans CJK SC", "Noto Sans SC", "Noto Sans CJK TC", "Noto Sans TC", "Noto Sans CJK JP", "PingFang SC"),
        *("Microsoft YaHei", "SimHei", "Heiti TC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Arial Unicode MS"),
        *("Noto Serif CJK SC", "AR PL UMing CN", "AR PL UKai CN"),
    ),
    (_CJK, "fonts-wqy-microhei"),
)
_KOREAN = Script(
    "Korean",
    (
        *("Noto Sans CJK KR", "Noto Sans KR", "Noto Sans CJK JP", "NanumGothic", "Malgun Gothic"),
        *("Apple SD Gothic Neo", "UnDotum", "Noto Serif CJK KR"),
    ),
    ("fonts-nanum", _CJK),
)
_SYMBOLS = Script("emoji and symbols", ("Noto Emoji", "Symbola", "Noto Sans Symbols2"), ("fonts-symbola",))


def _noto(name: str, noto: str | None = None, *fonts: str, package: str | None = None, shaped: bool = False) -> Script:
    packages = (_CORE,) if package is None else (package, _CORE)
    return Script(name, (f"Noto Sans {noto or name}", *fonts), packages, shaped)


def _indic(name: str, noto: str | None = None) -> Script:
    """Return a script of India, for which Debian has the Lohit fonts."""
    return Script(name, (f"Noto Sans {noto or name}", f"Lohit {name}"), (_CORE, "fonts-indic"), shaped=True)


# By the first word of the characters' names in Unicode. Matplotlib's own font has Latin, Greek and Cyrillic.
_SCRIPTS: Final = {
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH"), _JAPANESE),
    **dict.fromkeys(("CJK", "IDEOGRAPHIC", "FULLWIDTH", "BOPOMOFO", "KANGXI"), _CHINESE),
    "HANGUL": _KOREAN,
    "THAI": _noto("Thai", None, "Loma", "Garuda", "Waree", "Tahoma", package="fonts-thai-tlwg"),
    "LAO": _noto("Lao", None, "Phetsarath OT"),
    "KHMER": _noto("Khmer", None, "Khmer OS", "Khmer OS System", package="fonts-khmeros", shaped=True),
    "MYANMAR": _noto("Burmese", "Myanmar", "Padauk", package="fonts-sil-padauk", shaped=True),
    "TIBETAN": Script(
        "Tibetan",
        ("Noto Serif Tibetan", "Tibetan Machine Uni", "DDC Uchen"),
        (_CORE, "fonts-tibetan-machine"),
        shaped=True,
    ),
    "ETHIOPIC": _noto("Ethiopic", None, "Abyssinica SIL", package="fonts-sil-abyssinica"),
    "GEORGIAN": _noto("Georgian"),
    "ARMENIAN": _noto("Armenian"),
    "HEBREW": _noto("Hebrew", shaped=True),
    "ARABIC": _noto("Arabic", None, "Noto Naskh Arabic", "Amiri", shaped=True),
    **{name.upper(): _indic(name) for name in ("Devanagari", "Bengali", "Tamil", "Telugu", "Kannada", "Malayalam")},
    **{name.upper(): _indic(name) for name in ("Gujarati", "Gurmukhi")},
    "ORIYA": _indic("Odia", "Oriya"),
    "SINHALA": _noto("Sinhala", None, "LKLUG", package="fonts-lklug-sinhala", shaped=True),
    "MATHEMATICAL": _SYMBOLS,
}
_NO_TEXT = ("cm", "STIX", "DejaVu Math", "Last Resort", "LastResort", "Adobe Blank")
"""Math fonts have other characters under the same codes; the last ones have a box for every character."""
_COLOURED = "Color Emoji"  # matplotlib draws nothing of it
_MISSING = r"Glyph (\d+) .*missing from"
"""The warning of matplotlib about a character that no font of the list has."""
_SHOWN = 8
"""Characters of a script that a message shows."""
_SHAPES = (3, 11)
"""The version of matplotlib that joins and reorders letters."""


def scripts_of(characters: Iterable[str]) -> dict[Script, str]:
    """Sort characters by script. Han is Japanese beside kana, Korean beside Hangul, otherwise Chinese."""
    named = {one: _script(one) for one in sorted(set(characters))}
    there = set(named.values())
    han = next((script for script in (_JAPANESE, _KOREAN) if script in there), _CHINESE)
    found: dict[Script, str] = {}
    for one, script in named.items():
        own = han if script == _CHINESE else script
        found[own] = found.get(own, "") + one
    return found


def _script(character: str) -> Script:
    word, category = unicodedata.name(character, "OTHER").split(" ")[0], unicodedata.category(character)
    if word in _SCRIPTS:
        return _SCRIPTS[word]
    if unicodedata.east_asian_width(character) in "WF" and category != "So":  # 「」, but no emoji
        return _CHINESE
    if category[0] not in "LMN":
        return _SYMBOLS
    return Script(word.capitalize(), (f"Noto Sans {word.capitalize()}",), (_CORE, "fonts-noto-extra"))


@dataclass(frozen=True)
class FontChoice:
    """The fonts of a figure.

    Args:
        families: those that follow matplotlib's own font, in order.
        missing: the characters that no font has.
        misshapen: those that matplotlib draws as single letters in the order in which they are stored.
    """

    families: tuple[str, ...] = ()
    missing: str = ""
    misshapen: str = ""

    def message(self, plot: str) -> str | None:
        """Return the message about a plot's characters that are drawn wrongly; None if there are none."""
        lines = []
        for script, own in scripts_of(self.missing).items():
            more = f" and {len(own) - _SHOWN:,} more" if len(own) > _SHOWN else ""
            lines.append(f"  {script.name} ({' '.join(own[:_SHOWN])}{more}): {script.advice}")
        if lines:
            lines.insert(0, f"{plot}: no installed font has these characters, which are drawn as boxes:")
        if self.misshapen:
            names = ", ".join(script.name for script in scripts_of(self.misshapen))
            least = ".".join(map(str, _SHAPES))
            lines.append(
                f"{plot}: matplotlib before {least} neither joins nor reorders letters ({names}): install a newer one"
            )
        return "\n".join(lines) or None


def choose_fonts(characters: Collection[str], installed: Mapping[str, Glyphs], base: Glyphs) -> FontChoice:
    """Choose fonts for characters: those of each script's list, then any other, the one that has most of them first.

    Args:
        installed: family -> glyphs.
        base: the glyphs of the fonts that are used anyway, which need no other.
    """
    left, families = set(characters) - base(characters), list[str]()
    for script, own in sorted(scripts_of(left).items(), key=lambda pair: (-len(pair[1]), pair[0].name)):
        wanted = left & set(own)  # a font of another script may have some
        for name in [*(name for name in script.fonts if name in installed), *_others(wanted, installed)]:
            if wanted and (there := installed[name](left)) & wanted:
                families += [] if name in families else [name]
                left, wanted = left - there, wanted - there
    return FontChoice(tuple(families), "".join(sorted(left)))


def _others(wanted: Collection[str], installed: Mapping[str, Glyphs]) -> Iterable[str]:
    """Yield the families that have any of some characters, the one that has most first; looked at when needed."""
    counts = {
        name: len(glyphs(wanted))
        for name, glyphs in installed.items()
        if not name.startswith(_NO_TEXT) and _COLOURED not in name
    }
    yield from sorted((name for name, count in counts.items() if count), key=lambda name: (-counts[name], name))


def fonts_for(texts: Iterable[str]) -> FontChoice:
    """Choose among the installed fonts, with those that were installed after matplotlib made its list."""
    characters = {one for text in texts for one in text if one.isprintable() and not one.isspace()}
    if all(map(str.isascii, characters)):
        return FontChoice()
    choice = choose_fonts(characters, _installed(), _base())
    if choice.missing and _list_new_fonts():
        choice = choose_fonts(characters, _installed(), _base())
    shaped = "" if _shapes() else "".join(one for one in sorted(characters) if _script(one).shaped)
    return replace(choice, misshapen=shaped)


def _shapes() -> bool:
    import matplotlib

    return tuple(matplotlib.__version_info__[:2]) >= _SHAPES


def _installed() -> dict[str, Glyphs]:
    from matplotlib.font_manager import fontManager

    return {name: partial(_glyphs, name) for name in sorted(fontManager.get_font_names())}


def _base() -> Glyphs:
    """Return the glyphs of the fonts that matplotlib's settings name."""
    from matplotlib.font_manager import FontProperties

    families = FontProperties().get_family()
    return lambda characters: set().union(*(_glyphs(name, characters) for name in families))


def _glyphs(family: str, characters: Collection[str]) -> set[str]:
    """Return those of some characters that the regular font of a family has."""
    from matplotlib.font_manager import FontProperties, fontManager

    try:
        with without_remarks():
            path = fontManager.findfont(FontProperties(family=[family]), fallback_to_default=False)
        font = _open(path, getattr(path, "face_index", 0))
    except (ValueError, OSError, RuntimeError):  # the file is gone, or damaged
        return set()
    return {one for one in characters if font.get_char_index(ord(one))}


@contextmanager
def without_remarks() -> Iterator[set[str]]:
    """Silence matplotlib about fonts of another weight and missing glyphs; yields a set that gets the latter."""
    log, missing = logging.getLogger("matplotlib.font_manager"), set[str]()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.filterwarnings("always", _MISSING)
            yield missing
    finally:
        log.setLevel(level)
    for each in seen:
        glyph = re.match(_MISSING, str(each.message))
        if glyph is None:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        else:
            missing.add(chr(int(glyph[1])))


@cache
def _open(path: str, face: int) -> FT2Font:
    """Open a font; collections have several faces, of which older versions of matplotlib read the first."""
    from matplotlib.ft2font import FT2Font

    return FT2Font(path, face_index=face) if face else FT2Font(path)


@cache
def _list_new_fonts() -> bool:
    """Add the fonts to matplotlib's list that were installed after it was made; returns False if there are none."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known, found = {str(entry.fname) for entry in fontManager.ttflist}, False
    for path in sorted(set(findSystemFonts()) - known):
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, NotImplementedError):  # no font that matplotlib can draw
            continue
        found = True
    return found
