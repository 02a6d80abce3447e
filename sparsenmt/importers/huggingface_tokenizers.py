"""Tokenizers of Hugging Face directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import SPECIAL_TOKENS
from sparsenmt.files import invalid_file, read_json


class HuggingFaceTokenizers:
    """The reader of tokenizers; a stand-in that knows directories whose ids are those of their SentencePiece models."""

    @staticmethod
    def read(directory: Path, config: Mapping[str, Any]) -> tuple[Tokenizers, Tensor, Tensor]:
        """The tokenizers, and their id of each of this program's: (V) of the source and of the target."""

        def one(stem: str, table: str) -> Tokenizer:
            path = directory / f"{stem}.spm"
            if not path.is_file():
                raise invalid_file(path, "is missing: the tokenizer needs it")
            found = SentencePieceTokenizer(path.read_bytes(), lowercase=False)
            ids = read_json(directory / table)
            if [ids.get(name) for name in SPECIAL_TOKENS] != [0, 1, 2, 3] or len(ids) != found.size:
                raise invalid_file(directory / table, "the ids are not those of the SentencePiece model")
            return found

        source = one("source", "vocab.json")
        shared = not (directory / "target_vocab.json").exists()
        target = source if shared else one("target", "target_vocab.json")
        return Tokenizers(source, target, shared), torch.arange(source.size), torch.arange(target.size)
