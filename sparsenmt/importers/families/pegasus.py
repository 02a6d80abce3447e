"""PEGASUS: before SentencePiece's tokens stand masks, and ``<unk_N>`` of pre-training."""

from __future__ import annotations

from sparsenmt.importers.families.family import Family
from sparsenmt.importers.families.tokens import TokenizerFiles, Tokens, incomplete

_OFFSET = 103


def _read(files: TokenizerFiles) -> Tokens:
    """The tokens: padding, EOS, masks and ``<unk_N>``, then SentencePiece's from <unk>."""
    model, pieces = files.sentencepiece(first=("<pad>", "</s>", "<unk>"))
    offset = files.settings.get("offset", _OFFSET)
    if type(offset) is not int or not 0 <= offset < 1 << 16:
        raise incomplete(files.settings_path, "the offset is no number of tokens")
    own = ["<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))] if offset else []
    markers = frozenset(range(2, 2 + len(own)))
    return Tokens(["<pad>", "</s>", *own, *pieces[2:]], markers, sentencepiece=model).with_added(files)


FAMILY = Family(
    norm="pre",
    positions="paper",
    tokenizers=("Pegasus",),
    read_tokens=_read,
    model_class="PegasusForConditionalGeneration",
    defaults={"pad_token_id": 0},
    summarizes=True,
)
