"""`sparsenmt depth-table`: all depths of a model, and of separate models; translations are kept; refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.assemble.model_directory import WEIGHTS
from sparsenmt.cli import run
from sparsenmt.commands.options import whole_numbers
from sparsenmt.decoding import translate
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.storage.tensors import load_tensors, save_tensors
from tests.analysis.test_plots import check_picture
from tests.commands.support import Diagram, Run

TIED = """\
base: small.yaml
name: tied
directory: tied
model: {encoder_layers: 2, decoder_layers: 2, depth: {name: tied_multi}}
data: {test: {source: corpus/test.en, target: corpus/test.de}}
training: {max_updates: 4, validation: {every: 4}}
"""
DEPTHS = [(1, 1), (2, 1), (1, 2), (2, 2)]
TABLE = ("depth-table", "tied", "-o", "out", "--no-speed", "--threads", "1")


@pytest.fixture(scope="module")
def tied(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four depths."""
    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    (folder / "tied.yaml").write_text(TIED, encoding="utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["train", "tied.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def model(tied: Path, workspace: Path) -> Path:
    shutil.copytree(tied / "tied", workspace / "tied")
    shutil.copy(tied / "tied.yaml", workspace)
    return workspace


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, int] | None]]:
    """Method and depth of every search."""
    found = []
    encode = translate.encoded_batch

    def noting(bundle: Any, memory: Any, numbers: Any, lines: Any, options: Any) -> Any:
        found.append((options.method, options.depth))
        return encode(bundle, memory, numbers, lines, options)

    monkeypatch.setattr(translate, "encoded_batch", noting)
    return found


def cells(path: str = "out/table.json") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(path).read_bytes())["tables"]["cells"]
    return found


def test_every_depth_beside_models_cut_to_it(command: Run, model: Path, drawn: dict[str, list[Diagram]]) -> None:
    for n, m in DEPTHS:
        assert command("slice", "tied", f"cut/{n}{m}", "-n", str(n), "-m", str(m)).code == 0
    result = command(*TABLE, "--grid", "cut", "--beam-size", "1,2")
    assert result.code == 0, result.err
    found = cells()
    names = ("bleu", "chrf", "oracle_sentences")
    blocks = {
        (system, search): [
            (cell["encoder_layers"], cell["decoder_layers"], *(cell[name] for name in names))
            for cell in found
            if (cell["system"], cell["search"]) == (system, search)
        ]
        for system in ("tied", "separate models")
        for search in ("greedy", "beam 2")
    }
    for search in ("greedy", "beam 2"):
        assert [row[:2] for row in blocks["tied", search]] == DEPTHS
        assert blocks["tied", search] == blocks["separate models", search]
        assert sum(row[-1] for row in blocks["tied", search]) == 20
    (cell,) = (
        each for each in found if each["model"] == "tied" and each["search"] == "beam 2" and _depth(each) == (2, 1)
    )
    decoded = command("decode", "tied", "-i", "corpus/test.en", "--encoder-layers", "2", "--decoder-layers", "1")
    assert Path(cell["translations"]).read_bytes() == decoded.out
    Path("decoded").write_bytes(decoded.out)
    scored = command("score", "decoded", "-r", "corpus/test.de", "--json", "-m", "bleu", "-m", "chrf")
    assert [cell["bleu"], cell["chrf"]] == [each["value"] for each in json.loads(scored.out)["scores"]]
    assert result.lines[0] == "BLEU, test, 20 sentences" and "separate models" in result.out.decode()
    assert Path("out/table.txt").read_bytes() == result.out
    check_picture(Path("out/table.png"))
    maps = {each.title: each for each in drawn["table.png"]}
    assert len(maps) == len(drawn["table.png"]) == 4 * 3
    for (system, search), block in blocks.items():
        values = maps[f"{system}, {search}\nchrF2"]
        assert (values.x_label, values.y_label) == ("decoder layers m", "encoder layers n")
        assert values.cells == [f"{row[3]:.1f}" for row in sorted(block)]
    assert (
        Path("out/table.csv").read_text().startswith("system,search,encoder_layers,decoder_layers,bleu,chrf,relative")
    )


def _depth(cell: dict[str, Any]) -> tuple[int, int]:
    return cell["encoder_layers"], cell["decoder_layers"]


def test_it_goes_on_where_it_stopped(
    command: Run, model: Path, searches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noting = translate.encoded_batch

    def stopping(bundle: Any, memory: Any, numbers: Any, lines: Any, options: Any) -> Any:
        if options.depth == (1, 2):
            monkeypatch.setattr(translate, "encoded_batch", noting)
            raise Interrupted(signal.SIGINT)
        return noting(bundle, memory, numbers, lines, options)

    monkeypatch.setattr(translate, "encoded_batch", stopping)
    stopped = command(*TABLE)
    assert stopped.code == 130 and stopped.err.endswith(
        f"\ninterrupted; the depths that were translated are kept\n  Resume with: sparsenmt {' '.join(TABLE)}\n"
    )
    assert {depth for _, depth in searches} == {(1, 1), (2, 1)}
    searches.clear()
    first = command(*TABLE)
    assert first.code == 0 and {depth for _, depth in searches} == {(1, 2), (2, 2)}
    searches.clear()
    assert command(*TABLE).out == first.out and not searches
    assert command(*TABLE, "--beam-size", "1").code == 0 and {method for method, _ in searches} == {"greedy"}
    searches.clear()
    weights = load_tensors(Path("tied") / WEIGHTS, hint="")
    save_tensors(Path("tied") / WEIGHTS, {name: tensor * 1.5 for name, tensor in weights.items()})
    assert command(*TABLE).code == 0 and {depth for _, depth in searches} == set(DEPTHS)


def test_some_depths_with_time(command: Run, model: Path) -> None:
    options = ("--encoder-layers", "2", "--decoder-layers", "1-2", "--speed-lines", "3", "--rounds", "1")
    result = command("depth-table", "tied", *options, "--plot", "drawn.svg")
    assert result.code == 0, result.err
    found = cells("tied-depths/table.json")
    assert [_depth(cell) for cell in found] == [(2, 1), (2, 2)]
    assert found[1]["relative_time"] == 1 and found[0]["relative_time"] == found[0]["seconds"] / found[1]["seconds"]
    assert "1 is tied, beam 2 at 2+2: " in result.out.decode() and " s for 3 lines" in result.out.decode()
    tables = json.loads(Path("tied-depths/table.json").read_bytes())["tables"]
    assert tables["blocks"][0]["oracle_time"] > 0
    log = [json.loads(line) for line in Path("tied/metrics.jsonl").read_text().splitlines()]
    assert tables["systems"][0]["training_seconds"] == max(line["training_seconds"] for line in log)
    assert Path("drawn.svg").read_text().startswith("<?xml") and not Path("tied-depths/table.png").exists()


def test_depths_that_were_not_trained_are_warned_of(command: Run, model: Path) -> None:
    text = ("--source", "corpus/test.en", "--reference", "corpus/test.de", "--no-speed")
    result = command("depth-table", "model", *text)
    assert result.code == 0 and "warning: model: has one depth only" in result.err
    assert [_depth(cell) for cell in cells("model-depths/table.json")] == [(1, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["depth-table"], "MODEL_DIR: there is no model"),
        (["depth-table", "prepared"], "prepared: this is not a model directory"),
        (["depth-table", "--grid", "corpus"], "corpus: is no model directory, and holds none"),
        ([*TABLE, "--decoder-layers", "2,3"], "tied, --decoder-layers 3: the decoder has 2 layers: 3 cannot run"),
        ([*TABLE, "--encoder-layers", "0"], "--encoder-layers: '0' is not a list of whole numbers from 1 to 1,000"),
        ([*TABLE, "--beam-size", "4-2"], "--beam-size: '4-2' is not a list of whole numbers"),
        ([*TABLE, "--plot", "x.pdf"], "x.pdf: a plot is written as PNG or SVG"),
        ([*TABLE, "-o", "small.yaml"], "small.yaml: this is a file"),
        ([*TABLE, "--source", "corpus/test.en"], "--source: needs --reference"),
        (
            [
                *TABLE,
                "--source",
                "corpus/test.en",
                "--reference",
                "corpus/dev.en",
                "--grid",
                "model",
                "--grid",
                "model",
            ],
            "model: the model is named twice",
        ),
        ([*TABLE, "--grid", "model"], "model: the model's recipe has no `data.test`"),
    ],
)
def test_refusals(model: Path, refused: Callable[..., str], arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_one_model_a_depth(model: Path, command: Run, refused: Callable[..., str]) -> None:
    shutil.copytree("model", "grid/a")
    shutil.copytree("model", "grid/b")
    text = ("--source", "corpus/test.en", "--reference", "corpus/test.de")
    assert "grid/b: grid/a has 1 encoder and 1 decoder layers too" in refused("depth-table", "--grid", "grid", *text)
    message = refused("depth-table", "--grid", "grid/a", "--encoder-layers", "2", *text)
    assert "--grid: none of its models has a requested depth" in message


def test_separate_models_of_two_kinds(command: Run, model: Path) -> None:
    """A second directory with the same depths is a system of its own; other depths join the first."""
    for folder, depths in {"cut": DEPTHS[:2], "more": DEPTHS[2:], "twice": DEPTHS}.items():
        for n, m in depths:
            assert command("slice", "tied", f"{folder}/{n}{m}", "-n", str(n), "-m", str(m)).code == 0
    result = command(*TABLE, "--grid", "cut", "--grid", "more", "--grid", "twice")
    assert result.code == 0, result.err
    tables = json.loads(Path("out/table.json").read_bytes())["tables"]
    names = ["tied", "separate models", "separate models, twice"]
    assert [row["system"] for row in tables["systems"]] == names
    assert [row["models"] for row in tables["systems"]] == [1, 4, 4]
    weights = [load_tensors(path, hint="") for path in sorted(Path("twice").glob(f"*/{WEIGHTS}"))]
    assert tables["systems"][2]["parameters"] == sum(each.numel() for tensors in weights for each in tensors.values())
    assert tables["systems"][1]["training_seconds"] is None, "cut models have no log"
    assert [row["oracle_chrf"] for row in tables["blocks"]] == [tables["blocks"][0]["oracle_chrf"]] * 3


def test_lists_of_numbers() -> None:
    assert whole_numbers("1-3, 6,2", "x", ranges=True) == [1, 2, 3, 6]
    for bad in ("", "a", "3-1", "1,,2", "0-2", "1-9999", "-1", "1.5"):
        with pytest.raises(UserError):
            whole_numbers(bad, "x", ranges=True)
