"""pyproject.toml, constraints.txt and CHANGELOG.md agree with each other and with the package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sparsenmt

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_bytes().decode())["project"]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_bytes().decode().rstrip("\n").split("\n")
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_are_plain_versions() -> None:
    """No local parts (`+cpu`), paths or ranges: they must hold on every machine."""
    for name, version in constraints().items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), name
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)*", version), f"{name}=={version}"


def test_every_dependency_is_fixed_to_a_version_it_allows() -> None:
    fixed = {canonicalize_name(name): version for name, version in constraints().items()}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        version = fixed.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is missing in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_torch_has_no_upper_bound() -> None:
    (torch,) = (Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert [str(part) for part in torch.specifier] == [">=2.8"]


def test_the_changelog_has_an_unreleased_part() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_bytes().decode()


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"numpy", "pydantic", "torch", "click", "yaml", "sparsenmt.errors", "sparsenmt.api"}
    code = f"import sys, sparsenmt; print(*sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == ""
    assert re.fullmatch(r"\d+\.\d+\.\d+", sparsenmt.__version__)


def test_the_image_is_built_from_what_the_wheel_needs() -> None:
    """Whatever the build forces into the wheel, the Dockerfile copies and .dockerignore lets through."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_bytes().decode())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = (ROOT / "Dockerfile").read_bytes().decode()
    allowed = (ROOT / ".dockerignore").read_bytes().decode().split("\n")
    for path in [*build["packages"], *build["force-include"]]:
        assert f"\nCOPY {path} {path}\n" in copied
        assert f"!{path}" in allowed


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.hasplugin("timeout")
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
