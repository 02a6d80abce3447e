"""Part-of-speech tags of several tag sets, mapped to a few categories: one table.

The categories are as fine as the footnote of Zhang, Titov and Sennrich (2021) needs: function words are Penn's CC, IN,
RP, TO, UH, DT and WP, content words MD, JJ, NN, RB, VB and their inflections; what is left is punctuation and the rest
(CD, EX, FW, SYM, pronouns, and everything else: PDT, POS, WDT, WP$, WRB, LS). Tags of other sets go where the words
that bear them go in Penn's. Two places where that is not possible: UD's AUX holds "be", "have" and "do" (content) as
well as modals and is content; UD's PRON holds "who" and "what" (function) as well as pronouns and is a pronoun.

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


class Category(IntEnum):
    """What a word is. The values are those of the source feature ``pos_category``."""

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
    """Everything else, unknown tags, and pieces that belong to no word."""


# Tags between spaces; a star stands for any end, and of several entries that fit a tag the longest counts.
_TABLE: Mapping[TagSet, Mapping[Category, str]] = {
    "penn": {
        Category.FUNCTION: "CC IN RP TO UH DT WP",
        Category.CONTENT: "JJ JJR JJS NN NNS NNP NNPS RB RBR RBS VB VBD VBG VBN VBP VBZ AFX",
        Category.PUNCTUATION: ". , : ; `` '' \" ( ) -LRB- -RRB- -LSB- -RSB- -LCB- -RCB- HYPH NFP - --",
        Category.MODAL: "MD",
        Category.EXISTENTIAL: "EX",
        Category.NUMBER: "CD",
        Category.FOREIGN: "FW",
        Category.SYMBOL: "SYM # $",
        Category.PRONOUN: "PRP PRP$",
        Category.REST: "PDT POS WDT WP$ WRB LS ADD GW XX",
    },
    "ud": {
        Category.FUNCTION: "ADP CCONJ SCONJ DET PART INTJ",
        Category.CONTENT: "ADJ ADV AUX NOUN PROPN VERB",
        Category.PUNCTUATION: "PUNCT",
        Category.NUMBER: "NUM",
        Category.FOREIGN: "X",
        Category.SYMBOL: "SYM",
        Category.PRONOUN: "PRON",
    },
    "stts": {
        Category.FUNCTION: (
            "APPR APPRART APPO APZR ART KON KOKOM KOUI KOUS PTKZU PTKVZ PTKA PTKANT ITJ PDAT PIAT PIDAT PWS"
        ),
        Category.CONTENT: "ADJA ADJD ADV NN NNA NNI NE PROAV PAV PROP PTKNEG TRUNC VA* VV*",
        Category.PUNCTUATION: "$. $, $( $[",
        Category.MODAL: "VM*",
        Category.NUMBER: "CARD",
        Category.FOREIGN: "FM*",
        Category.SYMBOL: "XY",
        Category.PRONOUN: "PPER PRF PPOSS PPOSAT PDS PIS PRELS PRELAT",
        Category.REST: "PWAT PWAV",
    },
    "c5": {
        Category.FUNCTION: "AT0 AVP CJC CJS CJT DT0 DTQ IN ITJ PNQ PRF PRP TO0",
        Category.CONTENT: "AJ0 AJC AJS AV0 NN NN0 NN1 NN2 NP0 ORD PNI VB* VD* VH* VV* XX0",
        Category.PUNCTUATION: "PUL PUN PUQ PUR !!!",
        Category.MODAL: "VM0",
        Category.EXISTENTIAL: "EX0",
        Category.NUMBER: "CRD",
        Category.PRONOUN: "DPS PNP PNX",
        Category.REST: "AVQ POS UNC ZZ0",
    },
    "c7": {
        Category.FUNCTION: "AT* BCL BTO C* D* I* PNQ* RP* TO UH",
        Category.CONTENT: "J* MD N* R* V* XX",
        Category.PUNCTUATION: "Y*",
        Category.MODAL: "VM*",
        Category.EXISTENTIAL: "EX",
        Category.NUMBER: "MC* MF",
        Category.FOREIGN: "FW",
        Category.SYMBOL: "FO",
        Category.PRONOUN: "APPGE P*",
        Category.REST: "DDQ* RRQ* RGQ* GE FU ZZ*",
    },
    "cgn": {
        Category.FUNCTION: "LID* VZ* VG* TSW* VNW(aanw,det* VNW(onbep,det* VNW(vb,pron* VNW(excl*",
        Category.CONTENT: "ADJ* BW* N(* WW* TW(rang* VNW(onbep,grad* SPEC(deeleigen*",
        Category.PUNCTUATION: "LET*",
        Category.EXISTENTIAL: "VNW(aanw,adv-pron,stan,red,3,getal)",
        Category.NUMBER: "TW*",
        Category.FOREIGN: "SPEC(vreemd*",
        Category.SYMBOL: "SPEC(symb*",
        Category.PRONOUN: "VNW*",
        Category.REST: "SPEC* VNW(vb,adv-pron* VNW(vb,det*",
    },
}

_REPORT: Mapping[Category, ReportCategory] = {
    Category.FUNCTION: "function",
    Category.CONTENT: "content",
    Category.MODAL: "content",
    Category.PUNCTUATION: "punctuation",
}


def category(tag: str, tagset: TagSet | None = None) -> Category:
    """The category of a tag; REST if the tag set, or none of them, knows it.

    Args:
        tagset: without one, the first of `TAG_SETS` that knows the tag decides. Some tags mean different things in
            different sets (PRP is a pronoun in Penn's and a preposition in C5): see `tagset_of`.
    """
    for name in TAG_SETS if tagset is None else (tagset,):
        found = _look_up(tag, name)
        if found is not None:
            return found
    return Category.REST


def known(tag: str, tagset: TagSet | None = None) -> bool:
    """Whether the tag set, or any of them, knows the tag."""
    return any(_look_up(tag, name) is not None for name in (TAG_SETS if tagset is None else (tagset,)))


def report_category(category: Category) -> ReportCategory:
    """The category under which reports count a word: modals are content words; END has no row here and is refused.

    Raises:
        ValueError: END.
    """
    if category is Category.END:
        raise ValueError("</s> is no word")
    return _REPORT.get(category, "rest")


def tagset_of(tags: Iterable[str]) -> TagSet:
    """The tag set that knows most of these tags, each counted as often as it comes; of equals the first."""
    counts = Counter(tags)
    scores = {name: sum(count for tag, count in counts.items() if _look_up(tag, name) is not None) for name in TAG_SETS}
    return max(TAG_SETS, key=lambda name: scores[name])


class UnknownTags:
    """Looks up categories, and remembers the tags that nobody knows, for one warning."""

    def __init__(self, tagset: TagSet | None = None) -> None:
        self.tagset = tagset
        self.counts: Counter[str] = Counter()

    def category(self, tag: str, count: int = 1) -> Category:
        """The category of a tag that was met so many times."""
        if not known(tag, self.tagset):
            self.counts[tag] += count
        return category(tag, self.tagset)

    def warning(self, where: str | None = None) -> str | None:
        """One line that lists the unknown tags, most frequent first; None if there were none.

        Args:
            where: the file that they come from.
        """
        if not self.counts:
            return None
        listed = ", ".join(f"{tag!r} ({count:,})" for tag, count in self.counts.most_common(20))
        more = f" and {len(self.counts) - 20:,} more" if len(self.counts) > 20 else ""
        place = f"{where}: " if where is not None else ""
        return f'warning: {place}unknown tags, counted as "rest": {listed}{more}'


@cache
def _entries(name: TagSet) -> tuple[dict[str, Category], list[tuple[str, Category]]]:
    """Whole tags; and beginnings of tags, the longest first."""
    entries = [(tag, category) for category, tags in _TABLE[name].items() for tag in tags.split()]
    whole = {tag: category for tag, category in entries if not tag.endswith("*")}
    beginnings = sorted(((tag[:-1], category) for tag, category in entries if tag.endswith("*")), key=_by_length)
    return whole, beginnings


def _by_length(entry: tuple[str, Category]) -> int:
    return -len(entry[0])


@lru_cache(maxsize=1 << 14)
def _look_up(tag: str, name: TagSet) -> Category | None:
    whole, beginnings = _entries(name)
    if name == "stts":
        tag = tag.replace("(", "").replace(")", "") if not tag.startswith("$") else tag  # HanTa's VV(FIN)
    if tag in whole:
        return whole[tag]
    found = next((category for start, category in beginnings if tag.startswith(start) and tag), None)
    if found is None and name == "c5" and "-" in tag:  # an ambiguous word: AJ0-VVN, the likelier tag first
        return _look_up(tag.split("-")[0], name)
    return found
