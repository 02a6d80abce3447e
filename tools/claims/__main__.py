"""Write the pages and pictures of the claims, or run a claim again.

python -m tools.claims write
python -m tools.claims run 34 [--small]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from sparsenmt.errors import UserError
from sparsenmt.storage.files import make_directories, write_text
from tools.claims.page import PICTURES, claims_page, findings_page
from tools.claims.pictures import picture
from tools.claims.record import FINDINGS, RECORDS, ROOT, Findings, Record, read_entry, read_record, with_results
from tools.claims.rerun import recorded, rerun
from tools.claims.template import number
from tools.claims.verdict import judge, measure

T = TypeVar("T")
CLAIMS_PAGE, FINDINGS_PAGE = "docs/records/claims.md", "docs/reference/findings.md"


def generated(record: Record, findings: Findings) -> dict[str, str]:
    """Return path -> text of all files that are made from the records."""
    pictures = {f"{PICTURES}/{each.name}.svg": picture(each.picture, record) for each in findings.findings}
    return {CLAIMS_PAGE: claims_page(record), FINDINGS_PAGE: findings_page(findings, record), **pictures}


def current() -> dict[str, str]:
    """Return path -> text of all generated files, from the records of this checkout."""
    return generated(read_record(), read_entry(RECORDS / FINDINGS, Findings))


@click.group()
def main() -> None:
    """Claims of the papers: verdicts by rule, figures from records."""


@main.command("write")
def write_pages() -> None:
    """Write the page of claims, the page of findings and its pictures."""
    files = _told(current)
    for path in (ROOT / PICTURES).glob("*.svg"):
        if f"{PICTURES}/{path.name}" not in files:
            path.unlink()
    for name, text in files.items():
        make_directories((ROOT / name).parent)
        write_text(ROOT / name, text)


@main.command("run")
@click.argument("claim", type=int)
@click.option("--planned", is_flag=True, help="Run the commands that would decide the claim.")
@click.option("--collect", "only_collect", is_flag=True, help="Run nothing: record what is there.")
@click.option("--small", is_flag=True, help="Cut corpora and updates, to see that the commands work.")
@click.option("--folder", type=click.Path(path_type=Path), help="Working directory.  [default: build/claims/N]")
def run_claim(claim: int, planned: bool, only_collect: bool, small: bool, folder: Path | None) -> None:
    """Run the commands of CLAIM again, and record the figures that they give."""
    _told(lambda: _run(claim, planned, only_collect, small, folder))


def _run(asked: int, planned: bool, only_collect: bool, small: bool, folder: Path | None) -> None:
    record = read_record()
    if asked not in record.claims:
        raise UserError(f"there is no claim {asked}", where="CLAIM", hint=f"Claims are 1 to {max(record.claims)}.")
    claim = record.claims[asked]
    place = folder or ROOT / "build/claims" / f"{asked:02}{'-small' * small}"
    if planned and claim.plan is None:
        raise UserError(f"claim {asked} has no plan", where="--planned", hint="Its own commands are run without it.")
    commands = claim.whole_commands(record.common, planned=planned)
    if only_collect:
        path, results = recorded(claim, small=small, folder=place)
    else:
        path, results = rerun(claim, commands, small=small, folder=place)
    measured = with_results(claim, results)
    for name in results.figures:
        found, figure = measure(measured, name, record.common), claim.figures[name]
        assert found is not None
        before = measure(claim, name, record.common)
        old = "not measured" if before is None else number(before.value, figure.decimals, unit=figure.unit)
        click.echo(f"{name}: {number(found.value, figure.decimals, unit=figure.unit)}, in the record {old}")
    click.echo(f"verdict by these figures: {judge(measured, record.common)}; written: {path}")
    if small:
        click.echo("These figures are of a cut text and budget, and say nothing.")


def _told(work: Callable[[], T]) -> T:
    """Run work, with a mistake of the user as a message."""
    try:
        return work()
    except UserError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
