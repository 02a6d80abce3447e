"""The budget of a plan: the quality that may be lost, and the most memory, disk space and time of a line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparsenmt.errors import UserError
from sparsenmt.metric import METRICS, Metric
from sparsenmt.process.progress import byte_text

_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_HINT = "Write the metric and what may be lost, as 'bleu -0.5'."
_NUMBER = r"(\d+(?:\.\d+)?)"


@dataclass(frozen=True)
class Budget:
    """The limits of a plan; None: no limit.

    Args:
        metric: by which quality is measured; None: that of the first model's validation.
        loss: the most that may be lost by this metric against the best candidate, at least 0.
        memory: peak resident memory of the process that decodes, in bytes.
        size: of the model directory, in bytes.
        latency: of a line that is translated alone, in seconds.
    """

    metric: str | None = None
    loss: float = 0.5
    memory: int | None = None
    size: int | None = None
    latency: float | None = None

    @classmethod
    def parse(
        cls, within: str | None = None, memory: str | None = None, size: str | None = None, latency: str | None = None
    ) -> Budget:
        """Read limits as they are written on the command line: ``bleu -0.5``, ``300MB``, ``20ms``.

        Raises:
            UserError: one is not understood.
        """
        metric, loss = (None, cls.loss) if within is None else _parse_within(within)
        bytes_ = (_parse(text, option, _BYTES, "300MB") for text, option in ((memory, "--memory"), (size, "--size")))
        most_memory, most_size = (None if each is None else round(each) for each in bytes_)
        return cls(metric, loss, most_memory, most_size, _parse(latency, "--latency", _SECONDS, "20ms"))

    def options(self) -> list[str]:
        """Return the options of the command line that `parse` reads as this budget; it has a metric."""
        assert self.metric is not None
        sign = "+" if METRICS[self.metric].lower_is_better else "-"
        found = ["--within", f"{self.metric} {sign}{_plain(self.loss)}"]
        for name, value in self.limits.items():
            found += [f"--{name}", f"{_plain(value * 1000)}ms" if name == "latency" else f"{_plain(value / 1000)}kB"]
        return found

    @property
    def limits(self) -> dict[str, float]:
        """Name of a measure -> its limit, for those that have one, without the quality."""
        found = {"memory": self.memory, "size": self.size, "latency": self.latency}
        return {name: value for name, value in found.items() if value is not None}

    def excess(self, measured: Mapping[str, float | None]) -> dict[str, float]:
        """Return, for each limit that is exceeded, by which share of it; what was not measured exceeds none."""
        shares = {
            name: value / limit - 1 for name, limit in self.limits.items() if (value := measured.get(name)) is not None
        }
        return {name: share for name, share in shares.items() if share > 0}


def _plain(value: float) -> str:
    """Return a number as `_NUMBER` reads it, without an exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def limit_text(name: str, value: float) -> str:
    """Return the value of a measure in words, as ``312.0 MB``."""
    if name == "latency":
        return f"{value * 1000:,.1f} ms" if value >= 1e-3 else f"{value * 1000:.3g} ms"
    return byte_text(value)


def check_metric(name: str) -> Metric:
    """Return a metric; UserError unless it has a value for lines without their documents and sources."""
    usable = [each for each in METRICS if METRICS[each].is_utility and not METRICS[each].reads_source]
    if name not in usable:
        known = ", ".join(usable)
        raise UserError(f"'{name}' is no metric of lines; there are {known}", where="--within", hint=_HINT)
    return METRICS[name]


def _parse_within(text: str) -> tuple[str, float]:
    """Return metric and loss of a text such as ``bleu -0.5``, of a metric of errors ``ter +0.5``."""
    found = re.fullmatch(rf"\s*([A-Za-z0-9_]+)\s+([+-]?){_NUMBER}\s*", text)
    if found is None or not math.isfinite(float(found[3])):
        raise UserError(f"'{text}' is not a metric and a difference", where="--within", hint=_HINT)
    name, sign, number = found.groups()
    metric = check_metric(name)
    worse = "+" if metric.lower_is_better else "-"
    if sign != worse and float(number):
        kind = "a number with a plus sign" if worse == "+" else "a negative number"
        raise UserError(
            f"'{text}' allows no loss: a loss in {metric.label} is {kind}",
            where="--within",
            hint=f"Write '{name} {worse}{number}'.",
        )
    return name, float(number)


def _parse(text: str | None, option: str, units: Mapping[str, float], example: str) -> float | None:
    """Return a number with its unit; None for None."""
    if text is None:
        return None
    found = re.fullmatch(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*", text)
    known = {name.lower(): size for name, size in units.items()}
    value = 0.0 if found is None else float(found[1]) * known.get(found[2].lower(), 0.0)
    least = 1.0 if units is _BYTES else 0.0  # a part of a byte is none
    if not (least <= value < math.inf and value):
        names = ", ".join(units)
        raise UserError(
            f"'{text}' is no positive number with one of the units {names}", where=option, hint=f"As in {example}."
        )
    return value
