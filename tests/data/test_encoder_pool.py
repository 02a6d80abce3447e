"""Several processes encode a corpus: the data are those of one process, and a process that dies is reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.prepare.encoder_pool import BlockEncoder, NumberedPairs, encoder_pool
from sparsenmt.data.prepare.pipeline import prepare
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.data.test_prepare import files

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]


@pytest.mark.thorough
def test_the_same_data_from_any_number_of_processes(
    make_data: MakeData, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two corpora of several blocks, of which the filters remove and cut pairs; then a process is killed."""
    monkeypatch.setattr("sparsenmt.data.text._BATCH_LINES", 23)
    corpora = [(lines(150), lines(150, seed=1)), ([*lines(80, seed=4), ""], [*lines(80, seed=5), "a"])]
    filters = {"max_length": 30, "max_source_length": 20}
    data = make_data(corpora, tokenizer={"kind": "bpe", "vocabulary_size": 60}, filters=filters)
    found = []
    for number, processes in enumerate((None, 1, 2)):
        own = data.model_copy(update={"directory": str(tmp_path / f"prepared-{number}")})
        report = prepare(own, progress=False, processes=processes)
        assert report.corpora[0].counts.kept > 0 and report.corpora[1].counts.removed["empty"] == 1
        found.append(files(own.directory))
    assert found[0] == found[1] == found[2]

    folder = tmp_path / "prepared-0" / "tokenizers"
    encoder = BlockEncoder(Tokenizers.load(folder), data.filters, keeps_all=False)
    with encoder_pool(folder, data.filters, 2) as pool, pytest.raises(UserError, match="has ended: it was killed") as e:
        for block in pool.blocks((NumberedPairs([0], (["a b"], ["c d"])) for _ in range(1000)), encoder):
            assert block.counts.read == 1
            for process in list(pool._executor._processes.values()):  # type: ignore[union-attr]
                os.kill(process.pid, signal.SIGKILL)
    assert e.value.resumable
