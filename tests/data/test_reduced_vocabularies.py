"""Vocabularies that are cut to the tokens of a text divide it as before, and any other text with what is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.tokenizers.byte_pairs import tokens_on_the_way
from sparsenmt.data.tokenizers.pipeline_tokenizer import PipelineTokenizer
from sparsenmt.data.tokenizers.sentencepiece_model import SentencePieceModel
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.tokenizer import (
    ReducedVocabularies,
    Tokenizer,
    Tokenizers,
    reduce_vocabularies,
    train_tokenizer,
    unknown_texts,
)
from sparsenmt.data.vocabulary import SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers
from sparsenmt.recipe.schema import TokenizerSection
from tests.importers.test_huggingface_tokenizers import FAMILIES, GOLDEN, LINES

CORPUS = LINES[::2]
TEXT = [
    *("a small dog runs in the snow", "the dogs are running", "she was reading a newspaper in the rain <n> a man"),
    *("der kleine Hund läuft im Schnee", "die Hunde liefen <n> schnell", "Überall stehen Häuser und Leute."),
    *("two men stand on ladders, reading newspapers!", "snow falls; dogs bark at 10:30", "ladder laddered laddering"),
]
OTHER = ["runners redder than Schneemänner", "Zeitungsleser im Häuserschnee", "猫 🐈 Ωμέγα"]


def trained(kind: str, **options: Any) -> Tokenizers:
    """A vocabulary of this program."""
    values = {"kind": kind, "vocabulary_size": 140, "user_symbols": ["<n>"], **options}
    tokenizer = train_tokenizer(TokenizerSection.model_validate(values), iter(TEXT))
    return Tokenizers(tokenizer, tokenizer, True)


def unigram_pipeline(**options: Any) -> Tokenizers:
    """A `tokenizer.json` with the tokens of a SentencePiece model."""
    values = {"kind": "unigram", "vocabulary_size": 140, "normalization": "identity"}
    learned = train_tokenizer(TokenizerSection.model_validate(values), iter(TEXT))
    assert isinstance(learned, SentencePieceTokenizer)
    model = SentencePieceModel.read(learned.model)
    numbers = [[f"<0x{byte:02X}>", -50.0] for byte in range(256)] if options.get("byte_fallback") else []
    vocabulary = [*([name, score] for name, score in zip(model.names, model.scores, strict=True)), *numbers]
    return pipeline({"type": "Unigram", "unk_id": UNK, "vocab": vocabulary, **options})


def byte_pair_pipeline(**options: Any) -> Tokenizers:
    """A `tokenizer.json` with merges, as Transformers makes it of SentencePiece's."""
    package = pytest.importorskip("tokenizers")
    learned = package.Tokenizer(package.models.BPE(unk_token="<unk>"))
    learned.pre_tokenizer = package.pre_tokenizers.Metaspace()
    settings = {"vocab_size": 140, "special_tokens": list(SPECIAL_TOKENS), "show_progress": False, "min_frequency": 1}
    learned.train_from_iterator(TEXT, package.trainers.BpeTrainer(**settings))
    return pipeline({**json.loads(learned.to_str())["model"], **options})


def pipeline(model: dict[str, Any]) -> Tokenizers:
    """A `tokenizer.json` of a model whose words begin with a visible space, with a user symbol."""
    pytest.importorskip("tokenizers")
    vocabulary, space = model["vocab"], {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    values = {
        **{"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None},
        **{"pre_tokenizer": space, "decoder": space, "model": model},
        "added_tokens": [{"id": len(vocabulary), "content": "<n>", **flags}],
    }
    ordered = vocabulary if isinstance(vocabulary, list) else sorted(vocabulary.items(), key=lambda each: each[1])
    first = len(SPECIAL_TOKENS)
    names = [*(name for name, _ in ordered[first:]), "<n>"]
    tokenizer = PipelineTokenizer(json.dumps(values).encode(), range(first, len(vocabulary) + 1), names, ())
    return Tokenizers(tokenizer, tokenizer, True)


TRAINED: dict[str, Callable[[], Tokenizers]] = {
    "unigram": lambda: trained("unigram"),
    "bpe": lambda: trained("bpe"),
    "lowercase": lambda: trained("bpe", lowercase=True),
    "word": lambda: trained("word"),
    "char": lambda: trained("char"),
    "unigram-pipeline": unigram_pipeline,
    "unigram-pipeline-bytes": lambda: unigram_pipeline(byte_fallback=True),
    "bpe-pipeline": byte_pair_pipeline,
    "bpe-pipeline-words": lambda: byte_pair_pipeline(ignore_merges=True),
}


def imported(name: str) -> Tokenizers:
    if name == "bart":
        pytest.importorskip("tokenizers")
    return HuggingFaceTokenizers.read(GOLDEN / name, FAMILIES[name]["config"]).tokenizers


def tokens_of(tokenizer: Tokenizer, lines: list[str]) -> set[int]:
    return {id_ for ids in tokenizer.encode_batch(lines) for id_ in ids}


def reduce(tokenizers: Tokenizers, lines: list[str]) -> ReducedVocabularies:
    source, target = (tokens_of(each, lines) for each in (tokenizers.source, tokenizers.target))
    return reduce_vocabularies(tokenizers, source, target, tokenizers.frames.languages)


def sides(old: Tokenizers, new: ReducedVocabularies) -> Iterator[tuple[Tokenizer, Tokenizer, list[int]]]:
    assert new.source_ids is not None and new.target_ids is not None
    yield old.source, new.tokenizers.source, new.source_ids
    yield old.target, new.tokenizers.target, new.target_ids


def check(tokenizers: Tokenizers, corpus: list[str], others: list[str], folder: Path) -> ReducedVocabularies:
    """Check that a corpus has the same tokens, and that other texts have tokens that give them back."""
    found = reduce(tokenizers, corpus)
    found.tokenizers.save(folder)
    loaded = Tokenizers.load(folder)
    for (old, new, ids), again in zip(sides(tokenizers, found), (loaded.source, loaded.target), strict=True):
        assert ids == sorted(set(ids)) and ids[:4] == [0, 1, 2, 3] and new.size == again.size == len(ids)
        assert new.pieces(range(new.size)) == old.pieces(ids)
        assert new.word_starts.tolist() == old.word_starts[ids].tolist()
        for line in corpus:
            before = old.encode(line)
            for each in (new, again):
                after = each.encode(line)
                assert [ids[id_] for id_ in after] == before
                assert each.spans(line) == old.spans(line)
                assert each.decode(after) == old.decode(before)
        for line in others:
            assert again.encode(line) == new.encode(line)
            if UNK not in old.encode(line):
                text = new.decode(new.encode(line), unknown_texts(new, line))
                if "<0x" not in text:  # bytes, of which such a file's decoder makes text
                    assert text.lower() == old.decode(old.encode(line)).lower()
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_imported_vocabularies(name: str, tmp_path: Path) -> None:
    tokenizers = imported(name)
    found = check(tokenizers, CORPUS, LINES[1::2], tmp_path)
    assert found.tokenizers.source.size < tokenizers.source.size
    frames, old = found.tokenizers.frames, tokenizers.frames
    assert found.source_ids is not None
    assert {code: found.source_ids[id_] for code, id_ in frames.languages.items()} == old.languages


@pytest.mark.parametrize("name", TRAINED)
def test_trained_vocabularies(name: str, tmp_path: Path) -> None:
    tokenizers = TRAINED[name]()
    sizes = [
        check(tokenizers, corpus, [*TEXT, *OTHER], tmp_path / str(number)).tokenizers.source.size
        for number, corpus in enumerate((TEXT[1:2], TEXT[:4], TEXT))
    ]
    assert sizes[0] < sizes[1] < sizes[2] <= tokenizers.source.size


@pytest.mark.parametrize("name", ["unigram", "bpe", "lowercase", "char", "unigram-pipeline", "bpe-pipeline"])
def test_text_of_the_same_characters_has_no_unknown_token(name: str) -> None:
    old, corpus = TRAINED[name]().source, TEXT[:3]
    new = reduce(Tokenizers(old, old, True), corpus).tokenizers.source
    letters = sorted(set("".join(corpus)) - set("<> "))
    for line in ("".join(letters), " ".join(reversed(letters)), "the tamed gonad is a newt", "ss tt aa <n> nn <n>"):
        assert UNK not in old.encode(line), "the test's own text is known"
        assert UNK not in new.encode(line)
        assert new.decode(new.encode(line)) == old.decode(old.encode(line))
    assert UNK in new.encode("Häuser"), "a letter that the corpus does not have"


@pytest.mark.parametrize("name", ["bart", "unigram-pipeline-bytes"])
def test_bytes_are_never_unknown(name: str) -> None:
    tokenizers = imported(name) if name == "bart" else TRAINED[name]()
    new = reduce(tokenizers, ["a dog"]).tokenizers.source
    assert new.size < tokenizers.source.size
    for line in (*OTHER, *LINES, "\x01\u2028"):
        assert UNK not in new.encode(line)


def test_what_is_on_the_way_to_a_token_stays() -> None:
    ranks = {("b", "c"): 0, ("a", "bc"): 1, ("abc", "d"): 2}
    found = tokens_on_the_way("abcd", lambda *pair: -ranks[pair] if pair in ranks else None)
    assert found == {"a", "b", "c", "d", "bc", "abc", "abcd"}
    assert tokens_on_the_way("aaa", lambda left, right: 1.0 if left == right == "a" else None) == {"a", "aa"}


def test_unknown_characters_cost_what_they_did() -> None:
    """Their score is counted from the lowest one, which therefore stays."""
    tokenizer = trained("unigram").source
    new = tokenizer.reduced(sorted({*range(4), *tokenizer.required({10})}))
    assert isinstance(tokenizer, SentencePieceTokenizer) and isinstance(new, SentencePieceTokenizer)
    models = (SentencePieceModel.read(each.model) for each in (tokenizer, new))
    before, after = (
        [score for score, kind in zip(each.scores, each.kinds, strict=True) if kind == 1] for each in models
    )
    assert len(after) < len(before) and (min(after), max(after)) == (min(before), max(before))


def test_languages_that_are_left_out() -> None:
    tokenizers = imported("m2m-100")
    used = tokens_of(tokenizers.source, CORPUS)
    found = reduce_vocabularies(tokenizers, used, used, {"en", "de"})
    assert found.tokenizers.frames.languages.keys() == {"en", "de"}
    every = reduce_vocabularies(tokenizers, used, used, tokenizers.frames.languages)
    assert every.tokenizers.source.size - found.tokenizers.source.size == len(tokenizers.frames.languages) - 2
    pair, old = found.tokenizers.frames.choose("en", "de"), tokenizers.frames.choose("en", "de")
    assert found.source_ids is not None
    assert tuple(found.source_ids[id_] for id_ in pair.source.prefix) == old.source.prefix
    assert tuple(found.source_ids[id_] for id_ in pair.target.given) == old.target.given


def test_a_side_without_text_stays_whole() -> None:
    tokenizers = imported("opus-mt-two-vocabularies")
    found = reduce_vocabularies(tokenizers, tokens_of(tokenizers.source, CORPUS[:1]), None, ())
    assert found.target_ids is None and found.tokenizers.target is tokenizers.target
    assert found.tokenizers.source.size < tokenizers.source.size


def test_tokenizers_that_cannot_be_cut() -> None:
    with pytest.raises(UserError, match="cannot be cut: its tokens are the bytes"):
        reduce(trained("byte", vocabulary_size=261), TEXT)
    with pytest.raises(UserError, match="cannot be cut: its tokens bear marks"):
        reduce(byte_pair_pipeline(end_of_word_suffix="</w>"), TEXT)
