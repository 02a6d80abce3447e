"""A claim's commands, run again: in full, or on a cut text and budget to see that they work."""

from __future__ import annotations

import datetime
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from string import Template

from sparsenmt.assemble.model_directory import MANIFEST, model_identity
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.recipe.yaml_tree import write
from sparsenmt.storage.files import make_directories, read_json, write_text
from sparsenmt.storage.revision import git_revision
from tools.claims.record import RECORDS, ROOT, Claim, Collected, Results

_BUDGETS = r"(updates|max_updates|warmup_updates|every|save_every|steps|average_last|keep_last|lines|vocabulary_size)"
_SIZES = re.compile(rf"\b{_BUDGETS}(:\s*|=|\s+)(\d[\d_]*)")
_SMALL = {
    "save_every": 2,
    "every": 4,
    "average_last": 2,
    "keep_last": 2,
    "steps": 4,
    "lines": 60,
    "vocabulary_size": 300,
}
_SMALL_UPDATES = 4
_SMALL_LINES = {"train": 400}
_OTHER_LINES = 20


def rerun(claim: Claim, commands: Sequence[str], *, small: bool, folder: Path) -> tuple[Path, Results]:
    """Run commands of a claim in a folder, and record its figures as `recorded` does.

    Args:
        small: cut the corpora and the updates, so that every command takes minutes.
        folder: working directory; runs lie in ``runs`` below it.

    Raises:
        UserError: a command fails, or a file that it should have written is not there.
    """
    make_directories(folder)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    if small:
        environment["SPARSENMT_DATA"] = str(
            cut_corpora(Path(environment.get("SPARSENMT_DATA", "data")), folder / "data")
        )
    cut_recipes(folder / "recipes", small=small)
    for number, command in enumerate(commands, 1):
        notify(f"claim {claim.number}, command {number} of {len(commands)}: {command}")
        words = shlex.split(Template(cut(command) if small else command).safe_substitute(environment))
        program = [sys.executable, "-m", "sparsenmt"] if words[0] == "sparsenmt" else [sys.executable]
        finished = subprocess.run([*program, *words[1:]], cwd=folder, env=environment, check=False)
        if finished.returncode:
            hint = "See its message above; the same command resumes."
            raise UserError(f"a command of claim {claim.number} failed: {command}", where=str(folder), hint=hint)
    return recorded(claim, small=small, folder=folder)


def recorded(claim: Claim, *, small: bool, folder: Path) -> tuple[Path, Results]:
    """Collect the figures that a claim's commands have written below a folder, and write them as results.

    Returns:
        The file of results: beside the records, or in the folder where the budget was cut.
    """
    results = Results(
        claim=claim.number,
        small=small,
        date=datetime.date.today(),
        revision=_revision(),
        identity=identities(folder / "runs"),
        figures=collect(claim, folder),
    )
    path = folder / f"{claim.number:02}.yaml" if small else RECORDS / f"results/{claim.number:02}.yaml"
    make_directories(path.parent)
    write_text(path, write(results.model_dump(mode="json")))
    return path, results


def cut(text: str) -> str:
    """Return a command or a recipe with updates, lines and vocabularies of a small size."""

    def smaller(match: re.Match[str]) -> str:
        size = int(match[3].replace("_", ""))
        return f"{match[1]}{match[2]}{min(size, _SMALL.get(match[1], _SMALL_UPDATES))}"

    return _SIZES.sub(smaller, text)


def cut_recipes(folder: Path, *, small: bool) -> None:
    """Copy the recipes to a folder, cut if they must be small: paths in them count from there."""
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        place = folder / path.relative_to(ROOT / "recipes")
        make_directories(place.parent)
        write_text(place, cut(text) if small else text)


def cut_corpora(source: Path, folder: Path) -> Path:
    """Write the first lines of every text of the corpora to a folder, and return it."""
    for path in sorted(each for each in source.rglob("*") if each.is_file()):
        place = folder / path.relative_to(source)
        make_directories(place.parent)
        lines = next((count for name, count in _SMALL_LINES.items() if name in path.name), _OTHER_LINES)
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream, gzip.GzipFile(place, "wb", mtime=0) as cut_stream:
                cut_stream.writelines(islice(stream, lines))
        elif path.suffix in (".json", ".tsv"):
            shutil.copyfile(path, place)
        else:
            with path.open("rb") as stream, place.open("wb") as plain_stream:
                plain_stream.writelines(islice(stream, lines))
    return folder.resolve()


def collect(claim: Claim, folder: Path) -> dict[str, dict[int, float] | float]:
    """Return the figures that the commands of a claim have written, by seed where there are seeds."""
    places = {name: figure.collected for name, figure in claim.figures.items() if figure.collected is not None}
    return {name: taken(place, folder) for name, place in places.items() if (folder / place.path).is_file()}


def taken(place: Collected, folder: Path) -> dict[int, float] | float:
    """Return the values of a figure from a table in JSON.

    Raises:
        UserError: the file, the table or a fitting row is not there, or several rows fit that are not of seeds.
    """
    found = read_json(folder / place.path)
    where = f"{folder / place.path}, table {place.table}"
    wanted = {**({"set": "test"} if place.sweep is not None else {}), **place.where}
    rows = [row for row in found["tables"].get(place.table, []) if _fits(row, wanted)]
    rows = [row for row in rows if row.get(place.column) is not None]
    if not rows:
        raise UserError(f"no row has {wanted} and a value of {place.column}", where=where)
    seeds = {row["seed"] for row in rows if row.get("seed") is not None}
    if len(seeds) == len(rows):
        return {int(row["seed"]): float(row[place.column]) * place.scale for row in rows}
    if len(rows) > 1:
        raise UserError(f"{len(rows)} rows have {wanted}", where=where, hint="Name more columns.")
    return float(rows[0][place.column]) * place.scale


def _fits(row: Mapping[str, object], where: Mapping[str, str | int]) -> bool:
    return all(str(row.get(column)) == str(value) for column, value in where.items())


def identities(folder: Path) -> dict[str, str]:
    """Return model directory -> hash of the model, of all finished models below a folder."""
    found = {}
    for manifest in sorted(folder.rglob(MANIFEST)):
        try:
            found[manifest.parent.relative_to(folder.parent).as_posix()] = model_identity(manifest.parent).digest
        except UserError:
            continue
    return found


def _revision() -> str | None:
    found = git_revision()
    revision = found["git_revision"]
    return f"{revision}{'+' * bool(found['git_dirty'])}" if isinstance(revision, str) else None
