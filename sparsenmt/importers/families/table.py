"""The families of models of Hugging Face Transformers. Imports nothing heavy: the command's help names them.

A new family is one file with a `sparsenmt.importers.families.family.Family` named FAMILY, and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FamilyEntry:
    """The name of a family, and the module that describes it, which is imported when a model of it is read."""

    title: str
    module: str


FAMILIES: dict[str, FamilyEntry] = {
    "marian": FamilyEntry("Marian (OPUS-MT)", "sparsenmt.importers.families.marian"),
    "bart": FamilyEntry("BART", "sparsenmt.importers.families.bart"),
    "mbart": FamilyEntry("mBART", "sparsenmt.importers.families.mbart"),
    "pegasus": FamilyEntry("PEGASUS", "sparsenmt.importers.families.pegasus"),
    "t5": FamilyEntry("T5 (FLAN-T5, MADLAD-400)", "sparsenmt.importers.families.t5"),
    "mt5": FamilyEntry("mT5", "sparsenmt.importers.families.mt5"),
    "m2m_100": FamilyEntry("M2M-100 or NLLB", "sparsenmt.importers.families.m2m_100"),
}
"""By `model_type` of the configuration."""


def family_titles() -> str:
    """The names of all families, for messages."""
    return ", ".join(entry.title for entry in FAMILIES.values())
