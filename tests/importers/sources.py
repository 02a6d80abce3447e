"""Small complete models of other programs, as files that `import` reads: golden weights with golden tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml

from sparsenmt.storage.tensors import load_foreign_tensors, save_tensors
from tests.importers.marian_twin import Twin, vocabulary

_HERE = Path(__file__).parent
_WEIGHTS = {"mbart-25": "mbart", "mbart-50": "mbart", "m2m-100": "m2m_100", "nllb": "m2m_100", "pegasus": "pegasus"}
_WEIGHTS |= {"t5": "t5", "madlad-400": "t5-gated"}
_FAMILIES: dict[str, Any] = json.loads((_HERE / "golden-tokenizers" / "ids.json").read_text(encoding="utf-8"))
FAMILIES = [name for name in _FAMILIES["families"] if name != "opus-mt-two-vocabularies"]


def hugging_face(folder: Path, name: str = "opus-mt") -> Path:
    """Write a model of Transformers with the tokenizer of a family: weights of that family with tables of its size."""
    shutil.copytree(_HERE / "golden-tokenizers" / name, folder)
    golden = _HERE / "golden" / ("bart" if name == "bart" else _WEIGHTS.get(name, "marian"))
    before = json.loads((golden / "config.json").read_text(encoding="utf-8"))
    config = before | _FAMILIES["families"][name]["config"]
    if "decoder_vocab_size" in before:
        config["decoder_vocab_size"] = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    search = json.loads((golden / "generation_config.json").read_text(encoding="utf-8"))
    search |= {key: config.get(key) for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    search["bad_words_ids"] = [[config["pad_token_id"]]]
    (folder / "generation_config.json").write_text(json.dumps(search), encoding="utf-8")
    random, tensors = torch.Generator().manual_seed(1), {}
    for key, tensor in load_foreign_tensors(golden / "model.safetensors", hint="").items():
        shape = [config["vocab_size"] if size == before["vocab_size"] else size for size in tensor.shape]
        tensors[key] = tensor if [*tensor.shape] == shape else torch.randn(shape, generator=random)
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def marian(folder: Path, *, quantized: bool = False, **changes: Any) -> Path:
    """Write a model of Marian with its vocabulary and its decoding settings."""
    folder.mkdir()
    twin = Twin.of(vocabulary(folder).get_piece_size(), **changes)
    name = "model.bin" if quantized else "model.npz"
    twin.write_bin(folder / name, quantized=True) if quantized else twin.write_npz(folder / name)
    settings = {"models": [name], "vocabs": ["vocab.spm"] * 2, "beam-size": 2, "normalize": 1.0}
    (folder / "decoder.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder
