"""The one exception that a user's mistake raises: shown as a message without a traceback, exit code 2."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend: bad input, a bad recipe, a missing file.

    Args:
        message: what is wrong, in one sentence.
        where: the place, e.g. ``"recipe.yaml:12"`` or ``"train.en.gz, line 7"``.
        hint: what to do about it.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text
