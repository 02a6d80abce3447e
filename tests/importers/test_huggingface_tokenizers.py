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
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers

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
                assert tokenizers.source.decode(source) == text.removeprefix("__en__").removeprefix("<2de>").strip()
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
    shutil.copytree(GOLDEN / "pegasus", tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps({"model_max_length": value}), encoding="utf-8")
    config = FAMILIES["pegasus"]["config"]
    assert HuggingFaceTokenizers.read(tmp_path / "model", config).limit == limit
    settings.unlink()
    assert HuggingFaceTokenizers.read(tmp_path / "model", config).limit is None


ADDED = ["opus-mt", "opus-mt-several-targets", "mbart-25", "mbart-50", "m2m-100", "nllb", "pegasus", "t5", "bart"]


def with_added(name: str, folder: Path) -> tuple[HuggingFaceTokenizers, int]:
    """A family with two tokens that a user added, the second one special; and the id there of the first."""
    shutil.copytree(GOLDEN / name, folder)
    config = dict(FAMILIES[name]["config"])
    first = config["vocab_size"]
    tokens = {"<doc>": first, "<sep2>": first + 1}
    (folder / "added_tokens.json").write_text(json.dumps(tokens), encoding="utf-8")
    special = {"additional_special_tokens": ["<sep2>"], "mask_token": "<mask>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special), encoding="utf-8")
    return HuggingFaceTokenizers.read(folder, config | {"vocab_size": first + 2}), first


@pytest.mark.parametrize("name", ADDED)
def test_added_tokens_are_one_token_each(name: str, tmp_path: Path) -> None:
    """As in Transformers: what is between them is divided on its own, and decoding leaves out the special ones."""
    if name == "bart":
        pytest.importorskip("tokenizers")
    read, doc = with_added(name, tmp_path / "model")
    read.tokenizers.save(tmp_path / "saved")
    theirs = read.source_ids.tolist()
    assert sorted(set(theirs)) == list(range(doc + 2))
    assert read.notes[0].endswith("in a text: <doc>, <sep2>.")
    assert len(read.notes) == 1 + (name in ("mbart-25", "mbart-50", "nllb", "pegasus", "t5"))
    for tokenizers in (read.tokenizers, Tokenizers.load(tmp_path / "saved")):
        source = tokenizers.source

        def ids_of(*parts: str | int, source: Any = source) -> list[int]:
            return [
                id_
                for part in parts
                for id_ in ([part] if isinstance(part, int) else [theirs[own] for own in source.encode(part)])
            ]

        spaced = " man" if name == "bart" else "man"  # bytes keep their space
        for line, expected in (
            ("two<doc> man<sep2><doc>", ids_of("two", doc, spaced, doc + 1, doc)),
            ("<doc>two", ids_of(doc, "two")),
            ("two dogs", ids_of("two dogs")),
        ):
            ids = source.encode(line)
            assert [theirs[id_] for id_ in ids] == expected
            assert len(source.spans(line)) == len(ids)
        assert source.decode(source.encode("a<doc> a<sep2>")) in ("a<doc> a", "\u2047<doc> \u2047")
    frames = FAMILIES[name]["languages"]
    assert (
        read.tokenizers.frames == HuggingFaceTokenizers.read(GOLDEN / name, FAMILIES[name]["config"]).tokenizers.frames
    )
    read.tokenizers.frames.choose(*frames)


def test_mbart_25_with_added_tokens_is_not_mbart_50(tmp_path: Path) -> None:
    read, doc = with_added("mbart-25", tmp_path / "model")
    for settings in (None, {"tokenizer_class": "MBartTokenizerFast"}, {"tokenizer_class": "PreTrainedTokenizerFast"}):
        (tmp_path / "model" / "tokenizer_config.json").unlink(missing_ok=True)
        if settings is not None:
            (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        # Rows without a token, as a table that is padded to a multiple of 64 has them, decide nothing either.
        for rows in (doc + 2, doc + 20):
            config = FAMILIES["mbart-25"]["config"] | {"vocab_size": rows}
            read = HuggingFaceTokenizers.read(tmp_path / "model", config)
            frames = read.tokenizers.frames
            assert (len(frames.languages), frames.target_start, frames.source_suffix) == (25, "target", ["source"])
    (tmp_path / "model" / "added_tokens.json").write_text('{"<doc>": 183}', encoding="utf-8")  # after 52 languages
    read = HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES["mbart-50"]["config"] | {"vocab_size": 184})
    assert len(read.tokenizers.frames.languages) == 52


def test_a_language_that_was_added(tmp_path: Path) -> None:
    name = "m2m-100"
    shutil.copytree(GOLDEN / name, tmp_path / "model")
    first = FAMILIES[name]["config"]["vocab_size"]
    (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"__quy__": first}), encoding="utf-8")
    read = HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES[name]["config"] | {"vocab_size": first + 1})
    frame = read.tokenizers.frames.choose("en", "quy").target
    assert [read.target_ids.tolist()[id_] for id_ in frame.prefix] == [first]
    assert not read.notes and "__quy__" not in read.tokenizers.source.pieces(read.tokenizers.source.encode("__quy__"))


def test_an_added_token_with_the_id_of_another_one(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "m2m-100", tmp_path / "model")
    vocabulary = json.loads((tmp_path / "model" / "vocab.json").read_text(encoding="utf-8"))
    (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"<doc>": len(vocabulary)}), encoding="utf-8")
    with pytest.raises(UserError, match="'<doc>' has the id 130, which is that of '__af__'"):
        HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES["m2m-100"]["config"])


def test_an_added_token_of_two_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'<doc>' was added to a model with two vocabularies"):
        with_added("opus-mt-two-vocabularies", tmp_path / "model")


def test_what_a_tokenizer_does_at_random_is_off_and_said(tmp_path: Path) -> None:
    settings = {"sp_model_kwargs": {"enable_sampling": True, "nbest_size": -1, "alpha": 0.1}}
    shutil.copytree(GOLDEN / "m2m-100", tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    read = HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES["m2m-100"]["config"])
    assert read.notes == ("`enable_sampling` of the tokenizer is off: a text is divided in one way.",)


CLS = {"type": "BertProcessing", "cls": ["<pad>", 0], "sep": ["</s>", 1]}
AROUND = {"nothing": (None, "puts no tokens around a source"), "another": (CLS, "not <pad> TEXT </s> of")}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("described", [True, False])
def test_what_a_described_tokenizer_puts_around_a_source(name: str, described: bool, tmp_path: Path) -> None:
    """Also where SentencePiece's model divides text here: Transformers reads ``tokenizer.json`` by its class."""
    after, said = AROUND[name]
    shutil.copytree(GOLDEN / "pegasus", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps({"post_processor": after}), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast" if described else "PegasusTokenizerFast"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    read = HuggingFaceTokenizers.read(tmp_path / "model", FAMILIES["pegasus"]["config"])
    assert [said in note for note in read.notes if "a source" in note or "Sources" in note] == [True] * described


def test_a_tokenizer_json_that_was_saved_in_training(tmp_path: Path) -> None:
    """With dropout, truncation and padding, and added tokens after special ones that are not in the vocabulary."""
    package = pytest.importorskip("tokenizers")
    config = FAMILIES["bart"]["config"]
    vocabulary = json.loads((GOLDEN / "bart" / "vocab.json").read_text(encoding="utf-8"))
    lines = (GOLDEN / "bart" / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#")]
    saved = package.Tokenizer(package.models.BPE(vocabulary, merges, dropout=0.5))
    saved.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    saved.decoder = package.decoders.ByteLevel()
    saved.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<sep2>"])
    saved.add_tokens(["<doc>"])
    template = [("<s>", 0), ("</s>", 2)]
    saved.post_processor = package.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=template)
    saved.enable_truncation(3)
    saved.enable_padding(length=8)
    (tmp_path / "model").mkdir()
    saved.save(str(tmp_path / "model" / "tokenizer.json"))
    read = HuggingFaceTokenizers.read(tmp_path / "model", config | {"vocab_size": config["vocab_size"] + 2})
    assert any(note.startswith("`dropout` of the tokenizer is off") for note in read.notes)
    assert not any("Sources are" in note for note in read.notes)
    saved.post_processor = package.processors.TemplateProcessing(single="$A </s>", special_tokens=template)
    saved.save(str(tmp_path / "model" / "tokenizer.json"))
    again = HuggingFaceTokenizers.read(tmp_path / "model", config | {"vocab_size": config["vocab_size"] + 2})
    assert "Sources are <s> TEXT </s>, as in its family, not TEXT </s> of `tokenizer.json`." in again.notes
    plain = HuggingFaceTokenizers.read(GOLDEN / "bart", config)
    source, theirs = read.tokenizers.source, read.source_ids.tolist()
    for line in LINES:
        expected = [plain.source_ids.tolist()[id_] for id_ in plain.tokenizers.source.encode(line)]
        assert all([theirs[id_] for id_ in source.encode(line)] == expected for _ in range(5))
    doc = saved.token_to_id("<doc>")
    ids = source.encode("two<doc><sep2>")
    assert [theirs[id_] for id_ in ids[-2:]] == [doc, doc - 1] and source.decode(ids) == "two<doc>"
    assert source.pieces(source.encode("<mask>")) != ["<mask>"]
    small = source.reduced(sorted({*range(4), *source.required(ids)}))
    assert small.pieces(small.encode("two<doc><sep2>")) == source.pieces(ids)
    assert small.decode(small.encode("two<doc><sep2>")) == "two<doc>"


def test_a_model_without_languages_has_none_by_the_form_of_a_token(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "pegasus", tmp_path / "model")
    config = FAMILIES["pegasus"]["config"]
    first = config["vocab_size"]
    (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"__sep__": first}), encoding="utf-8")
    read = HuggingFaceTokenizers.read(tmp_path / "model", config | {"vocab_size": first + 1})
    assert not read.tokenizers.frames
    assert read.source_ids.tolist()[read.tokenizers.source.encode("a __sep__")[-1]] == first
