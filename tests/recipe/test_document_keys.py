"""What recipes may say about documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from tests.recipe.support import load_text

HEAD = """\
name: test
directory: runs/test
data:
  directory: runs/data
  train:
    - {source: a.en, target: a.de, documents: a.id}
  dev: {source: d.en, target: d.de, documents: d.id}
"""


def test_what_is_taken(tmp_path: Path) -> None:
    data = load_text(tmp_path, head=f"{HEAD}  documents: {{}}\n").data
    assert data.documents is not None
    assert (data.documents.max_length, data.documents.source_length, data.documents.separator) == (512, None, "<sep>")
    assert data.train[0].documents == str(tmp_path / "a.id") and data.dev.documents == str(tmp_path / "d.id")
    text = f"{HEAD}training: {{validation: {{metric: dbleu}}}}\n"
    recipe = load_text(tmp_path, head=text)
    assert recipe.data.documents is None and recipe.training.validation.metric == "dbleu"


@pytest.mark.parametrize(
    ("data", "rest", "expected"),
    [
        ("{max_length: 1025}", "", "data.documents.max_length: blocks of 1025 tokens do not fit 1024 positions"),
        ("{}", "model: {max_positions: 500}", "data.documents: blocks of 512 tokens do not fit 500 positions"),
        ("{max_length: 0}", "", "data.documents.max_length: must be greater than 0, not 0"),
        ("{length: 5}", "", "data.documents.length"),
        ("{source_length: 513}", "", "data.documents.source_length: must be at most `max_length`, 512, not 513"),
        ('{separator: "a b"}', "", "data.documents.separator: 'a b' contains white space"),
        ('{separator: "</s>"}', "", "data.documents.separator: '</s>' is a special token"),
        ('{separator: ""}', "", "data.documents.separator: is empty"),
        (
            "{}\n  filters: {max_length: null, max_source_length: 510}",
            "",
            "data.filters.max_source_length: blocks of 512 tokens would be cut to 510",
        ),
        ('{separator: "<S>"}\n  tokenizer: {lowercase: true}', "", "'<S>' does not occur in lowercased text"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: str, rest: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, head=f"{HEAD}  documents: {data}\n{rest}\n")
    assert expected in str(caught.value)


def test_the_longest_block_that_fits(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, head=f"{HEAD}  documents: {{max_length: 600}}\nmodel: {{max_positions: 600}}\n")
    assert recipe.data.documents is not None and recipe.data.documents.max_length == 600
    filters = "filters: {max_length: null, max_source_length: 511}"
    recipe = load_text(tmp_path, head=f"{HEAD}  documents: {{}}\n  {filters}\n")
    assert recipe.data.filters.max_source_length == 511


def test_there_must_be_documents(tmp_path: Path) -> None:
    text = f"{HEAD}  documents: {{}}\n".replace(", documents: a.id", "")
    with pytest.raises(UserError, match=r"data\.documents: there is nothing to pack: no training corpus names"):
        load_text(tmp_path, head=text)
    text = f"{HEAD}training: {{validation: {{metric: dbleu}}}}\n".replace(", documents: d.id", "")
    with pytest.raises(UserError, match=r"validation\.metric: scores documents, but the documents"):
        load_text(tmp_path, head=text)
