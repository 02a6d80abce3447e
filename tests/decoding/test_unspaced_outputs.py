"""Outputs without spaces between words: their tokens are what alignments and alternatives count."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.decoding.alignment import ReadTarget, target_places
from sparsenmt.decoding.alternatives import find_alternatives
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.recipe.schema import Decoding
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from tests.decoding.support import TinyBundle, tiny_model

TEXT = ["東京の大学で学ぶ。", "大学の家は東京。", "私は家で本を読む。", "本の家は大学の東京。"] * 9


@pytest.fixture(scope="module")
def bundle() -> TinyBundle:
    tokenizer = train_tokenizer(TokenizerOptions.model_validate({"kind": "bpe", "vocabulary_size": 40}), TEXT)
    model = tiny_model(3, vocabulary=tokenizer.size, ending=1.0, dtype=torch.float64, max_positions=64)
    return TinyBundle(model, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), 64, torch.device("cpu"))


def test_alternatives_have_positions_of_tokens(bundle: TinyBundle) -> None:
    options = Decoding(beam_size=2, max_length_offset=8)
    for position in (1, 2, 3):
        for found in find_alternatives(bundle, input_lines(TEXT[:3]), options, position=position, count=3):
            pieces = bundle.tokenizers.target.pieces(found.translation.hypotheses[0].tokens)
            written = [each.removeprefix("\u2581") for each in pieces if each != "\u2581"]
            prefix = found.prefix.replace(" ", "")  # a random model writes some
            assert len(written) >= position and prefix == "".join(written[: position - 1])
            assert len(found.found) == 3 and found.found[0].word != ""
            texts = [each.translation.text.replace(" ", "") for each in found.found]
            begun = [prefix + each.word for each in found.found]
            assert all(map(str.startswith, texts, begun))
            assert len({each.word for each in found.found}) == 3


def test_words_are_tokens_also_where_a_search_has_divided_the_text_otherwise(bundle: TinyBundle) -> None:
    tokenizer = bundle.tokenizers.target
    (source,) = read_sources(bundle, input_lines(["東京"]))
    whole = tokenizer.encode("東京の大学")
    signs = [token for sign in "東京の大学" for token in tokenizer.encode(sign)]
    single = [token for token in signs if tokenizer.pieces([token]) != ["\u2581"]]
    for tokens in (whole, single):
        found = target_places(tokenizer, ReadTarget(source, tokens, "東京の大学"))
        assert "".join(found.words) == "東京の大学" and found.places == tuple(range(len(tokens)))
