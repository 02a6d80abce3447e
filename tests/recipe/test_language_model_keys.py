"""Keys of recipes for language models: what is taken, and one message for every contradiction."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.recipe.load import dump, load_resolved
from sparsenmt.recipe.schema import Data, Decoding, ModelSection, Recipe, Training
from sparsenmt.recipe.task_keys import TASK_KEYS
from sparsenmt.recipe.yaml_tree import parse_plain
from tests.recipe.support import METHODS, MINIMAL, load_text

HEAD = """\
name: test
directory: runs/test
data:
  task: language_model
  directory: runs/data
  train:
    - {text: a.txt.gz, weight: 2}
  dev: {text: d.txt}
"""


def resolved(recipe: Recipe) -> Recipe:
    return load_resolved(parse_plain(dump(recipe), name="recipe"), METHODS)


def test_what_is_taken(tmp_path: Path) -> None:
    extra = """\
  test: {text: e.txt}
  tokenizer: {kind: byte}
model: {preset: tiny, positions: none, segment_memory: 32, decoder_layers: 3}
training: {streams: 4, segment_length: 16, batch_tokens: 64}
decoding: {segment_length: 8, segment_memory: 100}
"""
    recipe = load_text(tmp_path, extra, head=HEAD)
    assert recipe.data.is_language_model and recipe.data.train[0].files == {"text": str(tmp_path / "a.txt.gz")}
    assert recipe.data.tokenizer.vocabulary_size == 260
    assert (recipe.model.dimension, recipe.model.decoder_layers, recipe.model.segment_memory) == (64, 3, 32)
    assert (recipe.training.streams, recipe.training.segment_length) == (4, 16)
    assert resolved(recipe) == recipe
    least = load_text(tmp_path, head=HEAD)
    assert (least.model.segment_memory, least.decoding.segment_memory, least.decoding.segment_length) == (0, None, None)
    assert resolved(least) == least


def test_a_resolved_recipe_has_the_keys_of_its_task(tmp_path: Path) -> None:
    of_task = {"translation": MINIMAL, "language_model": HEAD}
    for task, head in of_task.items():
        recipe = load_text(tmp_path, head=head)
        values = recipe.model_dump(mode="json", by_alias=True)
        for other, keys in TASK_KEYS.items():
            for key in keys:
                value = values
                *sections, last = key.split(".")
                for name in sections:
                    value = value.get(name, {})
                # A value of the own task may be younger than records on disk: then it is written if it is chosen.
                younger = ModelSection.younger | Data.younger | Training.younger
                assert last in value or task != other or last in younger or key.startswith("decoding.")
                assert last not in value or task == other, key
    corpus = load_text(tmp_path).model_dump()["data"]["train"][0]
    assert set(corpus) == {"name", "source", "target", "tags", "documents", "weight"}
    # These enter hashes of models and outputs that were made before language models existed.
    assert "segment_memory" not in ModelSection().model_dump(mode="json")
    assert not {"segment_memory", "segment_length"} & Decoding().recorded().keys()


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("  documents: {}\n", "data.documents: has no meaning for a language model"),
        ("  filters: {max_source_length: 5}\n", "data.filters: has no meaning for a language model"),
        ("  tagger: {name: hanta}\n", "data.tagger: has no meaning"),
        ("  source_language: en\n", "data.source_language: has no meaning"),
        ("  test: {source: a, text: b}\n", "data.test.source: has no meaning"),
        ("  test: {text: b, documents: c}\n", "data.test.documents: has no meaning"),
        ("  test: {name: b}\n", "data.test.text: this key is required"),
        ("model: {encoder_layers: 6}\n", "model.encoder_layers: has no meaning for a language model, which has one"),
        ("model: {preset: tiny, encoder_layers: 2}\n", "model.encoder_layers: has no meaning"),
        ("model: {tie_embeddings: all}\n", "model.tie_embeddings: has no meaning"),
        ("model: {attention: {cross: {transform: {name: nearest}}}}\n", "model.attention.cross: has no meaning"),
        ("model: {attention: {encoder_self: {}}}\n", "model.attention.encoder_self: has no meaning"),
        ("model: {memory: [{name: drop, rate: 0.5}]}\n", "model.memory: has no meaning"),
        ("training: {accumulate_tokens: 9000}\n", "training.accumulate_tokens: has no meaning"),
        ("training: {validation: {tokenize: 13a}}\n", "training.validation.tokenize: has no meaning"),
        ("decoding: {encoder_layers: 1}\n", "decoding.encoder_layers: has no meaning"),
        ("training: {loss_normalization: sentences}\n", "training.loss_normalization: a language model reads a text"),
        ("decoding: {unknown: copy}\n", "decoding.unknown: a language model has no source to copy from"),
        ("training: {batch_tokens: 99, segment_length: 100}\n", "training.batch_tokens: a batch of 99 tokens has no"),
        (
            "training: {segment_length: 5000}\nmodel: {max_positions: 5000}\n",
            "training.segment_length: a batch of 4096 tokens has no place for a",
        ),
        ("training: {segment_length: 1025}\n", "training.segment_length: a segment of 1025 tokens does not fit 1024"),
        ("decoding: {segment_length: 1025}\n", "decoding.segment_length: a segment of 1025 tokens does not fit 1024"),
        ("model: {segment_memory: 9}\n", "model.segment_memory: the absolute positions of a segment begin at 0"),
        ("decoding: {segment_memory: 9}\n", "decoding.segment_memory: the absolute positions of a segment begin at 0"),
        ("  tokenizer: {kind: byte, vocabulary_size: 9000}\n", "vocabulary_size: bytes and special tokens are 260"),
    ],
)
def test_what_is_refused(tmp_path: Path, extra: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, extra, head=HEAD)
    assert expected in str(caught.value) and "problems:" not in str(caught.value)
    assert f"recipe.yaml:{8 + 1}" in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("model: {segment_memory: 9}\n", "model.segment_memory: belongs to a language model"),
        ("training: {streams: 9}\n", "training.streams: belongs to a language model"),
        ("training: {segment_length: 9}\n", "training.segment_length: belongs to a language model"),
        ("decoding: {segment_length: 9}\n", "decoding.segment_length: belongs to a language model"),
        ("decoding: {segment_memory: 9}\n", "decoding.segment_memory: belongs to a language model"),
        ("  test: {source: a, target: b, text: c}\n", "data.test.text: belongs to a language model"),
        ("model: {positions: none}\n", "model.positions: without position encodings, the self-attention does not"),
        ("model: {positions: absolute}\n", "must be one of sinusoidal, learned, none"),
    ],
)
def test_what_a_translation_refuses(tmp_path: Path, extra: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, extra)
    assert expected in str(caught.value) and "problems:" not in str(caught.value)


def test_corpora_have_the_texts_of_their_task(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, head=MINIMAL.replace("data:\n", "data:\n  task: language_model\n"))
    told = str(caught.value)
    assert told.count("has no meaning for a language model") == 4 and told.count(".text: this key is required") == 2
    with pytest.raises(UserError) as caught:
        load_text(tmp_path, head=HEAD.replace("  task: language_model\n", ""))
    told = str(caught.value)
    assert told.count("belongs to a language model") == 2 and told.count("this key is required") == 4
    with pytest.raises(
        UserError, match=r"^[^ ]*yaml:4: data\.task: must be one of translation, language_model; not 'translate'"
    ):
        load_text(tmp_path, head=MINIMAL.replace("data:\n", "data:\n  task: translate\n"))
    with pytest.raises(UserError, match=r"data\.dev\.text: must not be empty"):
        load_text(tmp_path, head=HEAD.replace("d.txt", '""'))


def test_overrides_and_presets(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, "model: {preset: base}\n", "data.dev.text=x.txt", head=HEAD)
    assert recipe.data.dev.text == str(Path.cwd() / "x.txt") and recipe.model.decoder_layers == 6
    with pytest.raises(UserError, match=r"override 'model\.encoder_layers=3': model\.encoder_layers: has no meaning"):
        load_text(tmp_path, "model: {preset: base}\n", "model.encoder_layers=3", head=HEAD)
    load_text(tmp_path, "", "data.documents=null", "data.test=null", head=HEAD)
    with pytest.raises(
        UserError, match=r"^override 'data\.task=translation': training\.streams: belongs to a language"
    ):
        load_text(tmp_path, "training: {streams: 3}\n", "data.task=translation", head=MINIMAL)


def test_bytes_of_a_translation(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, "  tokenizer: {kind: byte, user_symbols: [<n>]}\n")
    assert recipe.data.tokenizer.vocabulary_size == 261 and resolved(recipe) == recipe
