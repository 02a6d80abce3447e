"""The harness itself: faults do what they say, and careless programs are found out."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.faults import invariants, replacements
from tests.faults.damage import FLIPS, damages
from tests.faults.server import Result
from tests.faults.shim import KILLED, Action
from tests.faults.world import Files, World, differences, digest, placed_checkpoint
from tests.faults.writers import CONTENT

HALF = CONTENT[: len(CONTENT) // 2]


def run(
    world: World, program: str, *arguments: str, action: Action = Action.LOG, number: int = 0, error: int = 0
) -> Result:
    world.set({})
    return world.server.run(
        list(arguments),
        folder=world.folder,
        root=world.case,
        action=action,
        number=number,
        error=error,
        function=f"tests.faults.writers:{program}",
    )


@pytest.mark.thorough
def test_calls_are_counted(world: World) -> None:
    result = run(world, "plain")
    assert (result.code, world.files()) == (0, {"a": CONTENT, "b": CONTENT, "c": CONTENT})
    assert [(call.number, call.name, call.bytes, call.error) for call in result.calls] == [
        (2 * file + part, name, size, 0) for file in range(3) for part, name, size in ((1, "open", 0), (2, "write", 10))
    ]
    assert {call.path for call in result.calls} == {str(world.case / name) for name in "abc"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("action", "number", "error", "code", "files"),
    [
        (Action.KILL, 3, 0, -9, {"a": CONTENT}),
        (Action.KILL_AFTER, 3, 0, -9, {"a": CONTENT, "b": b""}),
        (Action.TORN, 4, 0, -9, {"a": CONTENT, "b": HALF}),
        (Action.FAIL, 4, errno.EIO, errno.EIO, {"a": CONTENT, "b": b""}),
        (Action.FULL, 4, 0, errno.ENOSPC, {"a": CONTENT, "b": HALF}),
        (Action.DEAD, 3, 0, errno.EIO, {"a": CONTENT}),
    ],
)
def test_faults_do_what_they_say(
    world: World, action: Action, number: int, error: int, code: int, files: Files
) -> None:
    result = run(world, "plain", action=action, number=number, error=error)
    # A raw stream returns a short write as such: the next file is what meets the full disk.
    assert (result.code, world.files()) == (code, files)
    last = result.calls[-1]
    assert last.error == (KILLED if code == -9 else code)


@pytest.mark.thorough
def test_power_takes_what_was_not_brought_to_the_disk(world: World) -> None:
    for argument, complete in (("synced", {1}), ("", set())):
        result = run(world, "checkpoint", argument)
        assert [placed_checkpoint(call) for call in result.calls].count(1) == 1
        assert invariants.checkpoints(world.files()) == {1}
        assert bool(invariants.not_on_disk(world.case, result.calls)) == (not complete)
        after = invariants.without_power(world.case, world.files(), result.calls, {})
        assert invariants.checkpoints(after) == complete
        assert bool(invariants.lost_checkpoints({}, result.calls, after, keep_last=2)) == (not complete)


@pytest.mark.thorough
def test_what_is_written_past_the_library_is_found_out(world: World) -> None:
    calls = run(world, "plain").calls
    after = world.files()
    assert invariants.unseen(world.case, {}, calls, after) == []
    assert invariants.unseen(world.case, {}, calls[:-1], after) == ["c"]


def test_times_do_not_count() -> None:
    def files(seconds: float, loss: float) -> Files:
        return {
            "model/metrics.jsonl": json.dumps({"loss": loss, "seconds": seconds}).encode(),
            "model/checkpoints/update-00000002/manifest.json": json.dumps({"seal": str(seconds)}).encode(),
        }

    assert differences(files(1.0, 2.0), files(1.5, 2.0)) == [] and digest(files(1.0, 2.0)) == digest(files(1.5, 2.0))
    assert differences(files(1.0, 2.0), files(1.0, 2.5)) == ["! model/metrics.jsonl"]
    assert differences({"a": b"", "b": b""}, {"b": b"", ".c": b""}) == ["+ .c", "- a"]


def test_the_rotation_may_remove_only_what_is_older() -> None:
    start = {f"model/checkpoints/update-{update:08d}/": b"" for update in (2, 4)}
    for name in list(start):
        start |= {f"{name}{part}": b"" for part in invariants.PARTS}
        start[f"{name}manifest.json"] = b'{"files": {}}'
        start[f"{name}progress.json"] = b'{"validated": []}'
    only = {update: {k: v for k, v in start.items() if f"{update:08d}" in k} for update in (2, 4)}
    assert invariants.checkpoints(start) == {2, 4}
    assert invariants.lost_checkpoints(start, [], only[4], keep_last=1) == []
    assert invariants.lost_checkpoints(start, [], only[4], keep_last=2) == ["the checkpoint of update 2 is lost"]
    assert invariants.lost_checkpoints(start, [], only[2], keep_last=1) == ["the checkpoint of update 4 is lost"]


def test_damages_differ_from_the_file() -> None:
    for content in (b"", b"x", CONTENT):
        found = [changed for _, changed in damages(content, 1)]
        assert content not in found and None in found
        assert len(found) >= (FLIPS if content else 0) + 2


@pytest.mark.thorough
def test_a_model_directory_that_is_replaced_while_decode_opens_it(tmp_path: Path) -> None:
    """A small part of `python -m tests.faults.replacements`."""
    found = replacements.campaign(tmp_path, 12, seed=3)
    assert not [result for _, result in found if result.startswith("WRONG")], found
