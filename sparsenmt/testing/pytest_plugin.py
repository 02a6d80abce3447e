"""The kit in pytest: a test function with one test for each rule, and the option ``--full-checks``.

pytest loads this module in every environment that has sparsenmt (the entry point group ``pytest11``): it imports no
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from sparsenmt import testing

if TYPE_CHECKING:  # loads PyTorch
    from sparsenmt.testing.kit import CheckResult

_OPTION = "--full-checks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    text = "Check methods of sparsenmt in full: every example, norm and pair (sparsenmt.testing.method_checks)."
    parser.getgroup("sparsenmt").addoption(_OPTION, action="store_true", default=False, help=text)


def method_checks(
    method: Callable[..., Any] | str,
    *,
    full: bool = False,
    rules: Sequence[str] | None = None,
    expected: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """Make a test function of the rules for a method: one test for each rule.

    Args:
        method: the class or function that was registered, or ``"SOCKET.NAME"``.
        full: every example, norm and pair; also with ``--full-checks``.
        rules: names in `RULES`, beside the first; None: all.
        expected: rule -> why it need not hold; its test is skipped.
    """
    results: list[CheckResult] = []

    names = [rule.name for rule in testing.RULES]

    @pytest.mark.parametrize("rule", names if rules is None else list(dict.fromkeys((names[0], *rules))))
    def check(rule: str, request: pytest.FixtureRequest) -> None:
        if not results:  # all rules share the cases: the first test runs them
            thorough = full or bool(request.config.getoption(_OPTION, default=False))
            results.append(testing.check_method(method, full=thorough, rules=rules, expected=expected))
        outcome = results[0].outcome(rule)
        if outcome.status == "does not hold":
            pytest.fail(f"{outcome.rule.sentence}\n{outcome.message}\n\n{outcome.script}", pytrace=False)
        if outcome.status != "holds":
            pytest.skip(outcome.message or outcome.status)

    return check
