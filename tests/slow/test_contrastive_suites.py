"""The real test suites, where they are: every file is read, and counted as its origin says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.evaluation.contrast.groups import group
from sparsenmt.evaluation.contrast.suites import open_suite

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(real_data: Path) -> Path:
    found = real_data / "contrastive"
    if not found.is_dir():
        pytest.skip(f"there is no {found}: name a folder of corpora with contrastive/ in SPARSENMT_DATA")
    return found


def test_distil_lingeval(folder: Path) -> None:
    suite = open_suite(folder / "distil-lingeval")
    types = next(each for each in group(suite.items) if each.name == "types")
    assert len(types.groups) >= 8 and suite.languages == ("en", "de")
    assert all(len(each.members) <= 600 for each in types.groups)
    assert sum(item.correct == item.contrastive[0] for item in suite.items) < len(suite.items) / 100


@pytest.mark.parametrize(
    ("name", "entries", "errors"), [("lt-en", 356, 566), ("lv-en", 139, 179), ("cs-en", 400, 794), ("ro-en", 400, 769)]
)
def test_mucow_scoring(folder: Path, name: str, entries: int, errors: int) -> None:
    suite = open_suite(folder / "mucow" / f"{name}.mucow.scoring.json.gz")
    assert suite.format == "word-sense" and suite.languages == tuple(name.split("-"))
    assert len(suite.sources) == entries
    assert sum(len(item.contrastive) for item in suite.items) == errors


def test_mucow_translation(folder: Path) -> None:
    suite = open_suite(folder / "mucow" / "de-en")
    assert len(suite.sources) == 4268
    assert len(suite.items) > 0.99 * len(suite.sources)
    assert {item.origin for item in suite.items} == {"books", "eubooks", "opensubs", "tatoeba", "ted"}
    assert all(item.correct not in item.contrastive for item in suite.items)
    assert {item.domain for item in suite.items} == {"in", "out"}
