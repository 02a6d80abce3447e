"""The progress of `sparsenmt decode` on stderr, and its warnings."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sparsenmt.decoding.translate import Translation


class Bar:
    """Progress on stderr, and warnings that do not break it."""

    def __init__(self, total: int | None, done: int = 0) -> None:
        from tqdm import tqdm

        self.limit: int | None = None
        """What the recipe cuts sources to: then their number is told, at the end, and not every line."""
        self._cut = 0
        quiet = not sys.stderr.isatty() or bool(os.environ.get("TQDM_DISABLE"))
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="sentence",
            desc="decode",
            disable=quiet,
            dynamic_ncols=True,
            leave=False,
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *args: object) -> None:
        from sparsenmt.decoding.inputs import cut_summary

        self._bar.close()
        if self._cut and self.limit is not None:
            click.echo(cut_summary(self._cut, self.limit), err=True)

    def advance(self, sentences: int) -> None:
        self._bar.update(sentences)

    def warn(self, translation: Translation) -> Translation:
        from sparsenmt.decoding.inputs import cut_warning

        source = translation.source
        if source.cut and self.limit is not None:
            self._cut += 1
        elif source.cut:
            text = cut_warning(f"line {source.number + 1}", source.kept, source.cut, "translated")
            self._bar.write(text, file=sys.stderr)
        return translation
