"""The figures of a report on a Multi30k sweep of gates and a model of many depths are those of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.cli import run
from sparsenmt.report.page.document import read_document
from tests.report.figures import check_figures, tables

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = (
    "model.preset=tiny",
    "training.max_updates=150",
    "training.warmup_updates=50",
    "training.validation.every=150",
    "training.save_every=150",
    "training.average_last=0",
    "training.batch_tokens=256",
    "training.validation.max_sentences=20",
    "training.log_every=25",
)
GATES = (
    "model.preset=tiny",
    "--updates",
    "40",
    "model.memory.0.init_log_alpha=-1",
    "training.validation.every=40",
    "training.batch_tokens=256",
)
MOST_LINES = 60


@pytest.fixture(scope="module")
def models(make_once: Callable[[str, Callable[[Path], None]], Path], real_data: Path) -> Path:
    """A folder with a dense model, two with gates of different targets, one of four depths, and a text."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARSENMT_DATA", str(real_data))
            data = f"data.directory={folder / 'data'}"
            dense, tied = str(RECIPES / "multi30k-en-de.yaml"), str(RECIPES / "multi30k-tied-multi.yaml")
            assert run(["prepare", dense, data, *SHORT]) == 0
            assert run(["train", dense, f"directory={folder / 'dense'}", data, *SHORT]) == 0
            assert run(["train", tied, f"directory={folder / 'tied'}", data, *SHORT]) == 0
            gates = ["finetune-l0", str(folder / "dense"), str(RECIPES / "multi30k-l0drop.yaml"), "--target", "0.3,0.6"]
            assert run([*gates, *GATES, data, "-o", str(folder / "gates")]) == 0

    return make_once("report", make)


def test_figures_are_those_of_the_commands(
    models: Path, sentences: tuple[list[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for side, lines in zip(("en", "de"), sentences, strict=True):
        text = "".join(f"{line}\n" for line in lines[:MOST_LINES])
        Path(f"test.{side}").write_text(text, encoding="utf-8", newline="\n")
    gated = sorted(path.parent for path in (models / "gates").glob("target-*/weights.safetensors"))
    assert len(gated) == 2
    names = list(map(str, [models / "dense", *gated, models / "tied"]))
    options = ["--no-speed", "--depths", "--sentences", "20", "-o", "r.html", "--json", "r.json"]
    assert run(["report", *names, "--source", "test.en", "--reference", "test.de", *options]) == 0
    document = read_document(Path("r.json"))
    checked = check_figures(document, run)
    assert {"scores", "lengths", "sparsity", "pos", "position", "layers", "density", "roles", "depths"} <= set(checked)
    rows = tables(next(each for each in document.sections if each.name == "sparsity"))["sparsity"]
    closed = {row["model"]: row["sparsity"] for row in rows}
    assert len({closed[path.name] for path in gated}) == 2 and closed["dense"] is None
    assert Path("r.html").stat().st_size < 5_000_000
