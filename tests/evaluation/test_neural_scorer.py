"""BERTScore and COMET: what their packages are given, what is made of it, and what is missing.

The packages are stand-ins: the first compares lengths, the second is a program that writes its scores to a file.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import corpus_scores, statistics
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.evaluation.utilities import Utility

BERT_SCORE = """
import torch
from types import SimpleNamespace
utils = SimpleNamespace(model2layers={"known": 5})
class BERTScorer:
    made = []
    def __init__(self, *, model_type, num_layers, device):
        self.made.append(model_type)
        self.given = model_type, num_layers, device
    def score(self, candidates, references):
        def best(one, several):
            return max(min(len(one), len(each)) / max(len(one), len(each), 1) for each in several)
        found = torch.tensor([best(*pair) for pair in zip(candidates, references)])
        return found, found, found
"""
COMET = """
import json, os, sys
open(os.environ["COMET_RUNS"], "a").write("x")
given = dict(zip(sys.argv[1:], sys.argv[2:]))
assert given["--model"].endswith("model.ckpt") and "--quiet" in sys.argv
read = lambda option: open(given[option], encoding="utf-8").read().split("\\n")[:-1]
both = zip(read("-s"), read("-t"), read("-r"), strict=True)
rows = [{"COMET": (len(t) + (t == r)) / (10 + len(s))} for s, t, r in both]
if any("fail" in line for line in read("-t")):
    sys.exit("the encoder is missing")
json.dump({"translations": rows}, open(given["--to_json"], "w"))
"""
HYPOTHESES, REFERENCES, SOURCES = ["ab", "abc"], ["abcd", "abc"], ["x", "yy"]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with both packages, which are installed, and models of both."""
    for name, text in {"bert_score.py": BERT_SCORE, "comet/cli/score.py": COMET, "comet/cli/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", newline="\n")
    (tmp_path / "comet/__init__.py").touch()
    for name in ("bert-score", "unbabel-comet"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
    (tmp_path / "known").mkdir()
    (tmp_path / "wmt-da/checkpoints").mkdir(parents=True)
    (tmp_path / "wmt-da/checkpoints/model.ckpt").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SPARSENMT_BERTSCORE", str(tmp_path / "known"))
    monkeypatch.setenv("SPARSENMT_COMET", str(tmp_path / "wmt-da/checkpoints/model.ckpt"))
    monkeypatch.setenv("COMET_RUNS", str(tmp_path / "runs"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "")
    return tmp_path


def test_bertscore(packages: Path) -> None:
    (score,) = corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(("bertscore",)))
    assert score.value == pytest.approx(100 * (2 / 4 + 1) / 2)
    assert score.signature == "nrefs:1|model:known|layer:5|idf:no|baseline:no|version:bert-score-1.2"
    (both,) = corpus_scores(HYPOTHESES, [REFERENCES, HYPOTHESES], ScoringSettings(("bertscore",)))
    assert both.value == pytest.approx(100) and os.environ["HF_HUB_OFFLINE"] == "1"


def test_comet(packages: Path) -> None:
    settings = ScoringSettings(("comet",), sources=SOURCES)
    (score,) = corpus_scores(HYPOTHESES, [REFERENCES], settings)
    assert score.value == pytest.approx(100 * (2 / 11 + 4 / 12) / 2)
    assert score.signature == "nrefs:1|model:wmt-da|version:unbabel-comet-1.2"
    (found,) = statistics(HYPOTHESES, [REFERENCES], settings)
    assert found.values.tolist() == [[pytest.approx(2 / 11), 1], [pytest.approx(4 / 12), 1]]


def test_a_model_is_loaded_once_for_the_same_texts(packages: Path) -> None:
    """Tests of differences compare what was scored before."""
    for metric in ("bertscore", "comet"):
        settings = ScoringSettings((metric,), sources=SOURCES)
        (score,) = corpus_scores(HYPOTHESES, [REFERENCES], settings)
        (found,) = statistics(HYPOTHESES, [REFERENCES], settings)
        assert score.value == pytest.approx(100 * found.values[:, 0].mean())
    made = importlib.import_module("bert_score").BERTScorer.made
    assert made.count(str(packages / "known")) == 1 and (packages / "runs").read_text() == "x"
    corpus_scores(REFERENCES, [REFERENCES], settings)
    assert (packages / "runs").read_text() == "xx"


def test_utilities_know_the_source(packages: Path) -> None:
    found = Utility("comet", "de").expected([["ab", "c"], ["a", "a"]], ["x", "yyyy"])
    assert found[0].tolist() == pytest.approx([100 * 2.5 / 11, 100 * 1.5 / 11])
    assert found[1].tolist() == pytest.approx([100 * 2 / 14] * 2)


def test_kept_scores_belong_to_a_model(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [ScoringOptions(("comet",)).key("comet")]
    monkeypatch.setenv("SPARSENMT_COMET", "another.ckpt")
    assert ScoringOptions(("comet",)).key("comet") not in keys


def test_what_is_missing(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(metric: str, sources: list[str] | None = SOURCES, references: int = 1, text: str = "ab") -> str:
        settings = ScoringSettings((metric,), sources=sources)
        with pytest.raises(UserError) as caught:
            corpus_scores([text, "abc"], [REFERENCES] * references, settings)
        return str(caught.value)

    assert "COMET needs the source" in refusal("comet", None)
    assert "COMET compares with one reference" in refusal("comet", references=2)
    assert "comet-score fails: the encoder is missing" in refusal("comet", text="fail")
    for metric, variable in (("comet", "SPARSENMT_COMET"), ("bertscore", "SPARSENMT_BERTSCORE")):
        monkeypatch.setenv(variable, str(packages / "comet"))
        assert "is no checkpoint" in refusal(metric) or "the layer of comet is not known" in refusal(metric)
        monkeypatch.setenv(variable, str(packages / "nothing"))
        assert "nothing is no" in refusal(metric)
        monkeypatch.delenv(variable)
        assert f"{variable}: " in refusal(metric)
    monkeypatch.setenv("SPARSENMT_BERTSCORE", f"{packages / 'comet'}:3")
    assert corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(("bertscore",)))[0].signature.count("layer:3")
    for folder in packages.glob("*.dist-info"):
        (folder / "METADATA").unlink()
        folder.rmdir()
    assert "the package bert-score is not installed" in refusal("bertscore")
