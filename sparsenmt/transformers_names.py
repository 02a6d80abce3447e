"""Names of weights in Hugging Face Transformers' encoder-decoder models: Marian, BART, mBART, PEGASUS, M2M-100."""

from __future__ import annotations

from types import MappingProxyType

LAYER_NAMES = MappingProxyType(
    {
        **{f"self.{part}": f"self_attn.{part}_proj" for part in "qkv"},
        **{f"cross.{part}": f"encoder_attn.{part}_proj" for part in "qkv"},
        "self.o": "self_attn.out_proj",
        "cross.o": "encoder_attn.out_proj",
        "self_norm": "self_attn_layer_norm",
        "cross_norm": "encoder_attn_layer_norm",
        "feed_forward.inner": "fc1",
        "feed_forward.outer": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
)
"""The modules of a layer: this program's name -> theirs; each has a weight and a bias."""
