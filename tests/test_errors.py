"""The text of a `UserError`."""

from __future__ import annotations

from sparsenmt.errors import UserError, printable


def test_what_a_terminal_would_obey_is_shown() -> None:
    error = UserError("\x1b[31mred", where="a\nb", hint="\ud800 or \u2028?")
    assert str(error) == "a\\nb: \\x1b[31mred\n  \\ud800 or \\u2028?"
    assert printable("Ünï→") == "Ünï→"
