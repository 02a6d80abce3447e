"""A text translated at every depth, and kept, so that no depth translates it twice.

Every text has a folder, and there each depth a sealed file: ``3-2.json`` is that of three encoder and two decoder
layers. A file grows window by window: work that was stopped goes on after the last one. It counts as long as the model,
the text and the decoding options are those that it was made with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.inputs import ModelBundle
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.errors import UserError
from sparsenmt.files import make_directories, read_sealed, sha256_text, write_sealed
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding

_WINDOW = 1024  # lines that are sorted together, and lost at most
_AGAIN = "It is made again."


class KeptTranslations:
    """A text's translations at every depth.

    Args:
        directory: that of all texts of a model.
        model: hash of what identifies the model.
        lines: the text.
        options: how it is translated; the depth that they may name is of no meaning.
    """

    def __init__(self, directory: Path, model: str, lines: Sequence[str], options: Decoding) -> None:
        self.lines = list(lines)
        self._options = options
        self._work = dict(
            model=model,
            text=sha256_text(json.dumps(self.lines)),
            decoding=options.at(None).model_dump(mode="json"),
            window=_WINDOW,
        )
        self.directory = directory / sha256_text(json.dumps(self._work, sort_keys=True))[:16]

    def done(self, depth: Depth) -> list[str]:
        """The translations that are kept: those of all lines, or of the first ones."""
        path = self._path(depth)
        try:
            kept = read_sealed(path, hint=_AGAIN) if path.exists() else {}
        except UserError:
            return []
        return [str(line) for line in kept["translations"]] if kept.get("work") == self._work else []

    def at(self, bundle: ModelBundle, depth: Depth, *, advance: Callable[[int], object] | None = None) -> list[str]:
        """The translations of all lines; those that are not kept are made, and kept.

        Args:
            advance: told the number of lines that each batch finished.

        Raises:
            UserError: as `translate_lines`.
        """
        found = self.done(depth)
        while len(found) < len(self.lines):
            start = len(found)
            waiting = input_lines(self.lines[start : start + _WINDOW], first=start)
            made = translate_lines(bundle, waiting, self._options.at(depth), advance=advance, window=_WINDOW)
            found += [each.text for each in made]
            make_directories(self.directory)
            write_sealed(self._path(depth), {"work": self._work, "translations": found})
        return found

    def _path(self, depth: Depth) -> Path:
        return self.directory / f"{depth[0]}-{depth[1]}.json"
