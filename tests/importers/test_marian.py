"""Models of Marian compute here what Marian computes: files that the tests write, beside a plain implementation."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.marian import read as read_marian
from sparsenmt.importers.marian import recognizes
from sparsenmt.importers.marian_files import read_marian_file
from sparsenmt.importers.marian_vocabularies import read_vocabulary
from sparsenmt.model.protocol import NEVER, Source
from sparsenmt.recipe import schema
from sparsenmt.workflows.conversion.import_model import import_model
from tests.importers.marian_twin import ATTENTION, PRE, SENTENCES, UNTIED, Twin, vocabulary

VARIANTS: dict[str, dict[str, Any]] = {
    "student": {},
    "self-attention": ATTENTION,
    "norms first": PRE,
    "norms first, self-attention, gelu": {**PRE, **ATTENTION, "transformer-ffn-activation": "gelu"},
    "own tables, swish": {**UNTIED, "transformer-ffn-activation": "swish"},
    "one table of inputs": {**UNTIED, "tied-embeddings-src": True},
    "target and output, norm of embeddings": {**UNTIED, "tied-embeddings": True, "transformer-postprocess-emb": "nd"},
    "learned positions": {**ATTENTION, "learned": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian")
    vocabulary(folder)
    return folder


def pieces(folder: Path) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "vocab.spm"))


def settings(folder: Path, model: Path) -> Path:
    """A directory's file of decoding settings."""
    values = {"models": [model.name], "vocabs": ["vocab.spm"] * 2, "beam-size": 1, "normalize": 1.0}
    path = folder / "decoder.yml"
    path.write_text(yaml.safe_dump({**values, "relative-paths": True, "max-length-factor": 3}), encoding="utf-8")
    return path


def logits(path: Path, folder: Path, source: list[int], target: list[int]) -> Tensor:
    """(T + 1, U): this program's logits in Marian's order of tokens; ids are Marian's."""
    found = read_marian(path, [folder / "vocab.spm"])
    size = found.tokenizers.source.size
    model = build_model(
        schema.ModelSection.model_validate(found.recipe["model"]), source_size=size, target_size=size, seed=1
    )
    model.load_state_dict(found.weights)
    model.double().eval()
    assert found.tokenizers.source.pieces(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    ours = [EOS, UNK, *range(4, size)]  # Marian's 0, 1, 2 ...
    with torch.no_grad():
        tokens = torch.tensor([[ours[id_] for id_ in source]])
        (memory,) = model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool))).memories.values()
        (hidden,) = model.decode(torch.tensor([[BOS, *(ours[id_] for id_ in target)]]), memory).values()
        values = model.project(hidden)[0]
    assert bool((values[:, [PAD, BOS]] <= NEVER).all())
    return values[:, ours]


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_marian(name: str, folder: Path, tmp_path: Path) -> None:
    processor = pieces(folder)
    twin = Twin.of(processor.get_piece_size(), **VARIANTS[name])
    path = twin.write_npz(tmp_path / "model.npz")
    source, target = [*processor.encode(SENTENCES[0]), 0], processor.encode(SENTENCES[1])
    difference = logits(path, folder, source, target) - twin.logits(source, target)
    assert float(difference.abs().max()) < 1e-6  # the file is fp32, and so are scaled weights


@pytest.mark.parametrize("quantized", [False, True])
def test_binary_files(quantized: bool, folder: Path, tmp_path: Path) -> None:
    processor = pieces(folder)
    twin = Twin.of(processor.get_piece_size())
    path = twin.write_bin(tmp_path / "model.bin", quantized=quantized)
    found = read_marian_file(path)
    assert bool(found.multipliers) == quantized and found.configuration == twin.config
    assert {name: float((each - twin.tensors[name]).abs().max()) for name, each in found.tensors.items()} == {
        name: pytest.approx(0, abs=1e-7) for name in twin.tensors
    }
    source = [*processor.encode(SENTENCES[2]), 0]
    assert float((logits(path, folder, source, [5, 6]) - twin.logits(source, [5, 6])).abs().max()) < 1e-6


def test_a_directory_is_imported_and_translates(folder: Path, tmp_path: Path) -> None:
    """Golden outputs: greedy translations of the plain implementation."""
    processor = pieces(folder)
    twin = Twin.of(processor.get_piece_size())
    source = tmp_path / "source"
    source.mkdir()
    settings(source, twin.write_bin(source / "model.bin", quantized=True))
    (source / "vocab.spm").write_bytes((folder / "vocab.spm").read_bytes())
    assert recognizes(source)
    import_model(source, tmp_path / "model", languages=("en", "pt"))
    bundle = open_model(tmp_path / "model")
    options = bundle.recipe.decoding
    assert (options.beam_size, options.length_penalty, options.unknown) == (1, "average", "forbid")
    expected = [
        processor.decode(twin.greedy(ids, 3 * len(ids))) for ids in ([*processor.encode(s), 0] for s in SENTENCES)
    ]
    assert [each.text for each in translated(bundle, SENTENCES)] == expected
    assert bundle.text is not None and bundle.text.longest == (200, 200), "the students' `max-length` in training"


def translated(bundle: Any, lines: Any) -> list[Any]:
    from sparsenmt.data.input_line import input_lines
    from sparsenmt.decoding.translate import translate_lines

    return list(translate_lines(bundle, input_lines(list(lines)), bundle.recipe.decoding))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a recurrent network": ({"type": "s2s"}, "`type: s2s`"),
    "average attention": ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
    "another cell": ({"dec-cell": "gru"}, "`dec-cell: gru`"),
    "factors": ({"lemma-dim-emb": 2}, "lemma-dim-emb"),
    "right to left": ({"right-left": True}, "right-left"),
    "highways": ({"transformer-postprocess": "dhn"}, "transformer-postprocess: dhn"),
    "a deep network": ({"transformer-ffn-depth": 3}, "transformer-ffn-depth"),
    "another vocabulary": ({"dim-vocabs": [7, 7]}, "was trained with"),
    "another size": ({"dim-emb": 32}, "as its configuration says"),
    "more layers": ({"dec-depth": 3}, "decoder_l3_.* is missing"),
    "fewer layers": ({"dec-depth": 1}, "decoder_l2_.* and [0-9]+ more belong to no part of the model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    twin = Twin.of(pieces(folder).get_piece_size())
    twin.config |= changes
    path = twin.write_npz(tmp_path / "model.npz")
    with pytest.raises(UserError, match=message):
        read_marian(path, [folder / "vocab.spm"])


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _absurd(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[16 + 24 : 16 + 32] = struct.pack("<Q", 1 << 60)  # the length of the first tensor
    path.write_bytes(bytes(data))


def _many(path: Path) -> None:
    path.write_bytes(struct.pack("<2Q", 1, 1 << 50) + path.read_bytes()[16:])


def _version(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 7) + path.read_bytes()[8:])


def _pickled(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.array([{"a": 1}], dtype=object))
    path.with_suffix(".npz").rename(path)


def _compressed(path: Path) -> None:
    np.savez_compressed(path.with_suffix(".npz"), a=np.zeros(1 << 20, np.float32))
    path.with_suffix(".npz").rename(path)


def _without_configuration(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), a=np.zeros(3, np.float32))
    path.with_suffix(".npz").rename(path)


@pytest.mark.parametrize(
    "damage",
    [_truncated, _absurd, _many, _version, _pickled, _compressed, _without_configuration],
    ids=lambda each: each.__name__,
)
def test_damaged_files_are_refused(damage: Callable[[Path], None], folder: Path, tmp_path: Path) -> None:
    path = Twin.of(pieces(folder).get_piece_size()).write_bin(tmp_path / "model.bin")
    damage(path)
    with pytest.raises(UserError, match="not a model file of Marian, or a damaged one"):
        read_marian_file(path)


def test_a_missing_vocabulary_is_named(folder: Path, tmp_path: Path) -> None:
    path = Twin.of(pieces(folder).get_piece_size()).write_npz(tmp_path / "model.npz")
    with pytest.raises(UserError, match="says nothing about its vocabularies"):
        read_marian(path)
    with pytest.raises(UserError, match="there is no such file"):
        read_marian(settings(tmp_path, path))
    (tmp_path / "vocab.fsv").write_bytes(b"factors")
    with pytest.raises(UserError, match=r"`\.fsv` cannot be imported"):
        read_marian(path, [tmp_path / "vocab.fsv"])


def test_words_with_numbers(tmp_path: Path) -> None:
    words = ["</s>", "<unk>", "the", "cat", "sat", "1", "yes"]
    (tmp_path / "vocab.yml").write_text("".join(f'"{word}": {i}\n' for i, word in enumerate(words)), encoding="utf-8")
    twin = Twin.of(len(words))
    found = read_marian(twin.write_npz(tmp_path / "model.npz"), [tmp_path / "vocab.yml"])
    assert found.tokenizers.source.pieces(found.tokenizers.source.encode("the cat sat 1 bird")) == [
        *("the", "cat", "sat", "1", "<unk>")
    ]
    table = found.weights["embeddings.shared"]
    assert torch.equal(table[EOS], twin.tensors["Wemb"][0]) and torch.equal(table[4:], twin.tensors["Wemb"][2:])
    assert not table[[PAD, BOS]].any()


AWKWARD = ["\x80", "\x85", "x\x85y", "\u2028", "\u2029", "\x7f", "\uffff", "\ufeff", "\t", "\xa0", "\x9fz", "#", "a #b"]
AWKWARD += [
    '"',
    "'",
    "it's",
    ": ",
    "a: b",
    "a:",
    ":",
    ":a",
    "?",
    "-",
    "---",
    "...",
    "~",
    "null",
    "\\",
    "\\x41",
    "<<",
    "a ",
]
AWKWARD += [f"long{'x' * 1024}", "\U0001f600", "\x01", "|", "`", "{", "é"]
YAML_CPP = r"""</s>: 0
<unk>: 1
"\x80": 2
<85>: 3
x<85>y: 4
<2028>: 5
<2029>: 6
"<7f>": 7
<ffff>: 8
"\ufeff": 9
"\t": 10
<a0>: 11
"\x9fz": 12
"#": 13
"a #b": 14
"\"": 15
"'": 16
it's: 17
": ": 18
"a: b": 19
"a:": 20
":": 21
:a: 22
"?": 23
"-": 24
---: 25
...: 26
"~": 27
"null": 28
\: 29
\x41: 30
<<: 31
"a ": 32
? <long>
: 33
<1f600>: 34
"\x01": 35
"|": 36
"`": 37
"{": 38
é: 39
"""
"""The text that yaml-cpp 0.7, a part of Marian, writes of `</s>`, `<unk>` and `AWKWARD`; raw characters by number."""


def test_a_vocabulary_as_yaml_cpp_writes_it(tmp_path: Path) -> None:
    text = re.sub("<([0-9a-f]+)>", lambda found: chr(int(found[1], 16)), YAML_CPP.replace("<long>", AWKWARD[31]))
    (tmp_path / "vocab.yml").write_bytes(text.encode())
    found = read_vocabulary(tmp_path / "vocab.yml", "source")
    assert found.tokenizer.pieces(range(4, found.tokenizer.size)) == AWKWARD
    words = {word: id_ for id_, word in enumerate(["</s>", "<unk>", *AWKWARD])}
    for escaped in (True, False):
        (tmp_path / "vocab.json").write_text(json.dumps(words, ensure_ascii=escaped, indent=1), encoding="utf-8")
        assert read_vocabulary(tmp_path / "vocab.json", "source").ids == found.ids


@pytest.mark.parametrize(
    ("line", "word"),
    [
        *(("? x\x85y\n: 2", "x\x85y"), ('? "\\x85"\n: 2', "\x85"), ("'it''s': 2", "it's"), ("a : 2", "a")),
        *(('"\\u0041\\U0001F600\\e": 2', "A\U0001f600\x1b"), ("a: 2 # the second", "a"), ("a b :c: '2'\r", "a b :c")),
    ],
)
def test_other_ways_to_write_a_word(line: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.yml").write_bytes(f"\ufeff# words\n---\n</s>: 0\n<unk>: 1\n\n{line}\n...\n".encode())
    found = read_vocabulary(tmp_path / "vocab.yml", "source")
    assert found.tokenizer.pieces(range(4, found.tokenizer.size)) == [word]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("</s>: 2", r"line 3: '</s>' has a number already \(line 1\)"),
        ("a: 1", r"line 3: the number 1 is taken already \(line 2\)"),
        ("a: 3", "its words do not have the numbers from 0 on: 2 is missing"),
        *(("- a", "line 3 is not a word"), ("a: b: 2", "line 3 is not"), ("a: two", "line 3 is not"), ("a:", "line 3")),
        ('"\\q": 2', "line 3: an unknown escape"),
        *(('"a: 2', "line 3 is not"), ("? a\nb: 2", "line 4: no number"), ("? a", "line 4: no number")),
    ],
)
def test_a_damaged_line_of_a_vocabulary_is_named(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.yml").write_text(f"</s>: 0\n<unk>: 1\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_vocabulary(tmp_path / "vocab.yml", "source")


def test_tags_of_any_form_are_languages(tmp_path: Path) -> None:
    codes = ["zh-cn", "cmn_Hans", "pt_BR", "sr@latin", "fra"]
    twin = Twin.of(vocabulary(tmp_path, [f">>{code}<<" for code in codes]).get_piece_size())
    found = read_marian(twin.write_npz(tmp_path / "model.npz"), [tmp_path / "vocab.spm"]).tokenizers
    assert sorted(found.frames.languages) == sorted(codes)
    for code in codes:
        (token,) = found.frames.choose(None, code).source.prefix
        assert found.source.pieces([token]) == [f">>{code}<<"]
