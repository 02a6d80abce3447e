"""The record of a claim: what a paper says, what was run and measured, and the rule of the verdict.

A claim is a file ``docs/records/claims/NN-NAME.yaml``. Every number that a page shows stands in one of these files, as
a figure with its unit and its source; sentences name figures, ``{{NAME}}``, and hold no digits of their own
(`tools.claims.template`). What a run of `make claims` measures goes to ``results/NN.yaml`` beside them and stands in
place of the figures of the same names.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sparsenmt.errors import UserError
from sparsenmt.recipe.yaml_tree import parse_plain

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs/records/claims"
COMMON = "common.yaml"
"""The file of what the claims share: papers, scatters, names that have digits."""
FINDINGS = "findings.yaml"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list)]
"""Names of figures; a single one may stand without brackets."""
Sentences = Annotated[list[str], BeforeValidator(_as_list)]
"""Sentences, each left out while one of its figures is not measured."""


class Entry(BaseModel):
    """A part of a record; unknown keys are forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


E = TypeVar("E", bound=Entry)


class Published(Entry):
    """A figure of the paper, and its place there."""

    value: float
    unit: str = ""
    place: str


class Run(Entry):
    """The trainings, or the measurement, that gave figures; None: the records do not say.

    Args:
        seeds: of training; empty: nothing was trained for it.
        budget: part of the updates, or text, of the usual training that the models had; 1 for all. None: not a question
            of training.
        identity: model directory -> hash of the model.
        source: page and entry that has the figures.
    """

    what: str
    seeds: list[int] = []
    updates: int | None = None
    budget: float | None = None
    date: datetime.date | None = None
    revision: str | None = None
    identity: dict[str, str] | None = None
    source: str


class Collected(Entry):
    """The place of a figure in the table of a sweep, or in other JSON that a command writes.

    Args:
        sweep: folder of the sweep below `runs`, whose table is read.
        file: below the working directory, in place of a sweep.
        where: column -> value, of the rows that count; one row for each seed, or a single one.
        scale: factor, 100 for shares as percent.
    """

    sweep: str | None = None
    file: str | None = None
    table: str = "variants"
    where: dict[str, str | int] = {}
    column: str = "quality"
    scale: float = 1

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.sweep is None) is (self.file is None):
            raise ValueError("name either a sweep or a file")
        return self

    @property
    def path(self) -> str:
        """The file, below the working directory."""
        return self.file or f"runs/{self.sweep}/table.json"


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
"""The names of two figures."""


class Figure(Entry):
    """A measured number, or the difference or ratio of two figures.

    Args:
        run: name of the run; None: that of the first of the two figures.
        unit: `%` is shown behind the number.
        value: the number, or its mean where only that is recorded.
        values: seed -> number.
        deviation: sample standard deviation, where only that is recorded.
        low, high: the recorded 95% interval.
        p: recorded p-value.
        scatter: name of the scatter by which single trainings differ anyway; `unknown`: not measured.
        decimals: decimals that are shown.
        signed: show a plus sign.
        collected: the place from which `make claims` takes it.
    """

    run: str | None = None
    unit: str = ""
    value: float | None = None
    values: dict[int, float] = {}
    difference: Pair | None = None
    ratio: Pair | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    scatter: str | None = None
    decimals: int = 2
    signed: bool = False
    collected: Collected | None = None

    @property
    def pair(self) -> list[str]:
        """The two figures of which it is the difference or the ratio; empty: it is measured itself."""
        return self.difference or self.ratio or []


class Part(Entry):
    """A part of a claim and its rule: the range in which figures must lie, and how much outside is tolerated.

    The part holds if the 95% interval lies in the range, widened by the tolerance; it does not hold if the interval
    lies outside of the range; otherwise it is undecided. Of several figures all must lie in it.

    Args:
        figures: names.
        planned: figures that take their place when all of them are measured.
        why: the reason of the bounds and of the tolerance.
    """

    says: str
    figures: Names
    planned: Names = []
    at_least: float | None = None
    at_most: float | None = None
    tolerance: float = Field(0, ge=0)
    why: str

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a part needs at_least or at_most")
        return self


class Earlier(Entry):
    """A verdict that the rule replaced."""

    verdict: str
    reason: str


class Plan(Entry):
    """The runs that would decide the claim, or decide it better.

    Args:
        hours: of two CPU cores, estimated; None: it needs a GPU and the corpora of the paper.
    """

    commands: list[str]
    models: int | None = None
    hours: float | None = None
    why: str = ""


class Claim(Entry):
    """A claim of a paper.

    Args:
        place: of the claim in the paper.
        published: the paper's figures that bear on it; empty: it gives none, or only as a curve.
    """

    number: int
    paper: str
    says: str
    place: str
    published: dict[str, Published]
    commands: list[str]
    runs: dict[str, Run]
    figures: dict[str, Figure]
    parts: list[Part] = Field(min_length=1)
    result: Sentences
    remark: Sentences = []
    earlier: Earlier | None = None
    plan: Plan | None = None

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name in [name for part in self.parts for name in [*part.figures, *part.planned]]:
            if name not in self.figures:
                raise ValueError(f"a part names the figure {name}, which is not there")
        for name, figure in self.figures.items():
            for other in figure.pair:
                if other not in self.figures:
                    raise ValueError(f"figure {name} is made of {other}, which is not there")
            if not figure.pair and figure.run not in self.runs:
                raise ValueError(f"figure {name} needs one of the runs: {', '.join(self.runs)}")
        return self

    def whole_commands(self, common: Common, *, planned: bool = False) -> list[str]:
        """Return the commands, or those of the plan, with those of shared steps in the places of their names."""
        asked = self.plan.commands if planned and self.plan is not None else self.commands
        steps = ([each] if each[0] != "$" else common.steps[each[1:]] for each in asked)
        return [command for step in steps for command in step]

    def run_of(self, name: str) -> Run:
        """Return the run of a figure; of a difference or ratio that of the first of its two figures."""
        figure = self.figures[name]
        return self.run_of(figure.pair[0]) if figure.run is None else self.runs[figure.run]


class Scatter(Entry):
    """The size by which results differ without a reason.

    Args:
        deviation: sample standard deviation of the results of several seeds.
        half_width: of the 95% interval, where it is recorded itself.
    """

    unit: str
    deviation: float | None = None
    half_width: float | None = None
    source: str

    @property
    def half(self) -> float:
        """Half of the 95% interval of the difference of two single trainings: 1.96 sqrt(2) deviations."""
        if self.half_width is not None:
            return self.half_width
        assert self.deviation is not None
        return 1.96 * 2**0.5 * self.deviation


class Paper(Entry):
    """A paper: the title of its section, and the sentences above its table."""

    title: str
    text: str = ""


class Common(Entry):
    """The texts, runs and scatters that claims share.

    Args:
        introduction: paragraphs of the page.
        names: words with digits that sentences may hold, as they are names and no figures.
        steps: name -> commands that claims share; a claim writes ``$NAME``.
        runs: runs that claims share.
    """

    introduction: list[str]
    steps: dict[str, list[str]]
    runs: dict[str, Run]
    papers: dict[str, Paper]
    scatters: dict[str, Scatter]
    names: list[str]


class Bar(Entry):
    """A line of a picture: a label and a figure, ``NN.NAME``; ``color``: number of the colour."""

    label: str
    figure: str
    color: int = 0


class Point(Entry):
    """A point of a curve, by two figures."""

    x: str
    y: str


class Picture(Entry):
    """A picture of figures: lines with intervals, or curves.

    Args:
        axis: title of the horizontal axis, with the unit.
        zero: True to mark 0, for differences.
        curves: label -> points; ``vertical`` is the title of their other axis.
    """

    axis: str
    zero: bool = False
    bars: list[Bar] = []
    curves: dict[str, list[Point]] = {}
    vertical: str = ""


class Finding(Entry):
    """A finding for readers: a sentence as its title, a paragraph, a picture."""

    name: str
    title: str
    text: str
    claims: list[int]
    picture: Picture


class Findings(Entry):
    """The page of findings."""

    title: str
    introduction: str
    findings: list[Finding]


class Results(Entry):
    """The figures of a claim that were measured again.

    Args:
        small: True if the budget was cut to see that the commands work; such figures say nothing.
    """

    claim: int
    small: bool
    date: datetime.date
    revision: str | None
    identity: dict[str, str] | None
    figures: dict[str, dict[int, float] | float]


def read_entry(path: Path, kind: type[E], runs: Mapping[str, Any] | None = None) -> E:
    """Read a file of the records.

    Args:
        runs: runs that the file need not repeat.

    Raises:
        UserError: the file is missing, not YAML or has other keys than the record.
    """
    if not path.is_file():
        raise UserError("there is no such record", where=str(path), hint="The records lie in docs/records/claims.")
    try:
        values = parse_plain(path.read_text(encoding="utf-8"), name=str(path))
        if runs is not None:
            values = {**values, "runs": {**runs, **values.get("runs", {})}}
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        hint = "tools/claims/record.py explains the keys."
        raise UserError(f"the record is not as it must be: {wrong}", where=str(path), hint=hint) from None


class Record(Entry):
    """All claims, and what they share."""

    common: Common
    claims: dict[int, Claim]


def with_results(claim: Claim, results: Results) -> Claim:
    """Return the claim with figures that were measured again in place of its own."""
    figures: dict[str, Figure] = dict(claim.figures)
    runs = dict(claim.runs)
    for name, found in results.figures.items():
        if name not in figures:
            raise UserError(f"claim {claim.number} has no figure {name}", where=f"results/{claim.number:02}.yaml")
        figure = figures[name]
        by_seed = {"values": found, "value": None} if isinstance(found, dict) else {"values": {}, "value": found}
        older = dict.fromkeys(("deviation", "low", "high", "p"))
        figures[name] = figure.model_copy(update={**older, **by_seed})
        if figure.run is not None:
            fresh = {"date": results.date, "revision": results.revision, "identity": results.identity}
            runs[figure.run] = runs[figure.run].model_copy(update=fresh)
    return claim.model_copy(update={"figures": figures, "runs": runs})


def claim_files(folder: Path = RECORDS) -> Iterator[Path]:
    """Yield the files of the claims, in their order."""
    yield from sorted(folder.glob("[0-9][0-9]-*.yaml"))


@functools.cache
def read_record(folder: Path = RECORDS) -> Record:
    """Read all records of a folder."""
    found: dict[int, Claim] = {}
    common = read_entry(folder / COMMON, Common)
    shared = {name: run.model_dump() for name, run in common.runs.items()}
    for path in claim_files(folder):
        claim = read_entry(path, Claim, shared)
        if not path.name.startswith(f"{claim.number:02}-"):
            raise UserError(f"the file of claim {claim.number} is called otherwise", where=str(path))
        if claim.paper not in common.papers:
            raise UserError(f"{COMMON} has no paper {claim.paper}", where=str(path))
        results = folder / f"results/{claim.number:02}.yaml"
        found[claim.number] = with_results(claim, read_entry(results, Results)) if results.is_file() else claim
    return Record(common=common, claims=found)


def scatter_of(figure: Figure, scatters: Mapping[str, Scatter]) -> float | None:
    """Return half of the interval by which results differ without a reason: 0 without one, None if it is not measured.

    Raises:
        UserError: the scatter is not there, or has another unit.
    """
    if figure.scatter is None:
        return 0.0
    if figure.scatter == "unknown":
        return None
    if figure.scatter not in scatters:
        raise UserError(f"there is no scatter {figure.scatter}", where=COMMON)
    scatter = scatters[figure.scatter]
    if scatter.unit != figure.unit:
        raise UserError(f"scatter {figure.scatter} is in {scatter.unit}, the figure in {figure.unit}", where=COMMON)
    return scatter.half
