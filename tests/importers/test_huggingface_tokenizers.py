"""Imported tokenizers beside the ids of Hugging Face's, whose version golden-tokenizers/ids.json names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers, tokenizer_limit

GOLDEN = Path(__file__).parent / "golden-tokenizers"
LINES = (GOLDEN / "lines.txt").read_text(encoding="utf-8").split("\n")
FAMILIES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))["families"]


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    golden = FAMILIES[name]
    if name == "bart":
        pytest.importorskip("tokenizers")
    read = HuggingFaceTokenizers.read(GOLDEN / name, golden["config"])
    read.tokenizers.save(tmp_path)
    frames = read.tokenizers.frames.choose(*golden["languages"])
    to_source, to_target = read.source_ids.tolist(), read.target_ids.tolist()
    for tokenizers in (read.tokenizers, Tokenizers.load(tmp_path)):
        sources, targets = tokenizers.source.encode_batch(LINES), tokenizers.target.encode_batch(LINES)
        for line, source, target, text, *expected in zip(
            LINES, sources, targets, golden["decoded"], golden["source"], golden["target"], strict=True
        ):
            assert [to_source[id_] for id_ in frames.source.around([*source, EOS])] == expected[0]
            labels = [to_target[id_] for id_ in (*frames.target.prefix, *target, EOS)]
            assert labels == (expected[1][:-1] if name == "mbart-25" else expected[1])
            if UNK not in source and "two" not in name and "several" not in name:
                assert tokenizers.source.decode(source) == text.removeprefix("__en__").strip()
            assert len(tokenizers.source.spans(line)) == len(source)


WAYS = [(name, way) for name, golden in FAMILIES.items() for way in golden.get("ways", ())]


@pytest.mark.parametrize(("name", "way"), WAYS, ids=[f"{name} {'-'.join(way['languages'])}" for name, way in WAYS])
def test_other_languages_on_both_sides(name: str, way: dict[str, Any]) -> None:
    read = HuggingFaceTokenizers.read(GOLDEN / name, FAMILIES[name]["config"])
    frames = read.tokenizers.frames.choose(*way["languages"])
    to_source, to_target = read.source_ids.tolist(), read.target_ids.tolist()
    for line, source, target in zip(LINES, way["source"], way["target"], strict=True):
        ids = read.tokenizers.source.encode(line)
        assert [to_source[id_] for id_ in frames.source.around([*ids, EOS])] == source
        ids = read.tokenizers.target.encode(line)
        labels = [to_target[id_] for id_ in (*frames.target.prefix, *ids, EOS)]
        if name == "mbart-25":  # the labels end with the language, with which the decoder begins
            language = read.tokenizers.frames.languages[way["languages"][1]]
            assert frames.target.start == language
            labels.append(to_target[language])
        assert labels == target


def test_every_family_with_languages_goes_other_ways() -> None:
    assert {name for name, _ in WAYS} == {"mbart-25", "mbart-50", "m2m-100", "nllb"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_their_tables_has_a_place(name: str) -> None:
    golden = FAMILIES[name]
    if name == "bart":
        pytest.importorskip("tokenizers")
    read = HuggingFaceTokenizers.read(GOLDEN / name, golden["config"])
    config = golden["config"]
    sizes = config["vocab_size"], config.get("decoder_vocab_size", config["vocab_size"])
    for ids, tokenizer, size in zip(
        (read.source_ids, read.target_ids), (read.tokenizers.source, read.tokenizers.target), sizes, strict=True
    ):
        assert sorted(set(ids.tolist())) == list(range(size))
        assert tokenizer.size == len(ids)
        assert ids[0] in (config["pad_token_id"], size - 1) and ids[EOS] == config["eos_token_id"]
        assert ids[BOS] == config["decoder_start_token_id"]
        assert len(set(tokenizer.pieces(range(tokenizer.size)))) == tokenizer.size


def test_languages_and_defaults(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "mbart-50", tmp_path / "model")
    settings = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "en_XX", "tgt_lang": "ro_RO"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = FAMILIES["mbart-50"]["config"]
    assert HuggingFaceTokenizers.read(tmp_path / "model", config).languages == ("en_XX", "ro_RO")
    read = HuggingFaceTokenizers.read(GOLDEN / "mbart-25", FAMILIES["mbart-25"]["config"])
    assert read.languages == (None, "de_DE")  # with which the decoder begins
    frames = read.tokenizers.frames
    assert (len(frames.languages), frames.target_start, frames.source_suffix) == (25, "target", ["source"])
    several = HuggingFaceTokenizers.read(
        GOLDEN / "opus-mt-several-targets", FAMILIES["opus-mt-several-targets"]["config"]
    )
    assert sorted(several.tokenizers.frames.languages) == ["deu", "fra"]


def test_a_byte_order_mark_is_no_merge(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    shutil.copytree(GOLDEN / "bart", tmp_path / "model")
    merges = tmp_path / "model" / "merges.txt"
    lines = merges.read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if not line.startswith("#version")]
    merges.write_text("\n".join(lines), encoding="utf-8-sig")
    tokenizers = [
        HuggingFaceTokenizers.read(path, FAMILIES["bart"]["config"]) for path in (GOLDEN / "bart", merges.parent)
    ]
    text = "".join(lines[0].split(" ")).replace("\u0120", " ")
    first, second = (each.tokenizers.source.encode(text) for each in tokenizers)
    assert first == second


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("opus-mt", "source.spm", None, "missing: source.spm"),
        ("opus-mt", "vocab.json", b'{"a": 0, "b": 7}', "its ids are not 0 to V - 1"),
        ("opus-mt", "vocab.json", b"{", "not valid JSON"),
        ("opus-mt", "target.spm", b"xyz", "not a SentencePiece model"),
        ("mbart-50", "sentencepiece.bpe.model", b"", "the file is empty"),
        ("mbart-50", "sentencepiece.bpe.model", None, "missing: sentencepiece.bpe.model"),
        ("m2m-100", "vocab.json", b"[]", "does not hold a JSON object"),
        ("bart", "merges.txt", None, "missing: merges.txt"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, file: str, content: bytes | None, said: str) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "model")
    if content is None:
        (tmp_path / "model" / file).unlink()
    else:
        (tmp_path / "model" / file).write_bytes(content)
    with pytest.raises(UserError) as refused:
        HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES[name]["config"])
    assert said in refused.value.message


def test_a_table_that_is_too_small() -> None:
    config = FAMILIES["pegasus"]["config"] | {"vocab_size": 100}
    with pytest.raises(UserError, match="tables have 100 rows"):
        HuggingFaceTokenizers.read(GOLDEN / "pegasus", config)


@pytest.mark.parametrize(("value", "limit"), [(512, 512), (10**30, None), (1e30, None), (None, None), (0, None)])
def test_the_length_that_a_tokenizer_names(value: Any, limit: int | None, tmp_path: Path) -> None:
    assert tokenizer_limit(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": value}), encoding="utf-8")
    assert tokenizer_limit(tmp_path) == limit
