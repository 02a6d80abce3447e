"""Types of recipe values that are names in a table which plugins extend: decoding strategies and metrics.

The table is read when a value is checked, not when the schema is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.plugins.modules import Kind
from sparsenmt.plugins.record import explain_missing
from sparsenmt.strategy import STRATEGIES


@dataclass(frozen=True)
class TableName(BeforeValidator):
    """A check that a value is one of some names, with the message of a `Literal` of them."""

    names: Callable[[], Iterable[str]] = tuple

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """The names that the table has when a schema is made for an editor."""
        return {**handler(core), "enum": [*self.names()]}


def _table_name(kind: Kind, names: Callable[[], Iterable[str]], has: Callable[[str], bool]) -> TableName:
    """Make the check.

    Args:
        names: all names, for the message and the documentation.
        has: True for one of them; loads plugins only if it is none of the package.
    """

    def check(value: Any) -> Any:
        if isinstance(value, str) and has(value):
            return value
        missing = explain_missing(kind, value) if isinstance(value, str) else ""
        context = {"expected": " or ".join(f"'{name}'" for name in names()), "missing": missing}
        raise PydanticCustomError("literal_error", "Input should be {expected}", context)

    return TableName(check, names=names)


def _metrics() -> list[str]:
    return [*METRICS, *TEXT_METRICS]


def _validation_metrics() -> list[str]:
    return ["loss", *(name for name, each in METRICS.items() if each.validates), *TEXT_METRICS]


def _is_metric(name: str) -> bool:
    return name in TEXT_METRICS or name in METRICS


def _validates(name: str) -> bool:
    return name == "loss" or name in TEXT_METRICS or (name in METRICS and METRICS[name].validates)


DecodingMethod = Annotated[str, _table_name("strategy", lambda: list(STRATEGIES), STRATEGIES.__contains__)]
MetricName = Annotated[str, _table_name("metric", _metrics, _is_metric)]
ValidationMetric = Annotated[str, _table_name("metric", _validation_metrics, _validates)]
