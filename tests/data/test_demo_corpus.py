"""The demo corpus: the same bytes everywhere, one translation a source, gold tags."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sparsenmt.data.demo_corpus import DemoCorpus, write_demo_corpus
from sparsenmt.data.text import read_lines
from sparsenmt.errors import UserError

# Of the sizes in `corpus`. They change when the shipped sentences change: then the figures of the demo change too.
GOLDEN = {
    "train.en": "338a97ff019dbf043c832b8a7ff6a9b8528ee5fe835aee51da2d5fd7517b49ec",
    "train.de": "6b5c3b30970924b361c4ea7317b17349cf322ada5fc067975f29326b801effea",
    "train.tags": "4cf9363ffa52f986ba5824aac5c7fba91f0f1cd9211c1bbd28873ca66df4905c",
    "dev.en": "8eb33289147ce412ea6be8a83f7b42801f502ac785994476d812d27e16de7390",
    "dev.de": "25d39f75f17b71d18efa27da485ac1acd33c1456590271cacce32f6f1e3340ff",
    "dev.tags": "a160aa8f2fb2e9930826988769ed32fdfbc46fd0f3098aebf4c679ed24a20f6c",
    "test.en": "b8b999fd64b0a7118598cccddaf225b77ce4455c47c3175c8b68bd26242cd7e3",
    "test.de": "6bf5c6f8fa754916d3c3bf5ce55da94cf44d6af964f93fcfd2ce309120bd0c72",
    "test.tags": "0b028168f73ce6ca6a0a64cfa52eb8e9ea501369fd376e488c92cace0a56ecbd",
}
PENN = {
    *("CC", "CD", "DT", "EX", "IN", "JJ", "JJR", "MD", "NN", "NNS", "NNP", "POS", "PRP", "PRP$", "RB", "RBR", "TO"),
    *("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP", "WRB", ".", ","),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DemoCorpus:
    return write_demo_corpus(tmp_path_factory.mktemp("demo"), train=2000, dev=100, test=100)


def lines(path: Path) -> list[str]:
    return list(read_lines(path))


def test_bytes_are_the_same_on_every_machine(corpus: DemoCorpus) -> None:
    files = [
        file for split in (corpus.train, corpus.dev, corpus.test) for file in (split.source, split.target, split.tags)
    ]
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == GOLDEN


def test_dev_and_test_do_not_depend_on_the_size_of_train(corpus: DemoCorpus, tmp_path: Path) -> None:
    other = write_demo_corpus(tmp_path, train=10, dev=100, test=100)
    assert other.dev.source.read_bytes() == corpus.dev.source.read_bytes()
    assert other.test.target.read_bytes() == corpus.test.target.read_bytes()


def test_sizes_and_no_source_twice(corpus: DemoCorpus) -> None:
    splits = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    for split, size in zip(splits.values(), (2000, 100, 100), strict=True):
        assert len(lines(split.source)) == len(lines(split.target)) == len(lines(split.tags)) == size
    sources = [line for split in splits.values() for line in lines(split.source)]
    assert len(set(sources)) == len(sources)


def test_tags_are_penns_and_spell_the_raw_text(corpus: DemoCorpus) -> None:
    for split in (corpus.train, corpus.test):
        for source, tagged in zip(lines(split.source), lines(split.tags), strict=True):
            tokens, tags = zip(*(item.rsplit("_", 1) for item in tagged.split(" ")), strict=True)
            assert "".join(tokens) == source.replace(" ", "")
            assert set(tags) <= PENN


def test_the_corpus_has_what_it_is_for(corpus: DemoCorpus) -> None:
    source, target = " ".join(lines(corpus.train.source)), " ".join(lines(corpus.train.target))
    for text in ("?", "Mr. ", "n't ", "cannot ", "who ", "because ", " than ", " euros"):
        assert text in source
    for text in (", weil ", ", dass ", " kein", " nicht", "Herrn ", " zum ", "und" + "zwanzig", ", der ", " Euro"):
        assert text in target
    seen = {word for word in target.split() if len(word) > 5}
    new = [word for line in lines(corpus.test.target) for word in line.split() if len(word) > 5 and word not in seen]
    assert new, "the test set holds words that only their pieces can spell"


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_an_empty_split_is_refused(tmp_path: Path, split: str) -> None:
    sizes = {"train": 5, "dev": 5, "test": 5, split: 0}
    with pytest.raises(UserError, match=split):
        write_demo_corpus(tmp_path, **sizes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_splits_share_12600_sentences(tmp_path: Path, split: str) -> None:
    sizes = {"train": 1, "dev": 1, "test": 1, split: 12_598}
    found = write_demo_corpus(tmp_path / "all", **sizes)
    assert len(lines(getattr(found, split).source)) == 12_598
    sizes[split] += 1
    with pytest.raises(UserError, match="has 12,600 sentences, not 12,601"):
        write_demo_corpus(tmp_path / "more", **sizes)
    assert not (tmp_path / "more").exists()


def test_the_default_corpus(tmp_path: Path) -> None:
    write_demo_corpus(tmp_path)
    content = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert hashlib.sha256(content).hexdigest() == "0e398422e35fc74f462cd66a84095c8ffa6bb01687356cb5955d45cd118bb2f8"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_demo_corpus(tmp_path / "file" / "demo", train=1, dev=1, test=1)
