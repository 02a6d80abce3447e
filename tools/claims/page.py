"""The pages that are written from the records: the claims with their verdicts, and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tools.claims.record import Claim, Findings, Part, Plan, Record
from tools.claims.template import fill, filled, listed
from tools.claims.verdict import VERDICTS, deciding, evidence, judge, judge_part, measure

GENERATED = "<!-- Generated from the records in docs/records/claims by `make claims`: do not edit. -->"
PICTURES = "docs/records/plots/findings"


def claims_page(record: Record) -> str:
    """Return the page of all claims."""
    lines = ["# Claims of the papers, tested", "", GENERATED, "", *_introduction(record), ""]
    for key, paper in record.common.papers.items():
        claims = [each for each in record.claims.values() if each.paper == key]
        lines += [f"## {paper.title}", "", *([paper.text, ""] if paper.text else [])]
        lines += ["| # | claim | result here | verdict, evidence |", "|---|---|---|---|"]
        lines += [*(_row(each, record) for each in claims), ""]
    return "\n".join([*lines, *_changes(record), *_open(record), *_rules(record), *_commands(record), ""])


def _introduction(record: Record) -> Iterator[str]:
    verdicts = Counter(judge(each, record.common) for each in record.claims.values())
    decided = [each for each in record.claims.values() if judge(each, record.common) != "undecided"]
    enough = sum(evidence(each, record.common).enough for each in decided)
    counted = listed(f"{verdicts[verdict]} {_plural(verdict, verdicts[verdict])}" for verdict in VERDICTS)
    yield (
        f"Of {len(record.claims)} claims {counted}. {enough} of the {len(decided)} that are decided, at least in part, "
        "rest on the full budget of their recipes, on two seeds or more, or on measurements without training."
    )
    for paragraph in record.common.introduction:
        yield ""
        yield filled(paragraph, None, record)


def _plural(verdict: str, count: int) -> str:
    verb = {"holds": "hold", "holds in part": "hold in part", "does not hold": "do not hold"}
    return verdict if count == 1 and verdict != "undecided" else verb.get(verdict, "are undecided")


def _row(claim: Claim, record: Record) -> str:
    verdict = judge(claim, record.common)
    parts = [judge_part(claim, part, record.common) for part in claim.parts]
    several = [f"{filled(part.says, claim, record)}: {each}" for part, each in zip(claim.parts, parts, strict=True)]
    words = [f"**{verdict}**"]
    if len(claim.parts) > 1 or verdict == "undecided":
        words.append("; ".join(several))
    words += _sentences(claim.remark, claim, record)
    cells = [
        str(claim.number),
        f"{filled(claim.says, claim, record)} *{claim.place}*",
        " ".join(_sentences(claim.result, claim, record)),
        ". ".join(each.rstrip(".") for each in [*words, f"*{evidence(claim, record.common)}*"]),
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _sentences(sentences: Sequence[str], claim: Claim, record: Record) -> list[str]:
    """Return the sentences whose figures are all measured."""
    return [found for each in sentences if (found := fill(each, claim, record)) is not None]


def _rules(record: Record) -> Iterator[str]:
    yield from (
        "",
        "## Rules",
        "",
        "| # | part | measured, with its 95% interval | range | why this range |",
        "|---|---|---|---|---|",
    )
    for claim in record.claims.values():
        for part in claim.parts:
            says, why = (filled(text, claim, record) for text in (part.says, part.why))
            cells = [str(claim.number), says, _measured(claim, part, record), _range(claim, part), why]
            yield f"| {' | '.join(cells)} |"


def _measured(claim: Claim, part: Part, record: Record) -> str:
    """Return the figures that decide a part, each with its interval."""
    found = []
    for name in deciding(claim, part, record.common):
        figure, measured = claim.figures[name], measure(claim, name, record.common)
        if measured is None:
            found.append("not measured")
            continue
        unit = f" {figure.unit}" if figure.unit not in ("", "%") else ""
        interval = ""
        if figure.scatter == "unknown":
            interval = " (scatter unknown)"
        elif measured.low < measured.high:
            interval = f" ({fill(f'{{{{{name}.interval}}}}', claim, record)})"
        found.append(f"{fill(f'{{{{{name}}}}}', claim, record)}{unit}{interval}")
    return "; ".join(found)


def _range(claim: Claim, part: Part) -> str:
    figure = claim.figures[part.figures[0]]

    def shown(bound: float) -> str:
        return f"{bound:g}" + "%" * (figure.unit == "%")

    bounds = [
        *([f"at least {shown(part.at_least)}"] if part.at_least is not None else []),
        *([f"at most {shown(part.at_most)}"] if part.at_most is not None else []),
    ]
    return " and ".join(bounds) + (f", tolerance {shown(part.tolerance)}" if part.tolerance else "")


def _commands(record: Record) -> Iterator[str]:
    yield from ("", "## Commands", "", "`make claims CLAIM=N` runs them again. Several claims begin with these:", "")
    for name, commands in record.common.steps.items():
        yield f"- *{name}*: {_listed_commands(commands)}"
    yield ""
    known: dict[tuple[str, ...], list[int]] = {}
    for claim in record.claims.values():
        known.setdefault(tuple(claim.commands), []).append(claim.number)
    for several, numbers in known.items():
        yield f"- {listed(map(str, numbers))}: {_listed_commands(several)}"


def _listed_commands(commands: Sequence[str]) -> str:
    """Return commands as code, and the names of shared steps in italics."""
    return ", ".join(f"*{command[1:]}*" if command.startswith("$") else f"`{command}`" for command in commands)


def _changes(record: Record) -> Iterator[str]:
    changed = [each for each in record.claims.values() if each.earlier is not None]
    if changed:
        yield from ("## Verdicts that changed", "", "| # | earlier | now | reason |", "|---|---|---|---|")
    for claim in changed:
        assert claim.earlier is not None
        reason = filled(claim.earlier.reason, claim, record)
        verdict = filled(claim.earlier.verdict, claim, record)
        yield f"| {claim.number} | {verdict} | {judge(claim, record.common)} | {reason} |"


def _open(record: Record) -> Iterator[str]:
    yield from (
        "",
        "## Runs that would decide",
        "",
        "| # | commands | models | hours of two cores | |",
        "|---|---|---|---|---|",
    )
    known: dict[tuple[str, ...], list[tuple[Claim, Plan]]] = {}
    for claim in record.claims.values():
        if claim.plan is not None:
            known.setdefault(tuple(claim.plan.commands), []).append((claim, claim.plan))
    for commands, claims in known.items():
        numbers, plan = listed(str(claim.number) for claim, _ in claims), claims[0][1]
        sizes = [f"{size:g}" if size is not None else "" for size in (plan.models, plan.hours)]
        whys = "; ".join(dict.fromkeys(filled(each.why, claim, record) for claim, each in claims))
        yield f"| {numbers} | {_listed_commands(commands)} | {' | '.join(sizes)} | {whys} |"


def findings_page(findings: Findings, record: Record) -> str:
    """Return the page of findings, each with its picture."""
    lines = [f"# {findings.title}", "", GENERATED, "", filled(findings.introduction, None, record)]
    for place, finding in enumerate(findings.findings, 1):
        verdicts = ", ".join(f"{each} ({judge(record.claims[each], record.common)})" for each in finding.claims)
        claims = f"Claim{'s' * (len(finding.claims) > 1)} {verdicts}." if finding.claims else ""
        lines += ["", f"## {place}. {filled(finding.title, None, record)}", ""]
        lines += [f"{filled(finding.text, None, record)} {claims}".rstrip(), ""]
        axis = filled(finding.picture.axis, None, record)
        lines += [f"![{axis}](../records/plots/findings/{finding.name}.svg)"]
    return "\n".join([*lines, ""])
