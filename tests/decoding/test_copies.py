"""Unknown tokens of the output: allowed, forbidden, or replaced by the source text that the model attends to."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from sparsenmt.data.batching import pad
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import BOS, EOS, UNK, UNKNOWN_SURFACE
from sparsenmt.decoding.copies import copied_spans, copied_texts
from sparsenmt.decoding.documents import translate_documents
from sparsenmt.decoding.inputs import SourceLine, make_source, read_sources
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.recipe.schema import Decoding, Documents, TokenizerSection
from tests.decoding.support import WORDS, TinyBundle, invented_lines, tiny_bundle
from tests.model.support import random_model

LINES = ["алте Haus", "steht am Жук und Ёлка", "", "Дом", "nie Щука, dort", "zwei Юла Katzen am Цирк"]
STRATEGIES: list[dict[str, Any]] = [
    {"method": "beam", "beam_size": 3},
    {"method": "greedy"},
    {"method": "sample", "seed": 5},
]


def bundle_of(model: Any, like: TinyBundle, *, lift: float) -> TinyBundle:
    """With a model that likes unknown tokens."""
    with torch.no_grad():
        norm, output = model.decoder.norm, model.embeddings["output"]
        output[UNK] += lift * norm.bias / norm.bias.norm()
    return replace(like, model=model)


def unknowing(*, kind: str = "word", lift: float = 3.0) -> TinyBundle:
    bundle = tiny_bundle(3, kind=kind, ending=0.0)
    return bundle_of(bundle.model, bundle, lift=lift)


def translate(bundle: Any, lines: list[str], **values: Any) -> list[TranslatedLine]:
    options = Decoding.model_validate({"max_length_factor": 1, "max_length_offset": 3, **values})
    return list(translate_lines(bundle, input_lines(lines), options))


def attention(bundle: Any, line: SourceLine, tokens: list[int]) -> torch.Tensor:
    """(T, S): the last layer's, of one hypothesis alone."""
    seen: list[torch.Tensor] = []

    def keep(each: AttentionSeen) -> None:
        if each.site == "cross":
            seen.append(each.weights)

    with torch.inference_mode():
        (memory,) = bundle.model.encode(make_source(bundle, [line])).memories.values()
        inputs, _ = pad([[BOS, *tokens]])
        with bundle.model.listen(keep):
            bundle.model.decode(inputs, memory)
    return seen[-1][0].mean(0)


@pytest.mark.parametrize("method", STRATEGIES)
def test_a_word_is_replaced_by_the_source_word_with_most_attention(method: dict[str, Any]) -> None:
    bundle, copied = unknowing(), 0
    for plain, found in zip(
        translate(bundle, LINES, **method), translate(bundle, LINES, **method, unknown="copy"), strict=True
    ):
        assert [each.tokens for each in found.hypotheses] == [each.tokens for each in plain.hypotheses]
        assert [each.score for each in found.hypotheses] == [each.score for each in plain.hypotheses]
        words = found.source.text.split()
        for hypothesis, text in zip(found.hypotheses, found.best_texts(3), strict=True):
            weights = attention(bundle, found.source, hypothesis.tokens) if words else torch.empty(0, 0)
            expected = [
                words[int(weights[t, :-1].argmax())] if token == UNK else bundle.tokenizers.target.pieces([token])[0]
                for t, token in enumerate(hypothesis.tokens)
            ]
            copied += hypothesis.tokens.count(UNK)
            assert text == " ".join(expected) and len(hypothesis.copied) == hypothesis.tokens.count(UNK)
    assert copied > 5


@pytest.mark.parametrize("kind", ["word", "char"])
@pytest.mark.parametrize("method", STRATEGIES)
def test_copies_do_not_depend_on_the_batch(kind: str, method: dict[str, Any]) -> None:
    bundle = unknowing(kind=kind, lift=6.0 if kind == "char" else 3.0)
    together = [each.best_texts(3) for each in translate(bundle, LINES, **method, unknown="copy")]
    assert any(UNK in h.tokens for each in translate(bundle, LINES, **method) for h in each.hypotheses)
    small = [each.best_texts(3) for each in translate(bundle, LINES, **method, unknown="copy", batch_tokens=1)]
    options = Decoding.model_validate({"max_length_factor": 1, "max_length_offset": 3, **method, "unknown": "copy"})
    alone = [next(iter(translate_lines(bundle, [line], options))).best_texts(3) for line in input_lines(LINES)]
    assert together == small == alone


@pytest.mark.parametrize("method", STRATEGIES)
def test_forbidden_unknown_tokens_never_come(method: dict[str, Any]) -> None:
    bundle = unknowing()
    for found in translate(bundle, LINES, **method, unknown="forbid"):
        assert all(UNK not in each.tokens and each.log_probability > -1e6 for each in found.hypotheses)
    lines = invented_lines(6, 2)
    with torch.no_grad():
        bundle.model.embeddings["output"][UNK] -= 50 * bundle.model.decoder.norm.bias  # type: ignore[union-attr,operator]
    same = [[each.tokens for each in found.hypotheses] for found in translate(bundle, lines, **method)]
    forbidden = translate(bundle, lines, **method, unknown="forbid")
    assert [[each.tokens for each in found.hypotheses] for found in forbidden] == same


@pytest.mark.parametrize("filters", [[{"name": "toy_faint"}], [{"name": "toy_faint", "closed": "mask"}]])
def test_dropped_positions_are_never_copied(filters: list[dict[str, Any]]) -> None:
    like = tiny_bundle(3, kind="word")
    model = random_model(memory=filters)
    with torch.no_grad():
        dict(model.named_parameters())["memory.output.0.bias"].sub_(1.0)  # about half of the gates are closed
    draw = random.Random(1)
    lines = [" ".join(draw.sample([*WORDS, *(f"ж{i}" for i in range(6))], 5 + n % 5)) for n in range(12)]
    bundle: Any = replace(like, model=model)
    sources = read_sources(bundle, input_lines(lines))
    outputs = [(line, Hypothesis([UNK, 5, UNK, UNK, 6, UNK], 0.0, 0.0, True)) for line in sources]
    taken, closed = set(), 0
    for (line, _), copies in zip(outputs, copied_texts(bundle, outputs, Decoding.model_validate({})), strict=True):
        with torch.inference_mode():
            (memory,) = model.encode(make_source(bundle, [line])).memories.values()
        assert memory.gates is not None
        gates = memory.gates[0].tolist()
        opened = {word for word, gate in zip(line.text.split(), gates, strict=False) if gate}
        assert set(copies) <= (opened or {UNKNOWN_SURFACE}) and len(copies) == 4
        taken |= set(copies)
        closed += gates.count(0)
    assert len(taken) > 4 and closed > 4


def spans_of(kind: str, text: str, separator: str | None = None, **values: Any) -> dict[str, str | None]:
    """Each token of a line -> what it copies."""
    lines = ["the quick brown fox , jumps ( over ) the lazy dog", "Müller lives in the old town ."] * 20
    options = TokenizerSection.model_validate({"kind": kind, "vocabulary_size": 60, "character_coverage": 1, **values})
    tokenizer = train_tokenizer(options, lines)
    bundle: Any = replace(tiny_bundle(), tokenizers=Tokenizers(tokenizer, tokenizer, True), separator=separator)
    ids = tokenizer.encode(text)
    line = SourceLine(0, text, [*ids, EOS])
    rows = torch.eye(len(ids)).tolist()
    found = copied_spans(bundle, line, rows)
    return {
        name: None if span is None else text[slice(*span)]
        for name, span in zip(line.token_names(tokenizer)[:-1], found, strict=True)
    }


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_what_a_subword_copies(kind: str) -> None:
    found = spans_of(kind, "  the  Жуk, (漢字)  quick.")
    assert found["Жу"] == "Жу" and found["漢字"] == "漢字", "an unknown token: its own text"
    assert found["k"] == "Жуk" or found["k"] == "quick", "another one: its word, without punctuation"
    assert found[","] == "," and found["."] == ".", "punctuation alone"
    assert set(filter(None, found.values())) <= {"the", "Жу", "Жуk", "漢字", "quick", ",", ".", "(", ")"}
    unspaced = spans_of(kind, "私の犬")
    assert unspaced["私の犬"] == "私の犬" and unspaced["▁"] is None
    blocks = spans_of(kind, "the <sep> Дом", "<sep>", user_symbols=["<sep>"])
    assert blocks["▁<sep>"] is None and blocks["Дом"] == "Дом"


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_the_case_of_the_source_is_copied(kind: str) -> None:
    found = spans_of(kind, "THE İЖ Fox", lowercase=True)
    assert all(text is None or text in "THE İЖ Fox" for text in found.values())
    unknown = "Ж" if kind == "char" else "İЖ"
    assert found[unknown] == unknown


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_spans_and_texts_in_place_of_unknown_tokens(kind: str, lowercase: bool) -> None:
    options = TokenizerSection.model_validate({"kind": kind, "vocabulary_size": 60, "lowercase": lowercase})
    tokenizer = train_tokenizer(options, invented_lines(200, 1))
    for line in ("", "Haus Ж am", "漢字 und  Ёлка dort", " ⅣЖ ﬁx ÄİЖ "):
        ids, spans = tokenizer.encode(line), tokenizer.spans(line)
        assert len(ids) == len(spans) and all(a <= b <= len(line) for a, b in spans)
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(spans))
        texts = [line[slice(*span)] for id_, span in zip(ids, spans, strict=True) if id_ == UNK]
        shown = tokenizer.pieces(ids, texts)
        assert "<unk>" not in shown and tokenizer.pieces(ids).count("<unk>") == len(texts)
        text = tokenizer.decode(ids, texts)
        assert UNKNOWN_SURFACE not in text and tokenizer.decode(ids).count(UNKNOWN_SURFACE) == len(texts)
        if kind in ("char", "word") and not lowercase:
            assert text.split() == line.split()


def test_blocks_of_documents_copy_to_their_lines() -> None:
    packing = Documents.model_validate({"separator": "und", "max_length": 40})
    bundle = replace(unknowing(lift=12.0), separator="und")
    lines = [replace(line, document="a") for line in input_lines([line for line in LINES if line])]
    options = Decoding.model_validate({"unknown": "copy", "no_repeat_ngram": 1, "min_length": 10})
    words = {word for line in lines for word in line.text.split()}
    blocks = list(translate_documents(bundle, lines, options, packing))  # type: ignore[arg-type]
    known = {*bundle.tokenizers.target.pieces(range(bundle.tokenizers.target.size))}
    found = {word for block in blocks for texts in block.texts for line in texts for word in line.split()}
    assert found <= known | words and found & (words - known)
    assert UNKNOWN_SURFACE not in found
