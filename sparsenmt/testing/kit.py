"""The kit: every rule on a method alone, at each place with each example, and in pairs with other methods."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from sparsenmt.errors import UserError
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method
from sparsenmt.testing.cases import DEFAULTS, NORMS, Case, accepted, pairs_of, plugs_of
from sparsenmt.testing.rules import BUILT, RULES, Rule, broken, build_or_refuse, rule_of, run_case
from sparsenmt.testing.smallest_case import script, smallest

Status = Literal["holds", "does not hold", "not applicable", "expected"]
_SHRINKING = 20.0  # seconds that the search for smallest cases takes at most
_PAIR, _WITH_METHOD = 0.3, 1.3  # time of a case in a pair, and of one with a method, over that of the plain case alone


@dataclass(frozen=True)
class RuleOutcome:
    """One rule on one method.

    Args:
        status: ``expected``: it does not hold, as the caller knows.
        cases: in which it was tried.
        message: why it does not hold, in the smallest case.
        script: lines of Python that show it.
    """

    rule: Rule
    status: Status
    cases: int
    message: str | None = None
    script: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """All rules on one method."""

    method: Method
    outcomes: tuple[RuleOutcome, ...]
    paired: bool
    """True if pairs were tried: they are not where a rule does not hold alone."""
    seconds: float = field(compare=False)

    @property
    def holds(self) -> bool:
        """True if every rule holds, is not applicable, or is expected not to hold."""
        return not self.broken

    @property
    def broken(self) -> tuple[RuleOutcome, ...]:
        """The rules that do not hold."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "does not hold")

    def outcome(self, rule: str) -> RuleOutcome:
        """Return the outcome of a rule, by its name."""
        return next(outcome for outcome in self.outcomes if outcome.rule.name == rule)

    def record(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {
                **{"rule": each.rule.name, "sentence": each.rule.sentence, "status": each.status},
                **{"cases": each.cases, "message": each.message, "script": each.script},
            }
            for each in self.outcomes
        ]
        name = {"socket": self.method.socket, "name": self.method.name, "file": self.method.outside}
        return {**name, "holds": self.holds, "pairs": self.paired, "seconds": round(self.seconds, 1), "rules": rows}


def find_method(named: Method | Callable[..., Any] | str) -> Method:
    """Find a registered method.

    Args:
        named: the method, what was registered (a class or a function), or ``"SOCKET.NAME"``.

    Raises:
        UserError: it is not registered.
    """
    methods = registry.all_methods()
    if isinstance(named, Method):
        return named
    for method in methods:
        if named is method.build or named == f"{method.socket}.{method.name}":
            return method
    if isinstance(named, str):
        same = sorted(f"{each.socket}.{each.name}" for each in methods if each.name == named.rpartition(".")[2])
        hint = f"Did you mean {same[0]}?" if same else "Import its module first; write it as SOCKET.NAME."
        raise UserError(f"no method '{named}' is registered", where="method", hint=hint)
    hint = "Decorate it with @register(SOCKET, NAME)."
    raise UserError(f"{named!r} is not registered as a method", where="method", hint=hint)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread in the context: in small models others only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _plain_seconds(rules: tuple[Rule, ...]) -> float:
    """Time the rules on the plain case, after a first time, which loads what PyTorch loads late."""
    bench = build_or_refuse(Case(()))
    assert bench is not None
    with _one_thread():
        for _ in range(2):
            began = time.monotonic()
            for rule in rules:
                broken(rule, bench)
    return time.monotonic() - began


@dataclass(frozen=True)
class CheckPlan:
    """The cases of a method."""

    method: Method
    alone: tuple[Case, ...]
    pairs: tuple[Case, ...]

    @staticmethod
    def of(method: Method, *, full: bool = False, others: Iterable[Method] | None = None) -> CheckPlan:
        """Choose the cases.

        Args:
            full: every example at every place, pre- and post-norm, and every pair. Otherwise further examples at one
                place each, norms in turns, and one pair for every place of another method.
            others: the methods of the pairs; None: all that are registered.
        """
        if DEFAULTS.get(method.socket) == method.name:
            return CheckPlan(method, tuple(Case((), norm) for norm in NORMS), ())  # it is in every case
        own = plugs_of([method])
        if full:
            alone = [Case((plug,), norm) for plug in own for norm in NORMS]
        else:
            first, places = [plug for plug in own if plug.options == method.examples[0]], accepted(own)
            turns = [[plug for plug in places if plug.options == options] for options in method.examples[1:]]
            later = [each[number % len(each)] for number, each in enumerate(turns) if each]
            alone = [Case((plug,), NORMS[number % 2]) for number, plug in enumerate((*first, *later))]
        known = [
            each
            for each in (registry.all_methods() if others is None else others)
            if (each.socket, each.name) != (method.socket, method.name)
        ]
        partners = accepted(plugs_of(known, examples=1))
        pairs = pairs_of(itertools.product(accepted(plugs_of([method], examples=1)), partners))
        if not full:
            by_place: dict[str, Case] = {}
            for case in pairs:
                by_place.setdefault(case.plugs[1].place, case)
            pairs = list(by_place.values())
        return CheckPlan(method, tuple(alone), tuple(pairs))

    @property
    def cases(self) -> int:
        """The number of cases."""
        return len(self.alone) + len(self.pairs)

    def estimate(self, rules: Sequence[Rule] = RULES) -> float:
        """Estimate the seconds that `run` takes on this machine, from the time of the plain case."""
        return _plain_seconds(tuple(rules)) * _WITH_METHOD * (len(self.alone) + _PAIR * len(self.pairs))

    def run(
        self,
        rules: Sequence[Rule] = RULES,
        *,
        expected: Mapping[str, str] | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> CheckResult:
        """Try the rules on all cases; a rule that does not hold in one is not tried on those after it.

        Pairs are left out if a rule does not hold alone: they would say the same once more.

        Args:
            rules: beside `BUILT`.
            expected: rule -> why it need not hold.
            advance: is told the number of cases that are done.
        """
        began, tally, known = time.monotonic(), _CaseTally(tuple(dict.fromkeys((BUILT, *rules)))), expected or {}
        with _one_thread():
            for case in self.alone:
                tally.add(case)
                advance(1)
            tried = self.pairs if tally.failures.keys() <= known.keys() else ()
            for case in tried:
                tally.add(case)
                advance(1)
            outcomes = tuple(tally.outcomes(self.method, known))
        return CheckResult(self.method, outcomes, tried == self.pairs, time.monotonic() - began)


class _CaseTally:
    """The cases in which each rule was tried, and the first in which it does not hold."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.cases = {rule.name: 0 for rule in rules}
        self.failures: dict[str, tuple[Case, str]] = {}

    def add(self, case: Case) -> None:
        """Try the rules on a case."""
        bench, message = run_case(case)
        self.cases[BUILT.name] += 1
        if message is not None:
            self.failures.setdefault(BUILT.name, (case, message))
        if bench is None:
            return
        for rule in self._rules:
            if rule.name in self.failures or (len(case.plugs) > 1 and not rule.in_pairs) or rule is BUILT:
                continue
            applies, message = broken(rule, bench)
            self.cases[rule.name] += applies
            if message is not None:
                self.failures[rule.name] = (case, message)

    def outcomes(self, method: Method, expected: Mapping[str, str]) -> Iterator[RuleOutcome]:
        """Yield the outcome of each rule; of one that does not hold, with the smallest case."""
        seconds = _SHRINKING / max(len(self.failures), 1)
        for rule in self._rules:
            count, found = self.cases[rule.name], self.failures.get(rule.name)
            if found is None:
                yield RuleOutcome(rule, "holds" if count else "not applicable", count)
            elif rule.name in expected:
                yield RuleOutcome(rule, "expected", count, expected[rule.name])
            else:
                case, message = smallest(rule, found[0], method, seconds)
                message = message or found[1]
                yield RuleOutcome(rule, "does not hold", count, message, script(rule, case, message))


def check_method(
    method: Method | Callable[..., Any] | str,
    *,
    full: bool = False,
    rules: Sequence[str] | None = None,
    others: Iterable[Method] | None = None,
    expected: Mapping[str, str] | None = None,
) -> CheckResult:
    """Try the rules of methods on one.

    Args:
        method: as for `find_method`.
        full: as for `CheckPlan.of`; otherwise it takes less than a minute.
        rules: names in `RULES`; None: all.
        others: the methods that it is combined with; None: all that are registered.
        expected: rule -> why it need not hold, such as gradients that are estimated on purpose.

    Raises:
        UserError: there is no such method or rule.
    """
    chosen = RULES if rules is None else tuple(rule_of(name) for name in rules)
    for name in expected or ():
        rule_of(name)
    return CheckPlan.of(find_method(method), full=full, others=others).run(chosen, expected=expected)
