"""Leaves out of a suite what a model has seen in training."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal

from sparsenmt.evaluation.contrast.items import Suite

Side = Literal["source", "target", "either"]


def exclude_training(suite: Suite, texts: Iterable[tuple[Side, Iterable[str]]]) -> Suite:
    """The suite without the items whose source is a source of the training text, or whose reference is a target.

    Lines are the same if they differ in white space, case and Unicode's composition alone. The suite is held in memory,
    the training text is not.

    Args:
        texts: the lines of every training file, with the side that they are; "either" is looked for on both.
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
    return suite.only(lambda item: item not in removed, note)


def _key(line: str) -> str:
    return " ".join(unicodedata.normalize("NFC", line).casefold().split())
