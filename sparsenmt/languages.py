"""Codes of languages."""

from __future__ import annotations

import re
from typing import Final

JOINER_LANGUAGES: Final[frozenset[str]] = frozenset(
    {
        # Persian and Dari, Azerbaijani of Iran, Kurdish, Pashto, Urdu, Punjabi, Sindhi, Kashmiri, Balochi, Gilaki,
        # Mazandarani, Luri, Uyghur
        *("fa", "fas", "per", "pes", "prs", "azb", "ku", "kur", "ckb", "sdh", "ps", "pus", "pbt", "ur", "urd", "pa"),
        *("pan", "pnb", "sd", "snd", "ks", "kas", "bal", "glk", "mzn", "lrc", "ug", "uig"),
        # Hindi, Marathi, Nepali, Sanskrit, Maithili, Bhojpuri, Magahi, Konkani, Dogri, Newari
        *("hi", "hin", "mr", "mar", "ne", "nep", "npi", "sa", "san", "mai", "bho", "mag", "kok", "gom", "doi", "new"),
        # Bengali, Assamese, Manipuri, Bishnupriya, Gujarati, Odia, Tamil, Telugu, Kannada, Tulu, Malayalam, Sinhala,
        # Khmer
        *("bn", "ben", "as", "asm", "mni", "bpy", "gu", "guj", "or", "ori", "ory", "ta", "tam", "te", "tel"),
        *("kn", "kan", "tcy", "ml", "mal", "si", "sin", "km", "khm"),
    }
)
"""ISO 639 codes of languages whose spelling uses the zero-width joiner or non-joiner, U+200D and U+200C (The Unicode
Standard 16, chapters 9, 12, 13 and 16.4, and section 23.2)."""


def base_language(code: str) -> str:
    """Return the language of a code with a country or a script: "ja" of "ja-JP", "zho" of "zho_Hans"."""
    return re.split("[-_]", code.strip().lower(), maxsplit=1)[0]


def uses_joiners(*codes: str) -> bool:
    """Return True if a zero-width joiner or non-joiner is part of the spelling of one of the languages."""
    return any(base_language(code) in JOINER_LANGUAGES for code in codes)
