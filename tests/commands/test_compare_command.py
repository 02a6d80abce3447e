"""`sparsenmt compare`: what was measured is kept with the models; the table, the plot, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.decoding import translate as translating
from sparsenmt.decoding.decoding_time import DecodingTime
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.evaluation.significance import PairedTest, compare
from sparsenmt.recipe.choices import SignificanceMethod
from sparsenmt.storage.files import read_sealed, sha256_text, write_sealed
from sparsenmt.workflows.evaluation import compare as comparing
from sparsenmt.workflows.evaluation import evaluate as evaluating
from sparsenmt.workflows.evaluation.compare import CompareRequest, ModelComparison
from sparsenmt.workflows.evaluation.evaluate import Evaluation, SiteAttention, translate_in_batches, translate_text
from sparsenmt.workflows.evaluation.experiment import Experiment
from sparsenmt.workflows.evaluation.reference_texts import TestText, given_text
from tests.commands.support import Run, python

TEST = ["--source", "corpus/test.en", "--reference", "corpus/test.de"]


@pytest.fixture
def models(command: Run, workspace: Path) -> list[str]:
    """Three models: one at its end, two of its checkpoints."""
    for name, update in (("early", "6"), ("middle", "8")):
        assert command("average", "model", "--update", update, "-o", name).code == 0
    return ["model", "early", "middle"]


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = evaluating._new_evaluation

    def noting(bundle: object, *, directory: Path, **rest: object) -> object:
        found.append(directory.name)
        return real(bundle, directory=directory, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluating, "_new_evaluation", noting)
    return found


def test_the_table(command: Run, models: list[str]) -> None:
    files = ["--json", "out.json", "--csv", "out.csv", "--plot", "out.svg"]
    result = command("compare", *models, *TEST, "--speed-lines", "3", "--rounds", "2", *files)
    assert result.code == 0, result.err
    report = json.loads(Path("out.json").read_text())
    rows = {row["model"]: row for row in report["tables"]["models"]}
    assert list(rows) == models
    for name, row in rows.items():
        scored = command("score", "--model", name, *TEST, "--json", "-m", "bleu", "-m", "chrf")
        assert [row["bleu"], row["chrf"]] == [each["value"] for each in json.loads(scored.out)["scores"]]
        assert row["decoding"] > 0 and row["sparsity"] is None and row["density"] == 1
        assert row["decoding"] >= row["decoding_median"] and row["spread"] >= 0 and "training_deviation" in row
        assert row["speed"] in ([None] if name == "model" else ["equal", "faster", "slower"])
    assert rows["model"]["decoding_ratio"] == 1 and rows["model"]["p_value"] is None
    tests = {(row["model"], row["metric"]): row for row in report["tables"]["significance"]}
    assert {name for name, _ in tests} == {"early", "middle"}
    outputs = [command("decode", name, "--input", "corpus/test.en").lines for name in ("early", "model")]
    references = [line for line in Path("corpus/test.de").read_text().split("\n") if line]
    (expected,) = compare(*outputs, [references], ScoringSettings(["chrf"]))
    found = tests["early", "chrF2"]
    assert (found["difference"], found["p_value"]) == (expected.difference.value, expected.p_value)
    sites = {row["site"]: row for row in report["tables"]["attention"] if row["model"] == "early"}
    assert set(sites) == {"encoder self", "decoder self", "cross"}
    assert sites["cross"]["attended"] == sites["cross"]["visible"] == pytest.approx(27.5, abs=3)
    assert Path("out.svg").read_text().startswith("<?xml")
    assert Path("out.csv").read_text().split("\n")[0].startswith("model,bleu,chrf,difference,p_value,parameters")
    assert result.lines[0] == "test: 20 sentences"


def test_batches_of_a_number_of_sentences_are_timed(
    command: Run, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []
    real = translating.encode_ahead

    def noting(model: object, batches: list[list[int]], lengths: list[int], *rest: object, **more: object) -> object:
        sizes.append([len(batch) for batch in batches])
        return real(model, batches, lengths, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(translating, "encode_ahead", noting)
    arguments = ["compare", "model", "--no-attention", *TEST, "--speed-lines", "10", "--rounds", "1"]
    assert command(*arguments).code == 0
    assert command(*arguments, "--batch-sentences", "4").code == 0
    # All lines are translated and kept; four lines warm up, and ten are timed: at once, then four at a time.
    assert sizes == [[20], [4], [10], [4], [4], [4], [2]]
    text = given_text(Path(TEST[1]), Path(TEST[3]), None, None)
    assert text is not None
    bundle = open_model(Path("model"))
    found = translate_in_batches(bundle, text, 10, 4)
    lengths = [len(each.source.text) for each in found]
    assert lengths == sorted(lengths)
    lines, _ = translate_text(bundle, text, text.read()[0][:10])
    assert [each.text for each in sorted(found, key=lambda each: each.source.number)] == lines


def test_another_model_is_added_without_translating_again(
    command: Run, models: list[str], translated: list[str]
) -> None:
    base = ["--no-speed", "--no-attention", *TEST]
    assert command("compare", *models[:2], *base).code == 0
    first = command("compare", *models, *base)
    assert first.code == 0 and translated == models
    assert command("compare", *models, *base).out == first.out and translated == models
    assert command("compare", *models, "--no-speed", *TEST, "-m", "ter").code == 0  # another metric, and attention
    assert translated == models
    other = Path("corpus/other.de")
    other.write_bytes(Path("corpus/test.de").read_bytes().replace(b"e", b"a"))
    assert command("compare", "model", "--no-speed", *TEST[:3], str(other)).code == 0
    assert translated == [*models, "model"]
    shutil.copy("early/weights.safetensors", "middle/weights.safetensors")
    again = command("compare", *models, *base)
    assert translated == [*models, "model", "middle"]
    assert again.lines[4].split()[1:] == again.lines[5].split()[1:], "two models with the same weights"


def test_a_damaged_file_is_measured_again(command: Run, models: list[str], translated: list[str]) -> None:
    arguments = ["compare", "model", "--no-speed", "--no-attention", *TEST]
    first = command(*arguments)
    (kept,) = Path("model/evaluation").glob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b'"sparsity": null', b'"sparsity": 0.55'))
    assert command(*arguments).out == first.out and translated == ["model", "model"]


def test_the_recipes_text_and_a_baseline(command: Run, models: list[str]) -> None:
    result = command("compare", "early", "middle", "--set", "dev", "--no-speed", "--baseline", "model", "-m", "chrf")
    assert result.code == 0, result.err
    assert result.lines[0] == "dev: 20 sentences"
    assert [line.split()[0] for line in result.lines[3:6]] == ["model", "early", "middle"]
    assert "against model" in result.lines
    named = command("compare", "early", "middle", "--set", "dev", "--no-speed", "--baseline", "middle", "-m", "chrf")
    assert "against middle" in named.lines and "early " in named.lines[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none: there is no such model directory"),
        (["model", "model"], "model: the model is named twice"),
        (["model"], "model: the model's recipe has no `data.test`"),
        (["model", "--source", "corpus/test.en"], "--source: needs --reference"),
        (["model", "--reference", "corpus/test.en"], "--reference: needs --source"),
        (["model", "--tags", "x", "--set", "dev"], "--tags: needs --source"),
        (["model", *TEST[:3], "none.de"], "none.de: no such file"),
        (["model", *TEST[:3], "corpus/train.de"], "different numbers of lines"),
        (["model", *TEST, "--plot", "x.pdf"], "x.pdf: a plot is written as PNG or SVG"),
        (["model", *TEST, "--csv", "corpus/test.en"], "--csv names a file that another option names"),
        (["model", *TEST, "--json", "model/recipe.yaml"], "recipe.yaml: --json names a part of the model in"),
        (["model", *TEST, "--csv", "model/tokenizers/x.csv"], "x.csv: --csv names a part of the model in"),
        (["model", *TEST, "--json", "r", "--csv", ".r.partial"], "--json needs the temporary name .r.partial"),
        (["model", *TEST, "--csv", "r", "--json", ".r.partial"], "--csv needs the temporary name .r.partial"),
        (["model", *TEST, "-m", "dbleu"], "d-BLEU needs to know where documents end"),
    ],
)
def test_bad_input(refused: Callable[..., str], arguments: list[str], message: str) -> None:
    assert message in refused("compare", *arguments)


def test_a_source_under_the_temporary_name_of_a_report_is_kept(
    command: Run, workspace: Path, refused: Callable[..., str]
) -> None:
    source = workspace / ".report.json.partial"
    shutil.copy(TEST[1], source)
    arguments = ["compare", "model", "--no-speed", "--source", source.name, *TEST[2:], "--json"]
    message = f"report.json: --json needs the temporary name {source.name}, which another option names"
    assert message in refused(*arguments, "report.json")
    assert source.read_bytes() == Path(TEST[1]).read_bytes()
    assert command(*arguments, "model/report.json").code == 0


def test_recipes_with_other_texts_are_refused(command: Run, models: list[str], refused: Callable[..., str]) -> None:
    changed = "data.dev={source: corpus/test.en, target: corpus/test.de}"
    assert command("prepare", "small.yaml", changed, "data.directory=others").code == 0
    assert command("train", "small.yaml", changed, "data.directory=others", "directory=other").code == 0
    message = refused("compare", "model", "other", "--set", "dev", "--no-speed")
    assert "other: `data.dev` of its recipe differs from that of model" in message


def test_results_that_an_older_version_kept_are_used(command: Run, models: list[str], translated: list[str]) -> None:
    """Its key names weights, model section, decoding options and text; newer keys name the model's files, too."""
    arguments = ["compare", "model", "--no-speed", "--no-attention", *TEST]
    first = command(*arguments)
    (kept,) = Path("model/evaluation").glob("*.json")
    content = read_sealed(kept)
    assert "long" not in content["key"]["decoding"], "no line is long: how long ones are read does not matter"
    old = {name: content["key"][name] for name in ("format", "weights", "model", "decoding", "text")}
    write_sealed(kept, {**content, "key": old})
    assert command(*arguments).out == first.out and translated == ["model"]
    write_sealed(kept, {**content, "key": {**old, "weights": "0" * 64}})
    assert command(*arguments).out == first.out and translated == ["model", "model"]
    write_sealed(kept, {**content, "key": {**content["key"], "max_source_length": 3}})
    assert command(*arguments).out == first.out and translated == ["model"] * 3


def test_results_of_lines_that_an_older_version_cut_are_made_again(
    command: Run, workspace: Path, translated: list[str]
) -> None:
    lines = {side: Path(f"corpus/test.{side}").read_text().splitlines() for side in ("en", "de")}
    for side, own in lines.items():
        Path(f"long.{side}").write_text("\n".join([own[0], " ".join(own)]) + "\n")
    arguments = ["compare", "model", "--no-speed", "--no-attention", "--source", "long.en", "--reference", "long.de"]
    first = command(*arguments)
    assert command(*arguments).out == first.out and translated == ["model"]
    (kept,) = Path("model/evaluation").glob("*.json")
    content = read_sealed(kept)
    assert content["key"]["decoding"].pop("long") == "split"
    write_sealed(kept, {**content, "lines": ["cut"] * 2})
    assert command(*arguments).out == first.out and translated == ["model"] * 2


MEASURER = """
import sys
from pathlib import Path
from sparsenmt.storage.files import make_directories
from sparsenmt.workflows.evaluation.evaluate import Evaluation

name = sys.argv[1]
found = Evaluation(path=Path("evaluation/test.json"), key=KEY, lines=["a"], parameters=1, sparsity=None)
for i in range(40):
    found.scores = {f"{name}{i}": 1.0}
    found.save()
"""


@pytest.mark.thorough
def test_processes_that_measure_at_once_keep_the_results_of_both(tmp_path: Path) -> None:
    key = dict.fromkeys(("format", "weights", "model", "decoding", "text"), 1)
    code = MEASURER.replace("KEY", repr(key))
    processes = [python("-c", code, name, cwd=tmp_path) for name in "xy"]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    scores = read_sealed(tmp_path / "evaluation/test.json")["scores"]
    assert set(scores) == {f"{name}{i}" for name in "xy" for i in range(40)}


def test_scores_of_an_earlier_version_are_made_again(command: Run, models: list[str]) -> None:
    """Its markers had spaces around them; what a filter had dropped counted as attended."""
    text = given_text(Path(TEST[1]), Path(TEST[3]), None, None)
    assert text is not None
    first = evaluating.evaluate(Path("model"), text, ScoringOptions(("rouge1",)))
    signature, score = first.signatures["rouge1"], first.scores["rouge1"]
    first.signatures["rouge1"] = signature.replace("|split:markers-or-punct|", "|split:n-marker-or-punct|")
    first.scores["rouge1"] = -1
    assert first.signatures["rouge1"] != signature
    first.save()
    again = evaluating.evaluate(Path("model"), text, ScoringOptions(("rouge1",)))
    assert (again.signatures["rouge1"], again.scores["rouge1"]) == (signature, score) and again.attention is not None
    assert type(again).read(first.path, {**first.key, "attended": "kept positions"}).attention is None  # type: ignore


Seeds = Callable[[bool, bool], ModelComparison]
"""Makes the comparison of models of several seeds, or of one; with tests and speeds, or without."""


@pytest.fixture
def of_seeds(models: list[str], monkeypatch: pytest.MonkeyPatch) -> Seeds:
    """The comparison of three seeds of two models that were measured on one text."""
    tested = {"difference": -0.3, "low": -0.5, "high": -0.1, "p_value": 0.01, "segments": 60}
    monkeypatch.setattr(Evaluation, "against", lambda *_: tested)
    recipe = read_recipe(Path("model"))
    other = recipe.model_copy(update={"decoding": recipe.decoding.model_copy(update={"beam_size": 7})})
    scores = {"dense": (39.5, 39.2, 40.2), "sparse": (39.2, 38.9, 39.8)}
    text, scoring = TestText("test", Path("a"), Path("b")), ScoringOptions(("bleu",), unspaced=False)

    def made(several: bool, measured: bool) -> ModelComparison:
        found, recipes, speeds = {}, {}, {}
        for (name, values), own in zip(scores.items(), (recipe, other), strict=True):
            for seed, value in enumerate(values):
                label, training = f"{name}-{seed}", own.training.model_copy(update={"seed": seed})
                recipes[label] = own.model_copy(update={"name": label, "training": training}) if several else recipe
                found[label] = Evaluation(
                    path=Path(label),
                    key={"text": "one" if measured else label},
                    lines=[""],
                    parameters=1,
                    sparsity=None,
                    scores={"bleu": value},
                    signatures={"bleu": ""},
                )
                speeds[label] = DecodingTime((0.1, 0.2), list[TranslatedLine]())
        places, request = {label: Path(label) for label in recipes}, CompareRequest((Path("model"),))
        experiment = Experiment(comparing._experiment_models(places, recipes, "dense-0"), scoring)
        return ModelComparison(request, experiment, text, "dense-0", found, speeds if measured else {})

    return made


def test_models_that_differ_in_their_seed_are_tested_by_seed(of_seeds: Seeds) -> None:
    report = of_seeds(True, False).report()
    rows = {row["variant"]: row for row in next(each for each in report.tables if each.name == "seeds").records()}
    assert list(rows) == ["dense-0", "sparse-0"] and rows["dense-0"]["seeds"] == 3
    assert rows["sparse-0"]["within_scatter"] == "yes" and rows["sparse-0"]["p_of_seeds"] < 0.02
    assert rows["sparse-0"]["difference"] == pytest.approx(-1 / 3)
    assert any("paired t-test of the differences of the same seed" in note for note in report.notes)
    one = of_seeds(False, False).report()  # checkpoints of one training
    assert all(each.name != "seeds" for each in one.tables)


def test_the_plot_of_several_seeds_has_the_intervals_of_the_tests(of_seeds: Seeds) -> None:
    (diagram,) = of_seeds(True, True)._panels("bleu")
    intervals = {name: ends for name, (ends,) in diagram.intervals.items()}
    assert intervals.pop("dense-0") is None and len(intervals) == 5
    assert all(ends == pytest.approx((39.0, 39.4)) for ends in intervals.values())
    assert diagram.level == ("BLEU of dense-0", 39.5)


def test_kept_tests_are_those_of_one_formula_and_method(tmp_path: Path) -> None:
    """Files of older versions hold p-values of a one-sided formula, by metric and translations alone."""
    key = dict.fromkeys(("format", "weights", "model", "decoding", "text"), 1)
    lines = ["a b c d e", "f g h i j", "k l m n o"] * 12
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    text = TestText("test", tmp_path / "text", tmp_path / "text")
    worse = [line[:5] for line in lines[:9]] + lines[9:]
    other = Evaluation(path=tmp_path / "other.json", key=key, lines=worse, parameters=1, sparsity=None)
    own = Evaluation(path=tmp_path / "own.json", key=key, lines=lines, parameters=1, sparsity=None)
    old = {f"chrf {sha256_text(chr(10).join(other.lines))[:16]}": {"difference": 0.0, "p_value": 0.0}}
    own.tests = dict(old)
    bootstrap = own.against(other, "chrf", text, "en")
    other_way = own.against(other, "chrf", text, "en", test=PairedTest("randomization"))
    assert 0 < bootstrap["p_value"] != other_way["p_value"] > 0 and bootstrap["difference"] > 0
    assert len(own.tests) == 3 and own.against(other, "chrf", text, "en") == bootstrap
    written = read_sealed(own.path)["tests"]
    assert all(name in own.tests for name in written)


def test_the_test_is_chosen_and_named(command: Run, models: list[str]) -> None:
    arguments = ["compare", *models[:2], *TEST, "--no-speed", "--no-attention", "-m", "chrf", "--json", "out.json"]
    found = {}
    for method in get_args(SignificanceMethod):
        result = command(*arguments, "--significance", method, "--resamples", "50", "--sacrebleu-p")
        assert result.code == 0, result.err
        assert (
            "paired approximate randomization, 50 resamples; no interval" in result.out.decode()
            and "sacrebleu p" in result.out.decode()
        )
        report = json.loads(Path("out.json").read_text())
        (row,) = report["tables"]["significance"]
        assert report["settings"]["significance"] == method and 0 < row["sacrebleu_p"] <= 1
        found[method] = row["p_value"]
    (kept,) = (read_sealed(path)["tests"] for path in Path(models[1], "evaluation").glob("*.json"))
    tests = {key.split()[-1]: test["p_value"] for key, test in kept.items()}
    assert tests == {PairedTest(method, 50).identity: value for method, value in found.items()}


def test_results_of_another_process_are_kept(tmp_path: Path) -> None:
    """Two processes read the same file, and each adds something; other translations replace all of it."""
    key = dict.fromkeys(("format", "weights", "model", "decoding", "text"), 1)
    path = tmp_path / "evaluation/test.json"
    common = {"path": path, "key": key, "parameters": 1, "sparsity": None}
    first, second = (Evaluation(**common, lines=["a"], scores={"bleu": 1.0}) for _ in range(2))
    first.attention = {"cross": SiteAttention(1.0, 2.0, 0.5, 3)}
    first.tests = {"bleu 1": {"p_value": 0.1}}
    first.save()
    second.scores["chrf"], second.signatures["chrf"] = 2.0, "x"
    second.save()
    kept = read_sealed(path)
    assert kept["scores"] == {"bleu": 1.0, "chrf": 2.0} and kept["signatures"] == {"chrf": "x"}
    assert kept["tests"] == first.tests and kept["attention"]["cross"]["queries"] == 3
    assert second.scores == kept["scores"]
    Evaluation(**common, lines=["b"], scores={"ter": 3.0}).save()
    assert read_sealed(path)["scores"] == {"ter": 3.0}
