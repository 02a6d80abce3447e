"""Prompts of language models come out as they were given, and the model reads all of them that its tokens can say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.frame import Frame, Frames
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.decoding.continuations import Continuation, _read_prompts
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.unusual_text import LostSpaces
from sparsenmt.recipe.schema import TokenizerSection
from tests.data.conftest import invented_lines

KINDS = {"byte": 260, "char": 40, "bpe": 60, "unigram": 60, "word": 300}
LINES = invented_lines(100)
WORD, NEXT = LINES[0].split()[0], LINES[1].split()[0]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TokenizerSection(kind=request.param, vocabulary_size=KINDS[request.param]), LINES)


def prompts(tokenizer: Tokenizer, *texts: str, most: int = 1000) -> list[Continuation]:
    bundle: Any = SimpleNamespace(
        tokenizers=SimpleNamespace(source=tokenizer, target=tokenizer, frames=Frames()),
        frames=SimpleNamespace(source=Frame()),
        max_source_length=most,
    )
    read = _read_prompts(bundle, input_lines(texts))
    return [Continuation(each, [], tokenizer, prompt=tuple(each.ids[:-1])) for each in read]


def continued(prompt: Continuation, tokens: list[int]) -> str:
    prompt.hypotheses[:] = [Hypothesis(tokens, 0.0, 0.0, True)]
    return prompt.best_texts(1)[0]


def test_an_output_is_the_prompt_and_what_follows(tokenizer: Tokenizer) -> None:
    word = tokenizer.encode(f"{WORD} {NEXT}")[len(tokenizer.encode(WORD)) :]  # after a space
    for text in (WORD, f"  {WORD}", f"{WORD}  {NEXT}", ""):
        (prompt,) = prompts(tokenizer, text)
        assert continued(prompt, []) == text
        assert continued(prompt, word) in ((text + " " + NEXT, text + NEXT) if text == "" else (f"{text} {NEXT}",))
        assert continued(prompt, [*word, EOS, *tokenizer.encode(WORD)]).endswith(f"{NEXT}\n{WORD}")


def test_the_space_at_the_end_of_a_prompt_is_read(tokenizer: Tokenizer) -> None:
    (prompt,) = prompts(tokenizer, f"{WORD} ")
    names = tokenizer.pieces(range(tokenizer.size))
    assert continued(prompt, []) == f"{WORD} "
    if SPACE not in names:  # words have spaces between them in any case
        assert continued(prompt, tokenizer.encode(NEXT)) == f"{WORD} {NEXT}"
        return
    assert prompt.prompt == (*tokenizer.encode(WORD), names.index(SPACE)) and prompt.read == f"{WORD} "
    assert continued(prompt, [names.index(letter) for letter in NEXT]) == f"{WORD} {NEXT}"


def test_the_vocabulary_is_listed_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, pieces = [], tokenizer.pieces
    monkeypatch.setattr(tokenizer, "pieces", lambda ids, unknown=(): listed.append(len(ids)) or pieces(ids, unknown))
    for _ in range(3):  # windows
        prompts(tokenizer, f"{WORD} ", WORD, f"{NEXT} ")
    assert listed.count(tokenizer.size) <= 1
    assert not [size for size in listed if size > tokenizer.size]


def test_spaces_that_are_lost_are_told_once(tokenizer: Tokenizer) -> None:
    lost = LostSpaces()
    for prompt in prompts(tokenizer, WORD, f"{WORD} {NEXT}", "", f"{WORD}  {NEXT}", f" {WORD}", "  "):
        lost.add(prompt.source.number, prompt.source.text, prompt.read)
    if lost.found is None:
        assert tokenizer.encode("  ") == tokenizer.encode(" ") * 2  # bytes and characters keep all
        return
    told = f"warning: 3 prompts have spaces that the model's tokenizer does not keep: line 4 is read as '{WORD} {NEXT}'"
    assert lost.warning() == told
    both = LostSpaces()
    both.merge(lost.found)
    both.merge(lost.found)
    assert both.found == (6, 4, f"{WORD} {NEXT}")


def test_a_prompt_that_is_cut_comes_out_as_far_as_it_is_read(tokenizer: Tokenizer) -> None:
    (prompt,) = prompts(tokenizer, f"{WORD} {NEXT} {WORD} ", most=2)
    assert prompt.source.cut and len(prompt.prompt) == 2
    text = continued(prompt, [])
    assert f"{WORD} {NEXT} {WORD} ".startswith(text) and text.rstrip(" ") == prompt.read.rstrip(" ")


def test_case_and_unknown_words_of_a_prompt_are_kept() -> None:
    options = TokenizerSection(kind="word", vocabulary_size=300, lowercase=True)
    tokenizer = train_tokenizer(options, LINES)
    (prompt,) = prompts(tokenizer, f"{WORD.upper()} unheard")
    assert prompt.prompt[-1] == UNK and continued(prompt, [*tokenizer.encode(NEXT), UNK]) == (
        f"{WORD.upper()} unheard {NEXT} \u2047"
    )
    lost = LostSpaces()
    lost.add(0, prompt.source.text, prompt.read)
    assert lost.warning() is None
