"""Model directories: what is written is what is opened; anything else, changed files too, is a message."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from sparsenmt.assemble import bundle as opening
from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import Bundle, open_model, starting_weights
from sparsenmt.assemble.model import build_model
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.sparsity.registry import methods
from sparsenmt.storage.files import seal_text, unseal_text, write_sealed
from sparsenmt.storage.tensors import load_tensors, save_tensors
from tests.decoding.support import invented_lines
from tests.examples import examples
from tests.export.support import make_bundle

CORPUS = {"source": "/a", "target": "/b"}
LINES = invented_lines(6, 1)


def make_recipe(**model: object) -> Recipe:
    small = {"dimension": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    mapping = {
        "name": "test",
        "directory": "unused",
        "model": {**small, "max_positions": 40, **model},
        "data": {"directory": "unused", "train": [CORPUS], "dev": CORPUS},
        "decoding": {"max_length_offset": 5},
    }
    return load_resolved(mapping, methods())


def write_model(directory: Path, recipe: Recipe) -> Transformer:
    """A model directory with an untrained model."""
    tokenizer = train_tokenizer(recipe.data.tokenizer.model_copy(update={"kind": "char"}), LINES)
    tokenizers = Tokenizers(tokenizer, tokenizer, True)
    model_directory.initialise(directory, recipe, tokenizers, FeatureSet({}), "fingerprint")
    model = build_model(recipe.model, source_size=tokenizer.size, target_size=tokenizer.size, seed=5)
    model_directory.write_weights(directory, model.state_dict(), after=7, made_of=[5, 7])
    return model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", make_recipe())
    return tmp_path / "model"


CPU = torch.device("cpu")


def test_round_trip(directory: Path, tmp_path: Path) -> None:
    recipe = make_recipe()
    written = write_model(tmp_path / "again", recipe).eval()
    bundle = open_model(tmp_path / "again", device=CPU, dtype=None)
    assert bundle.recipe == recipe
    assert bundle.max_positions == 40
    for name, value in written.state_dict().items():
        assert torch.equal(bundle.model.state_dict()[name], value)
    assert not bundle.model.training
    assert all(parameter.requires_grad for parameter in bundle.model.parameters())
    expected = [score.log_probability for score in score_pairs(bundle, input_lines(LINES), LINES[::-1])]
    moved = shutil.move(tmp_path / "again", tmp_path / "moved")
    for dtype, tolerance in ((None, 0.0), (torch.float32, 1e-4), (torch.float64, 1e-4)):
        opened = open_model(moved, device=CPU, dtype=dtype)
        found = [score.log_probability for score in score_pairs(opened, input_lines(LINES), LINES[::-1])]
        assert found == pytest.approx(expected, rel=tolerance)
        assert len(list(translate_lines(opened, input_lines(LINES), opened.recipe.decoding))) == len(LINES)


def test_the_same_model_gives_the_same_files(directory: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "again", make_recipe())
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(directory)).read_bytes()


def test_what_is_written(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == {
        *("recipe.yaml", "manifest.json", "weights.safetensors", "tokenizers", "features")
    }
    manifest = model_directory.read_manifest(directory)
    assert manifest["data_fingerprint"] == "fingerprint"
    assert {"sparsenmt", "git_revision", "git_dirty", "recipe_sha256", "seed", "torch"} <= manifest["provenance"].keys()
    for path in directory.rglob("*"):
        if path.is_file():
            assert path.suffix in {".json", ".yaml", ".safetensors", ".model", ".txt", ".bin"}
            assert not path.read_bytes().startswith((b"\x80", b"PK")), f"{path} is a pickle or an archive"


def test_names_on_disk(directory: Path) -> None:
    names = set(load_file(directory / model_directory.WEIGHTS))
    assert {
        *("embeddings.shared", "encoder.layers.0.self.q.weight", "encoder.layers.1.self.o.bias", "encoder.norm.weight"),
        *(
            "decoder.layers.0.cross.k.bias",
            "decoder.layers.1.cross_norm.weight",
            "decoder.layers.0.feed_forward.inner.bias",
        ),
    } <= names
    assert not any("fused" in name or "packed" in name for name in names)


@pytest.mark.parametrize("step", ["os.fsync", "os.replace"])
def test_weights_are_written_completely_or_not_at_all(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}

    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(step, fails)
    with pytest.raises(OSError, match="no space") as caught:
        model_directory.write_weights(directory, {}, after=9, made_of=[9])
    monkeypatch.undo()
    assert caught.value.filename == str(directory / model_directory.WEIGHTS)
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before
    assert model_directory.weights_after(directory) == 7


def test_what_the_weights_are_made_of(directory: Path) -> None:
    path = directory / model_directory.WEIGHTS
    assert model_directory.weights_after(directory) == 7
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert model_directory.weights_after(directory) is None, "damaged ones are as good as none"
    path.unlink()
    assert model_directory.weights_after(directory) is None


def refused(directory: Path, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern) as caught:
        open_model(directory, device=CPU)
    assert str(directory) in str(caught.value)


def test_no_such_directory(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "no such model directory")


def test_not_a_model_directory(tmp_path: Path) -> None:
    refused(tmp_path, "not a model directory")
    (tmp_path / "file").write_bytes(b"text")
    refused(tmp_path / "file", "not a model directory")


def test_the_recipe_of_what_is_no_model_directory(tmp_path: Path) -> None:
    """A file, or a folder of something else: as commands that read the recipe first are given it."""
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="this is not a model directory"):
            model_directory.read_recipe(place)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3", b'{"format": 99}', b"{}"])
def test_damaged_manifest(directory: Path, content: bytes) -> None:
    (directory / model_directory.MANIFEST).write_bytes(content)
    refused(directory, "manifest.json: (damaged|not valid JSON)")


def test_changed_manifest(directory: Path) -> None:
    """One that is valid JSON, and yet not what was written."""
    manifest = json.loads((directory / model_directory.MANIFEST).read_bytes())
    (directory / model_directory.MANIFEST).write_bytes(json.dumps({**manifest, "data_fingerprint": "another"}).encode())
    refused(directory, "manifest.json: damaged: its contents changed")


def test_manifest_of_another_version(directory: Path) -> None:
    manifest = model_directory.read_manifest(directory)
    write_sealed(directory / model_directory.MANIFEST, {**manifest, "format": 99})
    refused(directory, "another version")


def test_manifest_of_something_else(directory: Path) -> None:
    """The manifest of prepared data, say: other keys, whatever its format's number."""
    for manifest in ({"format": model_directory.FORMAT}, {"format": 1, "fingerprint": "x", "corpora": []}):
        write_sealed(directory / model_directory.MANIFEST, manifest)
        refused(directory, "not a model directory")


def recipe_values(directory: Path) -> dict[str, Any]:
    text = unseal_text((directory / model_directory.RECIPE).read_bytes().decode())
    assert text is not None
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def change_recipe(directory: Path, **change: object) -> None:
    """Another recipe, as whole as the one before."""
    text = yaml.safe_dump({**recipe_values(directory), **change})
    (directory / model_directory.RECIPE).write_bytes(seal_text(text).encode())


@pytest.mark.parametrize("content", [None, b"", b"[1, 2]", b"a: [", b"\xff\xfe\x00", b"just text"])
def test_damaged_recipe(directory: Path, content: bytes | None) -> None:
    (directory / model_directory.RECIPE).unlink()
    if content is not None:
        (directory / model_directory.RECIPE).write_bytes(content)
    refused(directory, "recipe is missing, damaged or changed")


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"surprise": 1}, "surprise"),
        ({"model": {"attention": {"cross": {"transform": {"name": "of_tomorrow"}}}}}, "of_tomorrow"),
        ({"model": {"dimension": "wide"}}, "dimension"),
        ({"data": None}, "data"),
    ],
)
def test_foreign_recipe(directory: Path, change: dict[str, object], pattern: str) -> None:
    change_recipe(directory, **change)
    refused(directory, pattern)


def test_recipe_that_someone_edited(directory: Path) -> None:
    """Any other byte is found: the weights belong to the recipe as it was written."""
    path = directory / model_directory.RECIPE
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        refused(directory, "recipe is missing, damaged or changed")
    path.write_bytes(content)
    assert model_directory.read_recipe(directory) == make_recipe()


def write_twin(directory: Path, seed: int = 6, lines: Sequence[str] = LINES) -> Path:
    """Another model with tensors of the same shapes: other weights and, with other lines, another vocabulary."""
    tokenizer = train_tokenizer(make_recipe().data.tokenizer.model_copy(update={"kind": "char"}), lines)
    recipe, tokenizers = make_recipe(), Tokenizers(tokenizer, tokenizer, True)
    model_directory.initialise(directory, recipe, tokenizers, FeatureSet({}), "fingerprint")
    model = build_model(recipe.model, source_size=tokenizer.size, target_size=tokenizer.size, seed=seed)
    model_directory.write_weights(directory, model.state_dict(), after=7, made_of=[7])
    return directory


def shifted(lines: Sequence[str]) -> list[str]:
    """The lines with every character but the space replaced: as many characters, but others."""
    return ["".join(" " if each == " " else chr(0x4E00 + ord(each)) for each in line) for line in lines]


def test_weights_of_another_model_are_refused(directory: Path, tmp_path: Path) -> None:
    """Their shapes are the same, so that only their note tells them apart."""
    twin = write_twin(tmp_path / "twin", lines=shifted(LINES))
    assert open_model(twin, device=CPU).model.state_dict().keys()
    shutil.copy(twin / model_directory.WEIGHTS, directory / model_directory.WEIGHTS)
    refused(directory, "the weights belong to another model")
    with pytest.raises(UserError, match="belong to another model"):
        starting_weights(directory, open_model(twin, device=CPU, dtype=None).model)
    # A method's option that changes no shape.
    transform = {"name": "entmax", "alpha": 1.7}
    write_model(tmp_path / "sparse", make_recipe(attention={"cross": {"transform": transform}}))
    shutil.copy(tmp_path / "sparse" / model_directory.WEIGHTS, directory / model_directory.WEIGHTS)
    refused(directory, "the weights belong to another model")
    # Other weights of the same vocabularies and model section, as another run with another seed writes them.
    shutil.copy(write_twin(tmp_path / "seed") / model_directory.WEIGHTS, directory / model_directory.WEIGHTS)
    open_model(directory, device=CPU)


def test_weights_that_an_older_version_wrote(directory: Path) -> None:
    """They have no note of what they belong to."""
    path = directory / model_directory.WEIGHTS
    save_tensors(path, load_tensors(path, hint=""), notes={"after": "7", "made_of": "5,7"})
    open_model(directory, device=CPU)
    assert model_directory.weights_after(directory) == 7


@examples("link", [False, True])
@examples("back", [False, True])
@pytest.mark.parametrize(
    "step", ["read_manifest", "stored_recipe", "_read_weights", "read_header", "check_file_entries"]
)
def test_a_directory_that_is_replaced_while_it_is_opened(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, back: bool, link: bool
) -> None:
    """The opened model is the old or the new one, also if a link or a rename is undone before the opening ends."""
    twins = [directory, write_twin(tmp_path / "twin", lines=shifted(LINES))]
    identities = {model_directory.model_identity(each).digest for each in twins}
    named = tmp_path / "named"
    if link:
        named.symlink_to(twins[0])
    else:
        directory.rename(named)
    calls = 0

    def replaced() -> None:
        if link:
            named.unlink()
            named.symlink_to(twins[calls % 2])
        else:
            named.rename(tmp_path / "aside")
            twins[1].rename(named)
            (tmp_path / "aside").rename(twins[1])

    module = opening if hasattr(opening, step) else model_directory
    original = getattr(module, step)

    def interfering(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            replaced()
        found = original(*arguments, **options)
        if calls == 1 and back:
            calls = 2
            replaced()
        return found

    monkeypatch.setattr(module, step, interfering)
    bundle = open_model(named, device=CPU)
    monkeypatch.undo()
    assert bundle.identity().digest in identities
    (whole,) = (each for each in (named, *twins) if each.exists() and matches(each, bundle))
    assert open_model(whole, device=CPU).identity() == bundle.identity()


def matches(directory: Path, bundle: Bundle) -> bool:
    """True if a bundle's vocabulary and weights are those of a directory (links are not counted twice)."""
    if directory.is_symlink():
        return False
    opened = open_model(directory, device=CPU)
    same = opened.tokenizers.source.encode(LINES[0]) == bundle.tokenizers.source.encode(LINES[0])
    weights = opened.model.state_dict().items(), bundle.model.state_dict()
    return same and all(torch.equal(value, weights[1][name]) for name, value in weights[0])


def test_a_directory_that_is_replaced_all_the_time(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = model_directory.stored_recipe

    def touching(path: Path) -> dict[str, Any]:
        (directory / model_directory.MANIFEST).touch()
        return original(path)

    monkeypatch.setattr(opening, "stored_recipe", touching)
    refused(directory, "the directory is being replaced while it is read")


def test_recipe_that_does_not_fit_the_weights(directory: Path) -> None:
    values = recipe_values(directory)
    change_recipe(directory, model={**values["model"], "encoder_layers": 3, "feed_forward": 48})
    refused(directory, "weights do not fit the recipe")


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "noise", "text", "header", "directory", "bit", "longer", "foreign"]
)
def test_damaged_weights(directory: Path, damage: str) -> None:
    path = directory / model_directory.WEIGHTS
    content, weights = path.read_bytes(), load_file(path)
    path.unlink()
    replacement = {
        "empty": b"",
        "cut": content[:-100],
        "noise": b"\xff" * 100,
        "text": b"these are no weights, whatever the name says",
        "header": content[:8] + b"{" * (len(content) - 8),
        "bit": content[:-9] + bytes([content[-9] ^ 16]) + content[-8:],
        "longer": content + b"\0",
    }
    if damage == "directory":
        path.mkdir()
    elif damage == "foreign":  # whole, but written by another program: nothing vouches for it
        save_file(weights, path)
    elif damage != "missing":
        path.write_bytes(replacement[damage])
    refused(directory, "has no weights" if damage == "missing" else "damaged")


def test_weights_with_other_names(directory: Path) -> None:
    weights = load_tensors(directory / model_directory.WEIGHTS, hint="")
    weights["encoder.layers.7.self.q.weight"] = weights.pop("encoder.layers.0.self.q.weight")
    save_tensors(directory / model_directory.WEIGHTS, weights)
    refused(directory, r"2 weights do not fit the recipe: .*encoder\.layers\.0\.self\.q\.weight: missing instead of")


@pytest.mark.parametrize("name", ["tokenizers/tokenizers.json", "features/features.json"])
@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_damaged_tokenizers_and_features(directory: Path, name: str, content: bytes | None) -> None:
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)
    refused(directory, f"{name}: the file is missing" if content is None else f"{name}: damaged: . bytes instead of")


@pytest.mark.parametrize("name", ["tokenizers/tokenizers.json", "features/features.json"])
def test_a_flipped_bit_in_tokenizers_and_features(directory: Path, name: str) -> None:
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    refused(directory, f"{name}: damaged: its contents changed")


def test_copy(directory: Path, tmp_path: Path) -> None:
    (directory / "checkpoints").mkdir()
    (directory / "metrics.jsonl").write_bytes(b"{}\n")
    weights = {name: 2 * value for name, value in load_file(directory / model_directory.WEIGHTS).items()}
    model_directory.copy_model(
        directory, tmp_path / "copy", weights, after=7, made_of=[7], version=model_directory.model_version(directory)
    )
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"recipe.yaml", "manifest.json", "tokenizers", "features", "weights.safetensors"}
    bundle = open_model(tmp_path / "copy", device=CPU, dtype=None)
    assert all(torch.equal(value, weights[name]) for name, value in bundle.model.state_dict().items())
    with pytest.raises(UserError, match="exists"):
        model_directory.copy_model(
            directory,
            tmp_path / "copy",
            weights,
            after=7,
            made_of=[7],
            version=model_directory.model_version(directory),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"model", "copy"}


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizers/shared.json", "features/features.json"])
def test_a_damaged_model_is_not_copied(directory: Path, tmp_path: Path, name: str) -> None:
    weights = load_file(directory / model_directory.WEIGHTS)
    for content in (b"", None):
        (directory / name).unlink()
        if content is None:
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: .*(damaged|missing)"):
            model_directory.copy_model(
                directory,
                tmp_path / "copy",
                weights,
                after=7,
                made_of=[7],
                version=model_directory.model_version(directory),
            )
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


@pytest.mark.parametrize(
    ("chosen", "depth"),
    [
        ({}, (2, 3)),
        ({"encoder_layers": 1}, (1, 3)),
        ({"decoder_layers": 2}, (2, 2)),
        ({"encoder_layers": 1, "decoder_layers": 1}, (1, 1)),
    ],
)
def test_a_model_is_as_deep_as_its_recipe_decodes(chosen: dict[str, Any], depth: tuple[int, int]) -> None:
    assert make_bundle(decoding=chosen).depth == depth


@pytest.mark.parametrize(
    "name",
    [
        model_directory.WEIGHTS,
        model_directory.RECIPE,
        model_directory.MANIFEST,
        "checkpoints",
        "evaluation",
        "anything",
    ],
)
def test_links_inside_a_model_directory(directory: Path, tmp_path: Path, name: str) -> None:
    """They may lead to files of others, which a later step would read or replace."""
    elsewhere = tmp_path / "elsewhere"
    if (directory / name).exists():
        (directory / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (directory / name).symlink_to(elsewhere)
    refused(directory, "is a symbolic link, which is not followed here")


@pytest.mark.parametrize("files", ["none", "no tokenizers.json", "no features.json", "one more"])
def test_files_that_the_manifest_does_not_name(directory: Path, tmp_path: Path, files: str) -> None:
    """They have no hash, so that they may be of another model."""
    manifest = model_directory.read_manifest(directory)
    names = dict(manifest["files"])
    if files == "none":
        names = {}
    elif files == "one more":
        (directory / "tokenizers" / "more.json").write_bytes(b"{}")
    else:
        del names[{"no tokenizers.json": "tokenizers/tokenizers.json"}.get(files, "features/features.json")]
    write_sealed(directory / model_directory.MANIFEST, {**manifest, "files": names})
    refused(directory, "does not name (tokenizers|features)/")
    with pytest.raises(UserError, match="does not name"):
        version = model_directory.model_version(directory)
        model_directory.copy_model(directory, tmp_path / "copy", {}, after=7, made_of=[7], version=version)
    assert not (tmp_path / "copy").exists()


def test_a_model_that_is_replaced_while_it_is_copied(directory: Path, tmp_path: Path) -> None:
    """Weights of the old one would get the vocabularies of the new one."""
    weights, version = (
        load_tensors(directory / model_directory.WEIGHTS, hint=""),
        model_directory.model_version(directory),
    )
    twin = write_twin(tmp_path / "twin", lines=shifted(LINES))
    directory.rename(tmp_path / "aside")
    twin.rename(directory)
    with pytest.raises(UserError, match="is being replaced while it is read"):
        model_directory.copy_model(directory, tmp_path / "copy", weights, after=7, made_of=[7], version=version)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("suffix", ["partial", "old"])
def test_a_copy_is_not_written_where_its_source_is(directory: Path, tmp_path: Path, suffix: str) -> None:
    source = directory.rename(tmp_path / f".copy.{suffix}")
    content = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="the name under which the copy would be written"):
        version = model_directory.model_version(source)
        model_directory.copy_model(source, tmp_path / "copy", {}, after=7, made_of=[7], version=version)
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == content


@pytest.mark.parametrize("name", [model_directory.WEIGHTS, model_directory.RECIPE, model_directory.MANIFEST])
def test_a_pipe_is_not_waited_for(directory: Path, name: str) -> None:
    (directory / name).unlink()
    os.mkfifo(directory / name)
    refused(directory, "pipe|damaged|not a model directory|cannot be read")
