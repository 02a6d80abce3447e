"""A cache of the translations of a text at every depth.

Every text has a directory with one sealed file for each depth: ``3-2.json`` holds the translations by three encoder and
two decoder layers. A file grows window by window, and an interrupted run resumes after the last one. A file is valid as
long as the model, the text and the decoding options are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.storage.files import make_directories, read_sealed, sha256_text, write_sealed
from sparsenmt.storage.records import typed
from sparsenmt.store import Bundle, ModelIdentity

_WINDOW = 1024  # lines that are sorted by length together; an interrupted run loses no more
_DAMAGED_HINT = "It is computed again."


@dataclass(frozen=True)
class _CachedTranslations:
    """A file of the cache."""

    work: dict[str, Any]
    translations: list[str]


class KeptTranslations:
    """The cached translations of a text at every depth.

    Args:
        directory: of the texts of a model.
        identity: of the model.
        lines: the text.
        options: decoding options; their depth is ignored.
        batch_tokens: size of batches that the translations are kept under, whatever that of ``options``; None: that.
    """

    def __init__(
        self,
        directory: Path,
        identity: ModelIdentity,
        lines: Sequence[str],
        options: Decoding,
        batch_tokens: int | None = None,
    ) -> None:
        self.lines = list(lines)
        self._options = options
        self._work = dict(
            model=identity.digest,
            max_source_length=identity.max_source_length,
            text=sha256_text(json.dumps(self.lines)),
            decoding={**options.at(None).recorded(), "batch_tokens": batch_tokens or options.batch_tokens},
            window=_WINDOW,
        )
        self.directory = directory / sha256_text(json.dumps(self._work, sort_keys=True))[:16]

    def cached(self, depth: Depth) -> list[str]:
        """Return the cached translations of the first lines, or of all."""
        path = self._path(depth)
        if not path.exists():
            return []
        try:
            kept = typed(read_sealed(path, hint=_DAMAGED_HINT), _CachedTranslations, path, hint=_DAMAGED_HINT)
        except UserError:
            return []
        return kept.translations[: len(self.lines)] if kept.work == self._work else []

    def at(self, bundle: Bundle, depth: Depth, *, advance: Callable[[int], object] | None = None) -> list[str]:
        """Return the translations of all lines; those that are not cached are computed and cached.

        Args:
            advance: is told the number of lines that each batch finished.

        Raises:
            UserError: as `translate_lines`.
        """
        found = self.cached(depth)
        while len(found) < len(self.lines):
            start = len(found)
            window = input_lines(self.lines[start : start + _WINDOW], first=start)
            made = translate_lines(bundle, window, self._options.at(depth), advance=advance, window=_WINDOW)
            found += [each.text for each in made]
            make_directories(self.directory)
            write_sealed(self._path(depth), {"work": self._work, "translations": found})
        return found

    def _path(self, depth: Depth) -> Path:
        return self.directory / f"{depth[0]}-{depth[1]}.json"
