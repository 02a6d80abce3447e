"""The pictures of the docs: `make gallery` draws each one, a page shows each one, and each is small and described."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sparsenmt.cli import COMMANDS
from sparsenmt.command import REPORTS
from tools import gallery

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)|<img\b")
FAVICON = "favicon"
FINDINGS = ROOT / "docs/records/plots/findings"  # drawn by `make claims`


def test_every_picture_is_drawn_by_the_gallery_and_used() -> None:
    drawn = {path.stem for path in gallery.PICTURES.iterdir()} - {FAVICON}
    assert drawn == gallery.commands().keys() == {each.name for each in gallery.pictures()}


def test_pages_show_no_other_pictures_but_those_of_records() -> None:
    shown = [
        (page.name, image[2])
        for page in PAGES
        for image in IMAGE.finditer(page.read_text(encoding="utf-8"))
        if image[2] is None or (page.parent / image[2]).resolve().parent not in (gallery.PICTURES, FINDINGS)
    ]
    assert shown == [("architecture.md", "architecture.svg")]  # drawn by `make docs`


def test_pictures_are_described() -> None:
    for each in gallery.pictures():
        assert len(each.text.split()) >= 8, (each.page, each.name)


@pytest.mark.parametrize("path", sorted(gallery.PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_small_and_alike_every_time(path: Path) -> None:
    data = path.read_bytes()
    assert len(data) <= gallery.MOST_BYTES
    assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in data and b"<script" not in data and b"\r" not in data


def test_the_commands_are_those_of_the_program() -> None:
    """They read models that the gallery trains, and the demo's text."""
    trained = {"runs/demo/model", "runs/gallery/l0drop"}
    trained |= {word.partition("=")[2] for words in gallery.MODELS for word in words if word.startswith("directory=")}
    for name, words in gallery.commands().items():
        if words:
            assert words[0] in COMMANDS and (words[0] != "analyze" or words[1] in REPORTS), name
            models = {word for word in words if word.startswith("runs/") and "/corpus/" not in word}
            assert models - {"runs/gallery/depth-table"} <= trained, name


def test_the_record_of_quality_against_sparsity_is_drawn_whole(tmp_path: Path) -> None:
    gallery.records_sweep(tmp_path / "a.svg")
    gallery.shrink(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes() == (gallery.PICTURES / "l0drop-quality.svg").read_bytes()
