"""Sentences whose figures come from records.

``{{NAME}}`` is a figure of the sentence's own claim, ``{{NN.NAME}}`` one of another claim, each with its decimals and
unit. Behind it, ``.interval`` is its 95% interval, ``.recorded`` that of the recorded test, and ``.p``, ``.deviation``,
``.seeds`` and ``.values`` are its p-value, deviation, number of seeds, and values by seed. ``{{published.NAME}}`` is a
figure of the paper, ``{{runs.NAME.updates}}`` and ``{{runs.NAME.budget}}`` are of a run, ``{{plan.hours}}`` and
``{{plan.models}}`` of the plan. Outside of references and code no digits may stand, but in the names that
`common.yaml` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sparsenmt.errors import UserError
from tools.claims.record import Claim, Common, Figure, Record
from tools.claims.verdict import Measurement, measure

REFERENCE = re.compile(r"\{\{([^{}]+)\}\}")
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")


def typed_figures(text: str, names: Iterable[str]) -> list[str]:
    """Return the words of a sentence that hold digits and are neither references, code, links nor names."""
    bare = _CODE.sub(" ", REFERENCE.sub(" ", text))
    for name in sorted(names, key=len, reverse=True):
        bare = re.sub(rf"(?<![\w.,+-]){re.escape(name)}(?![\w%]|[.,]\d)", " ", bare)
    return re.findall(r"\S*\d\S*", bare)


def number(value: float, decimals: int, *, unit: str = "", signed: bool = False) -> str:
    """Return a number with its decimals, and with the percent sign if that is its unit."""
    text = f"{value:{'+' if signed else ''},.{decimals}f}"
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text + "%" * (unit == "%")


def p_value(p: float) -> str:
    """Return a p-value for a sentence, with its sign of relation."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


class _Missing(Exception):
    """A figure of the sentence is not measured."""


def fill(text: str, claim: Claim | None, record: Record) -> str | None:
    """Return the sentence with its figures; None: one of them is not measured.

    Raises:
        UserError: the sentence holds a typed figure, or names one that is not in the records.
    """
    where = "findings.yaml" if claim is None else f"claim {claim.number}"
    typed = typed_figures(text, record.common.names)
    if typed:
        hint = "Make it a figure of the record, and write {{NAME}}; or list the word in `names` of common.yaml."
        raise UserError(f"a figure is typed into a sentence: {', '.join(typed)}", where=where, hint=hint)
    try:
        return REFERENCE.sub(lambda match: _value(match[1].strip(), claim, record), text)
    except _Missing:
        return None


def filled(text: str, claim: Claim | None, record: Record) -> str:
    """Return a sentence with its figures, which must be measured.

    Raises:
        UserError: as for `fill`; or a figure is not measured.
    """
    found = fill(text, claim, record)
    if found is None:
        raise UserError("a sentence needs a figure that is not measured", where=text)
    return found


def locate(name: str, claim: Claim | None, record: Record) -> tuple[Claim, str]:
    """Return the claim of a reference and the rest of it.

    Raises:
        UserError: there is no such claim, or no claim is named where none is meant.
    """
    number, _, rest = name.partition(".")
    if number.isdecimal():
        if int(number) not in record.claims:
            raise UserError(f"there is no claim {number}", where=f"{{{{{name}}}}}")
        return record.claims[int(number)], rest
    if claim is None:
        raise UserError("a reference must begin with the number of a claim", where=f"{{{{{name}}}}}")
    return claim, name


def _value(name: str, claim: Claim | None, record: Record) -> str:
    claim, rest = locate(name, claim, record)
    first, *others = rest.split(".")
    if first == "published" and len(others) == 1 and others[0] in claim.published:
        published = claim.published[others[0]]
        return f"{published.value:,g}" + "%" * (published.unit == "%")
    if first == "runs" and len(others) == 2 and others[0] in claim.runs:
        run = claim.runs[others[0]]
        if others[1] == "updates" and run.updates is not None:
            return f"{run.updates:,}"
        if others[1] == "budget" and run.budget is not None:
            return f"{run.budget:.0%}"
    if first == "plan" and claim.plan is not None and others in (["hours"], ["models"]):
        planned = claim.plan.hours if others == ["hours"] else claim.plan.models
        if planned is not None:
            return f"{planned:g}"
    if first in claim.figures and others in ([], *([each] for each in _ASPECTS)):
        return _shown(claim, first, others[0] if others else "", record.common)
    raise UserError("a sentence names a figure that is not in the records", where=f"claim {claim.number}: {name}")


_ASPECTS = ("interval", "recorded", "p", "deviation", "seeds", "values")


def _shown(claim: Claim, name: str, aspect: str, common: Common) -> str:
    figure, found = claim.figures[name], measure(claim, name, common)
    if found is None:
        raise _Missing
    if not aspect:
        return number(found.value, figure.decimals, unit=figure.unit, signed=figure.signed)
    if aspect == "seeds":
        return str(len(found.values))
    if aspect == "values":
        return listed(number(each, figure.decimals, unit=figure.unit, signed=figure.signed) for each in found.values)
    return _uncertainty(figure, found, aspect, f"claim {claim.number}: {name}.{aspect}")


def _uncertainty(figure: Figure, found: Measurement, aspect: str, where: str) -> str:
    known = {"interval": (found.low, found.high), "recorded": (figure.low, figure.high)}
    low, high = known.get(aspect, (None, None))
    if low is not None and high is not None and float("-inf") < low < high:
        return " to ".join(number(end, figure.decimals, unit=figure.unit, signed=figure.signed) for end in (low, high))
    if aspect == "p" and found.p is not None:
        return p_value(found.p)
    if aspect == "deviation" and found.deviation is not None:
        return number(found.deviation, figure.decimals, unit=figure.unit)
    raise UserError(f"the figure has no {aspect}", where=where)


def listed(words: Iterable[str]) -> str:
    """Return words with commas between them, and `and` before the last."""
    found: Sequence[str] = list(words)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
