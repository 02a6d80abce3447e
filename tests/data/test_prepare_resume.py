"""`prepare` that was stopped: the same call goes on after what was finished, and gives the same bytes."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.prepare import pipeline as prepare_module
from sparsenmt.data.prepare.pipeline import PreparedData, prepare
from sparsenmt.errors import UserError
from sparsenmt.kept_work import Stages
from sparsenmt.recipe import schema
from sparsenmt.storage.files import DamagedFileError, directory_lock, partial_path

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]
FEATURES = ("word_id", "frequency_rank")
STAGES = [
    *("vocabularies", "train-0", "train-1", "dev", "validation text", "features"),
    *("features of train-0", "features of train-1", "features of dev"),
]


def files(directory: str | Path) -> dict[str, bytes]:
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def data(make_data: MakeData, lines: Lines) -> schema.Data:
    return make_data([(lines(90), lines(90, seed=1)), (lines(50, seed=4), lines(50, seed=5))])


@pytest.fixture
def partial(data: schema.Data) -> Path:
    return partial_path(Path(data.directory))


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """``done``: names of the stages that are done; an exception as ``fault`` is raised in the stage ``at``."""
    seen: dict[str, Any] = {"done": [], "at": None, "fault": KeyboardInterrupt()}
    run = Stages.run

    def watched(self: Stages, name: str, work: Callable[[], Any]) -> Any:
        def noted() -> Any:
            result = work()
            if name == seen["at"]:
                raise seen["fault"]
            seen["done"].append(name)
            return result

        return run(self, name, noted)

    monkeypatch.setattr(Stages, "run", watched)
    yield seen


@pytest.fixture
def expected(data: schema.Data, works: dict[str, Any]) -> dict[str, bytes]:
    """What an undisturbed call writes."""
    prepare(data, features=FEATURES)
    assert works["done"] == STAGES
    result = files(data.directory)
    shutil.rmtree(data.directory)
    works["done"].clear()
    return result


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "fault",
    [
        KeyboardInterrupt(),
        OSError(errno.ENOSPC, "No space left on device"),
        UserError("a process was lost", resumable=True),
    ],
    ids=type,
)
def test_goes_on_after_the_finished_stages(
    data: schema.Data,
    partial: Path,
    works: dict[str, Any],
    expected: dict[str, bytes],
    stage: str,
    fault: BaseException,
) -> None:
    works.update(at=stage, fault=fault)
    with pytest.raises(type(fault)):
        prepare(data, features=FEATURES)
    assert not Path(data.directory).exists() and partial.exists()
    assert works["done"] == STAGES[: STAGES.index(stage)]
    (partial / "train-0").mkdir(exist_ok=True)
    (partial / "train-0" / "half.bin").write_bytes(b"made by a stage that was not finished")

    works.update(at=None, done=[])
    assert not prepare(data, features=FEATURES).up_to_date
    assert works["done"] == STAGES[STAGES.index(stage) :]
    assert files(data.directory) == expected and not partial.exists()


def test_a_stage_that_was_damaged_is_made_again(
    data: schema.Data, partial: Path, works: dict[str, Any], expected: dict[str, bytes]
) -> None:
    works["at"] = "features"
    with pytest.raises(KeyboardInterrupt):
        prepare(data, features=FEATURES)
    path = partial / "train-1" / "target.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    works.update(at=None, done=[])
    prepare(data, features=FEATURES)
    assert works["done"] == STAGES[STAGES.index("train-1") :]
    assert files(data.directory) == expected


@pytest.mark.parametrize("what", ["settings", "text", "state"])
def test_what_was_made_for_something_else_is_not_used(
    data: schema.Data, partial: Path, works: dict[str, Any], what: str
) -> None:
    works["at"] = "validation text"
    with pytest.raises(KeyboardInterrupt):
        prepare(data, features=FEATURES)
    works.update(at=None, done=[])
    if what == "settings":
        data = data.model_copy(update={"filters": schema.Filters(max_length=7)})
    elif what == "text":
        Path(data.dev.source).write_bytes(Path(data.dev.source).read_bytes().replace(b"ka", b"mi"))
    else:
        (partial / ".state.json").write_bytes((partial / ".state.json").read_bytes().replace(b"train-0", b"train-9"))
    prepare(data, features=FEATURES)
    assert works["done"] == STAGES
    PreparedData.open(data.directory)


def test_complete_data_need_only_be_published(
    data: schema.Data,
    partial: Path,
    works: dict[str, Any],
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "publish_directory", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(data, features=FEATURES)
    works["done"] = []
    prepare(data, features=FEATURES)
    assert works["done"] == []
    assert files(data.directory) == expected and not partial.exists()


def test_bad_input_leaves_nothing_behind(data: schema.Data, partial: Path, works: dict[str, Any]) -> None:
    works.update(at="dev", fault=UserError("bad", where="dev", hint="Mend it."))
    with pytest.raises(UserError, match="bad"):
        prepare(data)
    assert not partial.exists() and not Path(data.directory).exists()


def test_text_that_changes_meanwhile(data: schema.Data, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = prepare_module.write_lines

    def meddle(*arguments: Any) -> None:
        write(*arguments)
        Path(data.train[1].source).write_bytes(Path(data.train[1].source).read_bytes() + b"more\n")

    monkeypatch.setattr(prepare_module, "write_lines", meddle)
    with pytest.raises(UserError, match="changed while it was prepared") as caught:
        prepare(data)
    assert caught.value.where == data.train[1].source
    assert not partial.exists() and not Path(data.directory).exists()


def test_one_process_at_a_time(data: schema.Data, partial: Path) -> None:
    partial.mkdir()
    (partial / "work").write_bytes(b"of the other process")
    with directory_lock(partial, "is a test"), pytest.raises(UserError, match="another process prepares these data"):
        prepare(data)
    assert (partial / "work").exists()
    prepare(data)
    assert not partial.exists()


@pytest.mark.parametrize("name", ["train-0/source.bin", "dev/meta.json", "dev.target.txt", "manifest.json"])
def test_damage_is_named_and_mended(data: schema.Data, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(data)
    good = files(data.directory)
    path = Path(data.directory) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        PreparedData.open(data.directory)
    assert caught.value.where == str(path) and caught.value.hint
    capsys.readouterr()
    assert not prepare(data).up_to_date
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {path}: ") and told.endswith("; the data are prepared again\n")
    assert told.count("warning: ") == 1
    assert files(data.directory) == good
    assert prepare(data).up_to_date and not capsys.readouterr().err


def test_what_a_kill_left_while_publishing_is_cleared(data: schema.Data) -> None:
    prepare(data)
    directory = Path(data.directory)
    good, old = files(directory), directory.with_name(".prepared.old")
    directory.rename(old)  # killed between the two renames: the old data come back
    assert prepare(data).up_to_date
    assert files(directory) == good and not old.exists()
    shutil.copytree(directory, old)  # killed after them
    assert prepare(data).up_to_date
    assert files(directory) == good and not old.exists()
    assert [path.name for path in directory.parent.iterdir() if path.name.startswith(".")] == []
