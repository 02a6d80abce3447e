"""The messages of the program: each says what is wrong, where, and what to do; docs/reference/errors.md has all."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.error_catalogue import COMPLAINT, ERROR, Catalogue, Entry, Module
from tools.error_docs import GROUPS, SAID_AGAIN, error_reference

ROOT = Path(__file__).resolve().parents[2]

# Messages that the source does not spell out: (file, function) -> why.
BUILT_ELSEWHERE = {
    ("recipe/validation_errors.py", "_complaint"): "what a validator says",
    ("export/to_marian.py", "_refused"): "what the checks of the same file say",
    ("assemble/bundle.py", "_read_weights"): "`tensors.differing_shapes` counts what differs",
    ("storage/tensors.py", "check_shapes"): "the same",
}
# Errors without a place: (file, function) -> why.
_REPORT = "workflows/evaluation/report"
NO_PLACE = {
    ("data/text.py", "check_aligned"): "the message names every file",
    **{
        (f"{_REPORT}/{file}.py", function): "the section of the report is its place"
        for file, functions in {
            "facts": ["draw_training"],
            "figures": ["no_suite", "depth_grids", "chosen_depths"],
            "quality": ["measure_speed"],
            "sentences": ["align_sentences"],
            "words": ["compare_ngrams"],
        }.items()
        for function in functions
    },
}
# What a message or a hint begins with, if not with a letter: a value, an option, a key.
_BEGINNINGS = "<`'\"$-"


@functools.cache
def catalogue() -> Catalogue:
    """The messages of the package; reading them takes seconds."""
    return Catalogue.of_package()


def errors() -> list[Entry]:
    return [entry for entry in catalogue().entries() if entry.kind in (ERROR, COMPLAINT)]


def place(entry: Entry) -> str:
    return f"{entry.file}:{entry.line} ({entry.function})"


def bad_messages(entry: Entry) -> Iterator[str]:
    exempt = {**SAID_AGAIN, **BUILT_ELSEWHERE}
    if not entry.messages and (entry.file, entry.function) not in exempt:
        yield f"{place(entry)}: the message cannot be read off the source"
    for message in entry.messages:
        if not message.strip() or message != message.strip():
            yield f"{place(entry)}: empty, or blanks around it: {message!r}"
        elif message.endswith((".", "!", "?", ":")) and not message.endswith(", ..."):
            yield f"{place(entry)}: ends like a sentence: {message!r}"
        elif not (message[0].isalnum() or message[0] in _BEGINNINGS):
            yield f"{place(entry)}: begins with {message[0]!r}: {message!r}"


def bad_remedies(entry: Entry) -> Iterator[str]:
    said_again = (entry.file, entry.function) in SAID_AGAIN
    if not entry.has_hint:
        yield f"{place(entry)}: no hint: {entry.messages}"
    elif not entry.hints and not said_again:
        yield f"{place(entry)}: the hint cannot be read off the source: {entry.messages}"
    for hint in entry.hints:
        if not re.fullmatch(r".*([.?]|<[a-z ]+>|, \.\.\.)", hint, re.DOTALL):
            yield f"{place(entry)}: the hint is no sentence: {hint!r}"
        elif not (hint[0].isupper() or hint[0] in _BEGINNINGS):
            yield f"{place(entry)}: the hint does not begin like a sentence: {hint!r}"


def assert_none(found: Iterator[str]) -> None:
    lines = list(found)
    assert not lines, "\n" + "\n".join(lines)


def test_every_message_is_a_part_of_a_sentence() -> None:
    assert len(errors()) > 100, "the errors are not found"
    assert_none(line for entry in errors() for line in bad_messages(entry))


def test_every_error_says_what_to_do() -> None:
    assert_none(line for entry in errors() for line in bad_remedies(entry))


def test_every_error_says_where() -> None:
    entries = [entry for entry in errors() if not entry.has_where and (entry.file, entry.function) not in NO_PLACE]
    assert_none(f"{place(entry)}: no place: {entry.messages}" for entry in entries)


def test_every_exception_from_the_rules_is_used() -> None:
    places = {(entry.file, entry.function) for entry in errors()}
    assert not {*SAID_AGAIN, *BUILT_ELSEWHERE, *NO_PLACE} - places
    spelled_out = {(entry.file, entry.function) for entry in errors() if not entry.messages}
    assert not BUILT_ELSEWHERE.keys() - spelled_out


def test_the_catalogue_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "reference" / "errors.md").read_bytes().decode("utf-8")
    assert error_reference(catalogue()) == committed, "run: make docs"


def test_the_catalogue_lists_everything() -> None:
    text = error_reference(catalogue())
    for entry in catalogue().entries():
        if (entry.file, entry.function) not in SAID_AGAIN:
            for message in entry.messages:
                assert message.replace("|", "\\|") in text, place(entry)
    for group in GROUPS[:-1]:
        assert f"\n## {group.title}\n" in text


HELPERS = """
from sparsenmt.errors import UserError

LIMIT = 10**6
HINT = "Look again."
KINDS = {"a": "a number", "b": "a text"}

class Damaged(UserError): pass
class Gone(Damaged): pass

def read(path, *, hint, name="x"):
    %s

def caller(path):
    read(path, hint=HINT)
    read(path, hint="Make it.")

def warn(path):
    for message in found(path): click.echo(f"warning: {message}")

def found(path):
    messages = []
    messages.append(f"{path.name} is odd")
    return messages
"""


@pytest.mark.parametrize(
    ("code", "messages", "hints"),
    [
        ("raise UserError('no', hint='Do.')", ["no"], ["Do."]),
        ("raise Gone('no', hint=HINT)", ["no"], ["Look again."]),
        ("return Complaint('no', 'Do.')", ["no"], ["Do."]),
        ("raise UserError('a' if path else 'b', hint=hint)", ["a", "b"], ["Look again.", "Make it."]),
        ("what = 'no ' + str(path)\n    raise UserError(what)", ["no <file>"], []),
        ("raise UserError(f'{len(path):,} of {LIMIT:,} {name!r}, {x.y}')", ["<number> of 1,000,000 '<name>', <y>"], []),
        ("raise UserError(f'{n} item{\"\" if n else \"s\"} {\"is\" if n else \"are\"}')", ["<n> item(s) is/are"], []),
        ("raise UserError(f'must be {KINDS[kind]}')", ["must be a number", "must be a text"], []),
        ("raise UserError(f'at {n + 1}: {error.strerror}')", ["at <number>: <reason of the system>"], []),
        ("raise UserError(', '.join(f'{a} by {b}' for a, b in path))", ["<a> by <b>, ..."], []),
        ("raise UserError(build(path))", [], []),
        ("raise UserError(str(error))", [], []),
        ("raise ValueError('no')", None, None),
    ],
)  # fmt: skip
def test_texts_are_read_off_the_source(code: str, messages: list[str] | None, hints: list[str] | None) -> None:
    catalogue = Catalogue([Module.parse("some.py", (HELPERS % code).encode())])
    entries = [entry for entry in catalogue.entries() if entry.kind in (ERROR, COMPLAINT)]
    if messages is None:
        assert not entries
        return
    (entry,) = entries
    assert (entry.function, list(entry.messages), list(entry.hints)) == ("read", messages, hints or [])


def test_warnings_are_followed_to_where_they_are_made() -> None:
    catalogue = Catalogue([Module.parse("some.py", (HELPERS % "pass").encode())])
    (warning,) = catalogue.entries()
    assert (warning.function, warning.messages) == ("warn", ("warning: <name> is odd",))
