"""Marian models in Transformers: OPUS-MT. Each side has a SentencePiece model; the ids are those of ``vocab.json``."""

from sparsenmt.data.tokenizers.frame import TAG
from sparsenmt.importers.families.family import Family

FAMILY = Family(
    norm="post",
    positions="paper",
    tokenizers=("Marian",),
    padding_comes=False,
    language=TAG,
    two_vocabularies=True,
    model_class="MarianMTModel",
)
