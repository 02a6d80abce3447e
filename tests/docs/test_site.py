"""The site of the docs: it is built without a warning or a request, and every page and link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tools import site_pages

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """The links, resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        elif tag in ("img", "script", "link", "iframe", "source"):
            self.resources += [value for name in ("src", "href") if (value := found.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.thorough
def test_the_site_is_whole(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 50
    for path, page in pages.items():
        for each in page.resources:
            assert not re.match(r"\w+:|//", each), (path.name, each)
        for link in [*page.links, *page.resources]:
            if re.match(r"\w+:", link) or path.name == "404.html":
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (path.name, link)
            assert not anchor or target not in pages or anchor in pages[target].anchors, (path.name, link)
    exported = pages[site / "reference/python-api.html"].anchors
    assert {"sparsenmt.load", "sparsenmt.Model.translate"} <= exported
    assert (site / "search/search_index.json").is_file()


def test_every_page_has_a_place_in_the_navigation() -> None:
    config: dict[str, object] = {}
    site_pages.on_config(type("Config", (), {"__setattr__": lambda self, key, value: config.update({key: value})})())
    named = set(re.findall(r"'([^']+\.md)'", str(config["nav"])))
    sources = {path.relative_to(site_pages.DOCS).as_posix() for path in site_pages.DOCS.rglob("*.md")}
    outside = {site_pages.site_place(path) for path in site_pages.linked_files() if path.suffix == ".md"}
    assert named == sources | outside | {site_pages.API}


def test_lists_and_tables_follow_an_empty_line() -> None:
    """GitHub does without; the pages of the site do not."""
    for page in [*site_pages.DOCS.rglob("*.md"), *site_pages.linked_files()]:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        if page.suffix == ".md":
            found = re.search(r"^(?![-\s|>#]|\d+\. ).+\n(?=- |\|)", text, re.MULTILINE)
            assert found is None, (page, found)


def test_links_lead_to_the_same_files_on_the_site() -> None:
    outside = {path.relative_to(ROOT).as_posix() for path in site_pages.linked_files()}
    assert {"README.md", "CONTRIBUTING.md", "recipes/README.md", "recipes/demo.yaml"} <= outside
    assert site_pages.site_place(ROOT / "docs/start/install.md") == "start/install.md"
    assert site_pages.site_place(ROOT / "recipes/demo.yaml") == "repository/recipes/demo.yaml"
