"""`tools/house_numbers.py` finds what it counts, in a small package that breaks every rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import house_numbers
from tools.house_numbers import NAME, Package, read_package

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "__init__.py": "",
    "__main__.py": "from sparsenmt.cli import run\n",
    "cli.py": "import click\nTABLE = {'a': 'a', 'b': 'sparsenmt.commands.b'}\nf'sparsenmt.commands.{TABLE}'\n",
    "commands/__init__.py": "",
    "commands/a.py": "import click\ndef f():\n    import torch\n    from sparsenmt.data.use import f\n",
    "commands/b.py": "# longer\n\n\n\n\n",
    "data/__init__.py": "",
    "data/use.py": "import click\nfrom sparsenmt.data import helper\nfrom .common import x\nclass C: pass\n",
    "data/helper.py": "class C: pass\ndef f():\n    import torch\n    import spacy\n    from . import common\n",
    "data/common.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
    "data/plots.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from matplotlib.figure import Figure\n",
    "data/lost.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:  # a cycle\n    import torch\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    for name, text in SOURCES.items():
        path = tmp_path / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return read_package(tmp_path)


def test_imports_in_functions(package: Package) -> None:
    assert house_numbers.function_imports(package) == [
        "sparsenmt/data/helper.py:3: torch",
        "sparsenmt/data/helper.py:5: sparsenmt.data.common",
    ]


def test_imports_for_type_checkers(package: Package) -> None:
    assert house_numbers.type_checking_imports(package) == ["sparsenmt/data/common.py:2"]


def test_click(package: Package) -> None:
    assert house_numbers.click_below_commands(package) == ["sparsenmt/data/use.py:1: click"]


def test_importers(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house_numbers, "REASONS", {"sparsenmt.data.common": "x"})
    found = house_numbers.one_importer_modules(package)
    assert found == {
        "sparsenmt.cli": ("sparsenmt.__main__", "the layer `cli`"),
        "sparsenmt.commands.a": ("sparsenmt.cli", "the layer `commands`"),
        "sparsenmt.commands.b": ("sparsenmt.cli", "the layer `commands`"),
        "sparsenmt.data.use": ("sparsenmt.commands.a", "the layer `data`"),
        "sparsenmt.data.helper": ("sparsenmt.data.use", None),
    }
    assert house_numbers.modules_without_importer(package) == ["sparsenmt.data.lost", "sparsenmt.data.plots"]
    assert house_numbers.stale_reasons(package) == ["sparsenmt.data.common"]


def test_classes_and_sizes(package: Package) -> None:
    repeated = house_numbers.repeated_class_names(package)
    assert repeated == {"C": ["sparsenmt/data/helper.py:1", "sparsenmt/data/use.py:4"]}
    assert house_numbers.command_files(package) == (2, 2, "b.py", 5)
    assert house_numbers.numbers(package)["lines"] == sum(text.count("\n") for text in SOURCES.values())


def test_the_last_line_is_json(package: Package) -> None:
    command = [sys.executable, "-m", "tools.house_numbers", str(package.folder.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 1
    summary = json.loads(done.stdout.split("\n")[-2])
    assert summary["name"] == "house_numbers" and summary["ok"] is False
    assert summary["numbers"]["function_imports"] == 2 and summary["bars"]["function_imports"] == 0
