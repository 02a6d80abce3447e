"""Hugging Face Transformers: small models with random weights, and what they compute.

``python transformers_models.py make FOLDER`` writes one model of each variant. ``python transformers_models.py run
FOLDER...`` computes ``outputs.safetensors`` of folders that have a model and ``inputs.safetensors``, and ``constrain``
in the place of ``run`` ``constrained.safetensors``: searches with given prefixes, and assisted ones. The worker of
``benchmarks/import_parity.py``, which also made ``tests/importers/golden``.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

SIZES: dict[str, Any] = {
    **{"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 24},
    **{"encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
}
MARIAN: dict[str, Any] = {"pad_token_id": 19, "decoder_start_token_id": 19, "eos_token_id": 0, "forced_eos_token_id": 0}
FAIRSEQ: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
PEGASUS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
T5: dict[str, Any] = {
    **{
        "vocab_size": 20,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 12,
        "num_heads": 2,
        "num_layers": 2,
        "num_decoder_layers": 2,
    },
    **{"n_positions": 24, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}
UNKNOWN = {"marian": 1, "bart": 3, "mbart": 3, "pegasus": 5, "m2m_100": 3, "t5": 2, "mt5": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("marian", {**MARIAN, "activation_function": "swish", "scale_embedding": True}),
    "marian-two-vocabularies": (
        "marian",
        {**MARIAN, "decoder_vocab_size": 22, "share_encoder_decoder_embeddings": False, "activation_function": "relu"},
    ),
    "marian-three-tables": (
        "marian",
        {
            **{**MARIAN, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
            **{"scale_embedding": True, "decoder_ffn_dim": 16, "decoder_attention_heads": 4},
        },
    ),
    "bart": ("bart", {**FAIRSEQ, "activation_function": "gelu"}),
    "bart-three-tables": ("bart", {**FAIRSEQ, "scale_embedding": True, "tie_word_embeddings": False}),
    "mbart": ("mbart", {**FAIRSEQ, "scale_embedding": True}),
    "pegasus": ("pegasus", {**PEGASUS, "activation_function": "relu", "scale_embedding": True}),
    "pegasus-tanh": ("pegasus", {**PEGASUS, "activation_function": "gelu_new", "decoder_ffn_dim": 16}),
    "m2m_100": ("m2m_100", dict(FAIRSEQ)),
    "m2m_100-three-tables": (
        "m2m_100",
        {**FAIRSEQ, "activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": False},
    ),
    "mt5": ("mt5", {**T5, "feed_forward_proj": "gated-silu", "num_heads": 3, "layer_norm_epsilon": 1e-3}),
    "t5": ("t5", {**T5, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}),
    "t5-gated": (
        "t5",
        {
            **{**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_kv": 16, "num_layers": 3},
            **{"relative_attention_num_buckets": 6, "relative_attention_max_distance": 5},
        },
    ),
}
END_OF_T5 = 1.2
LENGTHS, NEW_TOKENS, BEAM = (7, 4, 6, 3, 5), 12, 3


def make(folder: Path) -> None:
    """Write the models with their inputs and outputs."""
    for seed, (name, (kind, keys)) in enumerate(VARIANTS.items()):
        torch.manual_seed(seed)
        sizes = {} if kind in ("t5", "mt5") else SIZES
        config = transformers.AutoConfig.for_model(kind, **{**sizes, **keys})
        model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
        if sizes == {} and keys.get("tie_word_embeddings") is False:  # of Transformers 5 they begin as one
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        with torch.no_grad():
            if not sizes:  # T5's embeddings begin as large as its outputs
                for table in {model.shared.weight, model.lm_head.weight}:
                    table *= 0.3
            for own, parameter in model.named_parameters():
                if "embed_positions" not in own or kind in ("bart", "mbart"):
                    parameter += torch.randn(parameter.shape) * (
                        0.15 if parameter.dim() == 1 else 0.35 if sizes else 0.2
                    )
            for own, buffer in model.named_buffers():
                if own == "final_logits_bias":
                    buffer += torch.randn(buffer.shape)
            # Towards EOS, so that outputs end.
            end = model.lm_head.weight[keys["eos_token_id"]]
            if sizes:
                decoder = model.model.decoder
                last = decoder.layer_norm if hasattr(decoder, "layer_norm") else decoder.layers[-1].final_layer_norm
                last.bias += 2.5 * end / end.norm()
            else:
                given = inputs(keys, keys["vocab_size"])
                states = model(input_ids=given["source"], decoder_input_ids=given["target"], output_hidden_states=True)
                mean = states.decoder_hidden_states[-1].mean((0, 1))
                end += END_OF_T5 * mean / mean.norm()
        model.generation_config = transformers.GenerationConfig(
            **{key: keys.get(key) for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")},
            **{"num_beams": BEAM, "length_penalty": 1.0, "early_stopping": True, "max_length": NEW_TOKENS + 1},
            **{"forced_eos_token_id": None, "bad_words_ids": [[keys["pad_token_id"]]]},
        )
        place = folder / name
        model.save_pretrained(place)
        if keys.get("tie_word_embeddings") is False:  # as in files of T5 1.1, which Transformers 5 writes otherwise
            written = json.loads((place / "config.json").read_bytes())
            written.pop("scale_decoder_outputs", None)
            text = json.dumps({**written, "tie_word_embeddings": False}, indent=2)
            (place / "config.json").write_bytes(f"{text}\n".encode())
        rows = keys.get("decoder_vocab_size", SIZES["vocab_size"])
        save_file(inputs(keys, rows), place / "inputs.safetensors")
        (place / "unknown.json").write_bytes(f"{UNKNOWN[kind]}\n".encode())
        run(place)


def inputs(keys: dict[str, Any], rows: int) -> dict[str, Tensor]:
    """Sentences without special tokens inside, ended by EOS; what the decoder reads."""
    special = {value for value in keys.values() if type(value) is int} | {0, 1, 2, 3, 5, 19}
    words = torch.tensor([i for i in range(SIZES["vocab_size"]) if i not in special])
    valid = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    source = words[torch.randint(len(words), valid.shape)]
    for row, length in enumerate(LENGTHS):
        source[row, length - 1] = keys["eos_token_id"]
    source[~valid] = keys["pad_token_id"]
    target = words[torch.randint(len(words), (len(LENGTHS), 6))]
    target[:, 0] = keys["decoder_start_token_id"]
    never = torch.tensor([keys["pad_token_id"]])
    return {"source": source, "valid": valid, "target": target, "never": never}


def exact_norm(norm: Any, x: Tensor) -> Tensor:
    """The normalisation of T5, whose mean of squares Transformers forms in fp32."""
    found: Tensor = norm.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon))
    return found


def exact_parts(model: Any) -> None:
    """Put sinusoids and normalisations that are not rounded to fp32 in the place of a model's."""
    for module in model.modules():
        if type(module).__name__ in ("T5LayerNorm", "MT5LayerNorm"):
            module.forward = partial(exact_norm, module)
    if not hasattr(model, "model"):  # T5
        return
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions
        if hasattr(table, "weights"):  # M2M-100
            count, size = table.weights.shape
            rates = np.exp(np.arange(size // 2) * -(math.log(10000) / (size // 2 - 1)))
            angles = np.arange(count)[:, None] * rates
            found = np.concatenate([np.sin(angles), np.cos(angles)], 1)
            found[table.padding_idx] = 0
            table.weights = torch.from_numpy(found)
        elif "Sinusoidal" in type(table).__name__:
            count, size = table.weight.shape
            angles = np.arange(count)[:, None] / np.power(10000, 2 * np.arange(size // 2) / size)
            table.weight.data = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], 1))


@torch.no_grad()
def run(folder: Path) -> None:
    """Compute logits in fp32 and float64, greedy and beam search."""
    given = load_file(folder / "inputs.safetensors")
    batch = {"input_ids": given["source"], "attention_mask": given["valid"].long()}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {"logits": model(**batch, decoder_input_ids=given["target"]).logits}
    search = {"suppress_tokens": given["never"].tolist(), "max_length": NEW_TOKENS + 1}
    # Marian gives padding no share of the softmax. Without this, Transformers forbids it after the softmax.
    search["renormalize_logits"] = model.config.model_type == "marian"
    for name, beam in (("greedy", 1), ("beam", BEAM)):
        found[name] = model.generate(**batch, **search, num_beams=beam, early_stopping=beam > 1)
    model = model.double()
    exact_parts(model)
    found["logits64"] = model(**batch, decoder_input_ids=given["target"]).logits
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "outputs.safetensors")


@torch.no_grad()
def constrain(folder: Path) -> None:
    """Compute greedy and beam search of outputs that begin with given tokens, and greedy search with an assistant.

    The assistant has the first layer of the decoder alone.
    """
    given = load_file(folder / "inputs.safetensors")
    sizes = [row % 4 for row in range(len(LENGTHS))]
    model, assistant = (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in range(2)
    )
    search = {"suppress_tokens": given["never"].tolist(), "max_length": NEW_TOKENS + 1}

    def allowed(row: int, tokens: Tensor) -> list[int]:
        if len(tokens) > sizes[row]:
            return list(range(model.config.vocab_size))
        return [int(given["target"][row, len(tokens)])]

    found = {"prefixes": torch.tensor(sizes)}
    for name, beam in (("greedy", 1), ("beam", BEAM)):
        batch = {"input_ids": given["source"], "attention_mask": given["valid"].long(), "num_beams": beam}
        found[name] = model.generate(**batch, **search, prefix_allowed_tokens_fn=allowed, early_stopping=beam > 1)
    decoder = assistant.decoder if hasattr(assistant, "decoder") else assistant.model.decoder
    layers = "block" if hasattr(decoder, "block") else "layers"
    setattr(decoder, layers, getattr(decoder, layers)[:1])
    rows = []
    for row, length in enumerate(LENGTHS):
        own = model.generate(given["source"][row : row + 1, :length], **search, num_beams=1, assistant_model=assistant)
        rows.append(own[0])
    found["assisted"] = torch.nn.utils.rnn.pad_sequence(rows, True, model.config.pad_token_id)
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "constrained.safetensors")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    command, *names = sys.argv[1:]
    if command == "make":
        make(Path(names[0]))
    else:
        for each in names:
            {"run": run, "constrain": constrain}[command](Path(each))
