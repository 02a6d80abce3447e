"""The table of tag sets: every tag of every set has a category, and the one that the paper's footnote gives it."""

from __future__ import annotations

from collections import Counter

import pytest

from sparsenmt.data.tagging.tagsets import (
    TAG_SETS,
    TagSet,
    WordCategory,
    guess_tagset,
    is_known_tag,
    report_category,
    tag_category,
    unknown_tags_warning,
)

# Marcus, Santorini and Marcinkiewicz 1993, table 2; the marks of OntoNotes and EWT after them.
PENN = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP "
    "VBZ WDT WP WP$ WRB # $ . , : ( ) \" `` '' -LRB- -RRB- HYPH NFP ADD AFX GW XX"
)
UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
# Schiller, Teufel, Stöckert and Thielen 1999.
STTS = (
    "ADJA ADJD ADV APPR APPRART APPO APZR ART CARD FM ITJ KOUI KOUS KON KOKOM NN NE PDS PDAT PIS PIAT PIDAT PPER PPOSS "
    "PPOSAT PRELS PRELAT PRF PWS PWAT PWAV PAV PTKZU PTKNEG PTKVZ PTKANT PTKA TRUNC VVFIN VVIMP VVINF VVIZU VVPP VAFIN "
    "VAIMP VAINF VAPP VMFIN VMINF VMPP XY $, $. $("
)
# The British National Corpus, basic tag set.
C5 = (
    "AJ0 AJC AJS AT0 AV0 AVP AVQ CJC CJS CJT CRD DPS DT0 DTQ EX0 ITJ NN0 NN1 NN2 NP0 ORD PNI PNP PNQ PNX POS PRF PRP "
    "PUL PUN PUQ PUR TO0 UNC VBB VBD VBG VBI VBN VBZ VDB VDD VDG VDI VDN VDZ VHB VHD VHG VHI VHN VHZ VM0 VVB VVD VVG "
    "VVI VVN VVZ XX0 ZZ0 AJ0-VVN"
)
C7 = "APPGE AT AT1 BCL CC CS DA DB DD1 DDQ EX FO FU FW GE IF II JJ JJR MC MC1 MD NN1 NP1 PN1 PPHS1 RP RR RRQ TO UH VBZ VM VVD XX ZZ1 YSTP"  # fmt: skip # noqa: E501
CGN = "ADJ(vrij,basis,zonder) BW() LET() LID(bep,stan,rest) N(soort,ev,basis,zijd,stan) SPEC(vreemd) SPEC(symb) TSW() TW(hoofd,vrij) VG(neven) VNW(pers,pron,nomin,vol,1,ev) VZ(init) WW(pv,tgw,ev)"  # fmt: skip # noqa: E501
TAGS: dict[TagSet, list[str]] = {
    "penn": PENN.split(),
    "ud": UPOS.split(),
    "stts": STTS.split(),
    "c5": C5.split(),
    "c7": C7.split(),
    "cgn": CGN.split(),
}


@pytest.mark.parametrize("name", TAG_SETS)
def test_every_tag_is_known(name: TagSet) -> None:
    assert [tag for tag in TAGS[name] if not is_known_tag(tag, name)] == []


def test_the_universal_tags_are_all_there() -> None:
    assert len(TAGS["ud"]) == 17 == len(set(TAGS["ud"]))


def test_penn_as_in_the_footnote_of_the_paper() -> None:
    """Footnote 9: which tags are function and content words; CD, EX, FW and SYM are among the others."""
    rows = {
        name: {tag for tag in PENN.split() if report_category(tag_category(tag, "penn")) == name} for name in REPORTS
    }
    assert rows["function"] == set(["CC", "IN", "RP", "TO", "UH", "DT", "WP"])
    content = "MD JJ JJR JJS NN NNS NNP NNPS RB RBR RBS VB VBD VBG VBN VBP VBZ AFX"
    assert rows["content"] == set(content.split())
    assert rows["rest"] >= set(
        ["CD", "EX", "FW", "SYM", "PRP", "PRP$", "WP$", "WDT", "WRB", "PDT", "POS", "LS", "#", "$"]
    )
    assert tag_category("MD") is WordCategory.MODAL and tag_category("EX") is WordCategory.EXISTENTIAL


REPORTS = ("function", "content", "punctuation", "rest")


@pytest.mark.parametrize(
    ("tagset", "tag", "expected"),
    [
        ("ud", "ADP", WordCategory.FUNCTION),
        ("ud", "AUX", WordCategory.CONTENT),
        ("ud", "PRON", WordCategory.PRONOUN),
        ("stts", "VMFIN", WordCategory.MODAL),
        ("stts", "VM(FIN)", WordCategory.MODAL),
        ("stts", "ADJ(A)", WordCategory.CONTENT),
        ("stts", "$(", WordCategory.PUNCTUATION),
        ("stts", "PRF", WordCategory.PRONOUN),
        ("c5", "PRF", WordCategory.FUNCTION),
        ("c5", "PRP", WordCategory.FUNCTION),
        ("penn", "PRP", WordCategory.PRONOUN),
        ("c5", "AJ0-VVN", WordCategory.CONTENT),
        ("c5", "PRP-AVP", WordCategory.FUNCTION),
        ("c7", "VM22", WordCategory.MODAL),
        ("c7", "MD", WordCategory.CONTENT),
        ("c7", "MC", WordCategory.NUMBER),
        ("cgn", "VNW(aanw,det,stan,prenom,met-e,rest)", WordCategory.FUNCTION),
        ("cgn", "TW(rang,prenom,stan)", WordCategory.CONTENT),
    ],
)
def test_some_tags(tagset: TagSet, tag: str, expected: WordCategory) -> None:
    assert tag_category(tag, tagset) is expected


def test_the_tag_set_is_found_from_tags() -> None:
    for name, tags in TAGS.items():
        assert guess_tagset(tags) == name
    assert guess_tagset([]) == "penn"
    assert guess_tagset(["PRP", "AT0"]) == "c5"


def test_unknown_tags_are_rest_and_listed_once() -> None:
    assert unknown_tags_warning({"NN": 1}, "penn") is None
    assert [tag_category(tag, "penn") for tag in ("NN", "FOO", "BAR")] == [
        WordCategory.CONTENT,
        *[WordCategory.REST] * 2,
    ]
    assert (
        unknown_tags_warning(Counter(["NN", "FOO", "BAR", "FOO"]), "penn")
        == "warning: unknown tags, counted as \"rest\": 'FOO' (2), 'BAR' (1)"
    )
    assert not is_known_tag("") and tag_category("") is WordCategory.REST


def test_the_end_of_a_sentence_is_no_word() -> None:
    with pytest.raises(ValueError, match="not a word"):
        report_category(WordCategory.END)
    assert {report_category(each) for each in WordCategory if each is not WordCategory.END} == set(REPORTS)
