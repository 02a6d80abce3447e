"""The registry: what is built in, what comes from outside, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, ValidationError

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
        register("depth", "made_up", options=Depth)(build)  # a module that is imported again replaces what it had
        assert registry.get("depth", "made_up").options is Depth
        register("memory", "made_up")(another)
        with pytest.raises(
            ValueError, match=r"the depth method 'made_up' is registered already, by .*: choose another"
        ):
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": dict}, "its options are no class derived from sparsenmt.sparsity.registry.Options"),
        ({"requires": "word_id"}, "requires is one string"),
        ({"examples": ({"time": 3},), "options": Depth}, "the example {'time': 3} does not fit its options: "),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"the depth method 'made_up': {re.escape(message)}"):
        register("depth", "made_up", **arguments)
