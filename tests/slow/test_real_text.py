"""The text of real books as bytes and as subwords: nothing is lost; streams read all but a remainder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsenmt.data.prepare.pipeline import prepare
from sparsenmt.data.prepared_data import PreparedText
from sparsenmt.data.streams import StreamPlan
from sparsenmt.data.text import read_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.recipe import schema

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "size"), [("byte", 260), ("bpe", 4000)])
def test_books(real_data: Path, tmp_path: Path, kind: str, size: int) -> None:
    folder = real_data / "charlm"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}: name a folder of corpora with charlm/ in SPARSENMT_DATA")
    path = folder / "books.valid.txt.gz"
    data = schema.Data(
        task="language_model",
        directory=str(tmp_path / "prepared"),
        train=[schema.Corpus(text=str(path))],
        dev=schema.Corpus(text=str(folder / "books.test.txt.gz")),
        tokenizer=schema.TokenizerSection(kind=kind, vocabulary_size=size, normalization="identity"),  # type: ignore[arg-type]
    )
    report = prepare(data, progress=False)
    assert report.dev.characters == 600_000 and report.corpora[0].unknown == 0
    prepared = PreparedText.open(data.directory)
    ids = prepared.train[0].ids
    lines = list(read_lines(path))
    ends = np.flatnonzero(ids == EOS)
    assert len(ends) == len(lines)
    split = [part[:-1].tolist() for part in np.split(ids, ends + 1)[:-1]]
    assert [prepared.tokenizer.decode(part) for part in split] == lines or kind == "bpe"
    plan = StreamPlan(prepared.train, prepared.train_weights, 22, 512, seed=1)
    vocabulary = prepared.tokenizer.size
    counts = np.zeros(vocabulary, dtype=np.int64)
    for segment in plan.batches(0):
        counts += np.bincount(segment.read()[1].flatten().numpy(), minlength=vocabulary)
    # Tokens that are left out are fewer than one segment of all streams.
    whole = np.bincount(ids, minlength=vocabulary)
    assert (counts <= whole).all() and 0 <= (whole - counts).sum() < 22 * 512
