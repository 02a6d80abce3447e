"""Keys of the mixture of corpora, of samples, tags, filters by text and subword regularization."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from tests.recipe.support import load_text

HEAD = """\
name: run
directory: run
data:
  directory: prepared
  train: [{name: web, source: a.en, target: a.de%s}, {name: news, source: b.en, target: b.de}]
  dev: {source: dev.en, target: dev.de%s}
%s"""


def load(folder: Path, corpus: str = "", dev: str = "", data: str = "") -> object:
    return load_text(folder, head=HEAD % (corpus, dev, f"  {data}\n" if data else ""))


def test_all_keys_together(tmp_path: Path) -> None:
    keys = (
        "temperature: 5\n  stages: [{after: 10, weights: {web: 0}}, {after: 20, weights: {a: 1}, temperature: 1}]\n"
        "  subword_regularization: {source: {dropout: 0.1}, target: {dropout: 0.2}}\n"
        "  filters: {same_text: true, max_repetition: 5, source_scripts: [latin], languages: true, duplicates: true}"
    )
    with pytest.raises(UserError, match=r"data\.stages\.1\.weights: there is no training corpus 'a'\n.*web, news"):
        load(tmp_path, ", tag: bt, lines: 10, lines_seed: 1", data=keys)
    load(tmp_path, ", tag: bt, lines: 10, lines_seed: 1", data=keys.replace("{a: 1}", "{news: 2}"))


@pytest.mark.parametrize(
    ("corpus", "dev", "data", "message"),
    [
        ("", ", lines: 3", "", "data.dev.lines: is a key of training corpora"),
        ("", ", tag: bt", "", "data.dev.tag: is a key of training corpora"),
        (", lines: 0", "", "", "data.train.0.lines: must be greater than 0"),
        (", lines_seed: 1", "", "", "data.train.0.lines_seed: there is no number of lines to draw"),
        (", tag: <bt>", "", "", "data.train.0.tag: '<bt>' has angle brackets"),
        (', tag: ""', "", "", "data.train.0.tag: is empty"),
        (', tag: "a b"', "", "", "data.train.0.tag: 'a b' contains white space"),
        (", tag: BT", "", "tokenizer: {lowercase: true}", "data.train.0.tag: 'BT' does not occur in lowercased"),
        (
            ", lines: 3, lines_seed: 1, documents: ids",
            "",
            "documents: {}",
            "data.train.0.lines_seed: a sample of lines would take documents apart",
        ),
        ("", "", "temperature: 0", "data.temperature: must be greater than 0"),
        (
            "",
            "",
            "stages: [{after: 5, weights: {}}, {after: 5, weights: {}}]",
            "the stage before begins after update 5",
        ),
        ("", "", "stages: [{after: 5, weights: {web: 0, news: 0}}]", "every corpus is left out"),
        ("", "", "stages: [{after: 5, weights: {web: -1}}]", "data.stages.0.weights.web: must be at least 0"),
        ("", "", "stages: [{weights: {}}]", "data.stages.0.after: this key is required"),
        ("", "", "filters: {source_scripts: [latn]}", "must be one of latin, cyrillic"),
        (
            "",
            "",
            "subword_regularization: {source: {alpha: 0.1}}",
            "data.subword_regularization.source.alpha: belongs to `kind: unigram`, not to bpe Write `dropout` for bpe,",
        ),
        (
            "",
            "",
            "tokenizer: {kind: char}\n  subword_regularization: {target: {dropout: 0.1}}",
            "data.subword_regularization.target.dropout: belongs to `kind: bpe`, not to char",
        ),
        ("", "", "subword_regularization: {source: {}}", "set either `dropout`, of BPE, or `alpha`, of unigram"),
        ("", "", "subword_regularization: {source: {dropout: 1}}", "source.dropout: must be less than 1"),
        ("", "", "subword_regularization: {source: {dropout: 0.1, nbest: 3}}", "`nbest` belongs to `alpha`"),
    ],
)
def test_one_message_names_the_key(tmp_path: Path, corpus: str, dev: str, data: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, corpus, dev, data)
    assert message in " ".join(str(caught.value).split()), str(caught.value)
