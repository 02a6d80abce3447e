"""Draw the pictures of the docs, with models of minutes.

python -m tools.gallery [NAME...]

A picture stands in a page above the command that draws it: ``![TEXT](PATH/pictures/NAME.svg)``, then a console block
whose command ends with ``--plot NAME.svg``; other pages may show it without the command. The commands read the model of
`sparsenmt demo` and small ones fine-tuned from it (`MODELS`), below runs/ of the current folder; what is trained is not
trained again. One picture is drawn from figures of the records instead: `records_sweep`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from sparsenmt.cli import run
from sparsenmt.report.plots import Panel, Points, curves, describe, save
from sparsenmt.storage.files import write_text

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
MOST_BYTES = 60_000
"""Greatest size of a picture."""

_TRANSFORM = "model.attention.{}.transform={}"
_SITES = ("encoder_self", "decoder_self", "cross")
_SPAN = "model.attention.{}.span={{name: adaptive_span, maximum: 24, ramp: 4, init: 0.5}}"
_FIXED = "{name: fixed_token, patterns: [previous, next, end], learned: 1}"
_CHANGES: dict[str, list[str]] = {
    "top-2": [_TRANSFORM.format(site, "{name: topk, k: 2}") for site in _SITES],
    "learned-alpha": [_TRANSFORM.format(site, "{name: entmax}") for site in _SITES],
    "fixed-heads": [f"model.attention.encoder_self.heads.given={_FIXED}"],
    "depths": ["model.depth={name: tied_multi}"],
    "spans": [
        *(_SPAN.format(site) for site in _SITES[:2]),
        *("losses={span: {weight: 1e-2}}", "training.max_updates=300"),
        *("training.warmup_updates=20", "training.validation.every=50"),  # spans move slowly
    ],
}
"""Model of the gallery -> overrides of the demo's recipe."""
_SHORT = ["training.batch_tokens=512", "training.validation.max_sentences=50"]

MODELS: list[list[str]] = [
    ["demo"],
    ["finetune-l0", "runs/demo/model", "--target", "0.5", "--updates", "150", "-o", "runs/gallery/l0drop", *_SHORT],
    *(
        ["train", "recipes/demo.yaml", f"directory=runs/gallery/{name}", "training.max_updates=100", *_SHORT, *changes]
        for name, changes in _CHANGES.items()
    ),
]
for each in MODELS[2:]:
    if not any("heads.given" in word for word in each):  # fixed heads have no queries and keys to start from
        each += ["--from", "runs/demo/model"]
"""The commands that train the models, in their order."""

_IMAGE = re.compile(r"^!\[([^\]]*)\]\(([^)]*)\)$", re.MULTILINE)
_COMMAND = re.compile(r"\n+```console\n\$ sparsenmt ((?:[^`\n]|\\\n)+) --plot (\S+)\n```")
_RECORD = ROOT / "docs/records/l0drop.md"
_SWEEP = "l0drop-quality"


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Args:
        text: what it shows, for readers who do not see it.
        command: the words after `sparsenmt` that draw it; None: no command below it does.
    """

    page: Path
    name: str
    text: str
    command: tuple[str, ...] | None


def pictures() -> list[Picture]:
    """Return the pictures of docs/pictures that pages show, in their order."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for image in _IMAGE.finditer(text):
            place = (page.parent / image[2]).resolve()
            below = _COMMAND.match(text, image.end())
            own = below is not None and below[2] == place.name
            words = tuple(shlex.split(below[1].replace("\\\n", " "))) if below and own else None
            found += [Picture(page, place.stem, image[1], words)] if place.parent == PICTURES else []
    return found


def commands() -> dict[str, list[str]]:
    """Return the words after `sparsenmt` that draw each picture; empty for `records_sweep`."""
    found: dict[str, list[str]] = {_SWEEP: []}
    for each in pictures():
        if each.command is not None:
            found[each.name] = [*each.command, "--plot", str(PICTURES / f"{each.name}.svg")]
    return found


def records_sweep(path: Path) -> None:
    """Draw the first table of the records of L0Drop: BLEU against the share of closed positions."""
    table = next(part for part in _RECORD.read_text(encoding="utf-8").split("\n\n") if "| target " in part)
    cells = r"^\| target [\d.]+ \| ([\d,]+) \| ([\d.]+)% \| ([\d.]+) \| ([\d.]+) \|$"
    rows = re.findall(cells, table, re.MULTILINE)
    dense = {updates: float(bleu) for updates, _, _, bleu in rows}
    series: dict[str, Points] = {
        f"{updates} updates of fine-tuning": [
            (0.0, bleu),
            *((float(closed) / 100, float(found)) for own, closed, found, _ in rows if own == updates),
        ]
        for updates, bleu in dense.items()
    }
    panel = Panel("share of encoder outputs that are dropped", "BLEU", series, percent="x")
    title = "quality against sparsity: L0Drop on Multi30k English-German, one seed"
    save(describe(curves([panel]), title, caption="0%: trained on for as many updates without gates"), path)


def shrink(picture: Path) -> None:
    """Take comments and indentation out of an SVG."""
    write_text(picture, re.sub(r"\n\s+", "\n", re.sub(r"<!--.*?-->", "", picture.read_text(encoding="utf-8"))))


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Draw the pictures of the docs, or those with these NAMES, into docs/pictures."""
    known = commands()
    if unknown := set(names) - set(known):
        raise click.UsageError(f"no page draws the picture {min(unknown)}")
    for words in [*MODELS, *(words for name, words in known.items() if words and (not names or name in names))]:
        click.echo(f"$ sparsenmt {shlex.join(words)}")
        if run(words) != 0:
            raise click.ClickException("the command failed")
    if not names or _SWEEP in names:
        records_sweep(PICTURES / f"{_SWEEP}.svg")
    for name in names or known:
        shrink(PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main()
