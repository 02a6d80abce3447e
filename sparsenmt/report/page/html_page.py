"""The page of a document: one HTML file that needs no other.

Templates, style sheet and script lie in `templates/`. The content security policy of the page allows its one style and
its one script, by their hashes, and nothing else: no connection, no further file, no script in the data.
Jinja2 is an extra (``report``) and imported when it is needed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.report.page.axis_scale import tick_text
from sparsenmt.report.page.document import (
    AlignedSentence,
    ComparedSentence,
    Document,
    MarkedWord,
    Matrix,
    ReportSection,
    SentenceWords,
)
from sparsenmt.report.page.packed_maps import MOST_TOKENS, PackedMaps, packed_maps
from sparsenmt.report.page.page_text import finalized, marked_parts, shown_lines, shown_text, word_parts
from sparsenmt.report.page.panel_shapes import COLOURS, MARKS, NARROW, panel_shapes, x_text
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import shown_table, shown_value
from sparsenmt.storage.files import explain_write_errors, write_text

MOST_ROWS = 1_000
"""Most rows of a table in a page."""
MOST_WORDS = 250
"""Most words of a sentence in a page."""
MOST_FIGURES = 200
"""Most points of a panel in the table below it."""
ATTENTION_BYTES = 3_800_000
"""The most bytes of attention maps in a page: with 200 sentences of all else it is below 5 MB."""

_SHADES = 10
_TEMPLATES = Path(__file__).with_name("templates")


def check_page() -> None:
    """Raise UserError if Jinja2 is not installed."""
    if importlib.util.find_spec("jinja2") is None:
        hint = "Install the extra: `pip install 'sparsenmt[report]'`."
        raise UserError("Jinja2 is not installed", where="sparsenmt report", hint=hint)


def write_report_page(document: Document, path: Path) -> None:
    """Write the page of a document, complete or not at all.

    Raises:
        UserError: Jinja2 is not installed, or the place cannot be written.
    """
    check_page()
    page = rendered(document)
    with explain_write_errors(path):
        write_text(path, page)


def rendered(document: Document) -> str:
    """Return the page of a document; the same document gives the same page."""
    from markupsafe import Markup

    style, script = ((_TEMPLATES / name).read_bytes().decode() for name in ("page.css", "page.js"))
    page: str = (
        page_environment()
        .get_template("page.html")
        .render(
            document=document,
            groups=_groups(document),
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
        )
    )
    return page


def page_environment() -> Any:
    """Return Jinja2's environment of the templates, in which every value is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters["lines"] = lambda text: Markup.escape(shown_lines(text))
    environment.filters["code"] = lambda text: Markup().join(
        Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(shown_text(text).split("`"))
    )
    environment.globals |= _FUNCTIONS
    return environment


def _source(text: str) -> str:
    """Return the hash of an inline style or script, as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _groups(document: Document) -> list[tuple[str, list[tuple[ReportSection, PackedMaps | None]]]]:
    """Return the sections, each with its maps, by the heading that they stand under."""
    attending = max(1, sum(bool(section.attention) for section in document.sections))
    found = []
    for section in document.sections:
        most = ATTENTION_BYTES // attending
        found.append((section, packed_maps(section, document.models, most) if section.attention else None))
    return [(name, list(own)) for name, own in groupby(found, key=lambda each: each[0].group)]


# --- functions that the templates call ---------------------------------------------------------------------------


def panel_rows(panel: Panel) -> list[tuple[str, str, str, str]]:
    """Return series, x, y and interval of every point of a panel, as texts."""
    percent = "y" in panel.percent
    rows = []
    for name, points in panel.series.items():
        intervals = panel.intervals.get(name, ())
        for i, (x, y) in enumerate(points):
            ends = intervals[i] if i < len(intervals) else None
            interval = "" if ends is None else " to ".join(tick_text(end, percent=percent) for end in ends)
            value = "-" if y is None else tick_text(y, percent=percent)
            rows.append((name, x_text(panel, x), value, interval))
    return rows


def shade(matrix: Matrix, value: float) -> int:
    """Return the number of the shade of a value, from 0 for the least."""
    known = [each for line in matrix.values for each in line if each is not None]
    low, high = matrix.ends or (min(known), max(known))
    share = (value - low) / (high - low) if high > low else 0.0
    return min(_SHADES - 1, max(0, int(share * _SHADES)))


def score_columns(sentences: Sequence[ComparedSentence]) -> list[tuple[str, str]]:
    """Return (model, metric) of every score that a sentence has, in their order."""
    return list(
        dict.fromkeys((output.model, name) for each in sentences for output in each.outputs for name in output.scores)
    )


def score_of(sentence: ComparedSentence, model: str, metric: str) -> float | None:
    """Return a score of a model's output; None: there is none."""
    return next((each.scores.get(metric) for each in sentence.outputs if each.model == model), None)


def by_number(sentences: Sequence[SentenceWords]) -> Iterator[tuple[int, list[SentenceWords]]]:
    """Yield the number of every line, with its words by model, in the order of the lines."""
    ordered = sorted(sentences, key=lambda each: each.number)  # models keep their order
    for number, own in groupby(ordered, key=lambda each: each.number):
        yield number, list(own)


def tags_of(sentences: Sequence[SentenceWords]) -> list[str]:
    """Return all tags, sorted."""
    return sorted({word.tag for each in sentences for word in each.words if word.tag is not None})


def kept_count(sentence: SentenceWords) -> str:
    """Return how many of the words are kept, at least in part."""
    kept = sum(any(word.gates) for word in sentence.words)
    return f"{kept:,} of {len(sentence.words):,} words"


def word_note(word: MarkedWord) -> str:
    """Return the tag of a word, and its gates unless all of them are 0 or 1."""
    gates = ", ".join(f"{gate:.2g}" for gate in word.gates)
    partial = any(0 < gate < 1 for gate in word.gates)
    return ", ".join(filter(None, [word.tag or "", f"gate {gates}" * partial]))


def linked_words(sentence: AlignedSentence) -> tuple[list[tuple[str, str]], str]:
    """Return every source word with the target words that it is linked to, and the target words without a link."""
    targets: dict[int, list[int]] = {}
    for source, target in sorted(sentence.links):
        targets.setdefault(source, []).append(target)
    words = [
        (word, " ".join(sentence.target[j] for j in targets.get(i, ())))
        for i, word in enumerate(sentence.source[:MOST_WORDS])
    ]
    linked = {target for _, target in sentence.links}
    return words, " ".join(word for j, word in enumerate(sentence.target) if j not in linked)


_FUNCTIONS: dict[str, Any] = {
    **{"COLOURS": COLOURS, "MARKS": MARKS, "MOST_FIGURES": MOST_FIGURES, "MOST_ROWS": MOST_ROWS},
    **{"MOST_TOKENS": MOST_TOKENS, "MOST_WORDS": MOST_WORDS, "NARROW": NARROW, "zip": zip},
    **{
        each.__name__: each
        for each in (
            *(by_number, kept_count, linked_words, marked_parts, panel_rows, panel_shapes, score_columns, score_of),
            *(shade, shown_table, shown_value, tags_of, word_note, word_parts),
        )
    },
}
