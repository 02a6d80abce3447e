"""Terms of a glossary are found as whole words, the longest first; files that cannot be used are refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sparsenmt.data.terminology import Glossary, WordEdges, stands, terms_within
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import TokenizerSection

TEXT = ["das alte Haus am See", "die Stadt New York", "ein Boot und ein Hausboot", "東京 の 家"] * 9


@pytest.fixture(scope="module", params=["char", "word", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TokenizerSection.model_validate({"kind": request.param, "vocabulary_size": 50}), TEXT)


def glossary(folder: Path, text: str, tokenizer: Tokenizer, most: int = 50) -> Glossary:
    path = folder / "terms.tsv"
    path.write_text(text, encoding="utf-8", newline="\n")
    return Glossary(path, tokenizer, most, None)


def test_the_longest_term_is_found_as_whole_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    terms = "house\tHaus\nhouse boat\tHausboot\n\nUS\tSee\nNew  York\tNew York\n家\t東京\n"
    own = glossary(tmp_path, terms, tokenizer)

    def found(line: str) -> list[tuple[str, str]]:
        return [(term.target, line[slice(*term.span)]) for term in own.find(line)]

    assert found("a House, a house  boat") == [("Haus", "House"), ("Hausboot", "house  boat")]
    assert found("houses and boathouse, us") == []
    assert found("US in new york or New York, US") == [
        ("See", "US"),
        ("New York", "New York"),
        ("See", "US"),
    ]
    assert found("その家は") == [("東京", "家")]


def test_parts_of_a_line_have_their_terms(tmp_path: Path, tokenizer: Tokenizer) -> None:
    line = "a house. a boat and a boat"
    terms = glossary(tmp_path, "house\tHaus\nboat\tBoot\na boat and\tein\n", tokenizer).find(line)
    assert [term.target for term in terms] == ["Haus", "ein", "Boot"]
    (only,) = terms_within(terms, 0, 8)
    assert (only.target, line[slice(*only.span)]) == ("Haus", "house")
    assert terms_within(terms, 12, 26)[0].span == (10, 14)
    assert terms_within(terms, 12, 26, before=3)[0].span == (13, 17)
    assert terms_within(terms, 9, 12)[0].span == (0, 3), "a term that is divided belongs to the part that begins it"
    again = glossary(tmp_path, "boat\tBoot\n", tokenizer).find(line)
    assert [term.span for term in again] == [(11, 15), (22, 26)]
    assert [term.span for term in terms_within(again, 0, 26)] == [(11, 15)]
    assert [len(terms_within(again, *part)) for part in ((9, 20), (20, 26))] == [1, 1]


def test_a_target_stands_as_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (term,) = glossary(tmp_path, "boat\tHaus\n", tokenizer).find("boat")
    assert stands(term, "das Haus, ja", tokenizer) and not stands(term, "das Hausboot", tokenizer)


def test_terms_have_combining_marks(tmp_path: Path) -> None:
    own = train_tokenizer(TokenizerSection.model_validate({"kind": "char"}), ["हिन्दी में", "ab"])
    terms = glossary(tmp_path, "हि\tab\nमें\tab\n", own)
    assert [term.source for term in terms.find("हिन्दी में")] == ["में"], "हि is a part of a word"
    edges, (first, sign, *_) = WordEdges.of(own), own.encode("हिन्दी")
    assert edges.joined(first, sign)


def test_the_edges_of_words(tokenizer: Tokenizer) -> None:
    edges, ids = WordEdges.of(tokenizer), tokenizer.encode("Haus am")
    names, starts = tokenizer.pieces(ids), tokenizer.word_starts[ids].tolist()
    for i in range(len(ids) - 1):
        inside = names[i][-1].isalnum() and names[i + 1][0].isalnum() and not starts[i + 1]
        assert edges.joined(ids[i], ids[i + 1]) == inside
    joined = [edges.joined(*pair) for pair in pairwise(ids)]
    assert any(joined) or names == ["Haus", "am"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("house Haus\n", "does not have two columns"),
        ("house\tHaus\tBoot\n", "does not have two columns"),
        ("house\t \n", "does not have two columns"),
        ("a\tHaus\nhouse\tHaus\nhouse\tBoot\n", "has another target in line 2"),
        ("\n\n", "has no terms"),
        ("house\tΩmega\n", "the target vocabulary does not have"),
        ("house\tdas alte Haus am See das alte Haus am See\n", "tokens are more than an output can have: 8"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, tokenizer: Tokenizer, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        glossary(tmp_path, text, tokenizer, most=8)
    assert message in error.value.message and error.value.hint


def test_accents_may_be_composed_or_not(tmp_path: Path) -> None:
    text = ["caf\u00e9 am See", "cafe\u0301 am See"] * 9
    own = train_tokenizer(TokenizerSection.model_validate({"kind": "word", "vocabulary_size": 50}), text)
    for source in ("caf\u00e9", "cafe\u0301"):
        terms = glossary(tmp_path, f"{source}\tcaf\u00e9\n", own)
        for line in ("Am Caf\u00e9 hier", "Am Cafe\u0301 hier"):
            (found,) = terms.find(line)
            assert line[slice(*found.span)].startswith("Caf") and stands(found, "das cafe\u0301 am See", own)


def test_a_target_without_tokens_is_refused(tmp_path: Path) -> None:
    own = train_tokenizer(TokenizerSection.model_validate({"kind": "bpe", "vocabulary_size": 50}), TEXT)
    assert own.encode("\u200b") == []
    with pytest.raises(UserError, match=r"terms\.tsv, line 2: the target vocabulary has no token for '\\u200b'"):
        glossary(tmp_path, "See\tSee\nHaus\t\u200b\n", own)


@pytest.mark.parametrize("segmented", [False, True])
def test_a_term_of_a_language_without_spaces_needs_none_before_it(tmp_path: Path, segmented: bool) -> None:
    words = ["東京", "の", "大学", "で", "Python", "を", "学ぶ", "。"]
    space = " " if segmented else ""
    text = [space.join(words), space.join(["大学", "の", "東京", "。"]), space.join(["Python", "の", "大学"])] * 9
    section = TokenizerSection.model_validate({"kind": "bpe", "vocabulary_size": 40})
    own = train_tokenizer(section, text)
    path = tmp_path / "terms.tsv"
    path.write_text("university\t大学\npython\tPython\n", encoding="utf-8", newline="\n")
    terms = Glossary(path, own, 50, None, "ja").find("the university of Python")
    assert [own.decode(term.tokens) for term in terms] == ["大学", "Python"]
    behind = own.encode("東京")
    for term in terms:
        assert own.decode([*behind, *term.tokens]) == f"東京{space}{term.target}"
        assert stands(term, f"東京の{term.target}で", own)
