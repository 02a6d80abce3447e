"""Reports of the kit on a method: plans, outcomes, the smallest case with its script, the command and the tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.cli import run
from sparsenmt.errors import UserError
from sparsenmt.sparsity import registry
from sparsenmt.testing import BrokenRule, Sizes, check_method, check_rule, find_method, method_checks
from sparsenmt.testing.kit import CheckPlan
from tests.testing.planted import MISTAKES, Mistake, Sound, planted

ROOT = Path(__file__).resolve().parents[2]
SINK = ROOT / "examples" / "plugin" / "src" / "sparsenmt_sink" / "__init__.py"

MODULE = """\
import torch
from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import register


@register("transform", "hasty")
class Hasty(Transform):
    def __init__(self, options, *, site, heads):
        super().__init__()

    def forward(self, scores, keys):
        visible = keys.visible()
        return torch.softmax(scores.masked_fill(~visible, -torch.inf), -1).masked_fill(~visible, 0.0)
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs a command line in a folder with modules, in this process; returns the exit code and both outputs."""
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hasty.py").write_text(MODULE, encoding="utf-8", newline="\n")

    def run_line(*arguments: str | Path) -> tuple[int, str, str]:
        code = run([str(each) for each in arguments])
        return code, *capsys.readouterr()

    with registry.scope():
        yield run_line
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.thorough
def test_the_smallest_case_is_a_script_that_fails(call: Call, tmp_path: Path) -> None:
    code, out, err = call("check-method", "hasty.py", "--rule", "counts", "--rule", "deterministic")
    assert code == 1 and re.search(
        r"the transform method 'hasty': cases: \d+ alone, \d+ in pairs; rules: 2; about ", err
    )
    assert re.search(r"^  counts +does not hold in \d+ cases?$", out, re.MULTILINE)
    assert re.search(r"^  deterministic +holds in \d+ cases$", out, re.MULTILINE)
    assert out.rstrip().split("\n")[-1].startswith("the transform method 'hasty': 1 rule does not hold")
    lines = [line[4:] for line in out.split("\n") if line.startswith("    ")]
    assert len(lines) < 10 and "import hasty" in lines and "hypotheses=1" in lines[-1]
    script = tmp_path / "elsewhere" / "shown.py"
    script.parent.mkdir()
    script.write_text("\n".join(lines), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1 and "BrokenRule: a key with a count of 3 = 3 equal keys" in done.stderr


def test_json(call: Call) -> None:
    code, out, _ = call("check-method", "hasty:hasty", "--rule", "future", "--json")
    (record,) = json.loads(out)
    assert code == 0 and record["holds"] and record["name"] == "hasty" and record["file"].endswith("hasty.py")
    assert [(each["rule"], each["status"]) for each in record["rules"]] == [("build", "holds"), ("future", "holds")]


@pytest.mark.parametrize(
    ("argument", "text", "said"),
    [
        ("missing.py", None, "missing.py: there is no such file"),
        ("no_such_module", None, "there is no module 'no_such_module'"),
        ("broken.py", "x = (\n", "broken.py:1"),
        ("fails.py", "x = 1\ny = x / 0\n", "fails.py:2: the module fails failed: ZeroDivisionError"),
        ("needs.py", "import no_such_module\n", "there is no module 'no_such_module'"),
        ("empty.py", "x = 1\n", "empty.py: the module registers no method"),
        ("hasty.py:other", None, "hasty.py: the module registers no method 'other'"),
        ("json.py", "x = 1\n", "json.py: `import json` finds "),
        ("a-b.py", "x = 1\n", "the name of the file is no name of a module"),
    ],
)
def test_modules_that_cannot_be_checked(call: Call, tmp_path: Path, argument: str, text: str, said: str) -> None:
    if text is not None:
        (tmp_path / argument).write_text(text, encoding="utf-8")
    code, out, err = call("check-method", argument)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err


def test_a_package_is_named_by_its_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "inside" / "hasty_package").mkdir(parents=True)
    (tmp_path / "inside" / "hasty_package" / "__init__.py").write_text(MODULE, encoding="utf-8")
    for named in ("inside/hasty_package", "inside/hasty_package/__init__.py"):
        code, out, _ = call("check-method", named, "--rule", "future", "--json")
        assert code == 0 and json.loads(out)[0]["file"].endswith("hasty_package/__init__.py")
    assert "hasty_package" in sys.modules


def test_rules_that_do_not_exist(call: Call) -> None:
    code, _, err = call("check-method", "hasty.py", "--rule", "count")
    assert code == 2 and "there is no rule 'count'" in err and "counts" in err


def test_methods_are_found_by_what_was_registered() -> None:
    with registry.scope():

        @registry.register("transform", "found")
        class Found(Sound):
            pass

        method = registry.get("transform", "found")
        assert find_method(Found) is find_method("transform.found") is find_method(method) is method
    with pytest.raises(UserError, match="no method 'softmaxx' is registered"):
        find_method("softmaxx")
    with pytest.raises(UserError, match=r"Did you mean transform\.softmax\?"):
        find_method("softmax")
    with pytest.raises(UserError, match="is not registered as a method"):
        find_method(Sound)


def test_plans() -> None:
    """Quick: each place with the first example, each other example once; full: all, pre- and post-norm."""
    method = registry.get("memory", "l0drop")
    quick, full = CheckPlan.of(method), CheckPlan.of(method, full=True)
    assert len(full.alone) == 2 * 2 * len(method.examples)
    assert len(quick.alone) == 2 + len(method.examples) - 1
    places = {case.plugs[1].place for case in full.pairs}
    assert {case.plugs[1].place for case in quick.pairs} == places and len(quick.pairs) == len(places)
    assert {"cross.transform", "memory.output", "depth", "recurrence", "decoder_self.span"} <= places
    assert CheckPlan.of(method, others=()).pairs == ()
    assert {str(case) for case in CheckPlan.of(registry.get("transform", "softmax")).alone} == {
        "pre-plain",
        "post-plain",
    }


def test_what_is_expected_is_no_failure() -> None:
    (mistake,) = [each for each in MISTAKES if each.made.__name__ == "LosesTheGradient"]
    with planted(mistake) as method:
        given: dict[str, Any] = {"rules": ("gradients",), "others": ()}
        assert [each.rule.name for each in check_method(method, **given).broken] == ["gradients"]
        result = check_method(method, expected={"gradients": "estimated"}, **given)
    assert result.holds and result.outcome("gradients").status == "expected"
    with pytest.raises(UserError, match="there is no rule 'gradient'"):
        check_method("transform.softmax", expected={"gradient": ""}, others=())


def test_errors_of_a_method_are_told_with_their_place() -> None:
    class Fails(Sound):
        def scale(self, scores: torch.Tensor) -> torch.Tensor:
            return scores @ torch.ones(3, dtype=scores.dtype)

    with planted(Mistake(Fails, "build", "cross.transform")) as method:
        result = check_method(method, others=())
    (outcome,) = result.broken
    assert outcome.rule.name == "build" and re.search(
        r"RuntimeError: .*test_check_method\.py:\d+", outcome.message or ""
    )
    assert {each.status for each in result.outcomes[1:]} == {"not applicable"}


def test_a_rule_on_one_case() -> None:
    check_rule("steps", [("cross.transform", "topk", {"k": 2})], sources=(3, 2), target=2)
    check_rule("steps", [("cross.pattern", "window", {"k": 2})])  # refused, as declared
    with pytest.raises(UserError, match="there is no place 'cross'"):
        check_rule("steps", [("cross", "topk", {})])
    with pytest.raises(UserError, match="no transform method 'top' is registered"):
        check_rule("steps", [("cross.transform", "top", {})])
    assert Sizes().heads == 4 and issubclass(BrokenRule, AssertionError)


@pytest.mark.thorough
def test_the_tests_of_a_package(tmp_path: Path) -> None:
    """Three lines are a test for each rule, which fails with the script, or is skipped where a rule says nothing."""
    (tmp_path / "hasty.py").write_text(MODULE, encoding="utf-8")
    test = "from hasty import Hasty\nfrom sparsenmt.testing import method_checks\n"
    test += "test_hasty = method_checks(Hasty, rules=['counts', 'examples', 'state'])\n"
    (tmp_path / "test_hasty.py").write_text(test, encoding="utf-8")
    options = [
        "-p",
        "sparsenmt.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
        "--rootdir",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "OMP_NUM_THREADS": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the entry point of an installed package loads it, too
    command = [sys.executable, "-m", "pytest", *options, "-c", os.devnull, "test_hasty.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=200)
    assert done.returncode == 1 and "1 failed, 2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "check_rule('counts', [('encoder_self.transform', 'hasty', {})]" in done.stdout


def test_the_plugin_of_pytest_loads_no_heavy_package() -> None:
    code = "import sys, sparsenmt.testing.pytest_plugin; print(*{'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "" and callable(method_checks)


@pytest.mark.thorough
def test_the_template_of_a_plugin_keeps_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone; `make plugin` checks it in pairs, installed beside a wheel."""
    monkeypatch.syspath_prepend(str(SINK.parents[1]))
    with registry.scope():
        sink = __import__("sparsenmt_sink").Sink
        result = check_method(sink, others=())
    sys.modules.pop("sparsenmt_sink")
    assert result.holds, [(each.rule.name, each.message) for each in result.broken]
    assert {each.rule.name for each in result.outcomes if each.status == "not applicable"} == {"examples", "reach"}
