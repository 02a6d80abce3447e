"""The public names of the conformance kit, for type checkers; `__init__.py` imports each at first use."""

# ruff: noqa: I001 (`a as a` exports a name; one import for each would be three times as long)

from sparsenmt.testing.bench import Bench as Bench
from sparsenmt.testing.cases import Case as Case, Plug as Plug, Sizes as Sizes
from sparsenmt.testing.checks import BrokenRule as BrokenRule
from sparsenmt.testing.kit import (
    CheckPlan as CheckPlan,
    CheckResult as CheckResult,
    RuleOutcome as RuleOutcome,
    check_method as check_method,
    find_method as find_method,
)
from sparsenmt.testing.pytest_plugin import method_checks as method_checks
from sparsenmt.testing.rules import RULES as RULES, Rule as Rule, check_rule as check_rule, rule_of as rule_of
