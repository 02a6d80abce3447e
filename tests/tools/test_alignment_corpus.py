"""The corpus with links for guided alignment: tokenisation, alignment of a toy text, symmetrisation."""

from __future__ import annotations

from tools.alignment_corpus import grow_diag, tokenised, viterbi, word_ids


def test_text_is_made_like_the_hand_aligned_sentences() -> None:
    assert tokenised("Mr Barnier's EU-budget, 3.5 &quot;no&quot;!") == 'mr barnier \'s eu-budget , 3.5 " no " !'
    assert tokenised("the week’s ‘vote’ in Brüs\xadsel") == "the week 's ' vote ' in brüssel"


def test_words_that_occur_together_are_aligned() -> None:
    text = [("das haus", "the house"), ("das buch", "the book"), ("ein buch", "a book")]
    ids = [word_ids(words) for words in zip(*([side.split() for side in pair] for pair in text), strict=True)]
    assert viterbi(list(zip(*ids, strict=True))) == [{(0, 0), (1, 1)}] * 3


def test_neighbours_of_both_directions_are_added_for_words_without_a_link() -> None:
    assert grow_diag({(0, 0), (1, 1)}, {(0, 0), (1, 0), (3, 3)}) == {(0, 0), (1, 0), (1, 1)}
