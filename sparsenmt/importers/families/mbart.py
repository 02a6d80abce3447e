"""mBART of 25 languages (Liu et al. 2020) and of 50 (Tang et al. 2020), which name a language in other places."""

from __future__ import annotations

from collections.abc import Collection

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.importers.families.family import Family
from sparsenmt.importers.families.tokens import LANGUAGE_CODE, TokenizerFiles, Tokens, read_fairseq

_FIRST_25 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_LAST_25 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


def _has_50(files: TokenizerFiles, codes: Collection[str], first: int = 0) -> bool:
    """Return True for mBART-50, False for mBART-25, of which it has all languages.

    Args:
        codes: those that are named, if any; otherwise the tokens after the languages decide, or the rows.
        first: the id of the first language.
    """
    name = files.settings.get("tokenizer_class")
    if isinstance(name, str) and "MBart" in name:
        return "MBart50" in name
    if codes:
        return not set(codes).isdisjoint(_LAST_25.split())
    few = first + len(_FIRST_25.split()) + 1
    many = few + len(_LAST_25.split())
    after = [id_ for id_, token in files.added().items() if id_ >= first and token.content not in files.named()]
    return few not in after and min(after, default=many) >= many and files.config["vocab_size"] >= many


def _read(files: TokenizerFiles) -> Tokens:
    return read_fairseq(files, lambda first: f"{_FIRST_25} {_LAST_25 if _has_50(files, (), first) else ''}".split())


def _frames(files: TokenizerFiles, codes: Collection[str]) -> Frames:
    if _has_50(files, codes):
        return Frames(source_prefix=["source"], target_prefix=["target"])
    return Frames(source_suffix=["source"], target_start="target")


FAMILY = Family(
    norm="pre",
    positions="learned",
    tokenizers=("MBart", "MBart50"),
    read_tokens=_read,
    embedding_norm=True,
    language=LANGUAGE_CODE,
    language_frames=_frames,
    model_class="MBartForConditionalGeneration",
)
