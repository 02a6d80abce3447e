"""What is written, and what is refused; no other program is needed for it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.errors import UserError
from sparsenmt.export import model_export
from sparsenmt.export.model_export import MANIFEST, check_target, export_model
from sparsenmt.export.plain_transformer import parameter_count, plain_model
from sparsenmt.export.to_transformers import generation_config, model_config, transformers_weights
from sparsenmt.sparsity.registry import all_methods
from sparsenmt.storage.files import read_sealed
from sparsenmt.storage.records import check_file_entries
from tests.export.support import VARIANTS, make_bundle, make_tokenizers

NEITHER = [m for m in all_methods() if m.socket != "depth" and m.name not in ("full", "softmax")]
DEPTHS = [m.name for m in all_methods() if m.socket == "depth"]


def at_socket(socket: str, choice: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The key where a method stands, and a model section that has it there."""
    if socket == "memory":
        return "model.memory.0", {"memory": [choice]}
    if socket == "recurrence":
        return "model.recurrence", {"recurrence": choice}
    site: dict[str, Any] = {"heads": {"given": choice, "count": 8}} if socket == "heads" else {socket: choice}
    key = f"model.attention.encoder_self.{'heads.given' if socket == 'heads' else socket}"
    return key, {"attention": {"encoder_self": site}}


@pytest.mark.parametrize("method", NEITHER, ids=lambda method: f"{method.socket}-{method.name}")
def test_what_others_do_not_compute_is_refused(method: Any, tmp_path: Path) -> None:
    key, section = at_socket(method.socket, {"name": method.name, **method.examples[0]})
    bundle = make_bundle(**section)
    for target in ("ctranslate2", "safetensors-hf"):
        with pytest.raises(UserError) as caught:
            export_model(bundle, tmp_path / "out", target)
        assert f"does not compute the {method.socket} {method.name}" in str(caught.value)
        assert caught.value.where == key
    assert not list(tmp_path.iterdir())


def test_two_numbers_of_heads_in_a_decoder_are_refused() -> None:
    bundle = make_bundle(attention={"cross": {"heads": {"count": 4}}})
    with pytest.raises(UserError, match="the same number of heads in the whole decoder, not 2 and 4"):
        plain_model(bundle, "Marian")


@pytest.mark.parametrize("name", DEPTHS)
def test_every_depth_method_is_unrolled(name: str) -> None:
    bundle = make_bundle(depth={"name": name})
    plain = plain_model(bundle, "it")
    assert (plain.encoder_layers, plain.decoder_layers) == (2, 3)
    state = bundle.model.state_dict()
    for side, layers in (("encoder", plain.encoder_layers), ("decoder", plain.decoder_layers)):
        for step in range(layers):
            block = getattr(bundle.model.plan, side)[step]
            own = plain.stacks[f"{side}.layers.{step}.self.q.weight"]
            assert torch.equal(own, state[f"{side}.layers.{block}.self.q.weight"])
    assert parameter_count(plain) == sum(value.numel() for value in state.values())


def test_a_depth_ends_early() -> None:
    bundle = make_bundle(depth={"name": "tied_multi"})
    plain = plain_model(bundle, "it", (1, 2))
    assert (plain.encoder_layers, plain.decoder_layers) == (1, 2)
    assert model_config(plain, bundle.recipe.model.dropout)["decoder_layers"] == 2
    assert "model.decoder.layers.2.fc1.weight" not in transformers_weights(plain)


def test_disabled_heads_are_read_by_nobody() -> None:
    bundle = make_bundle(**VARIANTS["heads"])
    plain = plain_model(bundle, "it")
    before = bundle.model.state_dict()["encoder.layers.0.self.o.weight"]
    after = plain.stacks["encoder.layers.0.self.o.weight"]
    assert torch.equal(after[:, 4:12], before[:, 4:12]), "heads 2 and 3 of 4"
    assert not after[:, :4].any() and not after[:, 12:].any()
    assert before[:, :4].any(), "the model is as it was"


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_transformers_gets(variant: str, tmp_path: Path) -> None:
    bundle = make_bundle(**VARIANTS[variant])
    export_model(bundle, tmp_path / "out", "safetensors-hf")
    section = bundle.recipe.model
    config = json.loads((tmp_path / "out/config.json").read_bytes())
    tensors = load_file(tmp_path / "out/model.safetensors")
    with safe_open(tmp_path / "out/model.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    kind = {"pre": ("Pegasus", "MBart"), "post": ("MarianMT", "Bart")}[section.norm][section.embedding_norm]
    assert config["architectures"] == [f"{kind}Model" if kind == "MarianMT" else f"{kind}ForConditionalGeneration"]
    assert ("model.decoder.layernorm_embedding.bias" in tensors) == section.embedding_norm
    assert ("model.encoder.layer_norm.weight" in tensors) == (section.norm == "pre")
    assert config["tie_word_embeddings"] == (section.tie_embeddings in ("all", *["target"] * (kind == "MarianMT")))
    tables = {
        name.split(".")[-2] for name in tensors if "embed_tokens" in name or "shared" in name or "lm_head" in name
    }
    if section.tie_embeddings == "all":
        assert tables == {"shared"}
    assert tensors["model.decoder.embed_positions.weight"].shape == (74 if section.embedding_norm else 72, 16)
    names = {"encoder": ("self_attn",), "decoder": ("self_attn", "encoder_attn")}
    for side, attentions in names.items():
        for attention in attentions:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                assert tensors[f"model.{side}.layers.1.{attention}.{part}.weight"].shape == (16, 16)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


@pytest.mark.parametrize(
    ("keys", "target", "message"),
    [
        ({"final_norm": False}, "safetensors-hf", "normalisation before each sub-layer and none after the last layer"),
        ({"norm": "post", "final_norm": True}, "safetensors-hf", "after each sub-layer and one after the last layer"),
        ({"norm_epsilon": 1e-6}, "safetensors-hf", "normalises with the epsilon 1e-05, not 1e-06"),
    ],
)
def test_orders_of_norms_that_are_not_there(keys: Any, target: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_model(make_bundle(**keys), tmp_path / "out", target)
    assert not (tmp_path / "out").exists()


def test_smaller_vocabularies_are_filled_up(tmp_path: Path) -> None:
    bundle = make_bundle(tie_embeddings="none")
    rows = [side.size for side in (bundle.tokenizers.source, bundle.tokenizers.target)]
    assert rows[0] > rows[1]
    found = transformers_weights(plain_model(bundle, "it"))
    assert found["lm_head.weight"].shape[0] == found["model.encoder.embed_tokens.weight"].shape[0] == rows[0]
    assert bool((found["final_logits_bias"][0] < 0).nonzero().flatten().tolist() == list(range(rows[1], rows[0])))


def test_what_is_written_says_what_it_is_made_from(tmp_path: Path) -> None:
    bundle = make_bundle()
    export_model(bundle, tmp_path / "out", "safetensors-hf")
    manifest = read_sealed(tmp_path / "out" / MANIFEST)
    assert manifest["exported_to"] == "safetensors-hf" and manifest["encoder_layers"] == 2
    check_file_entries(tmp_path / "out", manifest["files"], hint="")
    assert {"README.md", "config.json", "model.safetensors", "vocab.json", "source.spm"} <= manifest["files"].keys()
    export_model(bundle, tmp_path / "again", "safetensors-hf")
    for path in sorted((tmp_path / "out").iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize("kind", ["char", "word"])
def test_other_tokenizers_come_as_they_are(kind: str, tmp_path: Path) -> None:
    bundle = make_bundle(kind)
    export_model(bundle, tmp_path / "out", "safetensors-hf")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "tokenizers" in names and not {"source.spm", "tokenizer_config.json"} & names
    text = (tmp_path / "out/README.md").read_bytes().decode()
    assert "Tokenizers.load" in text and "MarianTokenizer" not in text


def test_half_an_export_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **named: object) -> str:
        raise OSError(28, "no space left")

    monkeypatch.setattr(model_export, "readme", fails)
    with pytest.raises(OSError, match="no space"):
        export_model(make_bundle(), tmp_path / "out", "safetensors-hf")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the directory exists"):
        check_target("safetensors-hf", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ctranslate2 is not installed"):
        check_target("ctranslate2", tmp_path / "out")
    check_target("safetensors-hf", tmp_path / "out")


def test_the_search_of_the_recipe() -> None:
    frames = Frames()

    def search(**decoding: Any) -> dict[str, Any]:
        bundle = make_bundle(decoding=decoding)
        return generation_config(plain_model(bundle, "it"), bundle.recipe.decoding, frames)

    assert search()["length_penalty"] == 1.0 and search()["num_beams"] == 3
    assert search(length_penalty="none")["length_penalty"] == 0.0
    assert search(alpha=0.5)["length_penalty"] == 0.5
    assert search(method="greedy")["num_beams"] == 1
    assert search()["suppress_tokens"] == [0, 2]
    lengths = {"max_length_factor": 0.0, "max_length_offset": 9, "min_length": 4, "no_repeat_ngram": 3}
    own, keys = search(**lengths), ("max_length", "min_length", "no_repeat_ngram_size", "forced_bos_token_id")
    assert [own[key] for key in keys] == [10, 5, 3, None]
    frames = Frames(target_prefix=[7])
    assert [search(**lengths)[key] for key in keys] == [11, 6, 3, 7]
    drawn = search(method="sample", top_k=5, temperature=0.5)
    assert (drawn["do_sample"], drawn["top_k"], drawn["temperature"], drawn["num_beams"]) == (True, 5, 0.5, 1)


def test_the_readme_tells_what_differs() -> None:
    from sparsenmt.export.readme import readme
    from sparsenmt.export.target import load_target

    def text(target: str, **given: Any) -> str:
        bundle = make_bundle(**given)
        return readme(bundle, plain_model(bundle, "it"), load_target(target), sentencepiece=True)

    assert "((5 + length) / 6)^0.7" in text("ctranslate2", decoding={"length_penalty": "gnmt", "alpha": 0.7})
    assert "Transformers 5" in text("safetensors-hf", tie_embeddings="target")
    assert "Transformers 5" not in text("safetensors-hf", tie_embeddings="target", norm="post")
    assert "but for ties" in text("safetensors-hf")
    drawn = {"method": "sample", "min_length": 3, "no_repeat_ngram": 2}
    assert "the recipe's `decoding.method: sample` and `decoding.no_repeat_ngram: 2`" in text(
        "ctranslate2", decoding=drawn
    )
    assert "the recipe's `decoding.min_length: 3`." in text("marian", decoding={"min_length": 3}, norm="post")
    assert "do not have" not in text("safetensors-hf", decoding=drawn)
    assert "do not have" not in text("ctranslate2", decoding={"method": "greedy", "min_length": 3})


def test_names_in_the_readme_are_no_markup(tmp_path: Path) -> None:
    bundle = make_bundle()
    recipe = bundle.recipe.model_copy(update={"name": "a\n```\n<script>"})
    export_model(replace(bundle, recipe=recipe), tmp_path / "out", "safetensors-hf")
    text = (tmp_path / "out/README.md").read_bytes().decode()
    assert "\n# a ``` &lt;script>\n" in text and "<script>" not in text


def test_two_pieces_of_one_name(tmp_path: Path) -> None:
    from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
    from sparsenmt.export.to_ctranslate2 import _vocabulary

    with pytest.raises(UserError, match="two tokens named </s>"):
        _vocabulary(WordTokenizer(["Haus", "</s>"], lowercase=False), "source")
    tokenizers = make_tokenizers("bpe", shared=True)
    assert _vocabulary(tokenizers.source, "source")[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
