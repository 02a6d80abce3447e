"""`sparsenmt select-depth` and `decode --depth auto`: end to end, resumed, and refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding import kept_translations as kept
from sparsenmt.decoding import translate
from sparsenmt.depth_selector import hyperparameter_search
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.storage.tensors import load_tensors, save_tensors
from tests.commands.support import Run

SELECT = (
    *("select-depth", "deep", "-s", "corpus/train.en", "-r", "corpus/train.de", "--method", "greedy"),
    *(
        "--layers",
        "1",
        "--heads",
        "2",
        "--alpha",
        "0",
        "--lambda",
        "0.5,1",
        "--epochs",
        "1",
        "--time-lines",
        "2",
        "--lines",
        "120",
    ),
)
AUTO = ("decode", "deep", "-i", "corpus/test.en", "--method", "greedy", "--depth", "auto")
DEPTHS = [(1, 1), (2, 1), (1, 2), (2, 2)]


@pytest.fixture(scope="module")
def deep(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with deep/, a model of 2 x 2 exits with a selector. To be left as it is."""
    folder = tmp_path_factory.mktemp("deep")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    shape = ["model.encoder_layers=2", "model.decoder_layers=2", "model.depth.name=tied_multi"]
    try:
        assert run(["train", "small.yaml", "directory=deep", *shape]) == 0
        assert run([*SELECT]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workspace(deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of ``deep`` that a test may break."""
    folder = tmp_path / "work"
    shutil.copytree(deep, folder)
    monkeypatch.chdir(folder)
    return folder


def report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "deep/selector/report.json").read_bytes())["tables"])


def chosen(lines: list[str]) -> list[tuple[int, int] | None]:
    """The depths that ``decode --json`` tells."""
    found = [json.loads(line) for line in lines]
    return [(each["encoder_layers"], each["decoder_layers"]) if "encoder_layers" in each else None for each in found]


def test_the_report_tells_of_every_depth(command: Run, workspace: Path) -> None:
    systems = report(workspace)["systems"]
    fixed = [(each["encoder_layers"], each["decoder_layers"]) for each in systems[:-2]]
    assert fixed == DEPTHS
    assert [each["system"] for each in systems] == ["fixed depth"] * 3 + ["full depth", "selector", "oracle"]
    assert systems[-1]["sentence_chrf"] == max(each["sentence_chrf"] for each in systems), "nothing beats the oracle"
    assert all(each["seconds_alone"] > 0 and each["seconds_grouped"] > 0 for each in systems)
    assert systems[3]["alone_of_full"] == systems[3]["grouped_of_full"] == 1
    depths = report(workspace)["depths"]
    for name in ("selector", "oracle"):
        assert sum(each[name] for each in depths) == pytest.approx(1)
    assert sum(each["among_the_best"] for each in depths) >= 1
    trials = report(workspace)["search"]
    assert [each["lambda"] for each in sorted(trials, key=lambda each: each["lambda"])] == [0.5, 1]
    assert trials[0]["loss"] <= trials[1]["loss"]


def test_again_there_is_nothing_left_to_do(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenmt.depth_selector.hyperparameter_search.train_classifier", None)
    monkeypatch.setattr("sparsenmt.workflows.decoding.select_depth.time_depths", None)
    monkeypatch.setattr("sparsenmt.decoding.kept_translations.translate_lines", None)
    again = command(*SELECT)
    assert again.code == 0 and "nothing is left to do" in again.err
    assert again.out == (workspace / "deep/selector/report.txt").read_bytes()
    assert not list((workspace / "deep").glob(".selector*"))


def test_other_cells_do_not_translate_again(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenmt.decoding.kept_translations.translate_lines", None)
    result = command(*SELECT, "--lambda", "0.25")
    assert result.code == 0, result.err
    assert "of 4 depths are the best, on average\n" in result.err
    assert [each["lambda"] for each in report(workspace)["search"]] == [0.25]


@pytest.mark.thorough
def test_sizes_with_and_without_fine_tuning(command: Run, workspace: Path) -> None:
    """The paper's Table 2. The selector is the fine-tuned classifier of the size that the search chose."""
    tuning = ("--finetune-source", "tune.en", "--finetune-reference", "tune.de")
    for language in ("en", "de"):
        lines = (workspace / f"corpus/train.{language}").read_bytes().splitlines(keepends=True)
        (workspace / f"tune.{language}").write_bytes(b"".join(lines[-110:]))
    result = command(*SELECT, *tuning, "--layers", "1,2", "--lambda", "1")
    assert result.code == 0, result.err
    rows = report(workspace)["classifiers"]
    names = [(each["classifier"], each["fine_tuned"]) for each in rows]
    sizes = {1: "1 layer, 2 heads", 2: "2 layers, 2 heads"}
    chosen, other = (sizes[each["layers"]] for each in report(workspace)["search"])
    assert names[:2] == [("full depth", None), ("oracle", None)]
    assert names[2:] == [(chosen, "yes"), (other, "yes"), (chosen, "no"), (other, "no")]
    systems = {each["system"]: each for each in report(workspace)["systems"]}
    for row, name in ((0, "full depth"), (1, "oracle"), (2, "selector")):
        for key in ("seconds_alone", "bleu", "chrf", "sentence_chrf"):
            assert rows[row][key] == systems[name][key]
        assert rows[row]["of_full"] == systems[name]["alone_of_full"]
    assert all(0 <= each["among_the_best"] <= 1 and 0 <= each["undecided"] <= 1 for each in rows[2:])
    record = json.loads((workspace / "deep/selector/selector.json").read_bytes())
    assert sizes[record["cell"]["layers"]] == chosen and record["sentences"]["fine_tuning"] == 110
    assert "nothing is left to do" in command(*SELECT, *tuning, "--layers", "1,2", "--lambda", "1").err
    assert command(*AUTO).code == 0


def test_fixed_depths_are_scored_as_decode_and_score_do(command: Run, workspace: Path) -> None:
    arguments = [*SELECT, "--lambda", "1", "--test-source", "corpus/test.en", "--test-reference", "corpus/test.de"]
    assert command(*arguments).code == 0
    for each in report(workspace)["systems"][1:2]:
        depth = ["--encoder-layers", str(each["encoder_layers"]), "--decoder-layers", str(each["decoder_layers"])]
        assert command(*AUTO[:-2], *depth, "-o", "fixed").code == 0
        (score,) = json.loads(command("score", "fixed", "-r", "corpus/test.de", "-m", "chrf", "--json").out)["scores"]
        assert each["chrf"] == pytest.approx(score["value"])


def choose_all(folder: Path) -> None:
    """Give the selector other weights, so that it chooses several depths for corpus/test.en."""
    import torch

    from sparsenmt.data.tokenizers.tokenizer import Tokenizers
    from sparsenmt.depth_selector.classifier import DepthClassifier
    from sparsenmt.storage.files import read_sealed, write_sealed

    path, generator = folder / "deep/selector/weights.safetensors", torch.Generator().manual_seed(3)
    weights = load_tensors(path, hint="")
    weights["embeddings"] = torch.randn(weights["embeddings"].shape, generator=generator)
    weights["embeddings"][-1] = 0
    weights["output.weight"] = 8 * torch.randn(4, 32, generator=generator)
    classifier = DepthClassifier(weights["embeddings"][:-1], depths=4, layers=1, heads=2).eval()
    classifier.load_state_dict(weights)
    lines = (folder / "corpus/test.en").read_text(encoding="utf-8").splitlines()
    source = Tokenizers.load(folder / "deep/tokenizers").source
    with torch.no_grad():
        weights["output.bias"] -= classifier.read([[*source.encode(line), EOS] for line in lines]).mean(0)
    record = folder / "deep/selector/selector.json"
    write_sealed(record, {**read_sealed(record), "weights": save_tensors(path, weights)})


def test_every_line_is_decoded_at_its_depth(command: Run, workspace: Path) -> None:
    choose_all(workspace)
    result = command(*AUTO, "--json")
    assert result.code == 0, result.err
    depths = chosen(result.lines)
    assert len(set(depths)) >= 3, "the test must see several depths"
    tell = ", ".join(f"({n}, {m}) {depths.count((n, m))}" for n, m in DEPTHS if (n, m) in depths)
    assert f"lines at (encoder, decoder) layers: {tell}\n" in result.err
    assert chosen(command(*AUTO, "--json", "--window", "3").lines) == depths
    lines = (workspace / "corpus/test.en").read_bytes().split(b"\n")[:-1]
    texts = [json.loads(line)["hypotheses"][0]["text"] for line in result.lines]
    for n, m in DEPTHS:
        members = [i for i, depth in enumerate(depths) if depth == (n, m)]
        text = b"".join(lines[i] + b"\n" for i in members)
        fixed = ("--encoder-layers", str(n), "--decoder-layers", str(m))
        alone = command("decode", "deep", "--method", "greedy", *fixed, stdin=text)
        assert alone.lines == [texts[i] for i in members]


def test_an_aligned_line_is_read_at_its_depth(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    choose_all(workspace)
    wanted = (*AUTO, "--alignments", "hard")
    message = refused(*wanted, "--alignment-head", "2")
    assert "--alignment-head: decoder layer 2 does not exist or does not run: the last one is 1" in message
    plain = command(*AUTO).lines
    for head in ((), ("--alignment-head", "1")):
        result = command(*wanted, *head)
        assert result.code == 0, result.err
        assert [line.partition(" ||| ")[0] for line in result.lines] == plain


def test_lines_without_words_have_no_depth(command: Run) -> None:
    result = command("decode", "deep", "--depth", "auto", "--json", stdin=b"\nthe old house\n  \n")
    assert [json.loads(line)["hypotheses"][0]["text"] for line in result.lines][::2] == ["", ""]
    assert [depth is None for depth in chosen(result.lines)] == [True, False, True]


def test_decoding_goes_on(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_all(workspace)
    arguments = [*AUTO, "--window", "4"]
    assert command(*arguments, "-o", "whole").code == 0
    search = translate.encoded_batch

    def stopped(bundle: Any, memory: Any, numbers: Any, batch: Any, *rest: Any) -> Any:
        if any(each.number == 9 for each in batch):
            raise Interrupted(signal.SIGINT)
        return search(bundle, memory, numbers, batch, *rest)

    monkeypatch.setattr(translate, "encoded_batch", stopped)
    assert command(*arguments, "-o", "out").code == 130
    monkeypatch.setattr(translate, "encoded_batch", search)
    result = command(*arguments, "-o", "out")
    assert result.code == 0 and "out: resumes after line 8" in result.err
    assert (workspace / "out").read_bytes() == (workspace / "whole").read_bytes()


@pytest.mark.parametrize(
    ("place", "name", "number"), [(kept, "translate_lines", 2), (hyperparameter_search, "train_classifier", 1)]
)
def test_selecting_goes_on(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, number: int
) -> None:
    whole = (workspace / "deep/selector/weights.safetensors").read_bytes()
    for folder in ("selector", "depths"):
        shutil.rmtree(workspace / "deep" / folder)
    real, calls = getattr(place, name), []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number + 1:
            raise Interrupted(signal.SIGINT)
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, counting)
    stopped = command(*SELECT)
    assert stopped.code == 130 and "the completed steps are kept" in stopped.err
    assert "Resume with: sparsenmt select-depth deep" in stopped.err
    assert not (workspace / "deep/selector").exists()
    result = command(*SELECT)
    assert result.code == 0, result.err
    assert len(calls) == 1 + {"translate_lines": len(DEPTHS), "train_classifier": 2}[name], (
        "what was done is not done again"
    )
    assert (workspace / "deep/selector/weights.safetensors").read_bytes() == whole
    assert not list((workspace / "deep").glob(".selector*"))


Refused = Callable[..., str]


def test_a_model_with_one_depth_is_refused(refused: Refused) -> None:
    message = refused("select-depth", "model", *SELECT[2:])
    assert "model: the model has one exit on each side: there is no depth to choose\n" in message
    assert "model/selector: the model has no depth selector\n" in refused("decode", "model", *AUTO[2:])


def test_the_selector_of_another_model_is_refused(refused: Refused, workspace: Path) -> None:
    weights = workspace / "deep/weights.safetensors"
    tensors = load_tensors(weights, hint="")
    save_tensors(weights, {name: 1.01 * tensor for name, tensor in tensors.items()})
    assert "deep/selector: the selector was trained for another model\n" in refused(*AUTO)
    shutil.copytree(workspace / "deep/selector", workspace / "model/selector")
    assert "model/selector: the selector was trained for another model\n" in refused("decode", "model", *AUTO[2:])


@pytest.mark.parametrize("name", ["weights.safetensors", "selector.json"])
def test_a_damaged_selector_is_refused(refused: Refused, workspace: Path, name: str) -> None:
    path = workspace / "deep/selector" / name
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    assert f"deep/selector/{name}: " in refused(*AUTO)


def test_weights_of_another_selector_are_refused(refused: Refused, workspace: Path) -> None:
    path = workspace / "deep/selector/weights.safetensors"
    weights = load_tensors(path, hint="")
    save_tensors(path, {name: 2 * tensor for name, tensor in weights.items()})
    assert "deep/selector: the weights do not match selector.json\n" in refused(*AUTO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*AUTO, "--encoder-layers", "1"), "--encoder-layers: is given beside --depth\n"),
        ((*AUTO, "--decoder-layers", "2"), "--decoder-layers: is given beside --depth\n"),
        ((*AUTO, "--documents", "corpus/test.en"), "--documents: is given beside --depth, and a selector chooses"),
        ((*SELECT, "--layers", "17"), "--layers: a classifier of 17 layers is too deep: the most is 16\n"),
        ((*SELECT, "--heads", "3"), "--heads: 3 heads do not divide the model's dimension, 32\n"),
        ((*SELECT, "--heads", "1.5"), "--heads: '1.5' is not a list of whole numbers from 1 to 1,000\n"),
        ((*SELECT, "--lambda", "0,2"), "--lambda: '0,2' is not a list of numbers from 0 to 1\n"),
        ((*SELECT, "--alpha", "x"), "--alpha: 'x' is not a list of numbers from 0 to 1e+06\n"),
        ((*SELECT, "--beta", "nan"), "--beta: 'nan' is not a list of numbers from 0 to 1e+06\n"),
        ((*SELECT, "--lines", "99"), "corpus/train.en: too little text: 99 sentences with a reference"),
        ((*SELECT, "--test-source", "corpus/test.en"), "--test-reference: is missing beside --test-source\n"),
        ((*SELECT, "--finetune-reference", "corpus/test.de"), "--finetune-source: is missing beside --finetune-ref"),
        (
            (*SELECT, "--finetune-source", "corpus/test.en", "--finetune-reference", "corpus/test.de"),
            "corpus/test.en: too little text: ",
        ),
        ((*SELECT, "-r", "corpus/test.de"), "line-aligned files have different numbers of lines"),
        ((*SELECT, "-s", "nothing"), "nothing: no such file\n"),
    ],
)
def test_mistakes(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)
