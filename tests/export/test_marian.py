"""Files for Marian: those that were imported come out as they were, and others are what Marian writes and computes."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model_directory import write_weights
from sparsenmt.cli import run
from sparsenmt.data.tokenizers.tokenizer import LAYOUT
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.errors import UserError
from sparsenmt.export.marian_files import bin_file, has_levels, is_matrix, levels_of, multiplier_of, npz_file
from sparsenmt.export.marian_vocabularies import vocabulary_files
from sparsenmt.export.marian_weights import CONSTANT
from sparsenmt.export.model_export import export_model
from sparsenmt.export.target import FileChoices
from sparsenmt.importers.marian import read as read_marian
from sparsenmt.importers.marian_files import read_marian_file
from sparsenmt.importers.marian_layout import MarianLayout
from sparsenmt.importers.marian_vocabularies import read_vocabulary
from sparsenmt.workflows.conversion.export import export_model as export_directory
from sparsenmt.workflows.conversion.import_model import import_model
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.conversion.vocabulary_slice import VocabularyTexts
from tests.examples import examples
from tests.export.support import make_bundle, make_tokenizers
from tests.importers.marian_twin import ATTENTION, PRE, SENTENCES, UNTIED, Twin, vocabulary
from tests.importers.test_marian import VARIANTS
from tests.importers.test_marian_shortlist import lists_of, write_binary

POST: dict[str, Any] = {"norm": "post"}
STUDENT: dict[str, Any] = {**POST, "recurrence": {"name": "ssru"}}


def write_source(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder of Marian with a model of this kind of file, a shortlist and settings; alphas of 8 bits."""
    folder.mkdir()
    size = vocabulary(folder).get_piece_size()
    twin = Twin.of(size, **changes)
    name = "the model.npz" if kind == "npz" else "the model.bin"
    if kind == "npz":
        twin.write_npz(folder / name)
    elif kind == "int8":
        alphas = {matrix: 10.0 + i for i, matrix in enumerate(filter(is_matrix, twin.tensors))}
        multipliers = {matrix: multiplier_of(twin.tensors[matrix]) for matrix in alphas}
        (folder / name).write_bytes(bin_file(twin.config, twin.tensors, multipliers, alphas | {"none": 9.0}))
    else:
        twin.write_bin(folder / name)
    write_binary(folder / "lex.s2t.bin", lists_of(size))
    values = {"models": [name], "vocabs": ["vocab.spm"] * 2, "shortlist": ["lex.s2t.bin", False], "beam-size": 1}
    text = "# as it was\n" + yaml.safe_dump({"relative-paths": True, **values, "normalize": 0.6})
    (folder / "config.yml").write_text(text, encoding="utf-8", newline="\n")
    return folder


def imported(source: Path, tmp_path: Path) -> Path:
    import_model(source, tmp_path / "model", languages=("en", "pt"))
    return tmp_path / "model"


def changed(model: Path, name: str) -> Path:
    """The model with another weight."""
    bundle = open_model(model, dtype=None)
    state = bundle.model.state_dict()
    state[name] = state[name] + 0.25
    write_weights(model, state, after=1, made_of=[])
    return model


def logits(bundle: Bundle, source: list[int], target: list[int]) -> Tensor:
    """(T + 1, V): this program's, for its own ids."""
    from sparsenmt.model.protocol import Source

    model = bundle.model.double().eval()
    with torch.no_grad():
        tokens = torch.tensor([source])
        (memory,) = model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool))).memories.values()
        (hidden,) = model.decode(torch.tensor([[BOS, *target]]), memory).values()
        return model.project(hidden)[0]


def twin_logits(bundle: Bundle, path: Path) -> tuple[Tensor, Tensor]:
    """(T + 1, V) by the plain implementation of Marian from its file, and by this program; of possible tokens."""
    found = read_marian_file(path)
    twin = Twin({**found.configuration, "learned": False}, bundle.tokenizers.target.size, found.tensors)
    source, target = [5, 9, 11, 7, EOS], [6, 8, 10]
    ids = vocabulary_files(bundle.tokenizers, MarianLayout.read(bundle.tokenizers.layout))[1].ids
    theirs, ours = (
        twin.logits([ids[id_] for id_ in source], [ids[id_] for id_ in target]),
        logits(bundle, source, target),
    )
    known = [id_ for id_ in range(len(ids)) if id_ not in (PAD, BOS)]
    return theirs[:, [ids[id_] for id_ in known]], ours[:, known]


# Import, then export


UNCHANGED = {name: each for name, each in VARIANTS.items() if "gelu" not in name}  # whose weights are scaled
UNCHANGED["norms first, self-attention"] = {**PRE, **ATTENTION}


@pytest.mark.parametrize("kind", ["npz", "bin", "int8"])
@examples("name", UNCHANGED, fast=3)
def test_unchanged_models_come_out_as_the_files_they_were(name: str, kind: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", kind, **UNCHANGED[name])
    export_directory(imported(source, tmp_path), tmp_path / "out", "marian")
    for path in source.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("size", [1, 64])
def test_a_changed_model_that_needs_single_sentences_gets_settings_that_say_so(size: int, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "npz", **PRE, **ATTENTION)
    with (source / "config.yml").open("a", encoding="utf-8", newline="\n") as stream:
        stream.write(f"mini-batch: {size}\n")
    before = (source / "config.yml").read_bytes()
    model = changed(imported(source, tmp_path), "encoder.layers.0.self.q.bias")
    export_directory(model, tmp_path / "out", "marian")
    after = (tmp_path / "out/config.yml").read_bytes()
    assert yaml.safe_load(after)["mini-batch"] == 1 and (after == before) == (size == 1)


def test_padding_of_any_contents_is_kept(tmp_path: Path) -> None:
    """Bergamot's converter leaves what was in memory behind the numbers of 8 bits."""
    source = write_source(tmp_path / "source", "int8")
    path = source / "the model.bin"
    data = bytearray(path.read_bytes())
    first = read_marian_file(path).places[0]
    data[first.begin + first.length + 4 : first.begin + first.length + 9] = b"stale"
    path.write_bytes(bytes(data))
    export_directory(imported(source, tmp_path), tmp_path / "out", "marian")
    assert (tmp_path / "out" / path.name).read_bytes() == bytes(data)


def test_a_vocabulary_of_words_comes_out_as_it_was(tmp_path: Path) -> None:
    words = ["cat", "</s>", "the", "<unk>", "sat"]
    text = "".join(f"{word}:   {i} # {i}\n" for i, word in enumerate(words))
    (tmp_path / "vocab.yml").write_text(text, encoding="utf-8")
    source = Twin.of(len(words)).write_npz(tmp_path / "model.npz")
    import_model(source, tmp_path / "model", vocabularies=(tmp_path / "vocab.yml",))
    export_directory(tmp_path / "model", tmp_path / "out", "marian")
    for name in ("model.npz", "vocab.yml"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert "models:" in (tmp_path / "out/decoder.yml").read_text(encoding="utf-8"), "settings, though there were none"


def test_a_changed_student_keeps_the_rest(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "bin")
    model = changed(imported(source, tmp_path), "decoder.layers.1.recurrence.forget.bias")
    export_directory(model, tmp_path / "out", "marian")
    before, after = (read_marian_file(folder / "the model.bin").tensors for folder in (source, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["decoder_l2_rnn_bf"]
    for name in ("config.yml", "lex.s2t.bin", "vocab.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def trained_with_adapters(model: Path, tmp_path: Path) -> Path:
    """The model after updates of low-rank adapters alone, which its final weights hold merged."""
    for side in ("en", "pt"):
        (tmp_path / side).write_text("\n".join(SENTENCES) + "\n", encoding="utf-8", newline="\n")
    text = f"{{source: {tmp_path / 'en'}, target: {tmp_path / 'pt'}}}"
    data = [f"data.train=[{text}]", f"data.dev={text}", f"data.directory={tmp_path / 'data'}"]
    assert run(["prepare", str(model / "recipe.yaml"), *data]) == 0
    training = {"device": "cpu", "compute_dtype": "fp32", "threads": 1, "max_updates": 2, "warmup_updates": 1}
    changes = [f"training.{key}={value}" for key, value in {**training, "learning_rate": 0.05}.items()]
    changes += ["training.lora={rank: 2, targets: [q, v, recurrence, feed_forward]}", f"directory={tmp_path / 'tuned'}"]
    assert run(["train", str(model / "recipe.yaml"), "--from", str(model), *data, *changes]) == 0
    return tmp_path / "tuned"


def test_a_student_with_a_merged_adapter_goes_out(tmp_path: Path) -> None:
    """The files hold the sum of the imported matrices and the adapters, and Marian computes this program's logits."""
    source = write_source(tmp_path / "source", "bin")
    tuned = trained_with_adapters(imported(source, tmp_path), tmp_path)
    export_directory(tuned, tmp_path / "out", "marian")
    before, after = (read_marian_file(folder / "the model.bin").tensors for folder in (source, tmp_path / "out"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith(("_Wq", "_Wv", "_rnn_W", "_rnn_Wf", "_W1", "_W2"))}
    for name in ("config.yml", "lex.s2t.bin", "vocab.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    bundle = open_model(tuned, dtype=None)
    theirs, ours = twin_logits(bundle, tmp_path / "out/the model.bin")
    assert float((theirs - ours).abs().max()) < 2e-5
    export_directory(tuned, tmp_path / "in 8 bits", "marian", file="int8", text=tmp_path / "en")
    found = read_marian_file(tmp_path / "in 8 bits/model.intgemm.alphas.bin")
    assert found.multipliers and found.alphas.keys() == {*found.multipliers, "none"}


def test_another_kind_of_file_has_settings_of_its_own(tmp_path: Path) -> None:
    model = imported(write_source(tmp_path / "source", "int8"), tmp_path)
    export_directory(model, tmp_path / "out", "marian", file="npz")
    again = read_marian(tmp_path / "out")
    weights = open_model(model, dtype=None).model.state_dict()
    assert all(torch.equal(each, weights[name]) for name, each in again.weights.items())
    settings = yaml.safe_load((tmp_path / "out/config.yml").read_bytes())
    assert settings["models"] == ["model.npz"] and settings["normalize"] == 0.6 and settings["beam-size"] == 1


# 8 bits


def test_alphas_stay_while_the_matrices_do(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "int8")
    model = changed(imported(source, tmp_path), "encoder.layers.0.self_norm.bias")
    export_directory(model, tmp_path / "out", "marian")
    before, after = (read_marian_file(folder / "the model.bin") for folder in (source, tmp_path / "out"))
    assert after.alphas == before.alphas and after.multipliers == before.multipliers
    changed(model, "encoder.layers.0.self.q.weight")
    with pytest.raises(UserError, match="not those from before the matrices changed") as caught:
        export_directory(model, tmp_path / "again", "marian")
    assert caught.value.hint == "Name a text in the source language, of some hundred lines: --text FILE."
    assert not (tmp_path / "again").exists()


def test_alphas_are_measured_on_a_text(tmp_path: Path) -> None:
    """127 over the mean of the greatest inputs and 1.1 of their standard deviations; by the model's own layers."""
    (tmp_path / "text").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    model = changed(imported(write_source(tmp_path / "source", "int8"), tmp_path), "encoder.layers.0.self.q.weight")
    export_directory(model, tmp_path / "out", "marian", text=tmp_path / "text")
    found = read_marian_file(tmp_path / "out/the model.bin")
    assert found.alphas.keys() == {*found.multipliers, "none"}
    assert found.alphas["encoder_l1_self_Wq"] == found.alphas["encoder_l1_self_Wk"]
    assert found.alphas["Wemb"] == pytest.approx(found.alphas["none"], rel=1e-6)
    bundle = open_model(model, dtype=None)
    greatest = []
    hook = bundle.model.get_submodule("encoder.layers.0.self.q").register_forward_pre_hook(
        lambda module, inputs: greatest.append(float(inputs[0].abs().max()))
    )
    from tests.importers.test_marian import translated

    translated(bundle, SENTENCES)
    hook.remove()
    expected = 127 / (np.mean(greatest) + 1.1 * np.std(greatest))
    assert found.alphas["encoder_l1_self_Wq"] == pytest.approx(expected, rel=1e-5)


def test_the_text_is_read_at_the_depth_that_goes_out(tmp_path: Path) -> None:
    """The alphas of a student of fewer layers are those of the student that is cut to them first."""
    (tmp_path / "text").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    model = imported(write_source(tmp_path / "source", "npz"), tmp_path)
    choices: dict[str, Any] = {"file": "int8", "text": tmp_path / "text"}
    export_directory(model, tmp_path / "out", "marian", encoder_layers=1, decoder_layers=1, **choices)
    slice_model(model, tmp_path / "cut", encoder_layers=1, decoder_layers=1)
    export_directory(tmp_path / "cut", tmp_path / "again", "marian", **choices)
    found, expected = (read_marian_file(tmp_path / name / "model.intgemm.alphas.bin") for name in ("out", "again"))
    assert found.alphas == expected.alphas


def test_a_cut_student_goes_out_in_8_bits(tmp_path: Path) -> None:
    model = imported(write_source(tmp_path / "source", "int8"), tmp_path)
    (tmp_path / "text").write_text("a dog ran\n", encoding="utf-8")
    slice_model(model, tmp_path / "cut", vocabulary=VocabularyTexts((tmp_path / "text",), ()))
    export_directory(tmp_path / "cut", tmp_path / "out", "marian")
    again = read_marian(tmp_path / "out")
    cut = open_model(tmp_path / "cut", dtype=None)
    assert again.tokenizers.source.size == cut.tokenizers.source.size
    assert all(torch.equal(again.weights[name], each) for name, each in cut.model.state_dict().items())
    assert read_marian_file(tmp_path / "out/the model.bin").alphas


def test_rounding_to_8_bits() -> None:
    matrix = torch.tensor([[0.5, -1.27], [0.0149, 0.015]])
    multiplier = multiplier_of(matrix)
    assert multiplier == pytest.approx(100)
    assert levels_of("encoder_l1_self_Wq", matrix, multiplier).tolist() == [[50, 1], [-127, 2]], "transposed"
    assert levels_of("Wemb", matrix, multiplier).tolist() == [[50, -127], [1, 2]]
    assert not has_levels(matrix, multiplier)
    assert has_levels((matrix * multiplier).round() / torch.tensor(multiplier), multiplier)
    assert multiplier_of(torch.zeros(2, 2)) == 1.0
    names = ["Wemb", "decoder_Wemb", "decoder_l1_rnn_W", "decoder_l1_rnn_Wf", "encoder_l1_ffn_W1", "encoder_l1_self_Wo"]
    assert all(map(is_matrix, names))
    others = ["decoder_ff_logit_out_b", "encoder_l1_self_Wo_ln_scale", "Wpos", "decoder_l1_rnn_bf"]
    assert not any(map(is_matrix, others))


# Models of this program


@pytest.mark.parametrize(
    "section",
    [
        {**POST},
        {**POST, "tie_embeddings": "target", "activation": "silu", "decoder_feed_forward": 32},
        {**POST, "tie_embeddings": "none", "final_norm": True, "output_bias": True},
        {**POST, "tie_embeddings": "inputs", "depth": {"name": "recurrent"}},
        {"recurrence": {"name": "ssru"}},
    ],
)
def test_marian_begins_with_zeros_and_computes_the_same(section: dict[str, Any], tmp_path: Path) -> None:
    """The exported file, computed by the plain implementation of Marian, gives this program's logits."""
    bundle = make_bundle(norm_epsilon=1e-6, **section)
    assert bundle.model.embeddings[bundle.model.table_keys[1]][BOS].any(), "a trained row of <s>"
    export_model(bundle, tmp_path / "out", "marian")
    theirs, ours = twin_logits(bundle, tmp_path / "out/model.npz")
    assert float((theirs - ours).abs().max()) < 2e-5


def test_norms_first_are_a_transformer_new(tmp_path: Path) -> None:
    bundle = make_bundle()
    export_model(bundle, tmp_path / "out", "marian")
    found = read_marian_file(tmp_path / "out/model.npz")
    assert found.configuration["type"] == "transformer-new"
    of_class = "as<marian::nn::TransformerDecoderLayerWithCrossAttention>()"
    first, second = (f"TransformerBatchDecoder->decoder->layers->at({i})->{of_class}->" for i in (0, 1))
    row = bundle.model.embeddings["shared"][BOS] * 4
    outer = found.tensors[f"{first}filterBlock->layers->at(1)->as<marian::nn::Linear>()->bias"]
    assert torch.allclose(outer, row)
    own = bundle.model.state_dict()["decoder.layers.0.cross.v.weight"].t()
    assert torch.equal(found.tensors[f"{second}crossAttentionBlock->crossAttention->vProj->weight"], own)
    assert found.configuration["dec-depth"] == 4 and found.configuration["tied-embeddings-all"] is False
    assert yaml.safe_load((tmp_path / "out/decoder.yml").read_bytes())["mini-batch"] == 1
    text = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "mini_batch=1," in text and "a layer in front" in text


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "entmax": ({"attention": {"cross": {"transform": {"name": "entmax15"}}}}, "cross.transform", "transform entmax15"),
    "top-k": ({"attention": {"encoder_self": {"transform": {"name": "topk", "k": 2}}}}, "transform", "transform topk"),
    "gates": ({"memory": [{"name": "l0drop"}]}, "model.memory.0", "memory l0drop"),
    "activation": ({**POST, "activation": "gelu_tanh"}, "model.activation", "activation: gelu_tanh"),
    "learned positions": ({**POST, "positions": "learned"}, "model.positions", "positions: learned"),
    "wavelengths": ({**POST, "sinusoids": "paper"}, "model.sinusoids", "sinusoids: paper"),
    "positions from 2": ({**POST, "first_position": 2}, "model.first_position", "first_position: 2"),
    "scale": ({**POST, "embedding_scale": "none"}, "model.embedding_scale", "embedding_scale: none"),
    "epsilon": ({**POST, "norm_epsilon": 1e-3}, "model.norm_epsilon", "with the epsilon 1e-06, not 0.001"),
    "heads": (
        {**POST, "attention": {"encoder_self": {"heads": {"count": 4}}}},
        "model.attention.encoder_self.heads.count",
        "not 4 and 2",
    ),
    "a trained start of SSRU": (STUDENT, "model.recurrence", "which recurrent layers cannot make up for"),
    "a trained start, normalised": ({**POST, "embedding_norm": True}, "model.embedding_norm", "normalised embeddings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_marian_does_not_compute_is_refused_by_its_key(name: str, tmp_path: Path) -> None:
    section, where, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as caught:
        export_model(make_bundle(**section), tmp_path / "out", "marian")
    assert where in str(caught.value.where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("section", "where"),
    [({}, "model.norm"), (POST, "--file int8"), ({**POST, "tie_embeddings": "none"}, "--file int8")],
)
def test_what_8_bits_do_not_have_is_refused(section: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in 8 bits") as caught:
        export_model(make_bundle(**section), tmp_path / "out", "marian", choices=FileChoices("int8"))
    assert caught.value.where == where


def test_a_text_is_for_8_bits(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this is fp32") as caught:
        export_model(make_bundle(**POST), tmp_path / "out", "marian", choices=FileChoices("npz", tmp_path / "text"))
    assert caught.value.where == "--text"


def test_choices_belong_to_marian(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has one kind of files") as caught:
        export_model(make_bundle(), tmp_path / "out", "safetensors-hf", choices=FileChoices("bin"))
    assert caught.value.where == "--file"


# Formats

GOLDEN = {
    "bin": "60d73596c24bff66f05369473a805e4d0d29de5455b48112966331f6946adcde",
    "npz": "43120ca3471903d4f260023bb563f2d54ff7330b41374f5dfc1bb504a0fb569b",
}
"""SHA-256 of what `pymarian convert` of Marian 1.12.42 makes of the file below."""


def test_files_are_those_that_marian_writes() -> None:
    twin = Twin.of(22)
    for place, (name, shape) in enumerate(twin.shapes()):
        values = (torch.arange(math.prod(shape)) * 7 + place * 13) % 101 - 50
        twin.tensors[name] = values.float().reshape(shape) / 64
    configuration = dict(sorted({**CONSTANT, **twin.config}.items()))
    for kind, write in (("bin", bin_file), ("npz", npz_file)):
        assert hashlib.sha256(write(configuration, twin.tensors)).hexdigest() == GOLDEN[kind], kind


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_other_vocabularies_are_refused(kind: str) -> None:
    with pytest.raises(UserError, match="Marian has vocabularies of SentencePiece and of words") as caught:
        vocabulary_files(make_tokenizers(kind, shared=True), None)
    assert caught.value.where == "data.tokenizer.kind"


def test_words_become_a_table(tmp_path: Path) -> None:
    tokenizers = make_tokenizers("word", shared=False)
    pair = (tokenizers.source, tokenizers.target)
    for found, own in zip(vocabulary_files(tokenizers, None), pair, strict=True):
        (tmp_path / found.name).write_bytes(found.data)
        again = read_vocabulary(tmp_path / found.name, "source")
        assert again.tokenizer.pieces(range(own.size)) == own.pieces(range(own.size))
        assert again.ids == tuple(found.ids) and found.ids[EOS] == 0 and found.ids[UNK] == 1


# Layouts of others


def test_settings_that_named_files_elsewhere_are_written_anew(tmp_path: Path) -> None:
    """Marian would load the old model by its path, and one of two vocabularies of one name would be lost."""
    source = tmp_path / "source"
    source.mkdir()
    size = vocabulary(source).get_piece_size()
    Twin.of(size, **UNTIED).write_npz(source / "model.npz")
    for side in ("en", "pt"):
        (source / side).mkdir()
        (source / side / "vocab.spm").write_bytes((source / "vocab.spm").read_bytes())
    names = {"models": [str(source / "model.npz")], "vocabs": ["en/vocab.spm", "pt/vocab.spm"]}
    text = yaml.safe_dump({"relative-paths": True, **names, "beam-size": 2})
    (source / "decoder.yml").write_text(text, encoding="utf-8", newline="\n")
    export_directory(imported(source, tmp_path), tmp_path / "out", "marian")
    settings = yaml.safe_load((tmp_path / "out/decoder.yml").read_bytes())
    named = [*settings["models"], *settings["vocabs"]]
    assert named == ["model.npz", "source.vocab.spm", "target.vocab.spm"] and settings["beam-size"] == 2
    assert all((tmp_path / "out" / name).is_file() for name in named)
    assert (tmp_path / "out/model.npz").read_bytes() == (source / "model.npz").read_bytes()


def test_a_shortlist_in_text_becomes_a_binary_one(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", "npz")
    (source / "lex.s2t.bin").unlink()
    (source / "lex.txt").write_text("the the 0.9\ncat cat 0.8\n", encoding="utf-8", newline="\n")
    text = (source / "config.yml").read_text(encoding="utf-8").replace("lex.s2t.bin", "lex.txt")
    (source / "config.yml").write_text(text.replace("- false", "- 10\n- 10"), encoding="utf-8", newline="\n")
    export_directory(imported(source, tmp_path), tmp_path / "out", "marian")
    assert yaml.safe_load((tmp_path / "out/config.yml").read_bytes())["shortlist"] == ["lex.bin", False]
    assert (tmp_path / "out/lex.bin").is_file() and not (tmp_path / "out/lex.txt").exists()


def test_names_of_files_are_no_code(tmp_path: Path) -> None:
    """The code of the README is run by its reader, and a model comes from a stranger."""
    source, name = write_source(tmp_path / "source", "npz"), 'x"] + [print("\N{SNOWMAN}")] + ["x.npz'
    (source / "the model.npz").rename(source / name)
    settings = yaml.safe_load((source / "config.yml").read_bytes()) | {"models": [name]}
    (source / "config.yml").write_text(yaml.safe_dump(settings), encoding="utf-8", newline="\n")
    export_directory(imported(source, tmp_path), tmp_path / "out", "marian")
    code = (tmp_path / "out/README.md").read_text(encoding="utf-8").split("```")[1].removeprefix("python\n")
    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.keywords]
    values = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert values["models"] == [name]


def test_damaged_layouts_are_refused(tmp_path: Path) -> None:
    model = imported(write_source(tmp_path / "source", "npz"), tmp_path)
    content = (model / "tokenizers" / LAYOUT).read_bytes()
    assert MarianLayout.read(content) is not None and MarianLayout.read(None) is None
    assert MarianLayout.read(b'{"program": "another"}') is None
    names = [content.replace(b'"lex.s2t.bin"', new) for new in (b'"../lex"', b'".."', b'"a\\u0000b"')]
    for bad in (
        content[:100],
        content.replace(b'"rest"', b'"ruins"'),
        *names,
        content.replace(b'"the model.npz"', b'""'),
    ):
        with pytest.raises(UserError):
            MarianLayout.read(bad)
    value = json.loads(content)
    value["rest"] = base64.b64encode(b"something else").decode()
    found = MarianLayout.read(json.dumps(value).encode())
    assert found is not None and found.filled(lambda place: bytes(place.length)) is None


def test_settings_of_others_are_checked(tmp_path: Path) -> None:
    bundle = open_model(imported(write_source(tmp_path / "source", "npz"), tmp_path), dtype=None)
    assert bundle.tokenizers.layout is not None
    value = json.loads(bundle.tokenizers.layout) | {"settings_text": "models: [a]\nbeam-size: [1]\n"}
    tokenizers = replace(bundle.tokenizers, layout=json.dumps(value).encode())
    with pytest.raises(UserError, match="beam-size is"):
        export_model(replace(bundle, tokenizers=tokenizers), tmp_path / "out", "marian")
