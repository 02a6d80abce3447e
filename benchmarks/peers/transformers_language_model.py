"""Hugging Face Transformers: training steps of GPT-2 on bytes.

A worker of ``benchmarks/language_model.py``, whose table of cases says what the keys of the work mean. Both sides read
the same batches and do the same step: forward, cross-entropy, backward, clipping of the norm, AdamW.
"""

from __future__ import annotations

import contextlib

import torch
import transformers
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from protocol import BOS, EOS, language_batches, serve, work_from_arguments


def main() -> None:
    work = work_from_arguments()
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=work["vocabulary"],
            n_positions=work["segment_length"],
            n_embd=work["dimension"],
            n_layer=work["decoder_layers"],
            n_head=work["heads"],
            n_inner=work["feed_forward"],
            bos_token_id=BOS,
            eos_token_id=EOS,
            resid_pdrop=work["dropout"],
            embd_pdrop=work["dropout"],
            attn_pdrop=work["attention_dropout"],
            attn_implementation="sdpa",
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in language_batches(work)]
    bf16 = work["peer_dtype"] == "bf16"

    def train() -> None:
        for inputs, targets in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext():
                logits = model(input_ids=inputs, use_cache=False).logits
            F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    serve(
        what=f"Transformers {transformers.__version__} GPT-2 {work['peer_dtype']}",
        units=sum(targets.numel() for _, targets in batches),
        repeat=train,
    )


if __name__ == "__main__":
    main()
