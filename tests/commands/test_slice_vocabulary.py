"""`sparsenmt slice --vocabulary`: a model of the tokens of a text translates it as the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model_directory import read_manifest
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.workflows.conversion import vocabulary_slice
from tests.commands.support import Run

Refused = Callable[..., str]
LINES = 40
CODES = ("en_XX", "de_DE", "fr_XX")


@pytest.fixture
def few(workspace: Path, command: Run) -> Path:
    """A few sentences, and their translations by the model."""
    lines = (workspace / "corpus" / "test.en").read_bytes().splitlines(keepends=True)
    (workspace / "few.en").write_bytes(b"".join(lines[:LINES]))
    assert command("decode", "model", "-i", "few.en", "-o", "few.de").code == 0
    return workspace


def translations(bundle: Bundle, text: str) -> list[tuple[list[int], str]]:
    """The tokens and text of greedy translations."""
    options = bundle.recipe.decoding.model_copy(update={"beam_size": 1})
    found = translate_lines(bundle, input_lines(Path(text).read_bytes().decode().splitlines()), options)
    return [(list(each.hypotheses[0].tokens), each.text) for each in found]


def test_a_cut_model_translates_as_the_whole_one(command: Run, few: Path) -> None:
    result = command("slice", "model", "cut", "--vocabulary", "few.en", "--vocabulary", "few.de")
    assert result.code == 0 and result.out == b"" and "warning" not in result.err, result.err
    whole, cut = (open_model(name, dtype=None) for name in ("model", "cut"))
    old, new = whole.tokenizers, cut.tokenizers
    assert f"{new.source.size:,} of {old.source.size:,} source tokens" in result.err and " MB" in result.err
    assert 4 < new.source.size < old.source.size
    rows = {name: tensor.shape[0] for name, tensor in cut.model.state_dict().items() if name.startswith("embeddings.")}
    assert set(rows.values()) == {new.source.size}
    before, after = translations(whole, "few.en"), translations(cut, "few.en")
    left = {*new.target.pieces(range(new.target.size))}
    same = [left >= {*old.target.pieces([*ids, EOS])} for ids, _ in before]
    assert sum(same) >= LINES // 2, "the model's outputs are mostly divided as its tokenizer divides their text"
    for sure, (ids, text), (cut_ids, cut_text) in zip(same, before, after, strict=True):
        if sure:
            assert (cut_text, new.target.pieces(cut_ids)) == (text, old.target.pieces(ids))
    assert read_manifest(Path("cut"))["cut_from"]["path"] == "model"
    assert command("decode", "cut", stdin="Ωμέγα 猫\n".encode()).code == 0


def test_layers_and_vocabulary_at_once_and_training_on(command: Run, few: Path) -> None:
    text = ("--vocabulary", "few.en", "--target-vocabulary", "corpus/train.de")
    assert command("slice", "model", "-n", "1", "-m", "1", "cut", *text).code == 0
    assert command("slice", "cut", "again", *text).code == 0  # nothing is left to cut
    sizes = [open_model(name).tokenizers.source.size for name in ("cut", "again")]
    assert sizes[0] == sizes[1]
    changes = ("data.tokenizer={from_model: cut, shared: true}", "data.directory=cut-data")
    assert command("prepare", "small.yaml", *changes).code == 0
    tuned = command("train", "small.yaml", *changes, "directory=tuned", "training.max_updates=1")
    assert tuned.code == 0, tuned.err


def test_a_shortlist_is_cut(command: Run, few: Path) -> None:
    made = command("shortlist", "model", "few.en", "few.de", "-o", "few.shortlist", "--first", "20", "--best", "10")
    assert made.code == 0, made.err
    changed = model_directory.read_recipe(Path("model"))
    use = changed.decoding.model_copy(update={"shortlist": str(Path("few.shortlist").resolve())})
    bundle = open_model("model")
    listed = bundle.shortlist(use)
    assert listed is not None
    found = vocabulary_slice.cut_vocabularies(
        bundle, vocabulary_slice.VocabularyTexts(both=[Path("few.en"), Path("few.de")])
    )
    assert found.source_ids is not None and found.target_ids is not None
    small = listed.reduced(found.source_ids, found.target_ids, found.tokenizers)
    small.save(Path("small.shortlist"))
    for line in Path("few.en").read_text(encoding="utf-8").splitlines():
        old = listed.allowed([[*bundle.tokenizers.source.encode(line), EOS]])[0]
        new = small.allowed([[*found.tokenizers.source.encode(line), EOS]])[0]
        assert new.tolist() == old[found.target_ids].tolist()
    assert command("slice", "model", "cut", "--vocabulary", "few.en", "--vocabulary", "few.de").code == 0
    assert command("decode", "cut", "-i", "few.en", "--shortlist", "small.shortlist").code == 0


def test_languages(command: Run, refused: Refused, few: Path) -> None:
    """A model with languages keeps those that are named."""
    languages = dict(zip(CODES, (20, 21, 22), strict=True))
    frames = Frames(languages, source_prefix=["source"], target_prefix=["target"])
    whole = open_model("model", dtype=None)
    frames.save(few / "frames.json")
    found = vocabulary_slice.reduce_vocabularies(
        type(whole.tokenizers)(whole.tokenizers.source, whole.tokenizers.target, True, frames), {30}, {31}, CODES[:2]
    )
    assert found.tokenizers.frames.languages.keys() == set(CODES[:2]) and found.target_ids is not None
    assert [found.target_ids[id_] for id_ in found.tokenizers.frames.languages.values()] == [20, 21]
    both = ("--vocabulary", "few.en")
    assert "no languages to choose from" in refused("slice", "model", "cut", *both, "--keep-language", "en")


def test_bad_texts(command: Run, refused: Refused, few: Path) -> None:
    Path("empty").write_bytes(b"\n \n")
    Path("greek").write_bytes("Ωμέγα άλφα\nβήτα\n".encode())
    assert "the text is empty" in refused("slice", "model", "cut", "--vocabulary", "empty")
    assert "nowhere" in refused("slice", "model", "cut", "--vocabulary", "nowhere")
    assert "there is no text of the target" in refused("slice", "model", "cut", "--source-vocabulary", "few.en")
    assert "exists" in refused("slice", "model", "corpus", "--vocabulary", "few.en")
    warned = command("slice", "model", "cut", "--vocabulary", "few.en", "--vocabulary", "greek")
    assert warned.code == 0 and "greek: 2 of 2 lines are mostly unknown" in warned.err


def test_an_interrupt_leaves_nothing(command: Run, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_directory, "save_tensors", stop)
    before = sorted(path.name for path in Path().iterdir())
    assert command("slice", "model", "cut", "--vocabulary", "few.en").code != 0
    assert sorted(path.name for path in Path().iterdir() if path.name[0] != ".") == before
    monkeypatch.undo()
