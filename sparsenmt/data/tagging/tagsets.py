"""The mapping from part-of-speech tags of several tag sets to a few categories.

The categories are as fine as the footnote of Zhang, Titov and Sennrich (2021) needs: function words are Penn's CC, IN,
RP, TO, UH, DT and WP, content words MD, JJ, NN, RB, VB and their inflections; the others are punctuation and the rest
(CD, EX, FW, SYM, pronouns, and PDT, POS, WDT, WP$, WRB, LS). Tags of other sets have the category that their words have
in Penn's. This is impossible in two cases: UD's AUX contains "be", "have" and "do" (content) and modals, and counts as
content; UD's PRON contains "who" and "what" (function) and pronouns, and counts as pronoun.

Tag sets: ``penn`` (Penn Treebank, with the additions of OntoNotes and EWT), ``ud`` (the 17 UPOS), ``stts`` (German,
also in HanTa's spelling "VV(FIN)"), ``c5`` and ``c7`` (CLAWS, the British National Corpus), ``cgn`` (Dutch).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import Literal, get_args

TagSet = Literal["penn", "ud", "stts", "c5", "c7", "cgn"]
TAG_SETS: tuple[TagSet, ...] = get_args(TagSet)
ReportCategory = Literal["function", "content", "punctuation", "rest"]


class WordCategory(IntEnum):
    """The category of a word. The values are those of the source feature ``pos_category``."""

    END = 0
    """``</s>``, and padding."""
    FUNCTION = 1
    CONTENT = 2
    PUNCTUATION = 3
    MODAL = 4
    EXISTENTIAL = 5
    NUMBER = 6
    FOREIGN = 7
    SYMBOL = 8
    PRONOUN = 9
    REST = 10
    """Everything else, unknown tags, and tokens that belong to no word."""


# Tags separated by spaces; a star matches any ending, and the longest matching entry wins.
_TABLE: Mapping[TagSet, Mapping[WordCategory, str]] = {
    "penn": {
        WordCategory.FUNCTION: "CC IN RP TO UH DT WP",
        WordCategory.CONTENT: "JJ JJR JJS NN NNS NNP NNPS RB RBR RBS VB VBD VBG VBN VBP VBZ AFX",
        WordCategory.PUNCTUATION: ". , : ; `` '' \" ( ) -LRB- -RRB- -LSB- -RSB- -LCB- -RCB- HYPH NFP - --",
        WordCategory.MODAL: "MD",
        WordCategory.EXISTENTIAL: "EX",
        WordCategory.NUMBER: "CD",
        WordCategory.FOREIGN: "FW",
        WordCategory.SYMBOL: "SYM # $",
        WordCategory.PRONOUN: "PRP PRP$",
        WordCategory.REST: "PDT POS WDT WP$ WRB LS ADD GW XX",
    },
    "ud": {
        WordCategory.FUNCTION: "ADP CCONJ SCONJ DET PART INTJ",
        WordCategory.CONTENT: "ADJ ADV AUX NOUN PROPN VERB",
        WordCategory.PUNCTUATION: "PUNCT",
        WordCategory.NUMBER: "NUM",
        WordCategory.FOREIGN: "X",
        WordCategory.SYMBOL: "SYM",
        WordCategory.PRONOUN: "PRON",
    },
    "stts": {
        WordCategory.FUNCTION: (
            "APPR APPRART APPO APZR ART KON KOKOM KOUI KOUS PTKZU PTKVZ PTKA PTKANT ITJ PDAT PIAT PIDAT PWS"
        ),
        WordCategory.CONTENT: "ADJA ADJD ADV NN NNA NNI NE PROAV PAV PROP PTKNEG TRUNC VA* VV*",
        WordCategory.PUNCTUATION: "$. $, $( $[",
        WordCategory.MODAL: "VM*",
        WordCategory.NUMBER: "CARD",
        WordCategory.FOREIGN: "FM*",
        WordCategory.SYMBOL: "XY",
        WordCategory.PRONOUN: "PPER PRF PPOSS PPOSAT PDS PIS PRELS PRELAT",
        WordCategory.REST: "PWAT PWAV",
    },
    "c5": {
        WordCategory.FUNCTION: "AT0 AVP CJC CJS CJT DT0 DTQ IN ITJ PNQ PRF PRP TO0",
        WordCategory.CONTENT: "AJ0 AJC AJS AV0 NN NN0 NN1 NN2 NP0 ORD PNI VB* VD* VH* VV* XX0",
        WordCategory.PUNCTUATION: "PUL PUN PUQ PUR !!!",
        WordCategory.MODAL: "VM0",
        WordCategory.EXISTENTIAL: "EX0",
        WordCategory.NUMBER: "CRD",
        WordCategory.PRONOUN: "DPS PNP PNX",
        WordCategory.REST: "AVQ POS UNC ZZ0",
    },
    "c7": {
        WordCategory.FUNCTION: "AT* BCL BTO C* D* I* PNQ* RP* TO UH",
        WordCategory.CONTENT: "J* MD N* R* V* XX",
        WordCategory.PUNCTUATION: "Y*",
        WordCategory.MODAL: "VM*",
        WordCategory.EXISTENTIAL: "EX",
        WordCategory.NUMBER: "MC* MF",
        WordCategory.FOREIGN: "FW",
        WordCategory.SYMBOL: "FO",
        WordCategory.PRONOUN: "APPGE P*",
        WordCategory.REST: "DDQ* RRQ* RGQ* GE FU ZZ*",
    },
    "cgn": {
        WordCategory.FUNCTION: "LID* VZ* VG* TSW* VNW(aanw,det* VNW(onbep,det* VNW(vb,pron* VNW(excl*",
        WordCategory.CONTENT: "ADJ* BW* N(* WW* TW(rang* VNW(onbep,grad* SPEC(deeleigen*",
        WordCategory.PUNCTUATION: "LET*",
        WordCategory.EXISTENTIAL: "VNW(aanw,adv-pron,stan,red,3,getal)",
        WordCategory.NUMBER: "TW*",
        WordCategory.FOREIGN: "SPEC(vreemd*",
        WordCategory.SYMBOL: "SPEC(symb*",
        WordCategory.PRONOUN: "VNW*",
        WordCategory.REST: "SPEC* VNW(vb,adv-pron* VNW(vb,det*",
    },
}

_REPORT: Mapping[WordCategory, ReportCategory] = {
    WordCategory.FUNCTION: "function",
    WordCategory.CONTENT: "content",
    WordCategory.MODAL: "content",
    WordCategory.PUNCTUATION: "punctuation",
}


def tag_category(tag: str, tagset: TagSet | None = None) -> WordCategory:
    """The category of a tag; REST if it is unknown.

    Args:
        tagset: None: the first of `TAG_SETS` that contains the tag decides. Some tags mean different things in
            different sets (PRP is a pronoun in Penn's and a preposition in C5): see `guess_tagset`.
    """
    for name in TAG_SETS if tagset is None else (tagset,):
        found = _look_up(tag, name)
        if found is not None:
            return found
    return WordCategory.REST


def is_known_tag(tag: str, tagset: TagSet | None = None) -> bool:
    """True if the tag set, or any tag set, contains the tag."""
    return any(_look_up(tag, name) is not None for name in (TAG_SETS if tagset is None else (tagset,)))


def report_category(category: WordCategory) -> ReportCategory:
    """The category of a word in reports, where modals are content words.

    Raises:
        ValueError: END.
    """
    if category is WordCategory.END:
        raise ValueError("</s> is not a word")
    return _REPORT.get(category, "rest")


def guess_tagset(tags: Iterable[str]) -> TagSet:
    """The tag set that contains most of these tags, counted with repetitions; the first of equals."""
    counts = Counter(tags)
    scores = {name: sum(count for tag, count in counts.items() if _look_up(tag, name) is not None) for name in TAG_SETS}
    return max(TAG_SETS, key=lambda name: scores[name])


def unknown_tags_warning(tags: Mapping[str, int], tagset: TagSet | None, where: str | None = None) -> str | None:
    """A warning that lists the unknown ones of these tags, most frequent first; None if there are none.

    Args:
        tags: tags and their counts.
        where: the file of the tags.
    """
    unknown = Counter({tag: count for tag, count in tags.items() if not is_known_tag(tag, tagset)})
    if not unknown:
        return None
    listed = ", ".join(f"{tag!r} ({count:,})" for tag, count in unknown.most_common(20))
    more = f" and {len(unknown) - 20:,} more" if len(unknown) > 20 else ""
    place = f"{where}: " if where is not None else ""
    return f'warning: {place}unknown tags, counted as "rest": {listed}{more}'


@cache
def _entries(name: TagSet) -> tuple[dict[str, WordCategory], list[tuple[str, WordCategory]]]:
    """Complete tags, and prefixes of tags, the longest first."""
    entries = [(tag, category) for category, tags in _TABLE[name].items() for tag in tags.split()]
    whole = {tag: category for tag, category in entries if not tag.endswith("*")}
    beginnings = sorted(
        ((tag[:-1], category) for tag, category in entries if tag.endswith("*")), key=lambda entry: -len(entry[0])
    )
    return whole, beginnings


@lru_cache(maxsize=1 << 14)
def _look_up(tag: str, name: TagSet) -> WordCategory | None:
    whole, beginnings = _entries(name)
    if name == "stts":
        tag = tag.replace("(", "").replace(")", "") if not tag.startswith("$") else tag  # HanTa's VV(FIN)
    if tag in whole:
        return whole[tag]
    found = next((category for start, category in beginnings if tag.startswith(start) and tag), None)
    if found is None and name == "c5" and "-" in tag:  # an ambiguous tag such as AJ0-VVN, the more likely part first
        return _look_up(tag.split("-")[0], name)
    return found
