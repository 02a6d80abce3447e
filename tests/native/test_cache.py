"""The private folder of kernels: what another user may have put there is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.native import cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)


def test_the_folder_is_the_users_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        folder = cache.folder()
        assert cache.write_record("a.json", {"is": 1}) and cache.read_record("a.json") == {"is": 1}
        cache.write_file("a.so", b"library")
    finally:
        os.umask(before)
    assert folder == home / "sparsenmt" / "kernels"
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700] * 2
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert cache.read_file("a.so") == (folder / "a.so", b"library")
    assert cache.read_file("b.so") is cache.read_record("b.json") is None


@pytest.mark.parametrize("which", ["sparsenmt", "sparsenmt/kernels"])
@pytest.mark.parametrize("fault", ["symlink", "owner", "group", "others"])
def test_a_folder_of_others_is_refused(home: Path, tmp_path: Path, which: str, fault: str) -> None:
    folder, moved = cache.folder(), tmp_path / "elsewhere"
    cache.write_record("a.json", {"is": 1})
    bad = home / which
    if fault == "symlink":
        bad.rename(moved)
        bad.symlink_to(moved)
    elif fault == "owner":
        of_another_user(bad)
    else:
        bad.chmod(0o770 if fault == "group" else 0o707)
    with pytest.raises(UserError, match="not used for kernels") as refused:
        cache.folder()
    assert str(bad) in str(refused.value)
    assert cache.read_record("a.json") is None and not cache.write_record("b.json", {})
    assert not list(folder.glob("b.json"))


@pytest.mark.parametrize("fault", ["owner", "others"])
def test_a_folder_that_others_can_replace_is_refused(home: Path, fault: str) -> None:
    home.mkdir()
    if fault == "owner":
        of_another_user(home)
    else:
        home.chmod(0o777)
    with pytest.raises(UserError, match="kernels are not kept here"):
        cache.folder()
    assert not list(home.iterdir()), "nothing is left in a place of others"
    if fault == "others":
        home.chmod(0o1777)  # as /tmp
        assert cache.folder().is_dir()


@pytest.mark.parametrize("fault", ["symlink", "owner", "group", "others", "hard link", "pipe", "folder"])
def test_a_file_of_others_is_not_used(
    home: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, moved = cache.folder() / "a.json", tmp_path / "elsewhere"
    cache.write_record("a.json", {"is": 1})
    if fault == "symlink":
        path.rename(moved)
        path.symlink_to(moved)
    elif fault == "owner":
        of_another_user(path)
    elif fault == "hard link":
        moved.hardlink_to(path)
    elif fault == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif fault == "folder":
        path.unlink()
        path.mkdir(0o700)
    else:
        path.chmod(0o660 if fault == "group" else 0o606)
    assert cache.read_record("a.json") is cache.read_record("a.json") is None
    with pytest.raises(UserError, match="not used for kernels"):
        cache.read_file("a.json")
    assert capsys.readouterr().err.count(f"warning: {path}: not used for kernels") == 1
    if fault != "folder":
        assert cache.write_record("a.json", {"is": 2}) and cache.read_record("a.json") == {"is": 2}, "it is replaced"


def test_a_damaged_record_is_none(home: Path) -> None:
    cache.write_record("a.json", {"is": 1})
    path = cache.folder() / "a.json"
    path.write_text(path.read_text().replace("1", "2", 1))
    assert cache.read_record("a.json") is None


@pytest.mark.parametrize("name", ["", ".", "..", "../a.json", "/etc/passwd", "b/a.json", ".a"])
def test_only_bare_names_are_taken(home: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a bare file name"):
        cache.read_file(name)
    assert cache.read_record(name) is None and not cache.write_record(name, {})


def test_a_relative_folder_of_caches_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's archive, unpacked here, must not bring kernels."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache.place() == tmp_path / ".cache" / "sparsenmt" / "kernels"
    monkeypatch.setenv("HOME", "here")
    with pytest.raises(UserError, match="no home directory"):
        cache.place()
