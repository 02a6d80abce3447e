"""Values that recipes and commands offer by name derive from the tables that define them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from sparsenmt.engine.build import DTYPES
from sparsenmt.errors import UserError
from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.recipe.choices import PRESETS, DecodingDtype
from sparsenmt.recipe.schema import Decoding, ModelSection, Validation
from sparsenmt.recipe.table_names import MetricName, TableName
from sparsenmt.strategy import STRATEGIES
from tests.recipe.support import load_text


def names_of(section: type[BaseModel], key: str) -> list[str]:
    (check,) = section.model_fields[key].metadata
    assert isinstance(check, TableName)
    return list(check.names())


def test_choices_are_those_of_the_tables() -> None:
    validation = names_of(Validation, "metric")
    assert validation == ["loss", *(name for name, metric in METRICS.items() if metric.validates), *TEXT_METRICS]
    assert "length" not in validation
    assert list(get_args(MetricName)[1].names()) == [*METRICS, *TEXT_METRICS] and "length" in METRICS
    assert names_of(Decoding, "method") == list(STRATEGIES)
    assert get_args(get_args(ModelSection.model_fields["preset"].annotation)[0]) == tuple(PRESETS)
    assert get_args(DecodingDtype) == ("auto", *DTYPES)


def test_mistakes_name_the_choices(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"must be one of loss, bleu, .*word_perplexity; not 'blue'\n  Did you mean `bleu`\?"
    ):
        load_text(tmp_path, "training: {validation: {metric: blue}}\n")
    with pytest.raises(UserError, match="must be one of beam, greedy, sample, speculative, early_exit; not 'viterbi'"):
        load_text(tmp_path, "decoding: {method: viterbi}\n")
    with pytest.raises(UserError, match="must be one of tiny, small, base, big; not 'huge'"):
        load_text(tmp_path, "model: {preset: huge}\n")
