"""Files of strangers: whatever they hold, `import` ends in one message with exit code 2, and writes nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from sparsenmt.assemble import model_directory
from sparsenmt.errors import UserError
from sparsenmt.importers.huggingface import read_weights, weight_files
from sparsenmt.importers.marian_files import read_marian_file
from sparsenmt.importers.marian_vocabularies import read_vocabulary
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.storage.tensors import load_foreign_tensors, save_tensors
from tests.fuzz.conftest import lab as lab
from tests.fuzz.support import Lab
from tests.importers import sources

Change = Callable[[Path], object]
Make = Callable[[str], Path]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sources, each of which is made once."""
    return tmp_path_factory.mktemp("originals")


@pytest.fixture
def make(originals: Path, lab: Lab) -> Callable[[str], Path]:
    """Put a source into the folder of a case."""

    def made(kind: str) -> Path:
        if not (originals / kind).exists():
            sources.marian(originals / kind) if kind == "marian" else sources.hugging_face(originals / kind, kind)
        shutil.copytree(originals / kind, lab.folder / "source")
        return lab.folder / "source"

    return made


def refused(lab: Lab, source: Path, change: Change) -> str:
    """Import a model that was changed; what is said."""
    change(source)
    before = lab.files()
    result = lab.run("import", source, lab.folder / "out", codes=(2,))
    assert lab.files() == before
    assert len(result.err) < 1500
    return result.err


def json_with(name: str, **values: Any) -> Change:
    def change(source: Path) -> None:
        path = source / name
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(found | values), encoding="utf-8")

    return change


def content(name: str, data: bytes) -> Change:
    return lambda source: (source / name).write_bytes(data)


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def changed(source: Path) -> None:
        tensors = load_foreign_tensors(source / "model.safetensors", hint="")
        change(tensors)
        save_tensors(source / "model.safetensors", tensors)

    return changed


def pickled(value: Any) -> Change:
    def change(source: Path) -> None:
        (source / "model.safetensors").unlink()
        torch.save(value, source / "pytorch_model.bin")

    return change


class Runs:
    """An object whose pickle would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def bomb(source: Path) -> None:
    """An archive of PyTorch whose members are compressed zeros."""
    pickled({"model.a": torch.zeros(1 << 20)})(source)
    path, packed = source / "pytorch_model.bin", io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.infolist():
            new.writestr(each.filename, old.read(each))
    path.write_bytes(packed.getvalue())


def index(name: str) -> Change:
    def change(source: Path) -> None:
        (source / "model.safetensors").rename(source / "one.safetensors")
        (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")

    return change


HUGGING_FACE: dict[str, tuple[Change, str]] = {
    "no JSON": (content("config.json", b"{"), "not valid JSON"),
    "no size of the vocabulary": (json_with("config.json", vocab_size=None), "vocab_size is missing"),
    "a list": (content("config.json", b"[]"), "does not hold a JSON object"),
    "deep": (content("config.json", b"[" * 100_000), "not valid JSON"),
    "other bytes": (content("config.json", b"\xff\xfe\0"), "not valid JSON"),
    "a long number": (content("config.json", b'{"d_model": %s}' % (b"9" * 6000)), "not valid JSON"),
    **{
        f"{key} of {value}": (json_with("config.json", **{key: value}), key)
        for key, values in {
            "d_model": (10**9, 8.0, True, float("nan")),
            "encoder_layers": (10**6, 0),
            "vocab_size": (10**12, -1),
            "max_position_embeddings": (10**12,),
            "encoder_attention_heads": (0,),
            "pad_token_id": (-1, [3], 10**30),
            "decoder_start_token_id": ({},),
            "dropout": (2, "a"),
            "activation_function": ([1], "swosh"),
            "model_type": ([1], 3, "led"),
            "scale_embedding": ("no",),
        }.items()
        for value in values
    },
    "heads that do not divide": (json_with("config.json", encoder_attention_heads=3), "heads"),
    **{
        f"{key} of {value}": (json_with("generation_config.json", **{key: value}), key)
        for key, values in {
            "num_beams": ("a", 10**9),
            "max_length": (-1, 1e400),
            "length_penalty": (float("nan"), "a"),
            "bad_words_ids": (3, [["a"]], {}),
            "min_length": (-5,),
            "forced_eos_token_id": ("a",),
            "renormalize_logits": (3,),
            "temperature": (0, float("inf")),
        }.items()
        for value in values
    },
    "a search that is a list": (content("generation_config.json", b"[]"), "does not hold a JSON object"),
    "truncated": (lambda s: content("model.safetensors", (s / "model.safetensors").read_bytes()[:-9])(s), "damaged"),
    "an absurd header": (content("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"), "length of the header"),
    "8 bits": (weights(lambda t: t.update({"final_logits_bias": t["final_logits_bias"].to(torch.int8)})), "int8"),
    "infinity": (weights(lambda t: t["final_logits_bias"].fill_(float("inf"))), "final_logits_bias has values"),
    "not a number": (weights(lambda t: t["final_logits_bias"].fill_(float("nan"))), "final_logits_bias has values"),
    "a tensor too few": (weights(lambda t: t.pop("model.encoder.layers.0.fc1.bias")), "fc1.bias is missing"),
    "a tensor too many": (weights(lambda t: t.update({"classifier": torch.ones(2)})), "belong to no part"),
    "another shape": (weights(lambda t: t.update({"final_logits_bias": torch.ones(2)})), "has the shape 2"),
    "an index of missing files": (index("two.safetensors"), "no such file"),
    "an index that leads out": (index("../one.safetensors"), "not an index"),
    "an index of /etc/passwd": (index("/etc/passwd"), "not an index"),
    "a pickle that runs": (pickled(Runs()), "never loaded"),
    "a pickle of a list": (pickled([torch.ones(2)]), "dictionary of tensors"),
    "a pickle with numbers as names": (pickled({1: torch.ones(2)}), "dictionary of tensors"),
    "a pickle without end": (pickled({"model.a": torch.ones(1).expand(1 << 20, 1 << 20)}), "dictionary of tensors"),
    "a bomb": (bomb, "damaged"),
    "plain pickle": (lambda s: (pickled({})(s), content("pytorch_model.bin", pickle.dumps(Runs()))(s)), "never loaded"),
    "no weights": (lambda s: (s / "model.safetensors").unlink(), "there are no weights"),
    "half a character": (
        lambda s: content("vocab.json", (s / "vocab.json").read_bytes().replace(b'"</s>"', b'"\\ud800"'))(s),
        "is no text",
    ),
    "a truncated SentencePiece model": (content("source.spm", b"\x0a\xff\xff\xff\xff\x0f"), "not a SentencePiece"),
    "settings that are a list": (content("tokenizer_config.json", b"[1]"), "does not hold a JSON object"),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_directory_of_transformers(name: str, lab: Lab, make: Make) -> None:
    change, said = HUGGING_FACE[name]
    assert said in refused(lab, make("opus-mt"), change)
    assert not Path("ran").exists()


T5: dict[str, tuple[Change, str]] = {
    f"{key} of {value}": (json_with("config.json", **{key: value}), key)
    for key, values in {
        "feed_forward_proj": ("gated-swosh", "a-b-gelu", 3),
        "relative_attention_num_buckets": (2, "a"),
        "d_kv": (0, 10**9),
        "num_layers": (10**6,),
        "layer_norm_epsilon": (0,),
    }.items()
    for value in values
}
T5["buckets beyond the farthest distance"] = (json_with("config.json", relative_attention_max_distance=4), "maximum")


@pytest.mark.parametrize("name", T5)
def test_a_directory_of_t5(name: str, lab: Lab, make: Make) -> None:
    change, said = T5[name]
    assert said in refused(lab, make("t5"), change)


TOKENIZERS: dict[str, tuple[str, Change, str]] = {
    "an added token far away": ("mbart-50", json_with("added_tokens.json", **{"<mask>": 10**9}), "added tokens"),
    "an added token without a name": (
        *("mbart-50", json_with("tokenizer_config.json", added_tokens_decoder={"3": 4}), "added tokens"),
    ),
    "an offset of text": ("pegasus", json_with("tokenizer_config.json", offset="a"), "the offset is no number"),
    "no tokenizer": ("bart", content("tokenizer.json", b'{"model": {"vocab": {"a": -1}}}'), "not a tokenizer"),
    "a class that is a list": ("bart", json_with("tokenizer_config.json", tokenizer_class=[1]), "none of the family"),
    "a class of another family": (
        *("m2m-100", json_with("tokenizer_config.json", tokenizer_class="SMALL100Tokenizer"), "SMALL100Tokenizer"),
    ),
    "another one": ("bart", content("tokenizer.json", b'{"model": 3, "added_tokens": []}'), "not a tokenizer"),
    "absurd merges": ("bart", content("merges.txt", b"\xff a b\n\0\n"), "not a tokenizer"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, lab: Lab, make: Make) -> None:
    kind, change, said = TOKENIZERS[name]
    if kind == "bart":
        pytest.importorskip("tokenizers")
    assert said in refused(lab, make(kind), change)


def inner(**values: Any) -> Change:
    """Change the configuration inside a model file of Marian."""

    def change(source: Path) -> None:
        with np.load(source / "model.npz") as found:
            arrays = dict(found)
        text = yaml.safe_load(arrays["special:model.yml"].tobytes().rstrip(b"\0"))
        arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(text | values).encode(), np.int8)
        np.savez(source / "model.npz", **arrays)

    return change


def array(name: str, value: Any) -> Change:
    def change(source: Path) -> None:
        with np.load(source / "model.npz") as found:
            arrays = dict(found) | {name: value}
        np.savez(source / "model.npz", **arrays)

    return change


def settings(**values: Any) -> Change:
    def change(source: Path) -> None:
        path = source / "decoder.yml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values), encoding="utf-8")

    return change


LAUGHS = b"models: [m]\na: &a [x, x, x, x, x, x, x, x, x]\n" + b"\n".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]" % (c, c, *[c - 1] * 9) for c in range(98, 108)
)

MARIAN: dict[str, tuple[Change, str]] = {
    **{
        f"{key} of {value!r}": (settings(**{key: value}), key)
        for key, values in {
            "models": (5, "model.npz", {"a": 1}, [3]),
            "vocabs": ([None, 3],),
            "beam-size": ([1], 1 << 40),
            "normalize": (float("nan"), "a"),
            "max-length-factor": (float("inf"),),
            "shortlist": (3, [4]),
        }.items()
        for value in values
    },
    "settings without end": (content("decoder.yml", LAUGHS), "not settings in YAML"),
    "settings that run": (content("decoder.yml", b"models: !!python/object/apply:os.getcwd []"), "not settings"),
    "broken settings": (content("decoder.yml", b"models: [a\nvocabs: ]["), "not settings in YAML"),
    "settings of megabytes": (
        content("decoder.yml", b"models: [model.npz]\nvocabs: [vocab.spm, vocab.spm]\n#" + b" " * (1 << 22) + b"\xff"),
        "more than 4,194,304 bytes",
    ),
    "deep settings": (content("decoder.yml", b"models: " + b"[" * 5000), "not settings in YAML"),
    **{
        f"inside, {key} of {value!r}": (inner(**{key: value}), key)
        for key, values in {
            "dim-emb": (True, 1 << 40),
            "dec-depth": (1 << 19,),
            "transformer-decoder-dim-ffn": ("a", -1),
            "transformer-tied-layers": (5, "ab"),
            "type": ([1], {"a": 1}),
        }.items()
        for value in values
    },
    "inside, sizes of vocabularies": (inner(**{"dim-vocabs": 5}), "was trained with"),
    "a configuration of noise": (array("special:model.yml", np.array([-1, -2, 1], np.int8)), "its configuration is"),
    "whole numbers": (array("Wemb", np.ones((28, 16), np.int64)), "holds int64"),
    "objects": (array("Wemb", np.array([{}], object)), "holds object"),
    "infinity": (array("Wemb", np.full((28, 16), 1e300)), "Wemb has values that are not finite"),
    "a number of positions": (array("Wpos", np.float32(1.0)), "Wpos"),
    "an empty vocabulary": (content("vocab.spm", b""), "the file is empty"),
    "a vocabulary of noise": (content("vocab.spm", b"\x0a\xff\xff\xff\xff\x0f"), "not a vocabulary of Marian"),
}


@pytest.mark.parametrize("name", MARIAN)
def test_a_directory_of_marian(name: str, lab: Lab, make: Make) -> None:
    change, said = MARIAN[name]
    assert said in refused(lab, make("marian"), change)


@pytest.mark.parametrize(
    "text",
    [
        *(b"a: &a [x]\nb: *a", b"{a: {b: 0}}", b"</s>: 0\n<unk>: 0", b"</s>: 0\n</s>: 1", b"</s>: 0\n<unk>: 2", b"3"),
        *(b'"\\ud800": 0\n</s>: 1\n<unk>: 2', b"</s>: 0\n<unk>: -1", b"</s>: 0\n<unk>: 1.0", b"[" * 5000),
    ],
)
def test_damaged_words_with_numbers(text: bytes, lab: Lab, make: Make) -> None:
    def change(source: Path) -> None:
        settings(vocabs=["vocab.yml"] * 2)(source)
        (source / "vocab.yml").write_bytes(text)

    refused(lab, make("marian"), change)


def test_words_that_yaml_takes_for_something_else(tmp_path: Path) -> None:
    """YAML 1.1 reads `yes` and `on` as one value, 007 as 7, and 1:30 as 90; Marian's words are texts."""
    words = ["</s>", "<unk>", "yes", "on", "no", "~", "null", "007", "7", "1.0", "1.00", "1:30", "2001-01-01", "<<"]
    (tmp_path / "vocab.yml").write_text("".join(f"{word}: {i}\n" for i, word in enumerate(words)), encoding="utf-8")
    found = read_vocabulary(tmp_path / "vocab.yml", "source")
    assert found.tokenizer.pieces(range(4, found.tokenizer.size)) == words[2:]


def test_every_cut_of_a_binary_file(tmp_path: Path) -> None:
    path = sources.marian(tmp_path / "source", quantized=True) / "model.bin"
    data = path.read_bytes()
    for end in [*range(0, 600, 7), *range(600, len(data), len(data) // 40)]:
        path.write_bytes(data[:end])
        with pytest.raises(UserError):
            read_marian_file(path)


@pytest.mark.parametrize("kind", ["opus-mt", "marian"])
def test_an_interrupt_and_a_full_disk_leave_nothing(
    kind: str, lab: Lab, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(kind)
    before = lab.files()
    for error, code in ((Interrupted(15), 143), (OSError(28, "No space left on device"), 2)):

        def write(*_: Any, error: BaseException = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(model_directory, "write_weights", write)
        lab.run("import", source, lab.folder / "out", codes=(code,))
        assert lab.files() == before


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    source = sources.hugging_face(tmp_path / "source")
    (source / "model.safetensors").unlink()
    os.mkfifo(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin: it is a pipe or a device"):
        read_weights(weight_files(source))


def test_places_that_cannot_be(lab: Lab) -> None:
    source = sources.hugging_face(lab.folder / "source")
    for place in (source, source / "config.json", source / "config.json" / "out"):
        lab.run("import", source, place, codes=(2,))
    for other in (source / "source.spm", source / "model.safetensors", lab.folder / "none"):
        lab.run("import", other, lab.folder / "out", codes=(2,))
    assert sorted(path.name for path in lab.folder.iterdir()) == ["source"]


@pytest.mark.parametrize("kind", [*sources.FAMILIES, "marian"])
def test_the_sources_are_imported_as_they_are(kind: str, lab: Lab, make: Make) -> None:
    if kind == "bart":
        pytest.importorskip("tokenizers")
    source = make(kind)
    lab.run("import", source, lab.folder / "out", codes=(0,))
    assert {"recipe.yaml", "weights.safetensors", "manifest.json"} <= {
        path.name for path in (lab.folder / "out").iterdir()
    }
