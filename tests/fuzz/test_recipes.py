"""Recipes of any kind: refused with one message, or resolved; what is resolved loads again as the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from tests.fuzz import recipe_texts
from tests.fuzz.support import Files, Lab, changed, explore, report, sizes

TEXTS: Files = {
    "small.yaml": recipe_texts.SMALL.encode(),
    "a.en": b"one two three\nfour five\nsix\n" * 4,
    "a.de": b"eins zwei drei\nvier\nsechs sieben\n" * 4,
    "d.en": b"one\ntwo\n",
    "d.de": b"eins\nzwei\n",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line on a recipe."""

    recipe: bytes
    command: str
    overrides: list[str]


cases = st.builds(
    Case,
    recipe=recipe_texts.recipes(),
    command=st.sampled_from(["prepare", "train"]),
    overrides=st.one_of(st.just([]), st.just([]), st.lists(recipe_texts.overrides, max_size=3)),
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in recipe_texts.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FUZZ_UNSET", raising=False)


@pytest.mark.parametrize("count", sizes("recipes"))
def test_recipes(lab: Lab, count: int) -> None:
    def check(case: Case) -> None:
        start = {**TEXTS, "recipe.yaml": case.recipe}
        lab.set(start)
        result = lab.run(case.command, "--dump-config", "recipe.yaml", *_words(case.overrides))
        assert lab.files() == start
        if result.code or not result.out.startswith(b"name:"):
            assert result.code or result.out.startswith(b"Usage:")  # an override `--help`
            return
        _loads_again(lab, result.out)
        if case.command == "prepare" and _is_inside(lab.folder, result.out):
            _prepares(lab, case)

    explore("recipes", lab, count, cases, check)
    report("recipes", lab, count)


def _words(overrides: list[str]) -> list[str]:
    """Overrides that begin with a dash stand behind two of them."""
    return ["--", *overrides] if any(text.startswith("-") for text in overrides) else overrides


def _loads_again(lab: Lab, dump: bytes) -> None:
    (lab.folder / "dump.yaml").write_bytes(dump)
    again = lab.run("prepare", "dump.yaml", "--dump-config")
    assert again.code == 0, again.err
    assert again.out == dump
    (lab.folder / "dump.yaml").unlink()


def _is_inside(folder: Path, dump: bytes) -> bool:
    """Whether `prepare` would write into the folder only."""
    directory = Path(yaml.safe_load(dump)["data"]["directory"]).resolve()
    return folder.resolve() in directory.parents


def _prepares(lab: Lab, case: Case) -> None:
    before = lab.files()
    result = lab.run("prepare", "recipe.yaml", *_words(case.overrides))
    after = lab.files()
    new = changed(before, after)
    if result.code:
        assert not new, f"{new}\n{result.err}"
        return
    directory = Path(result.out.decode().rpartition("\n")[0].rpartition("\n")[2].rpartition(": written")[0])
    assert (directory / "manifest.json").is_file()
    outside = [
        name
        for name in new
        if directory not in (lab.folder / name).parents and (lab.folder / name) not in (directory, *directory.parents)
    ]
    assert not outside
