"""The tables of what is registered: built-in entries, those of plugins, and names that entry points give."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.metric import METRICS, register_metric
from sparsenmt.plugins import modules
from sparsenmt.plugins.modules import failures
from sparsenmt.plugins.table import EntryTable
from sparsenmt.strategy import STRATEGIES, StrategyEntry, register_strategy
from tests.plugins.support import installed, written

SEARCH = "from sparsenmt import register_strategy\n\n@register_strategy({name!r}, random=True)\nclass Odd:\n    pass\n"

OWN = ["beam", "greedy", "sample", "speculative", "early_exit"]
"""The strategies of the package."""


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with STRATEGIES.scope(), METRICS.scope():
        yield


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    yield from written(tmp_path, monkeypatch)


def test_a_module_of_the_variable_is_imported_when_a_name_is_missing(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("odd_strategies", SEARCH.format(name="odd"))
    monkeypatch.setenv("SPARSENMT_PLUGINS", " , odd_strategies")
    assert not STRATEGIES["greedy"].random and "odd_strategies" not in sys.modules
    assert STRATEGIES["odd"].random and STRATEGIES["odd"].target.name == "odd"  # type: ignore[union-attr]
    origin = STRATEGIES.origin("odd")
    assert origin is not None and origin.outside and origin.module == "odd_strategies"
    assert list(STRATEGIES) == [*OWN, "odd"] and len(STRATEGIES) == len(OWN) + 1


def test_an_entry_point_has_a_name_before_its_module_is_imported(
    module: Callable[[str, str], None], tmp_path: Path
) -> None:
    module("odd_search", SEARCH.format(name="odd"))
    installed(tmp_path, "odd-package", "1.2", "[sparsenmt.strategies]\nodd = odd_search:Odd\n")
    assert STRATEGIES.names() == {"odd": "odd-package 1.2", **dict.fromkeys(OWN, "")}
    assert "odd_search" not in sys.modules and STRATEGIES.known("odd") is None
    assert STRATEGIES["odd"].path == "odd_search:Odd" and modules.package_of("odd_search") == ("odd-package", "1.2")


@pytest.mark.parametrize(
    ("code", "value", "message", "where"),
    [
        ("", "no_such_module", "cannot be loaded: there is no module 'no_such_module'", "entry point odd = no_such_"),
        ("", "odd_search:Even", "failed: AttributeError", "entry point odd = odd_search:Even"),
        ("import no_such_package", "odd_search", "there is no module 'no_such_package'", "odd_search.py:1"),
        ("", "odd_search", "registers no strategy 'odd'", "odd_search.py"),
    ],
)
def test_a_broken_entry_point_is_told_where_its_name_is_used(
    module: Callable[[str, str], None], tmp_path: Path, code: str, value: str, message: str, where: str
) -> None:
    module("odd_search", code)
    installed(tmp_path, "odd-package", "1.2", f"[sparsenmt.strategies]\nodd = {value}\n")
    assert STRATEGIES["beam"] and list(STRATEGIES) == OWN
    with pytest.raises(UserError, match=message) as caught:
        _ = STRATEGIES["odd"]
    assert where in str(caught.value.where) and caught.value.hint
    (failed,) = failures("strategy")
    assert failed.error is caught.value and not failures("metric")


def test_of_two_packages_with_one_name_neither_is_taken_silently(
    module: Callable[[str, str], None], tmp_path: Path
) -> None:
    for name in ("first_search", "second_search"):
        module(name, SEARCH.format(name="odd"))
        installed(tmp_path, f"{name[:5]}-package", "1", f"[sparsenmt.strategies]\nodd = {name}\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"strategy 'odd' is registered already, by (first|second)_search"):
            _ = STRATEGIES["odd"]
    assert list(STRATEGIES) == OWN


def test_what_a_module_registers_before_it_fails_is_withdrawn(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("odd_search", SEARCH.format(name="odd") + "1 / 0\n")
    monkeypatch.setenv("SPARSENMT_PLUGINS", "odd_search")
    assert "odd" not in STRATEGIES and len(failures()) == 1


def test_the_same_module_replaces_another_one_does_not(module: Callable[[str, str], None], tmp_path: Path) -> None:
    module("odd_search", SEARCH.format(name="odd"))
    importlib.import_module("odd_search")
    module("odd_search", SEARCH.format(name="odd").replace("random=True", "random=False"))
    importlib.reload(sys.modules["odd_search"])
    assert not STRATEGIES["odd"].random
    with pytest.raises(ValueError, match=r"'odd' is registered already, by odd_search \(.*odd_search.py\): choose"):
        register_strategy("odd")(type("Odd", (), {}))
    with pytest.raises(ValueError, match="'beam' is registered already, by this program"):
        register_strategy("beam")(type("Odd", (), {}))
    with pytest.raises(ValueError, match="'perplexity' is registered already, by this program"):
        register_metric("perplexity")(lambda name, settings: None)


def test_a_cell_of_a_notebook_may_run_twice() -> None:
    cell = compile(SEARCH.format(name="odd"), "<cell 1>", "exec")
    for _ in range(2):
        exec(cell, {"__name__": "__main__"})
    origin = STRATEGIES.origin("odd")
    assert origin is not None and (origin.module, origin.file) == ("__main__", "<cell 1>")


def test_a_module_that_registers_after_all_is_forgiven(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module("odd_search", "1 / 0\n")
    monkeypatch.setenv("SPARSENMT_PLUGINS", "odd_search")
    assert "odd" not in STRATEGIES and [each.module for each in failures()] == ["odd_search"]
    module("odd_search", SEARCH.format(name="odd"))
    importlib.import_module("odd_search")
    assert "odd" in STRATEGIES and not failures()


def test_names_have_the_letters_of_names() -> None:
    for name in ("", "two words", "-x", "a/b"):
        with pytest.raises(ValueError, match="write its name in letters, digits"):
            register_strategy(name)(type("Odd", (), {}))


def test_a_scope_forgets() -> None:
    table: EntryTable[StrategyEntry] = EntryTable("strategy", {}, __name__, "'{}'".format)
    with table.scope():
        register_strategy("odd")(type("Odd", (), {}))
    assert "odd" not in table


def test_plugins_import_nothing_heavy() -> None:
    code = (
        "import sys, sparsenmt.command, sparsenmt.metric, sparsenmt.strategy, sparsenmt.plugins.record as r\n"
        "r.explain_missing('strategy', 'odd'), sparsenmt.strategy.STRATEGIES.names()\n"
        "print(*sorted({'numpy', 'pydantic', 'torch', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_packages_are_those_that_are_installed() -> None:
    assert modules.package_of("sparsenmt.metric")[0] == "sparsenmt"
    assert modules.package_of("pytest") == ("pytest", metadata.version("pytest"))
    assert modules.package_of("__main__") == (None, None)
