"""All pages: links lead to files and headings that exist, and from the index to every page; files and names that
pages and sources give exist; each page stands on its shelf, and the shelves stay small."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")

INDEX = DOCS / "index.md"
CODE = [DOCS / "architecture.md", DOCS / "rules.md", DOCS / "hard-places.md"]  # pages about the code
SHELVES = ("start", "guides", "reference", "records")
GENERATED = {"errors.md", "findings.md", "recipes.md"}

# Greatest sizes in bytes: of what a user reads, without records and generated pages; and of the architecture.
MOST, MOST_ARCHITECTURE = 285_000, 12_000

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "recipes/README.md"]
PAGES += sorted(DOCS.rglob("*.md"))


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[tuple[str, Path, str]]:
    """Link, file and anchor of every link of a page to this repository."""
    found = []
    for link in LINK.findall(prose(page)):
        if not re.match(r"https?:|mailto:", link):
            path, _, anchor = link.partition("#")
            found.append((link, (page.parent / path).resolve() if path else page, anchor))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path) -> None:
    for link, target, anchor in targets(page):
        assert target.is_relative_to(ROOT) and target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_there_are_links() -> None:
    assert {INDEX, DOCS / "reference/glossary.md"} <= {target for _, target, _ in targets(ROOT / "README.md")}
    assert len(targets(INDEX)) > 40
    assert anchors(DOCS / "guides/sweeps.md") >= {"comparing-models", "sweeps", "the-file"}


def test_the_index_leads_to_every_page() -> None:
    assert set(DOCS.rglob("*.md")) - {INDEX} <= {target for _, target, _ in targets(INDEX)}


def test_pages_stand_on_their_shelves() -> None:
    loose = {path.name for path in DOCS.iterdir() if path.is_file()}
    assert loose == {"index.md", "architecture.svg", *(page.name for page in CODE)}
    assert {path.name for path in DOCS.iterdir() if path.is_dir()} == {*SHELVES, "pictures"}


def test_pages_stay_small() -> None:
    files = [path for path in DOCS.rglob("*.*") if path.parent.name != "pictures" and path.name not in GENERATED]
    assert sum(path.stat().st_size for path in files if DOCS / "records" not in path.parents) <= MOST
    assert (DOCS / "architecture.md").stat().st_size <= MOST_ARCHITECTURE


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


@pytest.mark.parametrize("page", [*CODE, DOCS / "records/code.md", DOCS / "guides/extending.md"], ids=name)
def test_places_in_the_code(page: Path) -> None:
    """Pages about the code name files below the package, or below the checkout."""
    paths = re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not any((folder / path).is_file() for folder in (ROOT / "sparsenmt", ROOT))]
    assert [path for path in missing if "NAME" not in path] == []


def test_sources_name_pages_that_exist() -> None:
    """Messages, docstrings, comments and recipes that send a reader to a page."""
    folders = ("sparsenmt", "tools", "benchmarks", "tests", "recipes")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if ".venvs" not in path.parts]
    named = {
        (name(path), page)
        for path in [*sources, ROOT / "Makefile"]
        if path.suffix in (".py", ".yaml", ".cpp", ".h", "") and path.is_file()
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.(?:md|svg)", path.read_text(encoding="utf-8", errors="ignore"))
    }
    assert len(named) > 20
    assert {(path, page) for path, page in named if not (ROOT / page).is_file()} == set()
