"""Files of a release: versions agree, platform tags are read, Pythons are found."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tools import release
from tools.release import ROOT, ReleaseError, Versions


def checkout(folder: Path, *, package: str = "1.2.3", citation: str = "1.2.3", changes: str) -> Path:
    (folder / "sparsenmt").mkdir()
    (folder / "sparsenmt/__init__.py").write_text(f'__version__ = "{package}"\n')
    (folder / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {citation}\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}")
    return folder


READY = "## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n### Added\n\n- Something.\n\n## [1.2.2] - 2026-01-01\n"


def test_a_checkout_that_is_ready(tmp_path: Path) -> None:
    assert Versions.read(checkout(tmp_path, changes=READY)).mistakes() == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"citation": "1.2.2", "changes": READY}, "CITATION.cff: version 1.2.2, the package has 1.2.3"),
        ({"changes": READY.replace("[1.2.3] - 2026-01-31", "[1.2.3]")}, "the newest dated section is 1.2.2"),
        ({"changes": "## [Unreleased]\n"}, "no section has a version and a date"),
        ({"changes": READY.replace("## [Unreleased]\n", "## [Unreleased]\n\n- New.\n")}, 'changes under "Unreleased"'),
        ({"package": "1.2.3.dev0", "citation": "1.2.3.dev0", "changes": READY}, "1.2.3.dev0 is not of the form"),
    ],
)
def test_what_stands_in_the_way(tmp_path: Path, files: dict[str, str], found: str) -> None:
    assert any(found in each for each in Versions.read(checkout(tmp_path, **files)).mistakes())


def test_the_versions_of_this_checkout_agree() -> None:
    versions = Versions.read(ROOT)
    assert versions.citation == versions.package
    assert versions.newest in (versions.package, None) or versions.unreleased


@pytest.mark.parametrize(
    ("wheel", "platform", "glibc"),
    [
        ("sparsenmt-0.1.0-py3-none-manylinux_2_28_x86_64.whl", "manylinux_2_28_x86_64", (2, 28)),
        ("sparsenmt-0.1.0-py3-none-linux_x86_64.whl", "linux_x86_64", (999,)),
        ("sparsenmt-0.1.0-py3-none-any.whl", "any", (999,)),
    ],
)
def test_platform_tags(wheel: str, platform: str, glibc: tuple[int, ...]) -> None:
    assert release.platform_of(wheel) == platform
    assert release._glibc(platform) == glibc


def test_an_interpreter_must_be_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim of pyenv for a version that is not chosen fails, or starts another one."""
    for version, prints in (("3.98", "3.98"), ("3.99", "3.11")):
        path = tmp_path / f"python{version}"
        path.write_text(f"#!/bin/sh\necho {prints}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert release.find_pythons(("3.98", "3.99", "3.97")) == {
        "3.98": tmp_path / "python3.98",
        "3.99": None,
        "3.97": None,
    }


def test_a_command_that_fails_shows_its_last_lines() -> None:
    with pytest.raises(ReleaseError) as caught:
        release.run("sh", "-c", "echo first; echo last; exit 3")
    assert str(caught.value) == "exit code 3 of sh -c echo first; echo last; exit 3\nfirst\nlast"
