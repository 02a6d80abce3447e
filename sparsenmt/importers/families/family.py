"""A family of models of Transformers: what distinguishes it from the others, and the names of weights of most of them.

They have the architecture of BART: this program's names of weights become theirs by `weight_name`. A family with
another one has functions of its own for its configuration and its weights.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.importers.families.table import FAMILIES
from sparsenmt.importers.families.tokens import SENTENCEPIECE_FILES, TokenizerFiles, Tokens
from sparsenmt.importers.foreign_files import ForeignTensors, ValueKind

UNUSED_POSITIONS = 2
"""Rows of a table of learned positions before the first one that is used."""
_LAYER_NAMES = {
    **{f"self.{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"cross.{part}": f"encoder_attn.{part}_proj" for part in "qkv"},
    **{"self.o": "self_attn.out_proj", "cross.o": "encoder_attn.out_proj"},
    **{"self_norm": "self_attn_layer_norm", "cross_norm": "encoder_attn_layer_norm"},
    **{"feed_forward.inner": "fc1", "feed_forward.outer": "fc2", "feed_forward_norm": "final_layer_norm"},
}
"""The modules of a layer: this program's name -> theirs; each has a weight and a bias."""


def _named_before(files: TokenizerFiles, codes: Collection[str]) -> Frames:
    """The frames of most families: source and target each begin with their language."""
    return Frames(source_prefix=["source"], target_prefix=["target"])


def _take(taken: ForeignTensors, config: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of a stack, as it is stored."""
    return taken.take(weight_name(name), shape)


@dataclass(frozen=True)
class Family:
    """A family of models: what its configuration does not say, or leaves out.

    Args:
        positions: ``learned``: of a table whose first two rows are not used; ``paper``: sinusoids, unless the weights
            have a table; ``after_padding``: sinusoids that begin after the id of the padding; ``none``.
        tokenizers: classes of its tokenizers, without ``Tokenizer``, the usual one first.
        read_tokens: of one vocabulary for both sides; None: each side has a SentencePiece model of its own.
        own_files: of its tokenizer, any of which is preferred to ``tokenizer.json``.
        output_bias: the output may have a bias.
        padding_comes: the padding has a share of the softmax. Marian has no such token; Transformers gives it a row of
            zeros, whose logit is 0.
        begins: ``<s>`` stands before a source.
        language: matches the names of languages' tokens; a group is the code.
        language_frames: returns the places of languages, for a folder and their codes.
        two_vocabularies: the sizes of both vocabularies may differ.
        summarizes: its models write summaries rather than translations: long sources are cut, not divided.
        model_class: of Transformers; a model that computes the same is exported as one. None: none is.
        defaults: of keys that a configuration may lack.
        kinds: the values that keys of its own may have.
        keys: returns the keys of BART's configuration, for those of its own.
        model: returns further keys of the `model` section, for its configuration.
        unused: names of weights in old files.
        take: returns the weight of a stack by this program's name, of this shape, for its configuration.
    """

    norm: Literal["pre", "post"]
    positions: Literal["learned", "paper", "after_padding", "none"]
    tokenizers: tuple[str, ...]
    read_tokens: Callable[[TokenizerFiles], Tokens] | None = None
    own_files: tuple[str, ...] = SENTENCEPIECE_FILES
    embedding_norm: bool = False
    output_bias: bool = True
    padding_comes: bool = True
    begins: bool = False
    language: re.Pattern[str] | None = None
    language_frames: Callable[[TokenizerFiles, Collection[str]], Frames] = _named_before
    two_vocabularies: bool = False
    summarizes: bool = False
    model_class: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, ValueKind] = field(default_factory=dict)
    keys: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    model: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}
    unused: tuple[str, ...] = ()
    take: Callable[[ForeignTensors, Mapping[str, Any], str, tuple[int, ...]], Tensor] = _take


def load_family(model_type: str) -> Family:
    """The family of a `model_type` of `FAMILIES`."""
    family: Family = importlib.import_module(FAMILIES[model_type].module).FAMILY
    return family


def weight_name(name: str) -> str:
    """The name in Transformers of a weight of a stack, or of the normalisation of embeddings."""
    parts = name.split(".")
    if parts[0] == "embedding_norm":
        return f"model.{'encoder' if parts[1] == 'source' else 'decoder'}.layernorm_embedding.{parts[2]}"
    if parts[1] == "norm":
        return f"model.{parts[0]}.layer_norm.{parts[2]}"
    module, kind = ".".join(parts[3:-1]), parts[-1]
    return f"model.{'.'.join(parts[:3])}.{_LAYER_NAMES[module]}.{kind}"
