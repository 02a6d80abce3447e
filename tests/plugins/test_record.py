"""Records of plugins, their differences, and messages on a name that is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparsenmt.plugins.record import (
    PluginRecord,
    explain_missing,
    plugin_changes,
    plugin_records,
    recorded,
    source_digest,
)
from sparsenmt.plugins.table import Registrant
from sparsenmt.strategy import STRATEGIES, register_strategy
from tests.plugins.support import installed, written

SINK = PluginRecord("lab.sink", "lab-tools", "1.0", "a" * 64, ["method transform sink"])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    with STRATEGIES.scope():
        yield from written(tmp_path, monkeypatch)


def test_a_record_names_module_package_version_and_source(module: Callable[[str, str], None], tmp_path: Path) -> None:
    module("odd_search", "from sparsenmt import register_strategy\nregister_strategy('odd')(type('Odd', (), {}))\n")
    installed(tmp_path, "odd-package", "1.2", "[sparsenmt.strategies]\nodd = odd_search\n")
    assert STRATEGIES["odd"]
    (found,) = plugin_records([(STRATEGIES, "odd"), (STRATEGIES, "beam"), (STRATEGIES, "no such"), (STRATEGIES, "odd")])
    assert found == PluginRecord("odd_search", "odd-package", "1.2", found.sha256, ["strategy odd"])
    module("odd_search", "import torch\n")
    (again,) = plugin_records([(STRATEGIES, "odd")])
    assert found.sha256 != again.sha256 and plugin_changes([found], [again]) == [
        "the plugin odd_search has another source"
    ]


def test_the_source_of_a_package_is_all_of_its_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_lab" / "inner").mkdir(parents=True)
    for name in ("__init__", "sink", "inner/core"):
        (tmp_path / "odd_lab" / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("odd_lab.sink")
    origin = Registrant("odd_lab.sink", str(tmp_path / "odd_lab" / "sink.py"))
    before = source_digest(origin)
    assert before == source_digest(origin) is not None
    (tmp_path / "odd_lab" / "inner" / "core.py").write_text("x = 1\n", encoding="utf-8")
    assert source_digest(origin) != before


def test_what_has_no_file_has_no_hash() -> None:
    assert source_digest(Registrant("__main__", "<stdin>")) is None


def test_changes_are_told() -> None:
    newer = replace(SINK, version="1.1", sha256="b" * 64)
    assert plugin_changes([SINK], [SINK]) == []
    assert plugin_changes([SINK], [newer]) == [
        "the plugin lab.sink is of lab-tools 1.1 instead of lab-tools 1.0 and has another source"
    ]
    local = replace(SINK, package=None, version=None)
    assert plugin_changes([SINK], [local]) == ["the plugin lab.sink is of no package instead of lab-tools 1.0"]
    assert plugin_changes([], [SINK]) == ["the plugin lab.sink is used now"]
    assert plugin_changes([SINK], []) == ["the plugin lab.sink is not used any more"]


def test_a_missing_name_is_explained_by_the_record_of_its_model() -> None:
    with recorded([SINK]):
        assert explain_missing("method", "transform sink") == (
            "It is of the plugin lab.sink (lab-tools 1.0), which this model was made with: install it, or name the "
            "module in SPARSENMT_PLUGINS. "
        )
        assert explain_missing("method", "transform other") == explain_missing("strategy", "sink") == ""
    assert explain_missing("method", "transform sink") == ""


def test_a_missing_name_is_explained_by_a_plugin_that_failed(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("odd_search", "\n1 / 0\n")
    monkeypatch.setenv("SPARSENMT_PLUGINS", "odd_search")
    assert "odd" not in STRATEGIES
    told = explain_missing("strategy", "odd")
    assert told.startswith("A plugin that may have it could not be loaded: ") and "odd_search.py:2: the plugin" in told
    register_strategy("odd")(type("Odd", (), {}))
