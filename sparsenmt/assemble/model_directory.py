"""Model directories, which contain everything that using a model takes.

``recipe.yaml``           the resolved recipe
``tokenizers/``           the vocabularies
``features/``             fitted source features
``weights.safetensors``   the model
``manifest.json``         format, data fingerprint, hashes of vocabularies and features, sides of the training text
``metrics.jsonl``         the log of training; ``tensorboard/``: the same; ``trackers.json``: ids of the run elsewhere
``checkpoints/``          the states of training
``README.md``             the model card, by `assemble.model_card`

Every file except the logs and the card has a hash, in itself or in the manifest: a changed file is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparsenmt
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.tokenizer import SHORTLIST, Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.metric import METRICS
from sparsenmt.plugins.record import PluginRecord, plugin_changes, plugin_records, recorded
from sparsenmt.plugins.table import EntryTable
from sparsenmt.recipe.load import dump, load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.socket_methods import method_names
from sparsenmt.recipe.yaml_tree import parse_plain, read_limited
from sparsenmt.sparsity import registry
from sparsenmt.storage.files import (
    DamagedFileError,
    check_absent,
    explain_directory_errors,
    make_directories,
    new_directory,
    partial_path,
    read_sealed,
    regular_file,
    seal_text,
    sha256_text,
    sync_tree,
    unseal_text,
    write_bytes,
    write_sealed,
    write_text,
)
from sparsenmt.storage.records import (
    check_file_entries,
    check_no_links,
    copy_files,
    file_entries,
    file_entries_of,
    list_files,
    typed,
)
from sparsenmt.storage.revision import git_revision
from sparsenmt.storage.tensors import load_tensors, read_header, save_tensors, tensor_sizes
from sparsenmt.storage.versions import Version, check_version, directory_version, read_consistently
from sparsenmt.strategy import STRATEGIES

FORMAT = 2
WEIGHTS, MANIFEST, RECIPE = "weights.safetensors", "manifest.json", "recipe.yaml"
METRICS_FILE = "metrics.jsonl"

_PARTS = ("tokenizers", "features")
_ALWAYS = ("tokenizers/tokenizers.json", "features/features.json")
_NAMES = f"({'|'.join(_PARTS)})/.+"
_OWNER = "belongs_to"  # in the notes of the weights: `owner_of` of the model directory
READ = (*_PARTS, RECIPE, MANIFEST, WEIGHTS)  # everything that is read to use a model
_COPIED = (*READ, "checkpoints")  # and what copies are made of
_NO_MODEL_HINT = "Name a directory that `sparsenmt train` wrote."
_NO_LINK_HINT = "Put the file or folder itself there. The model directory as a whole may be a link."
_COPY_HINT = "Take the model directory from a copy, or train it again."
WEIGHTS_HINT = "Take it from a copy; training writes it when it ends, `sparsenmt average` from checkpoints, if any."


@dataclass(frozen=True)
class ModelIdentity:
    """The parts of a model directory that decide its outputs: a cached result holds as long as they are the same.

    Args:
        files: path -> hash and size of the vocabularies and fitted features, as in the manifest.
        model: the recipe's `model` section, disabled heads included.
        max_source_length: most source tokens that are read, `</s>` not counted.
        plugins: module -> hash of the source of its methods from outside the package, as it is now.
    """

    weights: str  # hash
    files: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Any]
    max_source_length: int
    plugins: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Recipe, weights: str, files: Mapping[str, Mapping[str, Any]]) -> ModelIdentity:
        """Return the identity of a model with this recipe."""
        reach, chosen = recipe.model.max_positions - 1, recipe.data.filters.max_source_length
        longest = reach if chosen is None else min(reach, chosen)
        plugins = {each.module: each.sha256 for each in used_plugins(recipe, only_methods=True)}
        return cls(weights, files, recipe.model.model_dump(mode="json"), longest, plugins)

    @property
    def digest(self) -> str:
        """The hash of weights, files, model section, and of the plugins, if there are any."""
        parts = [self.weights, self.files, self.model, *([self.plugins] if self.plugins else [])]
        return sha256_text(json.dumps(parts, sort_keys=True))

    @property
    def stored_digest(self) -> str:
        """The hash of weights, files and model section: of what is in the directory."""
        return sha256_text(json.dumps([self.weights, self.files, self.model], sort_keys=True))

    @property
    def vocabularies(self) -> dict[str, str]:
        """Path -> hash of the tokenizers' files."""
        return {name: entry["sha256"] for name, entry in self.files.items() if name.startswith("tokenizers/")}


def used_plugins(recipe: Recipe, *, only_methods: bool = False) -> list[PluginRecord]:
    """Return the records of the plugins that a recipe uses: of its methods, its decoding strategy and its metric.

    Args:
        only_methods: leave out what does not belong to the model.
    """
    values = recipe.model_dump(mode="json", by_alias=True)
    used: list[tuple[EntryTable[Any], str]] = [
        (registry.METHODS, registry.method_key(socket, name)) for socket, name in method_names(values)
    ]
    if not only_methods:
        used += [(STRATEGIES, recipe.decoding.method), (METRICS, recipe.training.validation.metric)]
    return plugin_records(used)


def update_plugins(directory: Path, recipe: Recipe) -> list[str]:
    """Record the plugins that a run continues with; returns how they differ from those that were recorded."""
    manifest, now = read_manifest(directory), used_plugins(recipe)
    before = typed(manifest, _ModelManifest, directory / MANIFEST, hint=_COPY_HINT).plugins
    if before == now:
        return []
    write_sealed(directory / MANIFEST, manifest | {"plugins": [asdict(each) for each in now]})
    return [] if before is None else plugin_changes(before, now)  # None: earlier versions did not record them


def model_identity(directory: Path) -> ModelIdentity:
    """Return `Bundle.identity` of a model directory without reading its weights."""

    def read(real: Path) -> ModelIdentity:
        files = read_manifest(real)["files"]  # first: its errors say what is no model directory
        return ModelIdentity.of(read_recipe(real), weights_digest(real), files)

    return read_consistently(directory, READ, read)


def initialise(
    directory: Path,
    recipe: Recipe,
    tokenizers: Tokenizers,
    features: FeatureSet,
    fingerprint: str,
    *,
    started_from: Mapping[str, str] | None = None,
    imported_from: Mapping[str, Any] | None = None,
    shortlist: Shortlist | None = None,
    text: TextSides | None = None,
) -> None:
    """Write a model directory except for the weights. The manifest is written last: without it, the rest is invalid.

    Args:
        started_from: path and hash of the weights that training starts from; None: random ones.
        imported_from: of a model of another program, its path, the hashes of its weights, and notes.
    """
    make_directory(directory)
    (directory / METRICS_FILE).unlink(missing_ok=True)
    tokenizers.save(directory / "tokenizers")
    if shortlist is not None:
        shortlist.save(directory / "tokenizers" / SHORTLIST)
    features.save(directory / "features")
    for part in _PARTS:
        sync_tree(directory / part)
    write_recipe(directory, recipe)
    manifest = {
        "format": FORMAT,
        "data_fingerprint": fingerprint,
        "started_from": dict(started_from) if started_from else None,
        **({"imported_from": dict(imported_from)} if imported_from else {}),
        **({"text": asdict(text)} if text is not None else {}),
        "plugins": [asdict(each) for each in used_plugins(recipe)],
        "files": {f"{part}/{name}": entry for part in _PARTS for name, entry in file_entries(directory / part).items()},
        "provenance": {
            "sparsenmt": sparsenmt.__version__,
            **git_revision(),
            "recipe_sha256": hashlib.sha256(dump(recipe).encode()).hexdigest(),
            "seed": recipe.training.seed,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    write_sealed(directory / MANIFEST, manifest)


def make_directory(directory: Path) -> None:
    """Make an empty model directory, unless it exists.

    Raises:
        UserError: it cannot be created.
    """
    with explain_directory_errors(directory, another="`directory` in the recipe"):
        make_directories(directory)


def is_unfinished(directory: Path) -> bool:
    """Return True if a directory holds only files that an interrupted `initialise` leaves."""
    written = {*_PARTS, RECIPE, *(partial_path(Path(name)).name for name in (RECIPE, MANIFEST))}
    return all(path.name in written and not path.is_symlink() for path in directory.iterdir())


def check_files(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the vocabularies and features of a model directory: all are in the manifest, with their hashes.

    Args:
        files: of the manifest.

    Raises:
        DamagedFileError: the manifest lacks one, or one is missing or has changed.
    """
    present = [f"{part}/{name}" for part in _PARTS for name in list_files(directory / part)]
    if missing := sorted({*present, *_ALWAYS} - files.keys()):
        raise DamagedFileError(f"does not name {missing[0]}", where=str(directory / MANIFEST), hint=_COPY_HINT)
    check_file_entries(directory, files, hint=_COPY_HINT)


def model_version(directory: Path) -> Version:
    """The version of a model directory, checkpoints included, for `copy_model` and `copy_slice`."""
    return directory_version(directory, _COPIED)


def check_model_version(directory: Path, version: Version) -> None:
    """Check that a model directory is the one of which `model_version` returned ``version``, and unchanged.

    Raises:
        UserError: it was replaced or changed.
    """
    check_version(directory, _COPIED, version)


def copy_model(
    source: Path,
    target: Path,
    weights: Mapping[str, Tensor],
    *,
    after: int,
    made_of: Sequence[int],
    version: Version,
    warnings: Sequence[str] = (),
    average: Mapping[str, Any] | None = None,
) -> None:
    """Copy a model directory with other weights, without metrics and checkpoints. The copy is atomic.

    ``after``, ``made_of``, ``warnings`` and ``average`` are those of `write_weights`.

    Args:
        version: the `model_version` of ``source`` before the weights were computed from it.

    Raises:
        UserError: ``target`` exists, a file of ``source`` is damaged, or ``source`` was replaced meanwhile.
    """
    check_absent(target)
    manifest = read_manifest(source)
    check_files(source, manifest["files"])
    read_recipe(source)
    with new_directory(target.resolve(), source) as partial:
        write_bytes(partial / RECIPE, (source / RECIPE).read_bytes())
        copy_files(source, partial, manifest["files"], hint=_COPY_HINT)
        write_sealed(partial / MANIFEST, manifest)
        write_weights(partial, weights, after=after, made_of=made_of, warnings=warnings, average=average)
        check_model_version(source, version)


def copy_slice(
    source: Path,
    target: Path,
    recipe: Recipe,
    weights: Mapping[str, Tensor],
    depth: tuple[int, int],
    version: Version,
    save_tokenizers: Callable[[Path], None] | None = None,
) -> None:
    """Copy a model directory with the recipe and weights of some layers, atomically, without metrics and checkpoints.

    Args:
        recipe, weights, depth: of the smaller model.
        version: the `model_version` of ``source`` before it was opened.
        save_tokenizers: write those of the smaller model into a directory; None: they are copied.

    Raises:
        UserError: ``target`` exists, a file of ``source`` is damaged, or ``source`` was replaced meanwhile.
    """
    check_absent(target)
    manifest = read_manifest(source)
    check_files(source, files := manifest["files"])
    notes = read_header(source / WEIGHTS, hint=WEIGHTS_HINT)[1]
    origin = {"path": str(source), "sha256": weights_digest(source), "layers": list(depth)}
    provenance = manifest["provenance"] | {"recipe_sha256": hashlib.sha256(dump(recipe).encode()).hexdigest()}
    with new_directory(target.resolve(), source) as partial:
        if save_tokenizers is not None:
            files = {name: entry for name, entry in files.items() if not name.startswith("tokenizers/")}
            save_tokenizers(folder := partial / "tokenizers")
            new = {f"tokenizers/{name}": entry for name, entry in file_entries(folder).items()}
            manifest |= {"data_fingerprint": "cut vocabularies", "files": files | new}  # no data are prepared with them
        copy_files(source, partial, files, hint=_COPY_HINT)
        write_recipe(partial, recipe)
        write_sealed(partial / MANIFEST, manifest | {"cut_from": origin, "provenance": provenance})
        save_tensors(partial / WEIGHTS, weights, notes=notes | {_OWNER: owner_in(partial)})
        check_model_version(source, version)


@dataclass(frozen=True)
class _StartingWeights:
    path: str
    sha256: str


@dataclass(frozen=True)
class _ModelManifest:
    """The types of values in a manifest, except ``files``."""

    data_fingerprint: str
    started_from: _StartingWeights | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    average: dict[str, Any] | None = None
    text: TextSides | None = None
    plugins: list[PluginRecord] | None = None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a model directory.

    Raises:
        UserError: it is no model directory or one of another version, the manifest is damaged, or a link lies in it.
    """
    path = directory / MANIFEST
    if not path.is_file():
        what = "this is not a model directory" if directory.exists() else "there is no such model directory"
        raise UserError(what, where=str(directory), hint=_NO_MODEL_HINT, missing=directory)
    try:
        manifest = read_sealed(path, hint=_COPY_HINT)
    except DamagedFileError:
        if (directory / RECIPE).exists():
            raise
        manifest = {}
    if "data_fingerprint" not in manifest:  # the manifest of something else, as of prepared data
        raise UserError("this is not a model directory", where=str(directory), hint=_NO_MODEL_HINT)
    if manifest.get("format") != FORMAT:
        raise UserError("written by another version of this program", where=str(path), hint=_COPY_HINT)
    for name in sorted(os.listdir(directory)):
        check_no_links(directory, name, _NO_LINK_HINT)
    typed(manifest, _ModelManifest, path, hint=_COPY_HINT)
    file_entries_of(manifest, path, names=_NAMES, hint=_COPY_HINT)
    return {"started_from": None, "provenance": {}} | manifest


def text_sides(directory: Path) -> TextSides | None:
    """Return the sides of a model's training text, if they are known."""
    return typed(read_manifest(directory), _ModelManifest, directory / MANIFEST, hint=_COPY_HINT).text


def write_weights(
    directory: Path,
    weights: Mapping[str, Tensor],
    *,
    after: int,
    made_of: Sequence[int],
    warnings: Sequence[str] = (),
    average: Mapping[str, Any] | None = None,
) -> None:
    """Write the model's weights into its directory, which has its manifest and recipe, atomically.

    Args:
        weights: in fp32, by name.
        after: update of the newest checkpoint.
        made_of: updates of the checkpoints that the weights are the mean of.
        warnings: what a user of the weights must know; recorded in the manifest.
        average: the means and checkpoints that the weights were chosen from, and their validations; recorded likewise.
    """
    manifest = read_manifest(directory)
    recorded = {"warnings": list(warnings), "average": None if average is None else dict(average)}
    if {"warnings": manifest.get("warnings", []), "average": manifest.get("average")} != recorded:
        write_sealed(directory / MANIFEST, manifest | recorded)
    notes = {"after": str(after), "made_of": ",".join(str(update) for update in made_of)}
    save_tensors(directory / WEIGHTS, weights, notes=notes | {_OWNER: owner_in(directory)})


def owner_of(files: Mapping[str, Mapping[str, Any]], recipe: Mapping[str, Any]) -> str:
    """Return the hash that ties weights to their vocabularies, features and `model` section, as they are written.

    The section is taken without defaults: a later version of this program may have more of them.

    Args:
        files: of the manifest.
        recipe: as `stored_recipe` returns it.
    """
    return sha256_text(json.dumps([files, recipe["model"]], sort_keys=True))


def owner_in(directory: Path) -> str:
    """Return `owner_of` the files of a model directory."""
    return owner_of(read_manifest(directory)["files"], stored_recipe(directory))


def weights_after(directory: Path) -> int | None:
    """Return the update of the newest checkpoint at the time the weights were written; None without valid weights."""
    try:
        load_tensors(directory / WEIGHTS, hint=WEIGHTS_HINT)
        return int(read_header(directory / WEIGHTS, hint=WEIGHTS_HINT)[1]["after"])
    except (UserError, KeyError, ValueError):
        return None


def write_recipe(directory: Path, recipe: Recipe) -> None:
    """Write the resolved recipe into a model directory, with its hash in its last line."""
    write_text(directory / RECIPE, seal_text(dump(recipe)))


def read_recipe(directory: Path) -> Recipe:
    """Return the resolved recipe of a model directory.

    Raises:
        UserError: there is none, or it is damaged or invalid.
    """
    values = stored_recipe(directory)
    with recorded(recorded_plugins(directory)):
        return load_resolved(values, registry.methods(), origin=str(directory / RECIPE))


def recorded_plugins(directory: Path) -> list[PluginRecord]:
    """Return what a manifest says of plugins, to explain what is missing; nothing if it cannot be read."""
    try:
        path = directory / MANIFEST
        return typed(read_sealed(path, hint=_COPY_HINT), _ModelManifest, path, hint=_COPY_HINT).plugins or []
    except UserError:
        return []


def stored_recipe(directory: Path) -> dict[str, Any]:
    path = directory / RECIPE
    if not (path.exists() or (directory / MANIFEST).exists()):
        raise UserError("this is not a model directory", where=str(directory), hint=_NO_MODEL_HINT)
    try:
        text = unseal_text(read_limited(path, regular_file).decode("utf-8"))
    except (OSError, ValueError):
        text = None
    values = None if text is None else parse_plain(text, name=str(path))
    if not isinstance(values, dict) or "model" not in values:
        raise DamagedFileError(
            "the model's recipe is missing, damaged or changed",
            where=str(path),
            hint="Put it back as `sparsenmt train` wrote it; decoding settings can be given on the command line.",
        )
    return values


def weights_digest(directory: Path) -> str:
    """Return the hash of a model's weights without reading them."""
    return read_header(directory / WEIGHTS, hint=WEIGHTS_HINT)[0]


def parameter_count(directory: Path) -> int:
    """Return the number of a model's parameters without reading them; tied tables are saved, and counted, once."""
    return sum(elements for elements, _ in tensor_sizes(directory / WEIGHTS, hint=WEIGHTS_HINT).values())


def check_owner(directory: Path, owner: str) -> None:
    """Check that weights were written for a model directory; those of older versions do not say for which.

    Args:
        owner: `owner_of` the directory.

    Raises:
        UserError: they were written for another one.
    """
    path = directory / WEIGHTS
    if read_header(path, hint=WEIGHTS_HINT)[1].get(_OWNER) not in (None, owner):
        raise UserError(
            "the weights belong to another model: they were written for other vocabularies, features or model options",
            where=str(path),
            hint=_COPY_HINT,
        )


def weights_file(directory: Path) -> Path:
    """Return the file of a model's weights.

    Raises:
        UserError: there is none.
    """
    path = directory / WEIGHTS
    if not path.exists():
        raise UserError("the model has no weights", where=str(path), hint=WEIGHTS_HINT)
    return path
