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
    "data/circle.py": "from sparsenmt.data import round\nclass Base(object):\n    a: int\n",
    "data/round.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:  # a cycle\n    from sparsenmt.data.circle import Base\n"
    ),
    "native/__init__.py": "",
    "native/kernels.py": "",
    "native/kernels.cpp": "// 1\n// 2\n",
    "engine/contract.py": (
        "from sparsenmt.data.circle import Base\nfrom sparsenmt.native import kernels\n"
        "class Engine(Base):\n    a: int\n    b = 1\n    def c(self): pass\n"
    ),
    "data/fast.py": "from sparsenmt.native.kernels import product\nfrom ..native import kernels\n",
    "data/lost.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:  # a cycle\n    import torch\n",
}
PAGES = {
    "guide.md": "# Guide\n",
    "errors.md": "# Errors\n\n<!-- Generated from the source by `make docs`: do not edit. -->\n",
    "records/log.md": "# Log\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    for name, text in SOURCES.items():
        path = tmp_path / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    (tmp_path / "docs/records").mkdir(parents=True)
    for name, text in PAGES.items():
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8", newline="\n")
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
        "sparsenmt.data.round": ("sparsenmt.data.circle", None),
    }
    assert house_numbers.modules_without_importer(package) == [
        *("sparsenmt.data.fast", "sparsenmt.data.lost", "sparsenmt.data.plots", "sparsenmt.engine.contract")
    ]
    assert house_numbers.stale_reasons(package) == ["sparsenmt.data.common"]


def test_classes_and_sizes(package: Package) -> None:
    repeated = house_numbers.repeated_class_names(package)
    assert repeated == {"C": ["sparsenmt/data/helper.py:1", "sparsenmt/data/use.py:4"]}
    assert house_numbers.command_files(package) == (2, 2, "b.py", 5)
    assert house_numbers.numbers(package)["lines"] == sum(
        text.count("\n") for name, text in SOURCES.items() if name.endswith(".py")
    )


def test_circles_of_imports_count_those_for_types(package: Package) -> None:
    assert house_numbers.import_circles(package) == [["sparsenmt.data.circle", "sparsenmt.data.round"]]


def test_modules_that_import_kernels(package: Package) -> None:
    assert house_numbers.kernel_importers(package) == ["sparsenmt.data.fast"]


def test_members_of_a_class_and_its_bases(package: Package) -> None:
    assert house_numbers.members(package, "Engine") == ["a", "c"]
    assert house_numbers.members(package, "Transformer") is None
    assert house_numbers.numbers(package)["methods_of_transformer"] == house_numbers.MISSING


def test_pages_that_are_written_by_hand(package: Package) -> None:
    assert house_numbers.pages(package) == {"guide.md": len("# Guide\n")}


def test_budgets(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = house_numbers.package_lines(package)
    assert counts["native"] == (0, 2) and counts["(top)"] == (4, 0) and counts["engine"] == (6, 0)
    monkeypatch.setattr(house_numbers, "BUDGETS", {**counts, "native": (0, 1), "engine": (5, 0), "gone": (9, 9)})
    assert house_numbers.over_budget(package) == [
        "engine: 6 lines of Python, not 5",
        "native: 2 lines of C++, not 1",
    ]
    assert house_numbers.stale_budgets(package) == ["gone"]


def test_open_numbers_may_not_become_worse_nor_stay_open(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house_numbers, "BARS", {"import_circles": 0, "lines": 10, "members_of_engine": 8, "methods": 3})
    monkeypatch.setattr(house_numbers, "OPEN", {"lines": 20, "members_of_engine": house_numbers.MISSING})
    good = {"import_circles": 0, "lines": 20, "members_of_engine": house_numbers.MISSING, "methods": 3}
    assert house_numbers.broken(good) == []
    assert house_numbers.missed(good) == ["lines", "members_of_engine"]
    assert house_numbers.broken({**good, "lines": 21}) == ["lines: 21, was 20, and shall be 10"]
    assert house_numbers.broken({**good, "lines": 10}) == ["lines: 10 reaches its bar: take it out of OPEN"]
    assert house_numbers.broken({**good, "import_circles": 1}) == ["import_circles: 1, not 0"]
    assert house_numbers.broken({**good, "methods": house_numbers.MISSING}) == ["methods: no such class, not 3"]


def test_the_last_line_is_json(package: Package) -> None:
    command = [sys.executable, "-m", "tools.house_numbers", str(package.folder.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 1
    summary = json.loads(done.stdout.split("\n")[-2])
    assert summary["name"] == "house_numbers" and summary["ok"] is False
    assert summary["numbers"]["function_imports"] == 2 and summary["bars"]["function_imports"] == 0
    assert {"function_imports", "import_circles", "methods_of_transformer"} <= set(summary["open"])
