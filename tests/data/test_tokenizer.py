"""Every kind of tokenizer: text comes back, words are marked, the same text gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, load_tokenizer, train_tokenizer, unknown_texts
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SPACE, SPECIAL_TOKENS, UNK, UNKNOWN_SURFACE
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

KINDS = ("bpe", "unigram", "char", "word", "byte")
Lines = Callable[..., list[str]]


def trained(kind: str, lines: list[str], size: int = 60, **options: object) -> Tokenizer:
    return train_tokenizer(schema.TokenizerSection(kind=kind, vocabulary_size=size, **options), lines)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_text_comes_back(kind: str, lines: Lines) -> None:
    text = lines(300)
    tokenizer = trained(kind, text, size=60 if kind != "word" else 1000)
    encoded = tokenizer.encode_batch(text)
    assert encoded == [tokenizer.encode(line) for line in text]
    assert [tokenizer.decode(ids) for ids in encoded] == text
    assert all(4 <= id_ < tokenizer.size for ids in encoded for id_ in ids)
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode([]) == ""


def test_specials(kind: str, lines: Lines) -> None:
    tokenizer = trained(kind, lines(300))
    assert tuple(tokenizer.pieces([PAD, UNK, BOS, EOS])) == SPECIAL_TOKENS
    ids = tokenizer.encode(lines(300)[0])
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == tokenizer.decode(ids)
    assert UNKNOWN_SURFACE in tokenizer.decode([UNK])
    # Text that looks like a special piece is text.
    assert not {PAD, BOS, EOS} & set(tokenizer.encode("<s> </s> <pad> <unk>"))


def test_word_starts_count_the_words(kind: str, lines: Lines) -> None:
    text = lines(300)
    tokenizer = trained(kind, text)
    starts = tokenizer.word_starts
    assert tokenizer.keeps_word_boundaries
    assert starts.shape == (tokenizer.size,)
    assert starts[BOS] and starts[EOS]
    for line in text:
        ids = tokenizer.encode(line)
        assert 1 + starts[ids[1:]].sum() == len(line.split(" "))


def test_same_text_same_bytes(kind: str, lines: Lines, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trained(kind, lines(300)).save(tmp_path / name, "x")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


@pytest.mark.parametrize("lowercase", [False, True])
def test_saved_and_loaded(kind: str, lowercase: bool, lines: Lines, tmp_path: Path) -> None:
    text = [line.title() for line in lines(300)] + ["a\u2028b \x85 c\x0c"]
    tokenizer = trained(kind, text, size=90, lowercase=lowercase)
    tokenizer.save(tmp_path, "x")
    loaded = load_tokenizer(tmp_path, "x")
    assert loaded.encode_batch(text) == tokenizer.encode_batch(text)
    assert loaded.pieces(range(loaded.size)) == tokenizer.pieces(range(tokenizer.size))
    assert (loaded.word_starts == tokenizer.word_starts).all()
    if lowercase:
        assert loaded.encode(text[0]) == loaded.encode(text[0].upper())
        assert loaded.decode(loaded.encode(text[0])).islower()


@pytest.mark.parametrize("shared", [False, True])
def test_pair(shared: bool, lines: Lines, tmp_path: Path) -> None:
    source = trained("bpe", lines(300))
    pair = Tokenizers(source, source if shared else trained("word", lines(300, seed=1)), shared)
    pair.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert loaded.shared is shared
    assert (loaded.source is loaded.target) is shared
    for name in ("source", "target"):
        assert getattr(loaded, name).encode("kalomi ter") == getattr(pair, name).encode("kalomi ter")


def test_odd_characters_do_no_harm(kind: str, lines: Lines) -> None:
    odd = ["a\x00b", "x\u2028y", "c\rd", "\x0c e", "\ufeff f", "\t", "g" * 10_000, "x\u2581y", "日本 語"]
    tokenizer = trained(kind, lines(300) + odd * 3, size=90 if kind != "word" else 1000, normalization="identity")
    for line in odd:
        text = tokenizer.decode(tokenizer.encode(line))
        assert "\n" not in text
    for line in ("c\rd", "x\u2028y", "日本 語"):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    # To SentencePiece a NUL is always unknown; to the others it is a character as any other.
    nul = "\x00" if kind in ("char", "word", "byte") else UNKNOWN_SURFACE
    assert tokenizer.decode(tokenizer.encode("a\x00b")) == f"a{nul}b"


@pytest.mark.parametrize("normalization", ["identity", "nfkc", "nmt_nfkc"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_with_coverage_1_no_character_of_the_text_is_unknown(kind: str, normalization: str) -> None:
    """Each stands in a word with a letter that is in no other word; NUL is the one that SentencePiece cannot keep."""
    odd = [*range(0x20), *range(0x7F, 0x100), *range(0x2000, 0x2070), *range(0x2580, 0x25A0), *range(0xFFF0, 0x10000)]
    odd += [0x200D, 0x2FFFF, 0xE0001, 0x1F600, 0xFEFF, 0xD55C, 0xFB01]
    lines = [f"a{chr(each)}{chr(0x4E00 + place)}" for place, each in enumerate(odd) if each != 0x0A]
    try:
        tokenizer = trained(kind, lines, size=1000 if kind != "bpe" else 10, normalization=normalization)
    except UserError as error:
        smallest = int(str(error.hint).split(";")[0].split()[-1])
        tokenizer = trained(kind, lines, size=smallest, normalization=normalization)
    unknown = {each for line in lines for each in unknown_texts(tokenizer, line)}
    assert unknown == ({"\0"} if kind != "char" else set())
    for line in ("a\u2585b", "a \u2585", "\u2585\u2585"):
        assert tokenizer.decode(tokenizer.encode(line)).replace(UNKNOWN_SURFACE, "b") == line


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_lines_over_4192_bytes_are_learned_from(kind: str) -> None:
    # SentencePiece's default skips such lines: then there would be nothing to learn from.
    tokenizer = trained(kind, [" ".join(["abc", "abd", "xyz"] * 1000)] * 5, size=16)
    assert UNK not in tokenizer.encode("abc xyz")


def test_bpe_too_large_names_the_largest_size(lines: Lines) -> None:
    with pytest.raises(UserError, match="too large") as caught:
        trained("bpe", lines(30), size=50_000)
    assert caught.value.where == "data.tokenizer.vocabulary_size"
    assert caught.value.hint is not None
    largest = int(caught.value.hint.rstrip(".").split()[-1])
    assert trained("bpe", lines(30), size=largest).size == largest
    with pytest.raises(UserError, match="too large"):
        trained("bpe", lines(30), size=largest + 1)


def test_unigram_too_large_takes_what_there_is(lines: Lines) -> None:
    assert 20 < trained("unigram", lines(30), size=50_000).size < 50_000


def test_too_small_names_the_smallest_size(lines: Lines) -> None:
    for kind in ("bpe", "unigram"):
        with pytest.raises(UserError, match="cannot hold") as caught:
            trained(kind, lines(100), size=10)
        assert caught.value.hint is not None
        smallest = int(caught.value.hint.split(";")[0].split()[-1])
        assert trained(kind, lines(100), size=smallest).size == smallest
    for kind in ("char", "word"):
        with pytest.raises(UserError, match="special tokens"):
            trained(kind, lines(100), size=4)


def test_no_text(kind: str) -> None:
    for text in ([], [""], ["", "  ", ""]):
        with pytest.raises(UserError, match="no text"):
            trained(kind, text)


def test_words_are_split_at_spaces_only() -> None:
    tokenizer = trained("word", ["a\tb  c\u00a0d ", " e"])
    assert tokenizer.pieces(tokenizer.encode("  a\tb c\u00a0d   e f ")) == ["a\tb", "c\u00a0d", "e", "<unk>"]
    assert tokenizer.decode(tokenizer.encode("e  f")) == f"e {UNKNOWN_SURFACE}"


def test_frequent_words_are_kept() -> None:
    tokenizer = trained("word", ["c b a b c d", "c </s> z"], size=6)
    assert tokenizer.pieces(range(4, tokenizer.size)) == ["c", "b"]
    tokenizer = trained("word", ["</s> <pad>"], size=6)
    assert tokenizer.decode(tokenizer.encode("</s> <pad>")) == "</s> <pad>"


def test_characters_have_a_space_of_their_own() -> None:
    tokenizer = trained("char", ["ab cd", "ab"])
    ids = tokenizer.encode("ab  cd")
    assert tokenizer.pieces(ids) == ["a", "b", SPACE, SPACE, "c", "d"]
    assert tokenizer.decode(ids) == "ab  cd"
    assert tokenizer.word_starts[ids].tolist() == [False, False, True, True, False, False]
    # The space has a place in the vocabulary even where no training line holds one.
    assert trained("char", ["abc"], size=5).pieces([4]) == [SPACE]
    assert trained("char", ["aaaaaaaab"], character_coverage=0.8).pieces(range(4, 6)) == [SPACE, "a"]


def test_every_text_comes_back_from_bytes(tmp_path: Path) -> None:
    tokenizer = trained("byte", ["any text"])
    assert tokenizer.size == schema.BYTE_TOKENS == schema.TokenizerSection(kind="byte").vocabulary_size
    for line in ("Käse  für 日本 🙂", "\u2581 \x00\t\x85\u2028", " ", "<s>"):
        ids = tokenizer.encode(line)
        assert len(ids) == len(line.encode()) and tokenizer.decode(ids) == line
    assert tokenizer.pieces(tokenizer.encode("a b~ü\x7f")) == ["a", SPACE, "b", "~", "<0xC3>", "<0xBC>", "<0x7F>"]
    assert tokenizer.spans("aü日b") == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4)]


def test_bytes_that_are_no_text() -> None:
    tokenizer = trained("byte", ["any text"])
    first, second = tokenizer.encode("ü")
    assert tokenizer.decode([first]) == tokenizer.decode([second]) == "\ufffd"
    assert tokenizer.decode([first, *tokenizer.encode("a"), second]) == "\ufffda\ufffd"
    line_feed = tokenizer.encode("\t")[0] + 1
    assert tokenizer.decode([line_feed]) == "\ufffd"
    assert tokenizer.decode([UNK, first, second, UNK], ["日", "x"]) == "日üx"
    assert tokenizer.decode([UNK]) == UNKNOWN_SURFACE


def test_markers_between_bytes(tmp_path: Path) -> None:
    tokenizer = trained("byte", ["any text"], size=262, user_symbols=["<n>", "é"])
    tokenizer.save(tmp_path, "x")
    for each in (tokenizer, load_tokenizer(tmp_path, "x")):
        ids = each.encode("a <n> é <n>é")
        assert each.pieces(ids) == ["a", SPACE, "<n>", SPACE, "é", SPACE, "<", "n", ">", "<0xC3>", "<0xA9>"]
        assert each.decode(ids) == "a <n> é <n>é"
        assert each.spans("é <n>é")[:3] == [(0, 1), (1, 2), (2, 3)]
    path = tmp_path / "x.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<0x00>", "<0x0>"), encoding="utf-8")
    with pytest.raises(UserError, match="not a vocabulary of bytes"):
        load_tokenizer(tmp_path, "x")


def test_broken_directories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Tokenizers.load(tmp_path)
    (tmp_path / "x.json").write_bytes(b'{"kind": "other"}')
    with pytest.raises(UserError, match="not a tokenizer"):
        load_tokenizer(tmp_path, "x")
    (tmp_path / "x.json").write_bytes(b"{")
    with pytest.raises(UserError, match="JSON"):
        load_tokenizer(tmp_path, "x")
    (tmp_path / "x.json").write_bytes(b'{"kind": "sentencepiece", "lowercase": false}')
    with pytest.raises(UserError, match=r"x\.model: cannot be read"):
        load_tokenizer(tmp_path, "x")
    for damaged in (b"not a model", b""):
        (tmp_path / "x.model").write_bytes(damaged)
        with pytest.raises(UserError, match="not a SentencePiece model"):
            load_tokenizer(tmp_path, "x")
    for settings in (b"{}", b"[1]"):
        (tmp_path / "tokenizers.json").write_bytes(settings)
        with pytest.raises(UserError, match="not a pair of tokenizers"):
            Tokenizers.load(tmp_path)
