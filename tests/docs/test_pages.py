"""All pages: their links lead to files and headings that exist, and what their Python imports exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT) and target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_there_are_links() -> None:
    assert len(LINK.findall(prose(ROOT / "README.md"))) > 20
    assert "docs/reference/glossary.md" in LINK.findall(prose(ROOT / "README.md"))
    assert anchors(ROOT / "docs/guides/sweeps.md") >= {"comparing-models", "sweeps", "the-file"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_imports(page: Path) -> None:
    for path, names in re.findall(
        r"^from (sparsenmt[\w.]*) import (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE
    ):
        module = importlib.import_module(path)
        assert all(hasattr(module, each.strip()) for each in names.split(",")), (path, names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules(page: Path) -> None:
    """Files of the package, its tests and tools that a page names exist; the log and the history name older ones."""
    if page.name in ("experiments.md", "CHANGELOG.md", "errors.md"):
        return
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:sparsenmt|tests|tools|benchmarks|recipes)/[\w./-]+\.(?:py|yaml))`", text):
        assert (ROOT / path).is_file(), path
