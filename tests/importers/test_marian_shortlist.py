"""Marian's lexical shortlists are imported with the model, and decide which tokens come out."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import SPECIAL_TOKENS
from sparsenmt.errors import UserError
from sparsenmt.importers.marian import read as read_marian
from sparsenmt.importers.marian_shortlist import read_marian_shortlist
from sparsenmt.importers.marian_vocabularies import read_vocabulary
from sparsenmt.workflows.conversion.import_model import import_model
from tests.importers.marian_twin import SENTENCES, Twin, vocabulary
from tests.importers.test_marian import translated

FIRST, BEST = 4, 2


def hashed(numbers: Sequence[int]) -> int:
    """Marian's checksum, which is boost's `hash_combine` of numbers of 64 bits."""
    found = 0
    for number in numbers:
        found = (found ^ (number + 0x9E3779B9 + (found << 6) + (found >> 2))) % (1 << 64)
    return found


def write_binary(path: Path, lists: Sequence[Sequence[int]]) -> Path:
    begins = np.cumsum([0, *map(len, lists)]).astype("<u8").tobytes()
    tokens = np.array([id_ for each in lists for id_ in each], "<u4").tobytes()
    tokens += b"\0" * (-len(tokens) % 8)
    body = struct.pack("<4Q", FIRST, BEST, len(lists) + 1, len(tokens) // 4) + begins + tokens
    sums = hashed([number for (number,) in struct.iter_unpack("<Q", body)])
    path.write_bytes(struct.pack("<2Q", 0xF11A48D5013417F5, sums) + body)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model of Marian with a shortlist: two tokens by the number of each source token."""
    folder = tmp_path / "source"
    folder.mkdir()
    size = vocabulary(folder).get_piece_size()
    Twin.of(size).write_npz(folder / "model.npz")
    write_binary(folder / "lex.bin", lists_of(size))
    names = {"models": ["model.npz"], "vocabs": ["vocab.spm"] * 2, "shortlist": ["lex.bin", False]}
    (folder / "decoder.yml").write_text(yaml.safe_dump({**names, "beam-size": 1}), encoding="utf-8")
    return folder


def lists_of(size: int) -> list[list[int]]:
    lists = [sorted({(5 * id_) % size, (5 * id_ + 7) % size}) for id_ in range(size)]
    if sum(map(len, lists)) % 2:
        lists[0] = lists[0][:1]
    return lists


def names_of(ids: Sequence[int], folder: Path) -> set[str]:
    target = read_vocabulary(folder / "vocab.spm", "target").tokenizer
    return set(target.pieces(list(ids)))


def test_each_sentence_uses_the_tokens_that_marian_gives_it(source: Path, tmp_path: Path) -> None:
    import_model(source, tmp_path / "model", languages=("en", "pt"))
    bundle = open_model(tmp_path / "model")
    assert bundle.recipe.decoding.shortlist == "model"
    shortlist = bundle.shortlist(bundle.recipe.decoding)
    assert shortlist is not None
    processor = vocabulary(tmp_path)
    lists = lists_of(processor.get_piece_size())
    for sentence, found in zip(SENTENCES, translated(bundle, SENTENCES), strict=True):
        allowed = shortlist.allowed([found.source.ids])[0].nonzero().squeeze(1).tolist()
        theirs = {id_ for word in (*processor.encode(sentence), 0) for id_ in lists[word]} | set(range(FIRST))
        expected = {processor.id_to_piece(id_) for id_ in theirs} | set(SPECIAL_TOKENS)
        assert names_of(allowed, source) == expected
        assert set(found.hypotheses[0].tokens) <= set(allowed)
    usual = bundle.recipe.decoding.model_copy(update={"shortlist": "none"})
    assert bundle.shortlist(usual) is None


def test_the_shortlist_stays_with_the_tokenizers(source: Path, tmp_path: Path) -> None:
    """A run that begins with the model has it in its validations, and in its own model directory."""
    import_model(source, tmp_path / "model", languages=("en", "pt"))
    bundle = open_model(tmp_path / "model")
    options, ids = bundle.recipe.decoding, [[4, 5, 3]]
    expected = bundle.shortlist(options)
    Tokenizers.load(tmp_path / "model/tokenizers").save(tmp_path / "copy")
    copied = Bundle(bundle.recipe, Tokenizers.load(tmp_path / "copy"), bundle.features, bundle.model, bundle.device)
    found = copied.shortlist(options)
    assert expected is not None and found is not None
    assert torch.equal(found.allowed(ids), expected.allowed(ids)) and copied.shortlist(options) is found


def test_text(source: Path) -> None:
    """The best translations by probability; unknown words are the unknown token; NULL is no word."""
    pair = (read_vocabulary(source / "vocab.spm", "source"),) * 2
    tokens = pair[0].tokenizer.pieces(range(4, 9))
    lines = [f"{tokens[k]} {tokens[0]} {p}" for k, p in ((1, 0.2), (2, 0.5), (3, 0.3), (4, 0.01))]
    lines += [f"NULL {tokens[0]} 0.9", f"{tokens[4]} NULL 0.9", f"{tokens[1]} not-a-token 0.7", ""]
    (source / "lex.txt").write_text("\n".join(lines), encoding="utf-8-sig")  # the mark is no text
    found = read_marian_shortlist(source / "lex.txt", [4, 2, 0.1], pair)
    allowed = found.allowed([[4], [1], [5]])
    always = set(range(4)) | set(found.always.tolist())
    assert [set(row.nonzero().squeeze(1).tolist()) - always for row in allowed] == [
        {6, 7} - always,
        {5} - always,
        set(),
    ]


def _truncated(data: bytes, size: int) -> bytes:
    return data[:-8]


def _flipped(data: bytes, size: int) -> bytes:
    return data[:-4] + bytes([data[-4] ^ 1]) + data[-3:]


def _absurd(data: bytes, size: int) -> bytes:
    return data[:32] + struct.pack("<Q", 1 << 60) + data[40:]


def _header(data: bytes, size: int) -> bytes:
    return data[:20]


def _text(data: bytes, size: int) -> bytes:
    return b"two words\n"


def _probability(data: bytes, size: int) -> bytes:
    return b"a b c\n"


def _improbable(data: bytes, size: int) -> bytes:
    return b"a b nan\n"


@pytest.mark.parametrize(
    "damage", [_truncated, _flipped, _absurd, _header, _text, _probability, _improbable], ids=lambda each: each.__name__
)
def test_damaged_files_are_refused(damage: Callable[[bytes, int], bytes], source: Path, tmp_path: Path) -> None:
    path = source / "lex.bin"
    path.write_bytes(damage(path.read_bytes(), 0))
    with pytest.raises(UserError, match="not a shortlist of Marian for this model, or a damaged one"):
        import_model(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_other_vocabularies_are_refused(source: Path) -> None:
    path, pair = source / "lex.bin", (read_vocabulary(source / "vocab.spm", "source"),) * 2
    write_binary(path, [[1, 2]] * (pair[0].size - 2))
    with pytest.raises(UserError, match=r"source tokens, and the vocabulary has"):
        read_marian_shortlist(path, [], pair)
    write_binary(path, [[1, pair[0].size]] * pair[0].size)
    with pytest.raises(UserError, match="tokens beyond the vocabulary"):
        read_marian_shortlist(path, [], pair)


def test_a_missing_file_is_named(source: Path) -> None:
    (source / "lex.bin").unlink()
    with pytest.raises(UserError, match="there is no such shortlist"):
        read_marian(source)
    shutil.copyfile(source / "decoder.yml", source / "other.yml")
    (source / "decoder.yml").write_text("models: [model.npz]\nvocabs: [vocab.spm, vocab.spm]\nshortlist: 3\n")
    with pytest.raises(UserError, match="shortlist is 3; expected: a list that begins with the name of a file"):
        read_marian(source / "decoder.yml")
