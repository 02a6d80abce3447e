"""Errors of methods from outside the package: told by name, socket and line, without a trace file."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.support import Plugin, Run

MODULE = """\
import torch

from sparsenmt.model.sockets import Transform
from sparsenmt.sparsity.registry import Options, register


@register("transform", "odd")
class Odd(Transform):
    def __init__(self, options, *, {parameters}):
        super().__init__()
        {start}

    def forward(self, scores, keys):
        weights = scores.masked_fill(~keys.visible(), -1e30).softmax(-1)
        {result}
"""
RIGHT = {"parameters": "site, heads", "start": "self.site = site", "result": "return weights"}
PATTERN = """\
import torch

from sparsenmt.sparsity.registry import Options, register


class Odd:
    reach = None

    def __call__(self, queries, positions, visible):
        {result}


@register("pattern", "odd")
def make(options, *, site):
    return Odd()
"""
ARGUMENTS = ("training.max_updates=2", "directory=odd-model", "model.attention.encoder_self.{socket}={{name: odd}}")
Odd = Callable[..., tuple[str, ...]]


@pytest.fixture
def odd(plugin: Plugin) -> Odd:
    """Write a module of a method, to be loaded by the next command; the arguments of `train` with it."""

    def write(content: str, socket: str = "transform") -> tuple[str, ...]:
        plugin(content, "odd_method_0")
        return ("small.yaml", *(each.format(socket=socket) for each in ARGUMENTS))

    return write


def told(command: Run, workspace: Path, *arguments: str) -> str:
    """Run a command that must fail with one message and leave no trace file."""
    result = command(*arguments)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err and result.err.count("error: ") == 1, result.err
    assert not list(workspace.glob("sparsenmt-error-*"))
    return result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": "heads"}, r"failed: TypeError: Odd.__init__\(\) got an unexpected keyword argument 'site'"),
        ({"start": "self.site = 1 / 0"}, "failed: ZeroDivisionError"),
        ({"result": "return weights[..., :1]"}, r"returns torch.float32 \(.*\) in place of a floating-point tensor \("),
        ({"result": "return weights > 0.5"}, r"returns torch.bool \(.*\) in place of a floating-point tensor \("),
        ({"result": "pass"}, "returns NoneType in place of a floating-point tensor"),
        ({"result": "return weights @ weights[..., :1, :]"}, "failed: RuntimeError: "),
        ({"result": "return weights * float('nan')"}, "returns numbers or gradients that are not finite, of finite"),
        (
            {"result": "return weights * (float('nan') if self.training else 1)"},
            "returns numbers or gradients that are",
        ),
        ({"result": "return weights + (weights - weights).sqrt()"}, "returns numbers or gradients that are not finite"),
    ],
    ids=["keyword", "build", "shape", "type", "nothing", "inside", "nan", "nan in training", "gradient"],
)
def test_what_a_transform_does_wrong(
    odd: Odd, command: Run, workspace: Path, change: dict[str, str], message: str
) -> None:
    shown = told(command, workspace, "train", *odd(MODULE.format(**(RIGHT | change))))
    place = r"odd_method_0\.py(:\d+)?, model\.attention\.encoder_self\.transform, layer 1"
    assert re.search(rf"{place}: the transform method 'odd' {message}", shown), shown


def test_a_builder_without_a_result(odd: Odd, command: Run, workspace: Path) -> None:
    content = MODULE.format(**RIGHT).replace('@register("transform", "odd")\n', "")
    content += "\n\n@register('transform', 'odd')\ndef make(options, *, site, heads):\n"
    content += "    Odd(options, site=site, heads=heads)\n"
    shown = told(command, workspace, "train", *odd(content))
    where = "odd_method_0.py, model.attention.encoder_self.transform, layer 1: the transform method 'odd'"
    assert f"{where} failed: TypeError: it builds None" in shown and "It is built as build(options, " in shown


def test_it_is_told_in_decoding_and_reports_too(odd: Odd, command: Run, workspace: Path) -> None:
    path = "if not self.training and torch.is_grad_enabled() is False: raise KeyError('x')\n        return weights"
    arguments = odd(MODULE.format(**RIGHT))
    assert command("train", *arguments).code == 0
    (workspace / "odd_method_0.py").write_text(MODULE.format(**(RIGHT | {"result": path})), encoding="utf-8")
    for words in (
        ("decode", "odd-model", "-i", "corpus/test.en"),
        ("analyze", "density", "odd-model", "-i", "corpus/test.en"),
        ("score", "--model", "odd-model", "--source", "corpus/test.en", "--target", "corpus/test.de"),
    ):
        importlib.reload(sys.modules["odd_method_0"])
        place = "odd_method_0.py:15, model.attention.encoder_self.transform, layer 1"
        assert f"{place}: the transform method 'odd' failed: KeyError: 'x'" in told(command, workspace, *words)


def test_one_of_several_in_a_module_is_named(odd: Odd, command: Run, workspace: Path) -> None:
    more = "\n\nfrom functools import partial\nregister('transform', 'even')(partial(Odd))\n"
    content = MODULE.format(**(RIGHT | {"result": "return weights[1000]"})) + more
    arguments = [each.replace("name: odd", "name: even") for each in odd(content)]
    shown = told(command, workspace, "train", *arguments)
    place = "odd_method_0.py:15, model.attention.encoder_self.transform, layer 1"
    assert f"{place}: the transform method 'even' failed: IndexError" in shown


def test_a_pattern_is_named(odd: Odd, command: Run, workspace: Path) -> None:
    shown = told(command, workspace, "train", *odd(PATTERN.format(result="return queries.nothing"), "pattern"))
    place = r"odd_method_0\.py:10, model\.attention\.encoder_self\.pattern, layer 1"
    assert re.search(f"{place}: the pattern method 'odd' failed: AttributeError", shown), shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\ndef f(:\n", "odd_method_0.py:2: "),
        ("import torch\n1 / 0\n", "ZeroDivisionError"),
        (
            MODULE.format(**RIGHT).replace('"odd"', '"softmax"'),
            "method 'softmax' is registered already, by this program",
        ),
        (MODULE.format(**RIGHT).replace('"transform"', '"hats"'), "no socket 'hats'"),
    ],
    ids=["syntax", "import", "name", "socket"],
)
def test_a_module_that_cannot_be_loaded(odd: Odd, command: Run, workspace: Path, content: str, message: str) -> None:
    shown = told(command, workspace, "train", *odd(content))
    assert "the plugin SPARSENMT_PLUGINS=odd_method_0 failed: " in shown and message in shown


def test_errors_of_the_program_itself_name_what_is_registered(
    odd: Odd, command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("ours")

    arguments = odd(MODULE.format(**RIGHT))
    monkeypatch.setattr("sparsenmt.training.loop.clip_gradients", broken)
    result = command("train", *arguments)
    assert result.code == 1 and len(list(workspace.glob("sparsenmt-error-*"))) == 1
    assert "unexpected RuntimeError: ours (registered from outside: the transform method 'odd' (" in result.err
