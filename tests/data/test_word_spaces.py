"""Text that is written without spaces between words."""

from __future__ import annotations

import pytest

from sparsenmt.data.word_spaces import has_segmented_words, is_unspaced, word_spans, written_without_spaces


@pytest.mark.parametrize("code", ["ja", "ja-JP", "zh", "zh_Hant", "zho_Hans", "jpn_Jpan", "th", "lo", "km", "my", "bo"])
def test_languages_without_spaces(code: str) -> None:
    assert written_without_spaces(code)


@pytest.mark.parametrize("code", ["en", "de", "ko", "kor_Hang", "vi", "source", "", "jav"])
def test_other_languages(code: str) -> None:
    assert not written_without_spaces(code)


@pytest.mark.parametrize(
    "line",
    [
        "私はその本を図書館で借りました。",
        "彼女はIBMのパソコンを三台持っている。",
        "今天天气很好,我们去公园散步吧。",
        "ฉันชอบกินข้าวกับปลา และดื่มน้ำเย็นทุกวันตอนเช้า",
        "ខ្ញុំចូលចិត្តញ៉ាំបាយជាមួយត្រី",
        "ကျွန်တော်မြန်မာစာဖတ်တတ်ပါတယ်",
    ],
    ids=["Japanese", "Japanese with Latin letters", "Chinese", "Thai", "Khmer", "Burmese"],
)
def test_text_without_spaces(line: str) -> None:
    assert is_unspaced([line, ""])


@pytest.mark.parametrize(
    "line",
    [
        "私 は その 本 を 図書館 で 借り まし た 。",
        "今天 天气 很 好 , 我们 去 公园 散步 吧 。",
        "ฉัน ชอบ กิน ข้าว กับ ปลา และ ดื่ม น้ำ เย็น ทุก วัน",
        "今 天 天 气 很 好",
        "나는 그 책을 도서관에서 빌렸습니다.",
        "A man with 東京 on his shirt.",
        "12:30 !?",
        "",
    ],
    ids=["Japanese words", "Chinese words", "Thai words", "characters", "Korean", "English", "no letters", "empty"],
)
def test_text_with_spaces(line: str) -> None:
    assert not is_unspaced([line])


def test_the_whole_text_counts() -> None:
    assert is_unspaced(["OK", "彼は毎朝六時に起きて、近くの公園を走る。", "君は 行くの?"])
    assert not is_unspaced([])


def test_words_that_were_separated() -> None:
    assert has_segmented_words(["私 は その 本 を 図書館 で 借り まし た 。"])
    assert has_segmented_words(["ฉัน ไป โรงเรียน ทุก วัน"])
    assert not has_segmented_words(["The GPU を使う software is written in Rust.", "GPU を"]), (
        "spaces of another script"
    )
    assert not has_segmented_words(["ฉันชอบกินข้าวกับปลา และดื่มน้ำเย็นทุกวันตอนเช้า"]), "a space between two clauses"
    assert not has_segmented_words(["It will rain."]) and not has_segmented_words([])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी में, है", ["हिन्दी", "में", ",", "है"]),
        ("cafe\u0301s et na\u0308ive_1", ["cafe\u0301s", "et", "na\u0308ive_1"]),
        ("مُحَمَّد", ["مُحَمَّد"]),
        ("東京e\u0301x か\u3099", ["東", "京", "e\u0301x", "か", "\u3099"]),
        ("-\u0301a", ["-", "\u0301a"]),
    ],
    ids=["Devanagari", "decomposed", "Arabic", "with symbols", "behind punctuation"],
)
def test_a_word_has_its_combining_marks(text: str, expected: list[str]) -> None:
    assert [text[slice(*span)] for span in word_spans(text)] == expected
