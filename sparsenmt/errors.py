"""The exception for mistakes of the user: shown as a message without a traceback, exit code 2."""

from __future__ import annotations

import errno
import os
import re


class UserError(Exception):
    """An error that the user can fix: bad input, a bad recipe, a missing file.

    Messages and hints are written out where they are raised: ``docs/reference/errors.md`` is generated from the source.

    Args:
        message: what is wrong, in one sentence without a full stop.
        where: the place, e.g. ``"recipe.yaml:12"`` or ``"train.en.gz, line 7"``.
        hint: what to do, in imperative sentences.
        missing: a path that was looked for; the message shows a relative one in full.
        resumable: True if the same command resumes the work.
        repeated: True if another process of the run shows the message.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        missing: str | os.PathLike[str] | None = None,
        resumable: bool = False,
        repeated: bool = False,
    ) -> None:
        self.message = message
        self.looked_for = None if missing is None else _in_full(os.fspath(missing))
        self.where = where
        self.hint = hint
        self.resumable = resumable
        self.repeated = repeated
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{printable(self.where)}: {self.message}" if self.where else self.message
        text = f"{text}\n  {printable(self.looked_for)}" if self.looked_for else text
        text = f"{text}\n  {self.hint}" if self.hint else text
        return printable_lines(text)


def _in_full(path: str) -> str | None:
    """Return a sentence with the absolute path of a relative one; None for an absolute path."""
    if os.path.isabs(path):
        return None
    try:
        return f"Looked for: {os.path.abspath(path)} (relative to the working directory)."
    except OSError:  # the working directory was removed
        return None


def check_lists(**given: object) -> None:
    """Raise TypeError if a value that must be a list, named as given, is one string or path.

    Python reads a string as the list of its characters: each would be taken for a text.
    """
    for name, value in given.items():
        if isinstance(value, str | bytes | os.PathLike):
            raise TypeError(f"{name} is one {type(value).__name__}, not a list of them: write [{value!r}]")


UNSAFE = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters and those that change the direction of writing, as far as JSON and YAML do not escape them."""


def printable(text: str) -> str:
    """The text with control and other unprintable characters as escapes: ``\\x1b``, ``\\udcff``."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text
    )


def printable_lines(text: str) -> str:
    """The text with control and other unprintable characters as escapes, except its line ends."""
    return "\n".join(map(printable, text.split("\n")))


# Messages of PyTorch and the CUDA libraries for errors that have no class of their own.
_NO_MEMORY = (
    "DefaultCPUAllocator: not enough memory",
    "can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "backend out of memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN, cuSPARSE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that the machine or the accelerator is out of memory."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # By its name: this module does not import PyTorch. `torch.OutOfMemoryError` is a RuntimeError.
    named = any(each.__name__ == "OutOfMemoryError" for each in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY))
