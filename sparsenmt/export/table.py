"""The formats in which a model is exported. Imports nothing heavy: the command line offers these names.

A new one is one file with a `sparsenmt.export.target.ExportTarget` named TARGET, and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetEntry:
    """The module of a format, which is imported when a model is exported, and lines that describe it in the help."""

    module: str
    lines: tuple[str, ...]


TARGETS: dict[str, TargetEntry] = {
    "ctranslate2": TargetEntry(
        "sparsenmt.export.to_ctranslate2", ("CTranslate2 (needs the package: pip install 'sparsenmt[export]')",)
    ),
    "marian": TargetEntry(
        "sparsenmt.export.to_marian",
        (
            "Marian: also recurrent decoders (SSRU); --file npz, bin, or int8, which",
            "Bergamot and Firefox load",
        ),
    ),
    "safetensors-hf": TargetEntry(
        "sparsenmt.export.to_transformers",
        (
            "Hugging Face Transformers: a Pegasus model (normalisation before",
            "the sub-layers) or a Marian model (after them); with",
            "model.embedding_norm an mBART or a BART model",
        ),
    ),
}
"""By the value of `--to`."""
