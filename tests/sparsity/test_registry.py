"""The registry: what is built in, what comes from outside, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from sparsenmt.errors import UserError
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import BUILD_CONTEXT, SOCKETS, Options, register


class Depth(Options):
    times: int = Field(2, ge=1, description="How often.")


def build(options: Options, **context: object) -> None:
    return None


def another(options: Options, **context: object) -> None:
    return None


def test_defaults_are_built_in() -> None:
    found = {(method.socket, method.name) for method in registry.all_methods()}
    assert {("pattern", "full"), ("transform", "softmax"), ("depth", "plain")} <= found
    assert set(registry.methods()) == set(SOCKETS) == set(BUILD_CONTEXT)


def test_registered_in_a_scope_and_forgotten_after_it() -> None:
    with registry.scope():
        register("depth", "made_up", options=Depth, requires=frozenset({"pos"}), examples=({"times": 3},))(build)
        method = registry.get("depth", "made_up")
        assert registry.methods()["depth"]["made_up"] is Depth
        assert (method.build, method.requires, method.examples) == (build, {"pos"}, ({"times": 3},))
    with pytest.raises(KeyError):
        registry.get("depth", "made_up")


def test_a_scope_ends_with_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), registry.scope():
        register("depth", "made_up")(build)
        raise ZeroDivisionError
    assert "made_up" not in registry.methods()["depth"]


def test_a_name_is_taken_once_a_socket() -> None:
    with registry.scope():
        register("depth", "made_up")(build)
        register("depth", "made_up")(build)  # importing a module again is no harm
        register("memory", "made_up")(another)
        with pytest.raises(ValueError, match="registered already"):
            register("depth", "made_up")(another)


def test_sockets_are_known() -> None:
    with pytest.raises(ValueError, match="no socket 'hats': there are pattern"):
        register("hats", "made_up")  # type: ignore[arg-type]


def test_options_are_checked() -> None:
    with pytest.raises(ValidationError):
        Depth.model_validate({"time": 3})
    with pytest.raises(ValidationError):
        Depth().times = 3  # type: ignore[misc]


def test_plugins_are_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first_plugin", "second_plugin"):
        (tmp_path / f"{name}.py").write_text(
            "from sparsenmt.sparsity.registry import register\n"
            f"register('depth', '{name}')(lambda options, **context: None)\n",
            encoding="utf-8",
            newline="\n",
        )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SPARSENMT_PLUGINS", "first_plugin, second_plugin")
    program = "from sparsenmt.sparsity import registry; print(*registry.methods()['depth'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"plain", "first_plugin", "second_plugin"} <= set(done.stdout.split())


@pytest.mark.parametrize("missing", ["no_such_plugin", "broken_plugin"])
def test_a_plugin_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    (tmp_path / "broken_plugin.py").write_text("import no_such_package\n", encoding="utf-8", newline="\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SPARSENMT_PLUGINS", f" , {missing}")
    monkeypatch.setattr(registry, "_loaded", False)
    name = "no_such_package" if missing == "broken_plugin" else missing
    with pytest.raises(UserError, match=f"there is no module '{name}'") as caught:
        registry.methods()
    assert caught.value.where == f"SPARSENMT_PLUGINS={missing}" and caught.value.hint


def test_an_installed_plugin_that_is_broken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "sparsenmt.sparsity.registry:nothing", "sparsenmt.methods")
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(registry, "_loaded", False)
    with pytest.raises(UserError, match="the plugin cannot be loaded: ") as caught:
        registry.methods()
    assert caught.value.where == "entry point mine = sparsenmt.sparsity.registry:nothing"
