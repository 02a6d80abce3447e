"""Claims: verdicts follow their rules, and no figure of the pages is typed."""

from __future__ import annotations

import functools
import importlib
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from datetime import date
from pathlib import Path
from typing import Any

import click
import pytest

from sparsenmt.cli import COMMANDS
from sparsenmt.errors import UserError
from sparsenmt.recipe.sweep import read_sweep
from tools.claims.__main__ import current
from tools.claims.page import claims_page
from tools.claims.pictures import picture
from tools.claims.record import (
    FINDINGS,
    RECORDS,
    ROOT,
    Claim,
    Collected,
    Common,
    Findings,
    Part,
    Record,
    Results,
    read_entry,
    read_record,
    with_results,
)
from tools.claims.rerun import cut, taken
from tools.claims.template import fill, typed_figures
from tools.claims.verdict import Measurement, Verdict, combine, evidence, judge, judge_figure, judge_part, measure

COMMANDS_OF_CLAIMS = sorted(
    {
        command
        for each in read_record().claims.values()
        for planned in (False, True)
        for command in each.whole_commands(read_record().common, planned=planned)
    }
)


def claim(figures: dict[str, Any], *parts: dict[str, Any], **more: Any) -> Claim:
    """A claim with these figures and parts."""
    run = {"what": "a run", "seeds": [1], "budget": 0.25, "source": "a page"}
    whole = {"what": "a run", "seeds": [1, 2, 3], "budget": 1, "source": "not run yet"}
    rules = [{"says": "a part", "why": "a reason", **part} for part in parts]
    named = {name: {"run": "short", "unit": "BLEU", **figure} for name, figure in figures.items()}
    values = {
        "number": 7,
        "paper": "p",
        "says": "It holds.",
        "place": "Table 1",
        "published": {},
        "commands": [],
        "result": [],
        **more,
    }
    return Claim.model_validate(
        {**values, "runs": {"short": run, "whole": whole}, "figures": named, "parts": rules or [RULE]}
    )


RULE = {"says": "a part", "why": "a reason", "figures": "a", "at_least": 0}
COMMON = Common.model_validate(
    {
        "introduction": [],
        "names": ["Multi30k", "3+3"],
        "steps": {"dense": ["sparsenmt train x.yaml"]},
        "runs": {},
        "papers": {"p": {"title": "A paper"}},
        "scatters": {"seeds": {"unit": "BLEU", "deviation": 0.5, "source": "a page"}},
    }
)


def record(*claims: Claim) -> Record:
    return Record(common=COMMON, claims={each.number: each for each in claims})


def test_pages_and_pictures_are_current() -> None:
    found = current()
    assert len(found) == 12
    for name, text in found.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run `make claims`"


def test_every_claim_has_a_record_with_a_rule() -> None:
    assert list(read_record().claims) == list(range(1, 39))
    assert all(each.parts for each in read_record().claims.values())


@pytest.mark.parametrize(
    "typed",
    ["It loses 0.77 BLEU.", "41.8% are closed.", "3 of them.", "{{a}} and -0.5.", "On Multi30k2 it is.", "3+31"],
)
def test_a_planted_figure_is_found(typed: str) -> None:
    planted = claim({"a": {"value": 1.0}}, result=[typed])
    with pytest.raises(UserError, match="a figure is typed into a sentence"):
        claims_page(record(planted))


def test_names_code_and_links_are_no_figures() -> None:
    text = "Multi30k at 3+3 layers ({{a}}), `k = 8`, [page](x1.md#y2)."
    assert typed_figures(text, COMMON.names) == []


@pytest.mark.parametrize("name", ["b", "a.median", "a.deviation", "8.a", "published.x", "runs.short.updates"])
def test_a_figure_that_is_not_in_the_records_is_refused(name: str) -> None:
    with pytest.raises(UserError):
        fill(f"{{{{{name}}}}}", claim({"a": {"value": 1.0}}), record())


def test_sentences_wait_for_their_figures() -> None:
    asked = claim({"a": {"value": 1.0}, "b": {"run": "whole"}})
    assert fill("Now {{a}}.", asked, record()) == "Now 1.00."
    assert fill("Later {{b}}.", asked, record()) is None


def test_figures_are_shown_with_unit_sign_and_interval() -> None:
    shown = claim(
        {
            "share": {"value": 42.71, "unit": "%", "decimals": 1},
            "loss": {"values": {1: -0.28, 2: -0.33, 3: -0.51}, "signed": True},
            "none": {"value": -0.001, "signed": True},
        },
        {"figures": "loss", "at_least": 0},
    )
    text = "{{share}}; {{loss}} ({{loss.interval}}, {{loss.p}}, {{loss.seeds}} seeds: {{loss.values}}); {{none}}"
    # The published figures of experiments.md, "do sparse transforms cost quality, seed by seed?".
    values = "-0.28, -0.33 and -0.51"
    assert fill(text, shown, record()) == f"42.7%; -0.37 (-0.67 to -0.07, p = 0.033, 3 seeds: {values}); 0.00"


@pytest.mark.parametrize(
    ("low", "high", "rule", "verdict"),
    [
        (0.1, 1.0, {"at_least": 0}, "holds"),
        (-0.4, 1.0, {"at_least": 0}, "undecided"),
        (-0.4, 1.0, {"at_least": 0, "tolerance": 0.5}, "holds"),
        (-0.4, -0.1, {"at_least": 0, "tolerance": 0.5}, "does not hold"),  # a loss that is certain is a loss
        (-0.9, -0.6, {"at_least": 0, "tolerance": 0.5}, "does not hold"),
        (1.5, 4.0, {"at_least": -1, "at_most": 1}, "does not hold"),
        (-0.9, 0.9, {"at_least": -1, "at_most": 1}, "holds"),
        (float("-inf"), float("inf"), {"at_most": 3}, "undecided"),
    ],
)
def test_the_rule_of_a_part(low: float, high: float, rule: dict[str, float], verdict: Verdict) -> None:
    part = Part(says="a part", figures="a", why="a reason", **rule)  # type: ignore[arg-type] # one name is a list of one
    assert judge_figure(part, Measurement((low + high) / 2, low, high, [0.0])) == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["holds"], "holds"),
        (["holds", "undecided"], "holds in part"),
        (["holds", "does not hold"], "holds in part"),
        (["undecided", "does not hold"], "does not hold"),
        (["undecided", "undecided"], "undecided"),
    ],
)
def test_the_verdict_of_a_claim(parts: list[Verdict], verdict: Verdict) -> None:
    assert combine(parts) == verdict


def test_one_seed_has_the_scatter_of_two_trainings() -> None:
    figures = {"ours": {"value": 40.0}, "theirs": {"value": 38.0}}
    asked = claim({**figures, "a": {"run": None, "difference": ["ours", "theirs"], "scatter": "seeds"}})
    found = measure(asked, "a", COMMON)
    assert found is not None and (found.low, found.high) == pytest.approx((2 - 1.386, 2 + 1.386), abs=1e-3)
    recorded = claim({"a": {"value": 2.0, "low": -0.5, "high": 2.5, "scatter": "seeds"}})
    wider = measure(recorded, "a", COMMON)
    assert wider is not None and (wider.low, wider.high) == (-0.5, pytest.approx(3.386, abs=1e-3))


def test_a_scatter_that_is_not_measured_decides_nothing() -> None:
    assert judge(claim({"a": {"value": 20.0, "low": 19.0, "high": 21.0, "scatter": "unknown"}}), COMMON) == "undecided"


def test_several_seeds_are_paired() -> None:
    ours, theirs = {1: 39.0, 2: 40.0, 3: 41.0}, {1: 39.2, 2: 40.3, 3: 41.2, 4: 50.0}
    figures = {"ours": {"values": ours}, "theirs": {"values": theirs}}
    asked = claim({**figures, "a": {"run": None, "difference": ["ours", "theirs"]}})
    found = measure(asked, "a", COMMON)
    assert found is not None and found.values == pytest.approx([-0.2, -0.3, -0.2])
    assert judge(asked, COMMON) == "does not hold"  # although the seeds of either side scatter by one BLEU


def test_differences_of_differences_are_paired_too() -> None:
    values = [{1: 39.0, 2: 40.0}, {1: 38.0, 2: 38.5}, {1: 20.0, 2: 21.0}, {1: 19.5, 2: 20.3}]
    figures: dict[str, Any] = {name: {"values": each} for name, each in zip("abcd", values, strict=True)}
    figures |= {"e": {"run": None, "difference": ["a", "b"]}, "f": {"run": None, "difference": ["c", "d"]}}
    found = measure(claim({**figures, "g": {"run": None, "difference": ["e", "f"]}}), "g", COMMON)
    assert found is not None and found.values == pytest.approx([0.5, 0.8]) and found.low < 0.5 < 0.8 < found.high
    share = claim({**figures, "s": {"run": None, "ratio": ["a", "b"], "unit": "%"}})
    ratio = measure(share, "s", COMMON)
    assert ratio is not None and ratio.values == pytest.approx([100 * 39 / 38, 100 * 40 / 38.5])


def test_planned_figures_decide_once_all_are_measured() -> None:
    full = {name: {"run": "whole"} for name in ("top", "base")}
    figures = {"a": {"value": 1.0}, **full, "gain": {"run": None, "difference": ["top", "base"]}}
    asked = claim(figures, {"figures": "a", "planned": "gain", "at_least": 0})
    assert (judge(asked, COMMON), str(evidence(asked, COMMON))) == ("holds", "25% of the budget, one seed")
    values = {"top": {1: 39.0, 2: 39.1}, "base": {1: 40.0, 2: 40.2}}
    again = {"claim": 7, "small": False, "date": date(2026, 11, 28), "revision": "abc", "identity": None}
    half = with_results(asked, Results(figures={"top": values["top"]}, **again))
    assert judge(half, COMMON) == "holds"
    measured = with_results(asked, Results(figures=values, **again))
    assert (judge(measured, COMMON), str(evidence(measured, COMMON))) == (
        "does not hold",
        "100% of the budget, 2 seeds",
    )
    assert measured.runs["whole"].revision == "abc" and evidence(measured, COMMON).enough


def test_a_figure_that_is_not_measured_decides_nothing() -> None:
    asked = claim({"a": {"run": "whole"}})
    assert judge_part(asked, asked.parts[0], COMMON) == "undecided"
    assert str(evidence(asked, COMMON)) == "not measured"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nmber: 7", "Extra inputs are not permitted"),
        ("parts: [{says: a, figures: z, at_least: 0, why: b}]", "names the figure z, which is not there"),
        ("parts: [{says: a, figures: x, why: b}]", "a part needs at_least or at_most"),
        ("figures: {x: {run: other, value: 1}}", "needs one of the runs"),
    ],
)
def test_a_record_with_a_mistake_is_refused(tmp_path: Path, line: str, said: str) -> None:
    lines = {
        "number": "number: 7",
        "paper": "paper: p",
        "says": "says: It holds.",
        "place": "place: Table 1",
        "published": "published: {}",
        "commands": "commands: []",
        "runs": "runs: {r: {what: a run, source: a page}}",
        "figures": "figures: {x: {run: r, value: 1}}",
        "parts": "parts: [{says: a, figures: x, at_least: 0, why: b}]",
        "result": "result: []",
    }
    lines[line.partition(":")[0]] = line
    path = tmp_path / "07-x.yaml"
    path.write_text("\n".join(lines.values()), encoding="utf-8", newline="\n")
    with pytest.raises(UserError, match=re.escape(said)):
        read_entry(path, Claim)


def test_results_are_collected_by_seed(tmp_path: Path) -> None:
    rows = [
        {"variant": "top", "transform": "top-8", "set": each, "seed": str(seed), "quality": 39.0 + seed}
        for each in ("test", "dev")
        for seed in (1, 2)
    ]
    folder = tmp_path / "runs/sweep"
    folder.mkdir(parents=True)
    (folder / "table.json").write_text(json.dumps({"tables": {"variants": rows}}), encoding="utf-8")
    place = Collected(sweep="sweep", where={"transform": "top-8"})
    assert taken(place, tmp_path) == {1: 40.0, 2: 41.0}
    with pytest.raises(UserError, match="no row has"):
        taken(Collected(sweep="sweep", where={"transform": "top-4"}), tmp_path)


def test_budgets_are_cut() -> None:
    command = "sparsenmt finetune-l0 runs/x recipes/x.yaml --target 0.42 --updates 2500 training.save_every=60"
    assert cut(command) == command.replace("2500", "4").replace("=60", "=2")
    assert cut("updates: 0\ntraining.max_updates: 4_500\nvocabulary_size: 8000\nbeam_size: 5") == (
        "updates: 0\ntraining.max_updates: 4\nvocabulary_size: 300\nbeam_size: 5"
    )


@pytest.mark.parametrize("command", COMMANDS_OF_CLAIMS)
def test_commands_of_claims_can_be_given(command: str) -> None:
    program, *words = shlex.split(command)
    for path in re.findall(r"\b(?:recipes|benchmarks)/[\w./-]+\.(?:yaml|py)", command):
        assert (ROOT / path).is_file(), path
    if program == "sparsenmt":
        parsed: click.Command = importlib.import_module(f"sparsenmt.commands.{COMMANDS[words[0]].module}").command
        if isinstance(parsed, click.Group):
            context = parsed.make_context(words[0], words[1:])
            parsed, words = parsed.get_command(context, words[1]), words[1:]  # type: ignore[assignment]
        parsed.make_context(words[0], words[1:])  # parsed, not run
    else:
        assert program == "python"


def test_pictures_have_titles_and_all_their_lines() -> None:
    found, findings = read_record(), read_entry(RECORDS / FINDINGS, Findings)
    for each in findings.findings:
        drawn = picture(each.picture, found)
        assert drawn == picture(each.picture, found)
        words = {element.text for element in ElementTree.fromstring(drawn).iter() if element.text}
        labels = [*(bar.label for bar in each.picture.bars), *each.picture.curves, each.picture.axis]
        lines = {line for label in labels for line in str(fill(label, None, found)).split(", ")}
        assert lines <= {part for text in words for part in text.split(", ")}, each.name
    assert len(findings.findings) == 10


COLLECTED = [
    (each.number, name, figure.collected)
    for each in read_record().claims.values()
    for name, figure in each.figures.items()
    if figure.collected is not None and figure.collected.sweep is not None
]


@functools.cache
def swept() -> dict[str, list[dict[str, str]]]:
    """The folder of each shipped sweep below `runs`, and the labels of its variants."""
    found = [read_sweep(path) for path in (ROOT / "recipes/sweeps").glob("*.yaml")]
    return {sweep.directory.name: [dict(variant.labels) for variant in sweep.variants] for sweep in found}


@pytest.mark.parametrize(("number", "name", "place"), COLLECTED)
def test_figures_are_collected_from_variants_of_sweeps(number: int, name: str, place: Collected) -> None:
    assert place.sweep in swept(), (number, name)
    wanted = {axis: str(label) for axis, label in place.where.items() if axis not in ("set", "metric")}
    rows = [labels for labels in swept()[place.sweep] if wanted.items() <= labels.items()]
    assert rows and len({labels.get("seed") for labels in rows}) == len(rows), (number, name)
