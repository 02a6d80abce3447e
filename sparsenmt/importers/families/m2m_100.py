"""M2M-100 (Fan et al. 2021), and NLLB (NLLB team 2022), which has no vocabulary of its own beside SentencePiece's."""

from __future__ import annotations

import re
from collections.abc import Collection

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.importers.families.family import Family
from sparsenmt.importers.families.tokens import LANGUAGE_CODE, TokenizerFiles, Tokens, read_fairseq

_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_WMT_21 = "en ha is ja cs ru zh de"


def _read(files: TokenizerFiles) -> Tokens:
    """The tokens: a vocabulary, then languages; or those of NLLB."""
    if files.path("vocab.json") is None:
        return read_fairseq(files)
    model, _ = files.sentencepiece()
    names = files.vocabulary(files.required("vocab.json"))
    codes = (_WMT_21 if files.settings.get("language_codes") == "wmt21" else _LANGUAGES).split()
    markers = {id_ for id_, name in enumerate(names) if name == "<s>"}
    markers |= set(range(len(names), len(names) + len(codes)))
    names += [f"__{code}__" for code in codes]
    return Tokens(names, frozenset(markers), sentencepiece=model).with_added(files)


def _frames(files: TokenizerFiles, codes: Collection[str]) -> Frames:
    if files.settings.get("legacy_behaviour"):  # of NLLB: the language comes after the source
        return Frames(source_suffix=["source"], target_prefix=["target"])
    return Frames(source_prefix=["source"], target_prefix=["target"])


FAMILY = Family(
    norm="pre",
    positions="after_padding",
    tokenizers=("M2M100", "Nllb"),
    read_tokens=_read,
    output_bias=False,
    language=re.compile(f"{LANGUAGE_CODE.pattern}|__([a-z]{{2,3}})__"),
    language_frames=_frames,
    defaults={"activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1},
)
