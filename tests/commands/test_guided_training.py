"""Training with word alignments beside the text: prepared links, the log, the head of `decode`, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sparsenmt
from sparsenmt.data.batching import EpochPlan, collate
from sparsenmt.data.prepared_data import PreparedData
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from tests.commands.support import Run

GUIDED = ("training.guided_alignment.layer=1", "training.guided_alignment.head=2")


@pytest.fixture
def recipe(workspace: Path) -> Path:
    """Links of the words at the same place, in a recipe of its own."""
    sides = (Path(f"corpus/train.{code}").read_text().splitlines() for code in ("en", "de"))
    sizes = [(len(a.split()), len(b.split())) for a, b in zip(*sides, strict=True)]
    lines = [" ".join(f"{i}-{i}" for i in range(min(pair))) for pair in sizes]
    Path("corpus/train.align").write_text("".join(f"{line}\n" for line in lines))
    text = Path("small.yaml").read_text().replace("directory: model", "directory: aligned")
    text = text.replace("directory: prepared", "directory: prepared-aligned")
    text = text.replace("target: corpus/train.de}", "target: corpus/train.de, alignments: corpus/train.align}")
    Path("aligned.yaml").write_text(text)
    return Path("aligned.yaml")


def word_of_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """-1: a space alone."""
    return [len(text[:end].split()) - 1 if text[a:end].strip() else -1 for a, end in tokenizer.spans(text)]


def test_prepared_links_are_those_of_the_words(command: Run, recipe: Path) -> None:
    assert command("prepare", recipe).code == 0
    data = PreparedData.open("prepared-aligned")
    (dataset,) = data.train
    source, target = (Path(f"corpus/train.{code}").read_text().splitlines() for code in ("en", "de"))
    for index, line in enumerate(dataset.line_numbers.tolist()):
        places = word_of_tokens(data.tokenizers.source, source[line])
        others = word_of_tokens(data.tokenizers.target, target[line])
        expected = {(t, s) for t, j in enumerate(others) for s, i in enumerate(places) if i == j >= 0}
        assert set(map(tuple, dataset.links(index).tolist())) == expected
    batch = collate(data.train, EpochPlan(data.train, [1.0], 300, 1).batches(0)[0], links=True)
    assert batch.links is not None
    for row, index in enumerate(batch.indices):
        own = batch.links[1:, batch.links[0] == row].T
        assert np.array_equal(own.numpy(), dataset.links(index))
    plain = PreparedData.open("prepared")
    assert not plain.train[0].is_aligned and not len(plain.train[0].links(0))
    for name in ("source", "target", "lines"):
        ours, theirs = (Path(f"{folder}/train-0/{name}.bin") for folder in ("prepared-aligned", "prepared"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_guided_run_logs_its_loss_resumes_exactly_and_aligns_by_its_head(command: Run, recipe: Path) -> None:
    assert command("prepare", recipe).code == 0
    usual = (*GUIDED, "training.log_every=2", "training.guided_alignment.weight=1")
    assert command("train", recipe, *usual).code == 0
    log = [json.loads(line) for line in Path("aligned/metrics.jsonl").read_text().splitlines()]
    values = [each["guided_alignment"] for each in log if each["kind"] == "train"]
    assert len(values) == 6 and all(0 < value < 10 for value in values)
    assert command("train", recipe, *usual, "directory=parts", "training.max_updates=8").code == 0
    assert command("train", recipe, *usual, "directory=parts").code == 0
    models = [sparsenmt.load(name, device="cpu").bundle for name in ("aligned", "parts")]
    assert models[0].weights_digest == models[1].weights_digest
    wanted = ("decode", "aligned", "-i", "corpus/test.en", "--alignments", "hard")
    assert command(*wanted).out == command(*wanted, "--alignment-head", "1.2").out
    assert command(*wanted).out != command(*wanted, "--alignment-head", "1.1").out


def test_what_cannot_be_guided_is_refused(command: Run, refused: Callable[..., str], recipe: Path) -> None:
    message = refused("train", "small.yaml", *GUIDED)
    assert "no training corpus has alignments" in message
    assert "layer 2 of cross-attention cannot be guided: there are 1" in refused(
        "prepare", recipe, "training.guided_alignment.layer=2"
    )
    assert "head 3 of cross-attention cannot be guided" in refused(
        "prepare", recipe, GUIDED[0], "training.guided_alignment.head=3"
    )
    assert "only training pairs have alignments" in refused("prepare", recipe, "data.dev.alignments=corpus/train.align")
    path = Path("corpus/train.align")
    whole = path.read_text()
    path.write_text(whole.replace("0-0", "0-99", 1))
    assert "train.align, line 1: '0-99' is no pair of places" in refused("prepare", recipe)
    path.write_text(whole + "0-0\n")
    assert "lines" in refused("prepare", recipe)
    path.unlink()
    assert "no such file" in refused("prepare", recipe)
