"""Tags before a source: tokens of the vocabulary, and the names of tasks where a model may have several."""

from __future__ import annotations

import pytest

from sparsenmt.data.line_tags import tags_end, unknown_tag
from sparsenmt.data.tokenizers.tokenizer import train_tokenizer
from sparsenmt.recipe.schema import TokenizerSection

TEXT = ["das alte Haus am See", "<b> >> x y"] * 9


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "unigram"])
def test_tags_are_tokens(kind: str) -> None:
    options = TokenizerSection.model_validate(
        {"kind": kind, "vocabulary_size": 45, "user_symbols": ["<bt>", ">>fra<<"]}
    )
    tokenizer = train_tokenizer(options, TEXT)
    for text, tags, unknown in (
        ("das Haus", "", None),
        ("<bt> das Haus", "<bt> ", None),
        (" <bt>>>fra<< <b> Haus", " <bt>>>fra<< ", "<b>"),
        (">>deu<< <bt> Haus", "", ">>deu<<"),
        ("<b>das</b> Haus", "", "<b>"),
        ("das <b> Haus", "", None),
        ("< b > x", "", None),
        ("", "", None),
    ):
        if kind == "word" and text.startswith((" <bt>>", "<b>")):
            continue  # its tokens are what stands between spaces
        assert text[: tags_end(text, tokenizer)] == tags
        assert unknown_tag(text, tokenizer) == unknown


def test_tasks() -> None:
    tokenizer = train_tokenizer(TokenizerSection.model_validate({"kind": "char"}), TEXT)
    for text, task in (
        ("translate English to German: Once. More", "translate English to German: "),
        ("summarize: Once. More", "summarize: "),
        ("Translate it. Then: go", ""),
        ("translated: no", ""),
    ):
        assert text[: tags_end(text, tokenizer, tasks=True)] == task and tags_end(text, tokenizer) == 0
