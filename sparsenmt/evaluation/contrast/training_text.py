"""The items of a suite that occur in training text, which are left out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from sparsenmt.evaluation.contrast.items import Suite

Side = Literal["source", "target", "either"]


def exclude_training(suite: Suite, texts: Iterable[tuple[Side, Iterable[str]]]) -> Suite:
    """Remove the items whose source is a source of the training text, or whose reference is a target.

    Lines are compared without regard to white space, case and Unicode composition. The suite is held in memory, the
    training text is not.

    Args:
        texts: the lines of every training file with their side; "either" is compared with both sides.
    """
    sources = {_key(suite.sources[item.sentence]) for item in suite.items}
    targets = {_key(item.correct) for item in suite.items}
    seen_sources: set[str] = set()
    seen_targets: set[str] = set()
    for side, lines in texts:
        for line in lines:
            key = _key(line)
            if side != "target" and key in sources:
                seen_sources.add(key)
            if side != "source" and key in targets:
                seen_targets.add(key)
    by_source = {item for item in suite.items if _key(suite.sources[item.sentence]) in seen_sources}
    by_target = {item for item in suite.items if _key(item.correct) in seen_targets}
    removed = by_source | by_target
    note = (
        f"{len(removed):,} of {len(suite.items):,} items are in the training text and are left out: "
        f"{len(by_source):,} by their source, {len(by_target):,} by their reference"
    )
    kept = tuple(item for item in suite.items if item not in removed)
    return replace(suite, items=kept, notes=(*suite.notes, note))


def _key(line: str) -> str:
    return " ".join(unicodedata.normalize("NFC", line).casefold().split())
