"""Suites of every format: detection and reading."""

from __future__ import annotations

from pathlib import Path

from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.entries import read_entries
from sparsenmt.evaluation.contrast.items import Suite
from sparsenmt.evaluation.contrast.line_files import is_folder, read_folder
from sparsenmt.evaluation.contrast.translation_suite import find_key, read_translation_suite

_JSON = (".json", ".json.gz")


def open_suite(path: Path, layout: str | None = None) -> Suite:
    """Read a suite.

    Args:
        path: a file, a folder, or the common prefix of the files of a MuCoW translation suite.
        layout: one of `items.FORMATS` except "lines"; None: detected from file names and JSON keys.

    Raises:
        UserError: the suite does not exist, has an unknown format, or is not sound; or has no items.
    """
    layout = layout or _detect(path)
    if layout == "distil-lingeval":
        _must_exist(path)
        suite = read_folder(path)
    elif layout == "mucow-translation":
        key = find_key(path)
        if key is None:
            raise UserError(
                "there is no MuCoW translation suite here",
                where=str(path),
                hint="Name its key, such as de-en.key.txt, or the common prefix of its files, such as mucow/de-en.",
            )
        suite = read_translation_suite(key)
    else:
        suite = read_entries(path, None if layout == "json" else layout)
    return check_items(suite)


def check_items(suite: Suite) -> Suite:
    """Return the suite; UserError if it has no items."""
    if not suite.items:
        raise UserError("the suite has no items", where=suite.name, hint="Name a suite with text in it.")
    return suite


def _detect(path: Path) -> str:
    if is_folder(path):
        return "distil-lingeval"
    if find_key(path) is not None:
        return "mucow-translation"
    _must_exist(path)
    if path.is_dir():
        raise UserError(
            "no test suite is recognised in this folder",
            where=str(path),
            hint="Name a folder of DistilLingEval, a file in JSON, or the key of a MuCoW translation suite.",
        )
    if path.name.endswith(_JSON):
        return "json"
    raise UserError(
        "the format of the suite is not recognised",
        where=str(path),
        hint="Name it with --format; line-aligned files are given with --source, --correct and --incorrect.",
    )


def _must_exist(path: Path) -> None:
    if not path.exists():
        hint = "Check the path of the suite."
        raise UserError("there is no such file or folder", where=str(path), hint=hint, missing=path)
