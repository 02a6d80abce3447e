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

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.storage.files import make_directories, sha256_text
from sparsenmt.storage.kept_work import KeptWork, request_digest

_WINDOW = 1024  # lines that are sorted by length together; an interrupted run loses no more


@dataclass(frozen=True)
class _CachedTranslations:
    """A file of the cache."""

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
        self._asked = dict(
            model=identity.digest,
            max_source_length=identity.max_source_length,
            text=sha256_text(json.dumps(self.lines)),
            decoding={**options.at(None).recorded(), "batch_tokens": batch_tokens or options.batch_tokens},
            window=_WINDOW,
        )
        self.directory = directory / request_digest(self._asked)[:16]

    def cached(self, depth: Depth) -> list[str]:
        """Return the cached translations of the first lines, or of all."""
        kept = self._kept(depth).find()
        return [] if kept is None else kept.translations[: len(self.lines)]

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
            self._kept(depth).write(translations=found)
        return found

    def _kept(self, depth: Depth) -> KeptWork[_CachedTranslations]:
        return KeptWork(self.directory / f"{depth[0]}-{depth[1]}.json", self._asked, _CachedTranslations)
