"""mT5 (Xue et al. 2021): T5 1.1 of many languages. Its outputs are never scaled."""

from dataclasses import replace

from sparsenmt.importers.families import t5

FAMILY = replace(
    t5.FAMILY,
    tokenizers=("MT5", "T5"),
    defaults={
        **t5.FAMILY.defaults,
        **{"d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": 250112, "feed_forward_proj": "gated-gelu"},
        **{"scale_decoder_outputs": False, "decoder_start_token_id": 0},
    },
)
