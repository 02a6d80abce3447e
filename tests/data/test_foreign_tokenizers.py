"""Tokenizers of other programs: pieces with ids of their own, pipelines of the `tokenizers` package, frames."""

from __future__ import annotations

import base64
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from sparsenmt.data.tokenizers.added_tokens import AddedToken
from sparsenmt.data.tokenizers.frame import Frame, Frames
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.pipeline_tokenizer import PipelineTokenizer, byte_characters, byte_pair_description
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, unknown_texts
from sparsenmt.data.tokenizers.wire_format import field_values
from sparsenmt.data.vocabulary import BOS, EOS, UNK
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError

LINES = [
    f"the {colour} {animal} sees a {other}"
    for colour in ("red", "grey", "blue")
    for animal in ("fox", "bear", "hare")
    for other in ("house", "tree", "river")
]


def model_of(lines: list[str], size: int = 60, **options: Any) -> bytes:
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=stream,
        vocab_size=size,
        model_type="unigram",
        minloglevel=3,
        hard_vocab_limit=False,
        **options,
    )
    return stream.getvalue()


@pytest.fixture(scope="module")
def model() -> bytes:
    return model_of(LINES)


def names_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())]


@pytest.fixture(scope="module")
def tokenizer(model: bytes) -> PieceTokenizer:
    """The pieces backwards, then two that the model does not have: of another language, and a language's token."""
    pieces = [*reversed(names_of(model)[3:]), "ß", ">>de<<"]
    return PieceTokenizer(model, pieces, [4 + len(pieces) - 1])


def test_ids_are_those_of_the_table(model: bytes, tokenizer: PieceTokenizer) -> None:
    line = "the red fox sees a river"
    own = sentencepiece.SentencePieceProcessor(model_proto=model).encode(line, out_type=str)
    assert tokenizer.pieces(tokenizer.encode(line)) == own
    assert tokenizer.encode_batch([line, "", LINES[3]]) == [tokenizer.encode(each) for each in (line, "", LINES[3])]
    assert tokenizer.decode([BOS, *tokenizer.encode(line), EOS]) == line
    spans = tokenizer.spans(line)
    assert "".join(line[begin:end] for begin, end in spans).replace(" ", "") == line.replace(" ", "")
    assert len(spans) == len(own)


def test_piece_of_the_other_language_is_found_where_the_model_knows_nothing(tokenizer: PieceTokenizer) -> None:
    ids = tokenizer.encode("a ß fox")
    assert "ß" in tokenizer.pieces(ids)
    assert UNK not in ids
    assert tokenizer.decode(ids) == "a ß fox"


def test_unknown_text_is_kept(tokenizer: PieceTokenizer) -> None:
    line = "the ŵŷ fox"
    ids = tokenizer.encode(line)
    assert unknown_texts(tokenizer, line) == ["ŵŷ"]
    assert tokenizer.decode(ids, ["ŵŷ"]) == line
    assert tokenizer.decode(ids) == "the \u2047 fox"
    assert tokenizer.decode(tokenizer.encode("ŵ fox"), ["ŵ"]) == "ŵ fox"


def test_markers_are_no_text(tokenizer: PieceTokenizer) -> None:
    (marker,) = tokenizer.markers
    assert marker not in tokenizer.encode("the >>de<< fox")
    assert tokenizer.decode([marker, *tokenizer.encode("the fox")]) == "the fox"
    assert word_ids([marker, *tokenizer.encode("the fox"), EOS], tokenizer).tolist()[0] == 0
    assert bool(tokenizer.word_starts[marker])


def test_words(tokenizer: PieceTokenizer) -> None:
    ids = tokenizer.encode("the grey hare")
    assert np.unique(word_ids(ids, tokenizer)).tolist() == [0, 1, 2]


def test_saved_tokenizers_are_the_same(model: bytes, tokenizer: PieceTokenizer, tmp_path: Path) -> None:
    frames = Frames({"de": tokenizer.size - 1}, source_prefix=["target"])
    other = PieceTokenizer(model_of([*LINES, "ein Haus"]), [*names_of(model)[3:], "ß", "x"])
    Tokenizers(tokenizer, other, True, frames).save(tmp_path)
    found = Tokenizers.load(tmp_path)
    assert found.frames == frames
    assert found.source is not found.target
    for line in LINES[:5]:
        assert found.source.encode(line) == tokenizer.encode(line)
        assert found.target.encode(line) == other.encode(line)
    assert found.source.decode([tokenizer.size - 1]) == ""


@pytest.mark.parametrize("name", ["source.json", "source.model", "frames.json", "tokenizers.json"])
def test_damaged_files_are_refused(tokenizer: PieceTokenizer, tmp_path: Path, name: str) -> None:
    Tokenizers(tokenizer, tokenizer, False, Frames({"de": 5}, source_prefix=["source"])).save(tmp_path)
    (tmp_path / name).write_bytes(b'{"kind": "pieces", "languages": {"de": 9999}, "source_prefix": ["source"]}')
    with pytest.raises(UserError) as refused:
        Tokenizers.load(tmp_path)
    assert name in str(refused.value.where)


@pytest.mark.parametrize("prefix", [["other"], [9999], ["source"]])
def test_frames_beyond_the_vocabulary_are_refused(tmp_path: Path, prefix: list[int | str]) -> None:
    Frames({"de": 77}, source_prefix=prefix).save(tmp_path / "frames.json")
    with pytest.raises(UserError, match="vocabularies"):
        Frames.read(tmp_path / "frames.json", 50, 50)


# Frames

_LANGUAGES = {"de": 20, "en": 21, "eng_Latn": 22, "fr": 23}


def test_frames_of_languages() -> None:
    frames = Frames(_LANGUAGES, source_prefix=["source"], target_prefix=["target"]).choose("en", "de")
    assert frames.source.around([7, EOS]) == [21, 7, EOS]
    assert frames.target.before([7, EOS]) == [BOS, 20, 7]
    legacy = Frames(_LANGUAGES, source_suffix=["source"], target_start="target").choose("en", "de")
    assert legacy.source.around([7, EOS]) == [7, EOS, 21]
    assert legacy.target.before([7, EOS]) == [20, 7]
    opus = Frames(_LANGUAGES, source_prefix=["target"]).choose(None, "fr")
    assert opus.source.around([7, EOS]) == [23, 7, EOS]
    assert not opus.target
    assert not Frames().choose(None, None).source
    assert Frame().before([7, EOS]) == [BOS, 7]


@pytest.mark.parametrize(
    ("frames", "languages", "said"),
    [
        (Frames(), ("en", None), "no languages to choose from"),
        (Frames(_LANGUAGES, source_prefix=["source"], target_prefix=["target"]), ("en", None), "--target-language"),
        (Frames(_LANGUAGES, source_prefix=["source"], target_prefix=["target"]), ("xx", "de"), "'xx'"),
        (Frames(_LANGUAGES, source_prefix=["target"]), (None, "engl"), "Take one of: en, eng_Latn, de"),
    ],
)
def test_languages_that_cannot_be(frames: Frames, languages: tuple[str | None, str | None], said: str) -> None:
    with pytest.raises(UserError) as refused:
        frames.choose(*languages)
    assert said in f"{refused.value.message} {refused.value.hint}"


# Pipelines of the `tokenizers` package


def byte_level(tmp_path: Path) -> Tokenizers:
    pytest.importorskip("tokenizers")
    names = [*byte_characters(), "th", "the", "\u0120f", "\u0120fo", "\u0120fox"]
    merges = [("t", "h"), ("th", "e"), ("\u0120", "f"), ("\u0120f", "o"), ("\u0120fo", "x")]
    vocabulary = {name: id_ for id_, name in enumerate([*names, "<s>"])}
    description = byte_pair_description(vocabulary, merges, prefix_space=False)
    tokenizer = PipelineTokenizer(description, list(vocabulary.values()), list(vocabulary), [4 + len(names)])
    Tokenizers(tokenizer, tokenizer, True).save(tmp_path)
    return Tokenizers.load(tmp_path)


def test_byte_level_pairs(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path).source
    line = "the fox säß <s>"
    ids = tokenizer.encode(line)
    assert tokenizer.pieces(ids)[:3] == ["the", "\u2581fox", "\u2581"]
    assert tokenizer.decode([BOS, *ids, EOS]) == line
    assert tokenizer.size - 1 not in ids
    assert tokenizer.pieces(ids)[4:6] == ["<0xC3>", "<0xA4>"]
    assert tokenizer.spans(line)[:2] == [(0, 3), (3, 7)]
    assert word_ids(tokenizer.encode("the fox"), tokenizer).tolist() == [0, 1]
    assert tokenizer.decode([UNK, *ids[:1]], ["ŵ"]) == "ŵthe"
    assert tokenizer.encode_batch([line, ""]) == [ids, []]


def test_damaged_pipeline_is_refused(tmp_path: Path) -> None:
    byte_level(tmp_path)
    path = tmp_path / "shared.model"
    for content in (b"", b"{}", json.dumps({"model": {"type": "BPE"}, "decoder": {"type": "WordPiece"}}).encode()):
        path.write_bytes(content)
        with pytest.raises(UserError) as refused:
            Tokenizers.load(tmp_path)
        assert "shared.model" in str(refused.value.where)


def pipeline_of(model: bytes, **values: Any) -> PipelineTokenizer:
    """The tokens of a SentencePiece model as Transformers' converter writes them, with the map of its characters."""
    pytest.importorskip("tokenizers")
    names = names_of(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (content,) = field_values(b"".join(field_values(model, 3)), 2)
    character_map = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    visible = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    vocabulary = [[name, processor.get_score(id_)] for id_, name in enumerate(names)]
    description: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [character_map, spaces]},
        "pre_tokenizer": visible,
        "decoder": visible,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": "<0x41>" in names},
        **values,
    }
    return PipelineTokenizer(json.dumps(description).encode(), list(range(3, len(names))), names[3:], [])


@pytest.mark.parametrize("option", ["dropout", "alpha"])
def test_nothing_is_drawn_at_random(option: str, tmp_path: Path) -> None:
    plain = byte_level(tmp_path).source
    path = tmp_path / "shared.model"  # as an earlier version kept it, too
    description = json.loads(path.read_bytes())
    description["model"][option] = 0.5
    path.write_bytes(json.dumps(description).encode())
    tokenizer = Tokenizers.load(tmp_path).source
    expected = plain.encode("the fox the fox the fox")
    assert all(tokenizer.encode("the fox the fox the fox") == expected for _ in range(50))


VIETNAMESE = ["Tất cả mọi người sinh ra đều được tự do", "bình đẳng về nhân phẩm và quyền lợi", "tiếng Việt ệ ở ữ ẵ"]


def test_combining_marks_are_those_of_sentencepiece() -> None:
    model = model_of([*LINES, *VIETNAMESE], 140)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = pipeline_of(model)
    for text in [*VIETNAMESE, "e\u0302\u0323 x", "\u2460\ufb01\u3000fox", "the\u200b red", "fox \uff06 hare"]:
        for line in (text, unicodedata.normalize("NFD", text), unicodedata.normalize("NFKD", text)):
            ids = tokenizer.encode(line)
            assert [id_ - 1 if id_ > UNK else 0 for id_ in ids] == processor.encode(line)
            spans = tokenizer.spans(line)
            assert len(spans) == len(ids) and all(begin <= end <= len(line) for begin, end in spans)
    decomposed = unicodedata.normalize("NFD", "Việt")
    covered = {place for span in tokenizer.spans(decomposed) for place in range(*span)}
    assert covered == set(range(len(decomposed)))


def test_bytes_are_put_together() -> None:
    model = model_of(LINES, 300, byte_fallback=True)
    both: tuple[Tokenizer, ...] = (PieceTokenizer(model, names_of(model)[3:]), pipeline_of(model))
    for tokenizer in both:
        for line in ("the fox sees a ŵé", "猫が好き", "é"):
            ids = tokenizer.encode(line)
            assert UNK not in ids and "<0xC3>" in tokenizer.pieces(tokenizer.encode("é"))
            assert tokenizer.decode(ids) == line
            words = word_ids(ids, tokenizer).tolist()
            assert words[-1] == line.count(" ")
    pipeline = both[1]

    def ids_of(*names: str) -> list[int]:
        table = pipeline.pieces(range(pipeline.size))
        return [table.index(name) for name in names]

    # A run that is not UTF-8: one U+FFFD for each of its bytes; no output has the end of a line.
    assert pipeline.decode(ids_of("a", "<0xC3>", "<0xA9>", "<0xC3>", "a")) == "a\ufffd\ufffd\ufffda"
    assert [each.decode(ids_of("a", "<0x0A>", "a")) for each in both] == ["a\ufffda"] * 2
    assert pipeline.decode([UNK, *ids_of("a")], ["<0x41>"]) == "<0x41>a"


def test_added_tokens_are_found_before_the_model_divides_a_text(model: bytes, tmp_path: Path) -> None:
    names = [*names_of(model)[3:], "<doc>", "<doc>s", "<n>"]
    first = 4 + len(names) - 3
    added = [AddedToken(first, "<doc>"), AddedToken(first + 1, "<doc>s", special=True)]
    tokenizer = PieceTokenizer(model, names, added=[*added, AddedToken(first + 2, "<n>", single_word=True)])
    Tokenizers(tokenizer, tokenizer, True).save(tmp_path)
    for each in (tokenizer, Tokenizers.load(tmp_path).source):
        line = "the red <doc> fox<doc>s a hare <n> x<n>"
        the, fox = each.encode("the red"), each.encode("fox")
        ids = each.encode(line)
        assert ids[: len(the) + len(fox) + 2] == [*the, first, *fox, first + 1]
        assert ids.count(first + 2) == 1 and each.encode_batch([line, "", "<doc>"]) == [ids, [], [first]]
        spans = each.spans(line)
        assert len(spans) == len(ids)
        assert [line[slice(*span)] for span, id_ in zip(spans, ids, strict=True) if id_ >= first] == [
            "<doc>",
            "<doc>s",
            "<n>",
        ]
        assert each.decode(ids).startswith("the red<doc> fox a hare<n>")
        assert set(each.required(the)) >= {first, first + 1, first + 2}
        small = each.reduced(sorted({*range(4), *each.required([*the, *fox])}))
        assert small.pieces(small.encode("the red <doc> fox")) == each.pieces(each.encode("the red <doc> fox"))
