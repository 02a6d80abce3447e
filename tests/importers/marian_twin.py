"""Small models of Marian: their tensors and files, and a plain implementation of what Marian computes, in float64."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

D, WIDE, HEADS, LAYERS, DECODER_LAYERS = 16, 24, 2, 2, 2
SENTENCES = ("the cat sat on the mat", "a dog ran", "the dog saw a cat on a mat and sat")
STUDENT: dict[str, Any] = {
    **{"type": "transformer", "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "layer-normalization": False},
    **{"dim-emb": D, "transformer-dim-ffn": WIDE, "transformer-heads": HEADS, "enc-depth": LAYERS},
    **{"dec-depth": DECODER_LAYERS, "transformer-preprocess": "", "transformer-postprocess": "dan"},
    **{"transformer-postprocess-emb": "d", "transformer-postprocess-top": "", "transformer-ffn-activation": "relu"},
    **{"tied-embeddings-all": True, "tied-embeddings": False, "tied-embeddings-src": False},
}
PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
ATTENTION = {"transformer-decoder-autoreg": "self-attention"}
UNTIED = {"tied-embeddings-all": False}


def vocabulary(folder: Path, tags: Sequence[str] = ()) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model as Marian makes them: `</s>` is 0 and `<unk>` 1. Written to ``vocab.spm``."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=model, vocab_size=28 + len(tags), hard_vocab_limit=False,
        user_defined_symbols=[*tags], bos_id=-1, eos_id=0, unk_id=1, minloglevel=3,
    )  # fmt: skip
    (folder / "vocab.spm").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@dataclass
class Twin:
    """A model of Marian with random weights."""

    config: dict[str, Any]
    size: int  # of the vocabulary
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(size: int, **changes: Any) -> Twin:
        twin = Twin({**STUDENT, **changes, "dim-vocabs": [size, size]}, size)
        rng = torch.Generator().manual_seed(3)
        for name, shape in twin.shapes():
            values = torch.randn(*shape, generator=rng) * (0.5 if len(shape) > 1 and shape[0] > 1 else 0.1)
            twin.tensors[name] = values + 1 if "_ln_scale" in name else values
        return twin

    @property
    def pre(self) -> bool:
        return self.config["transformer-preprocess"] == "n"

    @property
    def recurrent(self) -> bool:
        return self.config["transformer-decoder-autoreg"] == "rnn"

    def shapes(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """The tensors' names and shapes, as Marian's graph has them."""

        def norm(prefix: str, suffix: str = "") -> Iterable[tuple[str, tuple[int, ...]]]:
            yield from ((f"{prefix}_ln_{part}{suffix}", (1, D)) for part in ("scale", "bias"))

        def attention(prefix: str) -> Iterable[tuple[str, tuple[int, ...]]]:
            for part in "qkvo":
                yield from ((f"{prefix}_W{part}", (D, D)), (f"{prefix}_b{part}", (1, D)))
            yield from norm(f"{prefix}_Wo", "_pre" if self.pre else "")

        def wide(prefix: str) -> Iterable[tuple[str, tuple[int, ...]]]:
            yield from ((f"{prefix}_W1", (D, WIDE)), (f"{prefix}_b1", (1, WIDE)))
            yield from ((f"{prefix}_W2", (WIDE, D)), (f"{prefix}_b2", (1, D)))
            yield from norm(f"{prefix}_ffn", "_pre" if self.pre else "")

        tables = ["Wemb"] if self.tie in ("all", "inputs") else ["encoder_Wemb", "decoder_Wemb"]
        yield from ((name, (self.size, D)) for name in tables)
        if self.tie in ("inputs", "none"):
            yield "decoder_ff_logit_out_Wt", (self.size, D)
        yield "decoder_ff_logit_out_b", (1, self.size)
        if self.config.get("learned"):
            yield "Wpos", (64, D)
        for i in range(1, self.config["enc-depth"] + 1):
            yield from (*attention(f"encoder_l{i}_self"), *wide(f"encoder_l{i}_ffn"))
        for i in range(1, self.config["dec-depth"] + 1):
            if self.recurrent:
                yield from ((f"decoder_l{i}_rnn_W{part}", (D, D)) for part in ("", "f"))
                yield f"decoder_l{i}_rnn_bf", (1, D)
                yield from norm(*((f"decoder_l{i}_rnn", "_pre") if self.pre else (f"decoder_l{i}_rnn_ffn", "")))
            else:
                yield from attention(f"decoder_l{i}_self")
            yield from (*attention(f"decoder_l{i}_context"), *wide(f"decoder_l{i}_ffn"))
        for side in ("encoder", "decoder"):
            if self.config["transformer-postprocess-top"]:
                yield from norm(f"{side}_top")
            if "n" in self.config["transformer-postprocess-emb"]:
                yield from norm(f"{side}_emb", "_pre")

    @property
    def tie(self) -> str:
        if self.config["tied-embeddings-all"]:
            return "all"
        return {"-src": "inputs", "": "target"}.get(
            next((part for part in ("-src", "") if self.config[f"tied-embeddings{part}"]), "-"), "none"
        )

    # Files

    def write_npz(self, path: Path) -> Path:
        text = np.frombuffer(yaml.safe_dump(self.config).encode() + b"\0", np.int8)
        np.savez(path, **{name: each.numpy() for name, each in self.tensors.items()}, **{"special:model.yml": text})
        return path

    def write_bin(self, path: Path, *, quantized: bool = False) -> Path:
        """Write Marian's format; with ``quantized``, the tensors become what the 8 bits say."""
        parts: list[tuple[str, int, tuple[int, ...], bytes]] = []
        for name, tensor in self.tensors.items():
            if not quantized or tensor.shape[0] == 1 or name == "Wpos":
                parts.append((name, 0x404, tuple(tensor.shape), tensor.numpy().tobytes()))
                continue
            multiplier = np.float32(127 / float(tensor.abs().max()))
            levels = (tensor * float(multiplier)).round().to(torch.int8)
            self.tensors[name] = levels.float() / torch.tensor(multiplier)
            stored = levels if name == "Wemb" else levels.t()
            data = stored.contiguous().numpy().tobytes() + multiplier.tobytes()
            parts.append((name, 0x4101, tuple(tensor.shape), data))
            parts.append((f"{name}_QuantMultA", 0x404, (1, 1), b"\0" * 4))
        text = yaml.safe_dump(self.config).encode() + b"\0"
        parts.append(("special:model.yml", 0x101, (len(text),), text))
        padded = [data + b"\0" * (-len(data) % 64) for *_, data in parts]
        headers = [
            struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
            for (name, kind, shape, _), data in zip(parts, padded, strict=True)
        ]
        names = [name.encode() + b"\0" for name, *_ in parts]
        shapes = [struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in parts]
        begin = b"".join([struct.pack("<2Q", 1, len(parts)), *headers, *names, *shapes])
        gap = -(len(begin) + 8) % 256
        path.write_bytes(b"".join([begin, struct.pack("<Q", gap), b"\0" * gap, *padded]))
        return path

    # Computation

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """(T + 1, U): the logits after each prefix of a target, in float64."""
        w = {name: each.double() for name, each in self.tensors.items()}
        target_table = w["Wemb"] if self.tie in ("all", "inputs") else w["decoder_Wemb"]
        source_table = target_table if self.tie in ("all", "inputs") else w["encoder_Wemb"]
        memory = self._embed(w, source_table[source], "encoder")
        for i in range(1, self.config["enc-depth"] + 1):
            memory = self._attention(w, f"encoder_l{i}_self", memory, None, causal=False)
            memory = self._wide(w, f"encoder_l{i}_ffn", memory)
        if self.config["transformer-postprocess-top"]:
            memory = self._norm(w, "encoder_top", memory)
        x = self._embed(w, torch.cat([torch.zeros(1, D).double(), target_table[target]]), "decoder")
        for i in range(1, self.config["dec-depth"] + 1):
            x = self._recurrence(w, f"decoder_l{i}_rnn", x) if self.recurrent else self._attention(
                w, f"decoder_l{i}_self", x, None, causal=True
            )  # fmt: skip
            x = self._attention(w, f"decoder_l{i}_context", x, memory, causal=False)
            x = self._wide(w, f"decoder_l{i}_ffn", x)
        if self.config["transformer-postprocess-top"]:
            x = self._norm(w, "decoder_top", x)
        output = target_table if self.tie in ("all", "target") else w["decoder_ff_logit_out_Wt"]
        return x @ output.t() + w["decoder_ff_logit_out_b"]

    def greedy(self, source: list[int], most: int = 20) -> list[int]:
        """The best tokens one by one; never `<unk>`."""
        found: list[int] = []
        while len(found) < most:
            logits = self.logits(source, found)[-1]
            logits[1] = -math.inf
            if int(logits.argmax()) == 0:
                break
            found.append(int(logits.argmax()))
        return found

    def _embed(self, w: Mapping[str, Tensor], vectors: Tensor, side: str) -> Tensor:
        count = len(vectors)
        if "Wpos" in w:
            x = vectors + w["Wpos"][:count]
        else:
            rates = torch.exp(torch.arange(D // 2, dtype=torch.float64) * (-math.log(10000) / (D // 2 - 1)))
            angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
            x = vectors * math.sqrt(D) + torch.cat([angles.sin(), angles.cos()], 1)
        return self._norm(w, f"{side}_emb", x, "_pre") if "n" in self.config["transformer-postprocess-emb"] else x

    def _norm(self, w: Mapping[str, Tensor], prefix: str, x: Tensor, suffix: str = "") -> Tensor:
        return F.layer_norm(x, (D,), w[f"{prefix}_ln_scale{suffix}"][0], w[f"{prefix}_ln_bias{suffix}"][0], 1e-6)

    def _before(self, w: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
        return self._norm(w, prefix, x, "_pre") if self.pre else x

    def _after(self, w: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
        return x if self.pre else self._norm(w, prefix, x)

    def _attention(
        self, w: Mapping[str, Tensor], prefix: str, x: Tensor, memory: Tensor | None, *, causal: bool
    ) -> Tensor:
        seen = self._before(w, f"{prefix}_Wo", x)
        read = seen if memory is None else memory
        q, k, v = (
            (each @ w[f"{prefix}_W{part}"] + w[f"{prefix}_b{part}"]).view(len(each), HEADS, -1).transpose(0, 1)
            for part, each in zip("qkv", (seen, read, read), strict=True)
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(D // HEADS)
        if causal:
            scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        context = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), D)
        return self._after(w, f"{prefix}_Wo", x + context @ w[f"{prefix}_Wo"] + w[f"{prefix}_bo"])

    def _recurrence(self, w: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
        seen, state, outputs = self._before(w, prefix, x), torch.zeros(D, dtype=torch.float64), []
        for row in seen:
            forget = torch.sigmoid(row @ w[f"{prefix}_Wf"] + w[f"{prefix}_bf"][0])
            state = forget * state + (1 - forget) * (row @ w[f"{prefix}_W"])
            outputs.append(state.relu())
        return self._after(w, f"{prefix}_ffn", x + torch.stack(outputs))

    def _wide(self, w: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
        hidden = self._before(w, f"{prefix}_ffn", x) @ w[f"{prefix}_W1"] + w[f"{prefix}_b1"]
        scale = {"relu": None, "swish": 1.0, "gelu": 1.702}[self.config["transformer-ffn-activation"]]
        hidden = hidden.relu() if scale is None else hidden * torch.sigmoid(scale * hidden)
        return self._after(w, f"{prefix}_ffn", x + hidden @ w[f"{prefix}_W2"] + w[f"{prefix}_b2"])
