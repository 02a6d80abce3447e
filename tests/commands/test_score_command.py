"""`sparsenmt score`: files in, table or JSON out, one clear message for a mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
import sacrebleu.significance

from sparsenmt.cli import run
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.decoding.forced_decoding import PairScore
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.recipe.schema import Decoding, Training
from sparsenmt.workflows.evaluation import score

HYPOTHESES = ["the cat sits on the mat", "a dog sees a red house and\u2028eats", "yes it is so"]
REFERENCES = ["the cat sat on the mat", "a dog sees the red house and\u2028eats", "yes it is so"]
WORSE = ["cat mat", "a house dog", "no it is so"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, lines in (
        ("hyp", HYPOTHESES),
        ("ref", REFERENCES),
        ("worse", WORSE),
        ("short", WORSE[:2]),
        ("empty", []),
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["score", "hyp", "--reference", "ref"]) == 0
    heads, *rows = capsys.readouterr().out.rstrip("\n").split("\n")
    assert heads.split() == ["metric", "score", "signature"]
    assert [row.split()[0] for row in rows] == ["BLEU", "chrF2", "TER"]
    assert rows[0].split()[1] == f"{sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score:.2f}"
    assert "|tok:13a|" in rows[0]


def test_json_with_all_options(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", "hyp", "-r", "ref", "-r", "worse", "-m", "bleu", "-m", "rougeL", "-m", "bleu", "--lowercase"]
    arguments += ["--tokenize", "intl", "--language", "de", "--baseline", "worse", "--resamples", "20", "--seed", "3"]
    assert run([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [score["name"] for score in content["scores"]] == ["bleu", "rougeL"]
    assert content["scores"][0]["signature"].startswith("nrefs:2|case:lc|eff:no|tok:intl|")
    assert "tok:unicode-words" in content["scores"][1]["signature"]
    assert [one["name"] for one in content["comparisons"]] == ["bleu", "rougeL"]
    assert (content["sentences"], content["resamples"], content["seed"]) == (3, 20, 3)


def test_a_baseline_that_is_the_system_does_not_differ(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["score", "hyp", "-r", "ref", "--baseline", "hyp", "-m", "chrf", "--resamples", "20"]) == 0
    out = capsys.readouterr().out.rstrip("\n").split("\n")
    assert out[-3].split()[-2:] == ["-", "1.0000"], "no interval of three lines"
    assert out[-2] == "paired bootstrap, 20 resamples, seed 12345"
    few = "with fewer than 30 segments (3): all exchanges of the two outputs of a segment, p at least 0.25 with 3"
    assert out[-1] == f"{few}; no interval"


def test_empty_lines_of_several_references_are_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """sacrebleu takes None for no reference, and an empty line for one."""
    Path("gaps").write_text("\n\nx\n")
    assert run(["score", "hyp", "-r", "ref", "-r", "gaps", "-m", "bleu", "--json"]) == 0
    captured = capsys.readouterr()
    assert "gaps: 2 empty lines count as references, as in sacrebleu\n" in captured.err
    theirs = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, ["", "", "x"]]).score
    assert json.loads(captured.out)["scores"][0]["value"] == theirs
    assert run(["score", "hyp", "-r", "gaps", "-m", "bleu"]) == 0
    assert "empty" not in capsys.readouterr().err


def test_one_line_has_no_p_value(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("one", "a cat"), ("other", "a dog"), ("right", "a cat")):
        Path(name).write_text(f"{text}\n")
    assert run(["score", "one", "-r", "right", "--baseline", "other"]) == 0
    out = capsys.readouterr().out.rstrip("\n").split("\n")
    assert out[-3].split()[-2:] == ["-", "-"]
    assert out[-1] == "with fewer than 30 segments (1): one segment has no p-value; no interval"
    assert run(["score", "one", "-r", "right", "--baseline", "other", "--json"]) == 0
    (found, *_) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["p_value"], found["difference"]["low"], found["segments"]) == (None, None, 1)


def test_the_test_and_sacrebleus_figure_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", "hyp", "-r", "ref", "--baseline", "worse", "--resamples", "40", "--significance"]
    assert run([*arguments, "randomization", "--sacrebleu-p", "-m", "bleu", "-m", "rouge1"]) == 0
    heads, bleu, rouge, note, _ = capsys.readouterr().out.rstrip("\n").split("\n")[-5:]
    assert heads.endswith("p-value  sacrebleu p") and note.startswith("paired approximate randomization, 40 resamples")
    theirs = sacrebleu.significance.PairedTest(
        [("worse", WORSE), ("hyp", HYPOTHESES)], {"BLEU": sacrebleu.BLEU()}, [REFERENCES], "ar", 40
    )()[1]["BLEU"][1]
    assert float(bleu.split()[-1]) == pytest.approx(theirs.p_value, abs=5e-5) and rouge.split()[-1] == "-"
    assert run([*arguments, "bootstrap", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["significance"] == "bootstrap" and content["comparisons"][0]["sacrebleu_p"] > 0
    assert run(["score", "hyp", "-r", "ref", "--sacrebleu-p"]) == 2
    assert "--sacrebleu-p: needs --baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["hyp", "-r", "short"], ["hyp has 3", "short has 2"]),
        (["hyp", "-r", "ref", "--baseline", "short"], ["hyp has 3", "short has 2"]),
        (["hyp", "-r", "missing"], ["missing"]),
        (["empty", "-r", "empty"], ["empty", "no lines"]),
        (["hyp", "-r", "ref", "--tokenize", "13b"], ["13b", "13a"]),
        (["hyp", "-r", "ref", "--metric", "blue"], ["blue"]),
        (["hyp"], ["reference"]),
        ([], ["nothing to score"]),
        (["hyp", "-r", "ref", "--source", "hyp"], ["--source: needs --model"]),
        (["hyp", "-r", "ref", "--target", "hyp"], ["--target: needs --model"]),
        (["hyp", "-r", "ref", "--batch-tokens", "9"], ["--batch-tokens: needs --model"]),
        (["hyp", "-r", "ref", "--segment-memory", "0"], ["--segment-memory: needs --text"]),
        (["hyp", "--alignments", "ref", "-m", "bleu"], ["--metric: has no meaning beside the alignments"]),
        (["--model", "m", "--reference", "ref"], ["--model: needs --source"]),
        (["--model", "m", "--source", "hyp"], ["either --target or --reference"]),
        (
            ["--model", "m", "--source", "hyp", "--target", "ref", "--reference", "ref"],
            ["either --target or --reference"],
        ),
        (
            ["--model", "m", "--source", "hyp", "--target", "ref", "--baseline", "hyp"],
            ["--baseline: needs --reference"],
        ),
        (["hyp", "--model", "m", "--source", "hyp", "--reference", "ref"], ["'hyp': is given"]),
        (["--model", "m", "--source", "hyp", "--target", "short"], ["hyp has 3", "short has 2"]),
        (["--model", "m", "--source", "hyp", "--reference", "short"], ["hyp has 3", "short has 2"]),
    ],
)
def test_mistakes_are_named(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], messages: list[str]
) -> None:
    assert run(["score", *arguments]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    for message in messages:
        assert message in captured.err


class FakeModel:
    """Stands in for the modules that the model modes call."""

    def __init__(self) -> None:
        self.decoding = Decoding(batch_tokens=512)
        self.bundle = SimpleNamespace(
            recipe=SimpleNamespace(
                data=SimpleNamespace(
                    source_language="en", target_language="de", documents=None, is_language_model=False, train=()
                ),
                decoding=self.decoding,
                training=Training(),
            ),
            tokenizers=SimpleNamespace(source=None, target=None, shared=True, language_names=()),
            features=FeatureSet({}),
            cuts_by_choice=False,
            long_lines=lambda options: "cut",
            text=None,
            model=SimpleNamespace(plan=DepthPlan((0, 1), (0, 1), (2,), (2,))),
        )
        self.batch_tokens = 512
        self.cut = 0
        self.sparsity: float | None = None

    def open_model(self, directory: str, *, disabled: object, device: object = None, languages: object) -> Any:
        assert directory == Path("model") and not disabled and languages == (None, None)
        return self.bundle

    def line(self, number: int) -> SourceLine:
        return SourceLine(number, HYPOTHESES[number], [5, 6, 3], self.cut if number == 1 else 0)

    def translate_lines(self, bundle: object, lines: list[InputLine], options: object) -> Iterator[Any]:
        assert bundle is self.bundle
        assert options == Decoding(batch_tokens=self.batch_tokens)
        for line in lines:
            closed = None if self.sparsity is None else self.sparsity * len(self.line(line.number).ids)
            yield SimpleNamespace(text=line.text.upper(), source=self.line(line.number), closed=closed)

    def read_sources(self, bundle: object, lines: list[InputLine], *, long: str = "cut") -> list[SourceLine]:
        return [self.line(line.number) for line in lines]

    def score_pairs(
        self, bundle: object, sources: list[InputLine], targets: list[str], *, batch_tokens: int, depth: None
    ) -> Iterator[PairScore]:
        assert bundle is self.bundle and depth is None
        assert (sources, targets, batch_tokens) == (input_lines(HYPOTHESES), REFERENCES, self.batch_tokens)
        for number in range(1, 4):
            values = [-1.0 * number, -0.5 * number]
            cut = self.cut if number == 3 else 0
            yield PairScore(-1.5 * number, values, ["▁ja", "</s>"], self.line(number - 1), cut)


@pytest.fixture
def fake_model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel()
    for function in ("open_model", "translate_lines", "read_sources", "score_pairs"):
        monkeypatch.setattr(score, function, getattr(fake, function))
    return fake


def test_a_model_on_a_test_set(files: Path, fake_model: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", "--model", "model", "--source", "hyp", "-r", "ref", "-m", "bleu", "-m", "rouge1", "--json"]
    assert run(arguments) == 0
    bleu, rouge = json.loads(capsys.readouterr().out)["scores"]
    assert bleu["value"] == sacrebleu.corpus_bleu([line.upper() for line in HYPOTHESES], [REFERENCES]).score
    assert "tok:unicode-words" in rouge["signature"], "the language is the model's"
    assert run([*arguments, "--language", "en"]) == 0
    assert "tok:rouge-score" in json.loads(capsys.readouterr().out)["scores"][1]["signature"]


def test_the_sparsity_of_a_model_with_a_filter_is_shown(
    files: Path, fake_model: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["score", "--model", "model", "--source", "hyp", "-r", "ref"]
    assert run(arguments) == 0
    assert "sparsity" not in capsys.readouterr().out, "what was not measured is not shown"
    fake_model.sparsity = 0.4666
    assert run(arguments) == 0
    assert "sparsity rate 46.7%" in capsys.readouterr().out
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sparsity"] == pytest.approx(0.4666)


def test_cut_lines_are_named(files: Path, fake_model: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    fake_model.cut = 9
    assert run(["score", "--model", "model", "--source", "hyp", "-r", "ref"]) == 0
    assert capsys.readouterr().err == "warning: hyp, line 2, is too long: 2 of 11 tokens are translated\n"
    assert run(["score", "--model", "model", "--source", "hyp", "--target", "ref"]) == 0
    assert capsys.readouterr().err.split("\n")[:2] == [
        "warning: hyp, line 2, is too long: 2 of 11 tokens are read",
        "warning: ref, line 3, is too long: 1 of 10 tokens are scored",
    ]


def test_batches_can_be_made_smaller(files: Path, fake_model: FakeModel) -> None:
    fake_model.batch_tokens = 64
    for mode in (["-r", "ref"], ["--target", "ref"]):
        assert run(["score", "--model", "model", "--source", "hyp", *mode, "--batch-tokens", "64"]) == 0


def test_forced_decoding(files: Path, fake_model: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["score", "--model", "model", "--source", "hyp", "--target", "ref"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.split("\n")[1] == "-3.0000\t▁ja:-2.0000 </s>:-1.0000"
    assert "3 sentences, 6 tokens, log-probability -9.0000, perplexity 4.4817" in captured.err  # exp(9 / 6)
    assert run([*arguments, "--json"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert [one["log_probability"] for one in objects] == [-1.5, -3.0, -4.5]
    assert objects[0]["tokens"] == [
        {"piece": "▁ja", "log_probability": -1.0},
        {"piece": "</s>", "log_probability": -0.5},
    ]
