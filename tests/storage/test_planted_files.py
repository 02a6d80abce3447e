"""Planted names and links: nothing outside of an output is written, whatever a manifest or a temporary name says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import MANIFEST
from sparsenmt.data.text import write_lines
from sparsenmt.errors import UserError
from sparsenmt.storage import files
from sparsenmt.storage.files import (
    atomic_writer,
    hidden_path,
    new_directory,
    no_follow,
    partial_path,
    publish_directory,
    read_sealed,
    recover_directory,
    remove_tree,
    staging_directory,
    write_bytes,
    write_sealed,
)
from sparsenmt.storage.records import check_file_entries, copy_files, file_entries_of, file_entry, is_plain_name
from sparsenmt.storage.resumable_output import resumable_output
from sparsenmt.training.checkpoints import clean_checkpoints, write_checkpoint
from sparsenmt.training.state import Progress
from sparsenmt.training.training_log import TrainingLog
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.training.average import average
from sparsenmt.workflows.training.run_checks import check_start
from tests.faults import pairs

SECRET = b"of somebody else\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that no command names."""
    path = tmp_path / "elsewhere/victim"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


# --- names in manifests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "tokenizers/shared.json", "a/b/c", "ü", "x" * 255, "train-0/lines.bin"])
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/.b", "~/a", "a\\b", "c:a", "a\0", "\ud800"),
        *("x" * 256, "a/" * 600 + "a"),
    ],
)
def test_names_that_lead_elsewhere(name: str) -> None:
    assert not is_plain_name(name)
    record = {"files": {name: {"bytes": 1, "sha256": "0" * 64}}}
    with pytest.raises(UserError, match=r"does not belong to the directory|not written by this program"):
        file_entries_of(record, Path("manifest.json"), names=".*", hint="x")


def stranger(folder: Path, name: str) -> Path:
    """A model directory whose manifest names one more file, with a valid seal."""
    pairs.make_world(folder)
    path = folder / "model" / MANIFEST
    value = read_sealed(path)
    value["files"][name] = file_entry(folder / "model" / name)
    write_sealed(path, value)
    return folder / "model"


@pytest.mark.parametrize("command", ["average", "slice"])
@pytest.mark.parametrize("through_link", [False, True])
def test_a_model_of_a_stranger_writes_nothing_elsewhere(
    tmp_path: Path, victim: Path, command: str, through_link: bool
) -> None:
    """From the output's temporary directory, ``../../elsewhere/victim`` is the victim."""
    (tmp_path / "download/elsewhere").mkdir(parents=True)
    (tmp_path / "download/elsewhere/victim").write_bytes(b"payload\n")
    (tmp_path / "download/world").mkdir()
    name = "../../elsewhere/victim"
    if through_link:
        name = "tokenizers/x"
        (tmp_path / "download/world/model/tokenizers").mkdir(parents=True)
        (tmp_path / "download/world/model/tokenizers/x").symlink_to(victim)
    model = stranger(tmp_path / "download/world", name)
    output = tmp_path / "work/out"
    output.parent.mkdir()
    with pytest.raises(UserError) as caught:
        average(model, output=output) if command == "average" else slice_model(model, output, decoder_layers=1)
    assert ("symbolic link" if through_link else "does not belong") in caught.value.message
    assert victim.read_bytes() == SECRET
    assert list(output.parent.iterdir()) == []


def test_links_in_a_directory_that_is_checked(tmp_path: Path, victim: Path) -> None:
    entry = {"a/victim": file_entry(victim)}
    real = tmp_path / "real"
    real.mkdir()
    (real / "a").symlink_to(victim.parent)
    with pytest.raises(UserError, match="symbolic link") as caught:
        check_file_entries(real, entry, hint="x")
    assert caught.value.where == str(real / "a")
    with pytest.raises(UserError, match="symbolic link"):
        copy_files(real, tmp_path / "new", entry, hint="x")
    check_file_entries(real, entry, hint="x", links=True)
    (tmp_path / "link").symlink_to(victim.parent.parent)  # the directory itself may be one
    check_file_entries(tmp_path / "link/elsewhere", {"victim": file_entry(victim)}, hint="x")


def test_a_model_behind_a_link_is_opened(tmp_path: Path) -> None:
    pairs.make_world(tmp_path)
    (tmp_path / "link").symlink_to("model")
    assert open_model(tmp_path / "link", device=torch.device("cpu"), dtype=None).files


def test_a_directory_with_a_link_is_not_trained_in(tmp_path: Path, victim: Path) -> None:
    """Its vocabularies would be written elsewhere."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizers").symlink_to(victim.parent)
    with pytest.raises(UserError, match="holds something else"):
        check_start(tmp_path / "model", pairs.recipe(tmp_path), "fingerprint", None, None)


# --- temporary names of files ----------------------------------------------------------------------------------------


def write_resumably(path: Path) -> None:
    with resumable_output(path, {"task": 1}, 1) as file:
        file.write(["new"])
        file.finish(1)


WRITERS: dict[str, Callable[[Path], object]] = {
    "write_bytes": lambda path: write_bytes(path, b"new\n"),
    "write_lines": lambda path: write_lines(path, ["new"]),
    "resumable": write_resumably,
}
PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda place, victim: place.symlink_to(victim),
    "dangling link": lambda place, victim: place.symlink_to(victim.with_name("new")),
    "hard link": lambda place, victim: os.link(victim, place),
    "directory": lambda place, victim: place.mkdir(),
    "pipe": lambda place, victim: os.mkfifo(place),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_lies_at_a_temporary_name(tmp_path: Path, victim: Path, writer: str, plant: str) -> None:
    output = tmp_path / "out"
    PLANTS[plant](partial_path(output), victim)
    with pytest.raises(UserError) as caught:
        WRITERS[writer](output)
    assert str(partial_path(output)) in str(caught.value) or writer == "resumable"
    assert victim.read_bytes() == SECRET and list(victim.parent.iterdir()) == [victim]
    assert not output.exists() and os.path.lexists(partial_path(output)), "it is not removed either"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_temporary_file_of_another_user(tmp_path: Path, writer: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    output = tmp_path / "out"
    partial_path(output).write_bytes(b"")
    os.chown(partial_path(output), 12345, -1)
    with pytest.raises(UserError, match="another user's"):
        WRITERS[writer](output)


def test_a_planted_journal(tmp_path: Path, victim: Path) -> None:
    hidden_path(tmp_path / "out", "journal").symlink_to(victim)
    with pytest.raises(UserError, match="link"):
        write_resumably(tmp_path / "out")
    assert victim.read_bytes() == SECRET


def test_the_log_of_training_follows_no_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match="symbolic link"):
        TrainingLog(tmp_path, total=1, initial=0)
    with pytest.raises(UserError, match="symbolic link"), open(tmp_path / "metrics.jsonl", "wb", opener=no_follow):
        pass
    assert victim.read_bytes() == SECRET


# --- temporary names of directories ----------------------------------------------------------------------------------


def make_new(path: Path) -> None:
    with new_directory(path) as partial:
        write_bytes(partial / "victim", b"new\n")


def stage(path: Path) -> None:
    with staging_directory(path, "prepares these data") as partial:
        write_bytes(partial / "victim", b"new\n")
        publish_directory(partial, path)


def checkpoint(path: Path) -> None:
    write_checkpoint(path.parent.parent, Progress(update=1), weights={}, optimizer={}, random={})


@pytest.mark.parametrize("make", [make_new, stage, checkpoint])
@pytest.mark.parametrize("plant", ["link", "file", "another user's"])
def test_what_lies_at_a_temporary_directory(
    tmp_path: Path, victim: Path, make: Callable[[Path], None], plant: str
) -> None:
    place = tmp_path / "checkpoints/update-00000001"
    partial = partial_path(place)
    partial.parent.mkdir()
    if plant == "link":
        partial.symlink_to(victim.parent)
    elif plant == "file":
        partial.write_bytes(b"")
    elif os.geteuid() != 0:
        pytest.skip("only root can give directories away")
    else:
        partial.mkdir()
        os.chown(partial, 12345, -1)
    with pytest.raises(UserError, match="a temporary directory needs this name") as caught:
        make(place)
    assert caught.value.where == str(partial)
    assert victim.read_bytes() == SECRET and not place.exists()


def test_removing_a_planted_link_removes_the_link(tmp_path: Path, victim: Path) -> None:
    place = tmp_path / "place"
    for make in (
        lambda: recover_directory(place),
        lambda: stage(place),
        lambda: remove_tree(hidden_path(place, "old")),
    ):
        hidden_path(place, "old").symlink_to(victim.parent)
        make()
        assert not os.path.lexists(hidden_path(place, "old")) and victim.read_bytes() == SECRET
    partial = partial_path(tmp_path / "checkpoints/update-00000001")
    partial.parent.mkdir()
    partial.symlink_to(victim.parent)
    clean_checkpoints(tmp_path)
    assert not os.path.lexists(partial) and victim.read_bytes() == SECRET


def test_an_output_that_appeared_meanwhile_stays(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with pytest.raises(UserError, match="the directory exists"), new_directory(place) as partial:
        (partial / "file").write_bytes(b"mine")
        place.mkdir()
        (place / "file").write_bytes(b"another's")
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert (place / "file").read_bytes() == b"another's"


# --- two writers -----------------------------------------------------------------------------------------------------


def in_children(works: list[Callable[[], object]]) -> list[int]:
    """Run functions in forked processes at once; their exit codes: 0, of a UserError 2, otherwise 1."""
    started = []
    for work in works:
        if not (process := os.fork()):
            code = 1
            try:
                work()
                code = 0
            except UserError:
                code = 2
            finally:
                os._exit(code)
        started.append(process)
    return [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in started]


def test_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    """As two `compare` that keep their results beside one model."""
    path, contents = tmp_path / "file", [bytes([97 + number]) * 100_000 for number in range(3)]

    def writing(content: bytes) -> Callable[[], object]:
        return lambda: [write_bytes(path, content) for _ in range(30)]

    assert in_children([writing(each) for each in contents]) == [0, 0, 0]
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_written_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WAIT", 0.0)
    with atomic_writer(tmp_path / "file") as stream:
        stream.write(b"first")
        began = time.monotonic()
        with pytest.raises(UserError, match="another process is writing this file"):
            write_bytes(tmp_path / "file", b"second")
        assert time.monotonic() - began < 30
    assert (tmp_path / "file").read_bytes() == b"first"


def test_a_directory_that_is_being_written(tmp_path: Path) -> None:
    with new_directory(tmp_path / "place") as partial:
        (partial / "file").write_bytes(b"mine")
        assert in_children([lambda: make_new(tmp_path / "place"), lambda: stage(tmp_path / "place")]) == [2, 2]
    assert (tmp_path / "place/file").read_bytes() == b"mine"
    assert in_children([lambda: make_new(tmp_path / "place")]) == [2], "it exists"


@pytest.mark.thorough
def test_some_pairs_of_writers(tmp_path: Path) -> None:
    counts, findings = pairs.campaign(6, 1, tmp_path)
    assert sum(counts.values()) == 6
    assert findings == []


@pytest.mark.parametrize("suffix", ["partial", "old"])
def test_a_directory_is_not_written_where_its_source_is(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f".place.{suffix}"
    source.mkdir()
    (source / "file").write_bytes(b"kept")
    with pytest.raises(UserError, match="the name under which the copy"), new_directory(tmp_path / "place", source):
        pass
    assert (source / "file").read_bytes() == b"kept" and list(tmp_path.iterdir()) == [source]


def test_a_device_is_written_not_replaced() -> None:
    """As root, /dev/null would become a file. The test takes a terminal of its own."""
    reader, terminal = os.openpty()
    path = Path(os.ttyname(terminal))
    write_bytes(path, b"text")
    assert os.read(reader, 10) == b"text" and path.is_char_device()
    os.close(reader)
    os.close(terminal)
