"""Every method of self-attention in a language model, alone and in pairs: segments, steps and one pass are the same.

A method joins by being registered, as in `cases`.
"""

from __future__ import annotations

import itertools

import pytest

from sparsenmt.testing.cases import Case, accepted, fits_language_model, norm_of
from sparsenmt.testing.language_models import check_language_model
from tests.conformance.cases import plugs
from tests.conformance.support import has_first_examples

# Patterns by absolute positions and transforms by features of a source are tried; fixed heads know the end of a text.
TRIED = [plug for plug in accepted(plugs()) if fits_language_model(Case((plug,)))]
FIRST = [plug for plug in TRIED if plug.options == plug.method.examples[0]]
PAIRS = [
    (a, b)
    for a, b in itertools.combinations(FIRST, 2)
    if a.place != b.place and {a.method.socket, b.method.socket} & {"position", "span"}
]
CASES = [Case(chosen, norm_of(*chosen)) for chosen in [(), *((plug,) for plug in TRIED), *PAIRS]]


def marks(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    if len(case.plugs) > 1 and any(plug.method.socket == "pattern" for plug in case.plugs):
        return (pytest.mark.slow,)
    return () if len(case.plugs) < 2 and has_first_examples(case) else (pytest.mark.thorough,)


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=marks(case)) for case in CASES])
def test_all_checks(case: Case) -> None:
    check_language_model(case)
