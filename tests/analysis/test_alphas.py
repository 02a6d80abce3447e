"""Learned alphas, of a model and of its checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from sparsenmt.analysis.alphas import (
    BINS,
    AlphaResult,
    alphas_at,
    histogram,
    learned_alphas,
    logged_course,
    panels,
    report,
)
from sparsenmt.analysis.labels import Head
from sparsenmt.assemble.model_directory import METRICS_FILE
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES
from sparsenmt.model.transformer import Transformer
from sparsenmt.training.training_log import TrainingLog, head_values
from tests.analysis.attention_support import ADAPTIVE, attention_bundle
from tests.analysis.support import TinyBundle, gated_bundle


def adaptive(**attention: Any) -> TinyBundle:
    return gated_bundle([], attention=attention)


def alpha(raw: float) -> float:
    return 1.01 + 0.99 / (1 + math.exp(-raw))


def test_alphas_are_those_of_the_formula() -> None:
    bundle = attention_bundle("adaptive")
    weights = bundle.model.state_dict()
    found = learned_alphas(bundle.model)
    assert len(found) == 4 * (3 + 2 + 2)
    for (site, layer, head), value in found.items():
        side, key = (
            ("encoder", "self") if site == "encoder_self" else ("decoder", "cross" if site == "cross" else "self")
        )
        raw = float(weights[f"{side}.steps.{layer - 1}.{key}.transform.alpha"][head - 1])
        assert value == pytest.approx(alpha(raw), rel=1e-6)


def test_learned_heads_come_after_given_ones() -> None:
    bundle = adaptive(encoder_self={"heads": {"given": {"name": "toy_left"}}, **ADAPTIVE["encoder_self"]})
    found = learned_alphas(bundle.model)
    assert set(found) == {("encoder_self", layer, head) for layer in (1, 2, 3) for head in (3, 4)}


@pytest.mark.parametrize("tie", ["none", "layer", "site", "all"])
def test_those_of_a_checkpoint_leave_the_model_as_it_is(tie: str) -> None:
    sites = {site: {"transform": {"name": "entmax", "alpha": "learned", "tie": tie}} for site in SITES}
    bundle = adaptive(**sites)
    before, weights = learned_alphas(bundle.model), bundle.model.state_dict()
    other = {name: tensor.clone() for name, tensor in weights.items() if name.endswith(".transform.alpha")}
    for i, tensor in enumerate(other.values()):
        tensor.copy_(torch.linspace(-1, 1, tensor.numel()) + 0.1 * i)
    there = alphas_at(bundle.model, {**weights, **other}, "there")
    assert learned_alphas(bundle.model) == before and there != before and set(there) == set(before)
    bundle.model.load_state_dict({**weights, **other})
    assert learned_alphas(bundle.model) == there


def test_weights_of_another_model_are_refused() -> None:
    bundle = attention_bundle("adaptive")
    with pytest.raises(UserError, match=r"encoder\.steps\.0\.self\.transform\.alpha is missing"):
        alphas_at(bundle.model, {}, "there")
    weights = bundle.model.state_dict()
    name = "decoder.steps.1.cross.transform.alpha"
    with pytest.raises(UserError, match="another shape"):
        alphas_at(bundle.model, {**weights, name: torch.zeros(7)}, "there")
    assert torch.equal(bundle.model.state_dict()[name], weights[name])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_model_without_learned_alphas_has_none(kind: str) -> None:
    assert learned_alphas(attention_bundle(kind).model) == {}


def test_every_alpha_is_in_one_bin() -> None:
    counts = histogram([1.01, 1.049999, 1.05, 1.5, 1.999, 2.0, 0.5, 3.0])
    assert sum(counts) == 8 and (counts[0], counts[1], counts[10], counts[-1]) == (3, 1, 1, 3)
    assert len(counts) == BINS


def test_the_report_and_the_plot(tmp_path: Path) -> None:
    alphas = learned_alphas(attention_bundle("adaptive").model)
    later = {key: min(value + 0.1, 2.0) for key, value in alphas.items()}
    found = [AlphaResult("a", later, {10: alphas, 20: later}), AlphaResult("b", alphas, {})]
    sites, heads, bins, course = report(found).tables
    assert [row["heads"] for row in sites.records()] == [12, 8, 8] * 2
    assert len(heads.rows) == 56 and len(course.rows) == 56 and not course.listed
    assert sum(int(str(row["heads"])) for row in bins.records()) == 56
    assert {row["update"] for row in course.records()} == {10, 20}
    assert report(found).notes == (
        "a: checkpoints of 2 updates, 10 to 20",
        "b: the log has no alphas and there is no checkpoint, the course is not measured",
    )
    lines = panels(found)
    assert [len(line) for line in lines] == [3, 3]  # the second has no course
    assert list(lines[0][0].series) == ["a", "b"] and list(lines[1][0].series) == ["layer 1", "layer 2", "layer 3"]
    assert [y for _, y in lines[1][0].series["layer 1"]].count(None) == 4  # a line a head
    heads: list[Head] = [("encoder_self", 2, 4), ("decoder_self", 1, 1)]
    ((panel,),) = panels(found[:1], heads)
    assert panel.series == {
        f"{name}, layer {head[1]}, head {head[2]}": [(10.0, alphas[head]), (20.0, later[head])]
        for name, head in zip(("encoder self", "decoder self"), heads, strict=True)
    }


def test_the_course_is_that_of_the_log(tmp_path: Path) -> None:
    """Every line of updates has all alphas, by site, step and learned head; fixed heads count in a head's number."""
    bundle = adaptive(**{**ADAPTIVE, "encoder_self": {"heads": {"given": {"name": "toy_left"}}, **ADAPTIVE["cross"]}})
    model = cast(Transformer, bundle.model)
    log, expected = TrainingLog(tmp_path, total=3, initial=0), {}
    for update in (5, 10):
        for name, parameter in model.named_parameters():
            if name.endswith("transform.alpha"):
                parameter.data += 0.3 * update
        log.record("train", update, loss=1.0, **head_values(model))
        expected[update] = {head: round(value, 4) for head, value in learned_alphas(model).items()}
    log.record("validation", 10, loss=1.0)
    log.close()
    assert logged_course(model, tmp_path) == expected and expected[5] != expected[10]
    assert set(expected[5]) >= {("encoder_self", 3, 4), ("cross", 2, 1)} and ("cross", 3, 1) not in expected[5]
    kept = (tmp_path / METRICS_FILE).read_text()
    others = [[], {"alpha": 1}, {"alpha": {"cross": [[1.5]]}}, {"alpha": {"nowhere": [[1.5]]}}, {"alpha": {"cross": 5}}]
    entry = json.loads(kept.splitlines()[0])
    entry["heads"]["alpha"]["cross"][0][0] = None
    lines = [json.dumps({"kind": "train", "update": 15, "heads": heads}) for heads in (*others, entry["heads"])]
    (tmp_path / METRICS_FILE).write_text(kept + "\n".join(lines) + '\n{"kind": "train"}\n{"kind')
    assert logged_course(model, tmp_path) == expected
    assert logged_course(model, tmp_path / "absent") == {}


def test_models_without_learned_alphas_add_nothing_to_the_log() -> None:
    assert head_values(attention_bundle("sparse").model) == {}
