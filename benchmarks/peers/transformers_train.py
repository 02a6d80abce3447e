"""Hugging Face Transformers: training steps of a Marian model.

A worker of ``benchmarks/train_vs_transformers.py``, whose table of cases says what the keys of the work mean. Both
sides read the same batches and do the same step: forward, label-smoothed cross-entropy, backward, Adam.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from protocol import BOS, EOS, PAD, serve, training_batches, work_from_arguments


def build(work: dict[str, Any]) -> Any:
    """One table for source, target and output; dropout on the outputs of sub-layers and on embeddings only."""
    return MarianMTModel(
        MarianConfig(
            vocab_size=work["vocabulary"],
            d_model=work["dimension"],
            encoder_layers=work["encoder_layers"],
            decoder_layers=work["decoder_layers"],
            encoder_ffn_dim=work["feed_forward"],
            decoder_ffn_dim=work["feed_forward"],
            encoder_attention_heads=work["heads"],
            decoder_attention_heads=work["heads"],
            activation_function="relu",
            dropout=work["dropout"],
            scale_embedding=True,
            max_position_embeddings=work["max_positions"],
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            attn_implementation="sdpa",
        )
    ).train()


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    device = torch.device(work.get("device", "cpu"))
    model = build(work).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    batches = [tuple(map(torch.from_numpy, batch)) for batch in training_batches(work)]
    bf16 = work["peer_dtype"] == "bf16"

    def step(source: Tensor, target_input: Tensor, target_output: Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext():
            logits = model(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                decoder_input_ids=target_input,
                use_cache=False,
            ).logits
        loss = F.cross_entropy(
            logits.float().flatten(0, 1),
            target_output.flatten(),
            ignore_index=PAD,
            label_smoothing=work["label_smoothing"],
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def repeat() -> None:
        for source, target_input, target_output in batches:
            step(source.to(device), target_input.to(device), target_output.to(device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    serve(
        what=f"Transformers {transformers.__version__} Marian {work['peer_dtype']}",
        units=sum(int((target_output != PAD).sum()) for _, _, target_output in batches),
        repeat=repeat,
    )


if __name__ == "__main__":
    main()
