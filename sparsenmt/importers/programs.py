"""The programs whose models can be imported: one file each, and one row here.

The module has two functions: ``recognizes(source: Path) -> bool``, and ``read(source, vocabularies) -> ForeignModel``,
where the paths ``vocabularies`` are given beside the model: of source and target, or one of both.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.importers.families.table import family_titles
from sparsenmt.importers.foreign_model import ForeignModel

PROGRAMS = {
    "sparsenmt.importers.huggingface": f"a folder of Hugging Face Transformers with config.json: {family_titles()}",
    "sparsenmt.importers.marian": "a model of Marian: a folder with decoder.yml, or a .npz or .bin file with "
    "--vocabulary",
}
"""Sources in words, by the module that reads them; the first module that recognizes a source is taken."""


def read_foreign_model(source: Path, vocabularies: Sequence[Path] = ()) -> ForeignModel:
    """Read a model of any of the programs.

    Raises:
        UserError: there is no such file, no program recognizes it, or it cannot be imported.
    """
    hint = f"Name {'; or '.join(PROGRAMS.values())}."
    if not source.exists():
        raise UserError("there is no such file or folder", where=str(source), hint=hint, missing=source)
    for name in PROGRAMS:
        program: Any = importlib.import_module(name)
        if program.recognizes(source):
            found: ForeignModel = program.read(source, vocabularies)
            return found
    raise UserError("is no model that can be imported", where=str(source), hint=hint)
