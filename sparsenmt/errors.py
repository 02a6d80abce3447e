"""The one exception that a user's mistake raises: shown as a message without a traceback, exit code 2."""

from __future__ import annotations

import errno


class UserError(Exception):
    """Something the user can mend: bad input, a bad recipe, a missing file.

    ``docs/errors.md`` lists all of them, read off the source: messages and hints are written where they are raised.

    Args:
        message: what is wrong, in one sentence without a full stop.
        where: the place, e.g. ``"recipe.yaml:12"`` or ``"train.en.gz, line 7"``.
        hint: what to do about it, in sentences.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{printable(self.where)}: {self.message}" if self.where else self.message
        text = f"{text}\n  {self.hint}" if self.hint else text
        return "\n".join(printable(line) for line in text.split("\n"))


def printable(text: str) -> str:
    """The text with what a terminal would obey, or could not show, written as an escape: ``\\x1b``, ``\\udcff``."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text
    )


# What PyTorch and the CUDA libraries write where they have no class of their own for it.
_NO_MEMORY = (
    "DefaultCPUAllocator: not enough memory",
    "can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "backend out of memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN, cuSPARSE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the machine or the accelerator has too little memory for what was asked of it."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By its name: this module starts without PyTorch. `torch.OutOfMemoryError` is a RuntimeError.
    named = any(each.__name__ == "OutOfMemoryError" for each in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY))
