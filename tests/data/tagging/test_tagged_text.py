"""Reading tagged text: both formats, and what is wrong with them by file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sparsenmt.data.tagging.tagged_text import TagFile, read_tagged
from sparsenmt.errors import UserError

CONLLU = """\
# sent_id = 1
# text = Don't go zum Haus.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t_\t_\t_\t_
2\tn't\tnot\tPART\tRB\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4-5\tzum\t_\t_\t_\t_\t_\t_\t_\t_
4\tzu\tzu\tADP\t_\t_\t_\t_\t_\t_
5\tdem\tder\tDET\t_\t_\t_\t_\t_\t_
6\tHaus\tHaus\tNOUN\tNN\t_\t_\t_\t_\tSpaceAfter=No
6.1\tghost\t_\tVERB\tVB\t_\t_\t_\t_\t_
7\t.\t.\tPUNCT\t.\t_\t_\t_\t_\t_

1\t10 000\t_\tNUM\tCD\t_\t_\t_\t_\tSpaceAfter=No
2\t!\t_\tPUNCT\t.\t_\t_\t_\t_\t_
"""


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_conllu(tmp_path: Path) -> None:
    first, second = read_tagged(write(tmp_path / "x", CONLLU))
    assert first.words == ("Do", "n't", "go", "zum", "Haus", ".")
    assert first.tags == ("VB", "RB", "VB", "ADP", "NN", "."), "XPOS before UPOS"
    assert (first.text, first.line) == ("Don't go zum Haus.", 3)
    assert (second.words, second.tags, second.text, second.line) == (("10 000", "!"), ("CD", "."), "10 000!", 14)


def test_conllu_without_comments_with_windows_line_ends_and_gzipped(tmp_path: Path) -> None:
    text = "\n\n" + CONLLU.split("\n\n")[1].replace("\n", "\r\n") + "\r\n"
    (tmp_path / "x.gz").write_bytes(gzip.compress(text.encode()))
    (sentence,) = read_tagged(tmp_path / "x.gz")
    assert sentence.words == ("10 000", "!") and sentence.line == 3


def test_words_with_tags(tmp_path: Path) -> None:
    text = "#_# snake_case_NN  go_VB -LRB-_-LRB- ``_``\n\nBye_UH ._.\n"
    sentences = list(read_tagged(write(tmp_path / "x", text)))
    assert [each.words for each in sentences] == [("#", "snake_case", "go", "(", '"'), (), ("Bye", ".")]
    assert [each.tags for each in sentences] == [("#", "NN", "VB", "-LRB-", "``"), (), ("UH", ".")]
    assert [each.line for each in sentences] == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_empty_files(tmp_path: Path, text: str) -> None:
    sentences = list(read_tagged(write(tmp_path / "x", text)))
    assert [each.words for each in sentences] == [()] * len(text)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a_DT b_NN\na dog_NN\n", 2, "'a' has no tag"),
        ("a_DT b_\n", 1, "'b_' has no tag"),
        ("_NN\n", 1, "'_NN' has no tag"),
        ("hello world\n", 1, "'hello' has no tag"),
        ("# sent_id = 1\n1\tDo\tdo\n", 2, "3 columns"),
        (CONLLU + "\n1 What what PRON WP _ 0 root _ _\n", 17, "1 columns"),
    ],
)
def test_what_is_no_tagged_text(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        list(read_tagged(write(tmp_path / "x", text)))
    assert caught.value.where == f"{tmp_path / 'x'}, line {line}"


def test_beside_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "tags", "A_DT dog_NN ._.\n\nHe_PRP 's_VBZ ﬁne_JJ\n")
    sentences = list(TagFile(path).sentences("text", ["a  dog .", "", "HE's FINE"]))
    assert [each.tagset for each in sentences] == ["penn"] * 3
    assert [each.words for each in TagFile(path).sentences("text", ["He's fine"], first=2)] == [("He", "'s", "ﬁne")]


@pytest.mark.parametrize(
    ("lines", "where", "message"),
    [
        (["A dog.", "Two cats"], ", line 2", "the 2 tagged words are not those of line 2 of text: 'one"),
        (["A dog.", "One cat sleeps"], ", line 2", "'the end' instead of 'sleeps'"),
        (["A dog", "One cat"], ", line 1", "'.' instead of 'the end'"),
        (["A dog."], "", "2 tagged sentences, but text has 1 lines"),
        (["A dog.", "One cat", "", ""], "", "2 tagged sentences, but text has 4 lines"),
    ],
)
def test_tags_of_another_text(tmp_path: Path, lines: list[str], where: str, message: str) -> None:
    path = write(tmp_path / "tags", "A_DT dog_NN ._.\nOne_CD cat_NN\n")
    with pytest.raises(UserError, match=message) as caught:
        list(TagFile(path).sentences("text", lines))
    assert caught.value.where == f"{path}{where}"


def test_the_tag_set_of_a_file(tmp_path: Path) -> None:
    tagged = write(tmp_path / "x", "in_PRP FOO_FOO the_AT0\nFOO_FOO\n")
    assert TagFile(tagged).tagset == "c5"
    assert "'FOO' (2)" in str(TagFile(tagged).warning)
    ambiguous = write(tmp_path / "y", "he_PRP\n")
    assert TagFile(ambiguous).tagset == "penn"
    assert TagFile(ambiguous, expected="c5").tagset == "c5"
    assert TagFile(write(tmp_path / "z", "he_PRON\n"), expected="c5").tagset == "ud"


def test_gold_tags_of_universal_dependencies(real_data: Path) -> None:
    for name, tagset in (("en_ewt-ud-dev", "penn"), ("de_gsd-ud-dev", "stts")):
        path = real_data / "ud" / f"{name}.conllu.gz"
        if not path.is_file():
            pytest.skip(f"there is no {path}: name a folder of corpora with ud/ in SPARSENMT_DATA")
        texts = [each.text or "" for each in read_tagged(path)]
        file = TagFile(path)
        assert (file.tagset, file.warning) == (tagset, None)
        assert len(list(file.sentences("itself", texts))) == len(texts) > 700
