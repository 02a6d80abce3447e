"""Model directories, which contain everything that using a model takes.

``recipe.yaml``           the resolved recipe
``tokenizers/``           the vocabularies
``features/``             fitted source features
``weights.safetensors``   the model
``manifest.json``         format, data fingerprint, hashes of vocabularies and features, sides of the training text
``metrics.jsonl``         the log of training; ``tensorboard/``: the same
``checkpoints/``          the states of training

Every file except the logs has a hash, in itself or in the manifest: a changed file is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import sparsenmt
from sparsenmt.assemble import build_model, load_resolved_recipe
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.shortlist import Shortlist, Shortlists
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.frame import FramePair
from sparsenmt.data.tokenizers.tokenizer import SHORTLIST, Tokenizers
from sparsenmt.engine.build import build, named_dtype
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError, check_lists
from sparsenmt.model.depth_plan import Depth
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import method_weights
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device
from sparsenmt.recipe.choices import DecodingDtype
from sparsenmt.recipe.load import dump
from sparsenmt.recipe.model_use import with_languages, without_heads
from sparsenmt.recipe.schema import Decoding, Recipe
from sparsenmt.recipe.task import check_translates
from sparsenmt.recipe.yaml_tree import parse_plain, read_limited
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
from sparsenmt.storage.tensors import (
    FITTING,
    check_shapes,
    count_elements,
    load_tensors,
    read_header,
    read_into,
    save_tensors,
)
from sparsenmt.storage.versions import Version, check_version, directory_version, read_consistently

FORMAT = 2
WEIGHTS, MANIFEST, RECIPE = "weights.safetensors", "manifest.json", "recipe.yaml"
METRICS_FILE = "metrics.jsonl"

_PARTS = ("tokenizers", "features")
_ALWAYS = ("tokenizers/tokenizers.json", "features/features.json")
_NAMES = f"({'|'.join(_PARTS)})/.+"
_OWNER = "belongs_to"  # in the notes of the weights: `_owner` of the model directory
_READ = (*_PARTS, RECIPE, MANIFEST, WEIGHTS)  # everything that is read to use a model
_COPIED = (*_READ, "checkpoints")  # and what copies are made of
_NO_MODEL_HINT = "Name a directory that `sparsenmt train` wrote."
_NO_LINK_HINT = "Put the file or folder itself there. The model directory as a whole may be a link."
_COPY_HINT = "Take the model directory from a copy, or train it again."
_WEIGHTS_HINT = "Training writes them when it ends; `sparsenmt average` computes them from checkpoints, if any."


@dataclass(frozen=True)
class ModelIdentity:
    """The parts of a model directory that decide its outputs: a cached result holds as long as they are the same.

    Args:
        files: path -> hash and size of the vocabularies and fitted features, as in the manifest.
        model: the recipe's `model` section, disabled heads included.
        max_source_length: most source tokens that are read, `</s>` not counted.
    """

    weights: str  # hash
    files: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Any]
    max_source_length: int

    @property
    def digest(self) -> str:
        """The hash of weights, files and model section."""
        return sha256_text(json.dumps([self.weights, self.files, self.model], sort_keys=True))

    @property
    def vocabularies(self) -> dict[str, str]:
        """Path -> hash of the tokenizers' files."""
        return {name: entry["sha256"] for name, entry in self.files.items() if name.startswith("tokenizers/")}


@dataclass(frozen=True)
class Bundle:
    """A model with everything that using it takes.

    Args:
        weights_digest: hash of the weights that were read.
        files: path -> hash and size of the vocabularies and fitted features, as in the manifest.
        dtype: data type of the packed weights; None: the weights are unpacked, as they were trained.
        text: the sides of the training text; None: not known, as of models of earlier versions.
        built: the engine of packed weights; None: the unpacked ones are used.
    """

    recipe: Recipe
    tokenizers: Tokenizers
    features: FeatureSet
    model: Transformer
    device: torch.device
    weights_digest: str = ""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    text: TextSides | None = None
    built: Engine | None = None

    @cached_property
    def engine(self) -> Engine:
        """The engine that searches, forced decoding and reports run the model with."""
        return TorchEngine(self.model) if self.built is None else self.built

    @cached_property
    def shortlist(self) -> Callable[[Decoding], Shortlist | None]:
        """Return the shortlist of decoding options; errors as for `Shortlists.named`."""
        return Shortlists(self.tokenizers).named

    def identity(self) -> ModelIdentity:
        """Return the identity of the model, which cached results depend on."""
        return _identity(self.recipe, self.weights_digest, self.files)

    @cached_property
    def frames(self) -> FramePair:
        """The tokens around sources and targets, of the languages of `decoding`; UserError if these cannot be used."""
        return self.tokenizers.frames.of(self.recipe.decoding)

    @property
    def max_positions(self) -> int:
        """Most tokens of a source or target, `</s>` and frame included."""
        return self.recipe.model.max_positions

    @property
    def max_source_length(self) -> int:
        """Most source tokens that are read, `</s>` and frame not counted."""
        return min(_max_source_length(self.recipe), self.max_positions - 1 - self.frames.source.size)

    @property
    def max_target_length(self) -> int:
        """Most target tokens that fit, `</s>` and frame not counted."""
        return self.max_positions - 1 - self.frames.target.size

    @property
    def depth(self) -> Depth:
        """Default encoder and decoder layers that run: those of the recipe, or the deepest exits."""
        options = self.recipe.decoding
        return self.model.plan.depth(options.encoder_layers, options.decoder_layers)

    @property
    def cuts_by_choice(self) -> bool:
        """True if the recipe cuts long sources, False if the model's positions do."""
        return self.max_source_length == self.recipe.data.filters.max_source_length


def model_identity(directory: Path) -> ModelIdentity:
    """Return `Bundle.identity` of a model directory without reading its weights."""

    def read(real: Path) -> ModelIdentity:
        files = read_manifest(real)["files"]  # first: its errors say what is no model directory
        return _identity(read_recipe(real), weights_digest(real), files)

    return read_consistently(directory, _READ, read)


def check_identity(bundle: Bundle, identity: ModelIdentity, directory: Path) -> None:
    """Raise UserError unless an opened model is the one that a result is recorded for."""
    if bundle.identity().digest != identity.digest:
        raise UserError(
            "the model was replaced while it was used",
            where=str(directory),
            hint="Start the command again when no other process writes to the directory.",
        )


def _identity(recipe: Recipe, weights: str, files: Mapping[str, Mapping[str, Any]]) -> ModelIdentity:
    return ModelIdentity(weights, files, recipe.model.model_dump(mode="json"), _max_source_length(recipe))


def _max_source_length(recipe: Recipe) -> int:
    reach, chosen = recipe.model.max_positions - 1, recipe.data.filters.max_source_length
    return reach if chosen is None else min(reach, chosen)


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
        "files": {f"{part}/{name}": entry for part in _PARTS for name, entry in file_entries(directory / part).items()},
        "provenance": {
            "sparsenmt": sparsenmt.__version__,
            "git_revision": git_revision(),
            "recipe_sha256": hashlib.sha256(dump(recipe).encode()).hexdigest(),
            "seed": recipe.training.seed,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    write_sealed(directory / MANIFEST, manifest)


def make_directory(directory: Path) -> None:
    """Make an empty model directory, unless it exists."""
    with explain_directory_errors(directory, another="`directory` in the recipe"):
        make_directories(directory)


def is_unfinished(directory: Path) -> bool:
    """Return True if a directory holds only files that an interrupted `initialise` leaves."""
    written = {*_PARTS, RECIPE, *(partial_path(Path(name)).name for name in (RECIPE, MANIFEST))}
    return all(path.name in written and not path.is_symlink() for path in directory.iterdir())


def _check_files(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the vocabularies and features of a model directory: all are in the manifest, with their hashes."""
    present = [f"{part}/{name}" for part in _PARTS for name in list_files(directory / part)]
    if missing := sorted({*present, *_ALWAYS} - files.keys()):
        raise DamagedFileError(f"does not name {missing[0]}", where=str(directory / MANIFEST), hint=_COPY_HINT)
    check_file_entries(directory, files, hint=_COPY_HINT)


def model_version(directory: Path) -> Version:
    """The version of a model directory, checkpoints included, for `copy_model` and `copy_slice`."""
    return directory_version(directory, _COPIED)


def check_model_version(directory: Path, version: Version) -> None:
    """Raise UserError if a model directory was replaced or changed since `model_version` returned ``version``."""
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
    _check_files(source, manifest["files"])
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
    _check_files(source, files := manifest["files"])
    notes = read_header(source / WEIGHTS, hint=_WEIGHTS_HINT)[1]
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
        save_tensors(partial / WEIGHTS, weights, notes=notes | {_OWNER: _owner_of(partial)})
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


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a model directory; UserError if it is no model directory, or the manifest is damaged."""
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
    save_tensors(directory / WEIGHTS, weights, notes=notes | {_OWNER: _owner_of(directory)})


def _owner(files: Mapping[str, Mapping[str, Any]], recipe: Mapping[str, Any]) -> str:
    """Return the hash that ties weights to their vocabularies, features and `model` section, as they are written.

    The section is taken without defaults: a later version of this program may have more of them.

    Args:
        files: of the manifest.
        recipe: as `_stored_recipe` returns it.
    """
    return sha256_text(json.dumps([files, recipe["model"]], sort_keys=True))


def _owner_of(directory: Path) -> str:
    return _owner(read_manifest(directory)["files"], _stored_recipe(directory))


def weights_after(directory: Path) -> int | None:
    """Return the update of the newest checkpoint at the time the weights were written; None without valid weights."""
    try:
        load_tensors(directory / WEIGHTS, hint=_WEIGHTS_HINT)
        return int(read_header(directory / WEIGHTS, hint=_WEIGHTS_HINT)[1]["after"])
    except (UserError, KeyError, ValueError):
        return None


def write_recipe(directory: Path, recipe: Recipe) -> None:
    """Write the resolved recipe into a model directory, with its hash in its last line."""
    write_text(directory / RECIPE, seal_text(dump(recipe)))


def read_recipe(directory: Path) -> Recipe:
    """Return the resolved recipe of a model directory."""
    return load_resolved_recipe(_stored_recipe(directory), origin=str(directory / RECIPE))


def _stored_recipe(directory: Path) -> dict[str, Any]:
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
    return read_header(directory / WEIGHTS, hint=_WEIGHTS_HINT)[0]


def parameter_count(directory: Path) -> int:
    """Return the number of a model's parameters without reading them; tied tables are saved, and counted, once."""
    return count_elements(directory / WEIGHTS, hint=_WEIGHTS_HINT)


def _read_weights(directory: Path, model: torch.nn.Module, owner: str) -> str:
    """Load the weights of a model directory into a model; returns their hash.

    Args:
        owner: `_owner` of the directory.

    Raises:
        UserError: they are missing, damaged, do not fit, or belong to another model directory.
    """
    path = directory / WEIGHTS
    if not path.exists():
        raise UserError("the model has no weights", where=str(path), hint=_WEIGHTS_HINT)
    try:
        digest = read_into(path, model.state_dict(), hint=_WEIGHTS_HINT)
    except ValueError as error:
        raise UserError(str(error), where=str(path), hint=FITTING) from None
    _check_owner(directory, owner)
    return digest


def _check_owner(directory: Path, owner: str) -> None:
    """Raise UserError if weights were written for another model; those of older versions do not say for which."""
    path = directory / WEIGHTS
    if read_header(path, hint=_WEIGHTS_HINT)[1].get(_OWNER) not in (None, owner):
        raise UserError(
            "the weights belong to another model: they were written for other vocabularies, features or model options",
            where=str(path),
            hint=_COPY_HINT,
        )


def starting_weights(directory: Path, model: torch.nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of a model directory for a model that may have additional sparsity methods with parameters.

    Returns:
        all of the model's weights, and the names of those that the directory lacks, whose values are the model's own.

    Raises:
        UserError: the weights are missing or damaged, or other parameters differ.
    """
    path = directory / WEIGHTS
    if not path.exists():
        raise UserError("the model has no weights", where=str(path), hint=_WEIGHTS_HINT)
    own, found = model.state_dict(), read_consistently(directory, _READ, _all_weights)
    added = sorted((own.keys() - found.keys()) & method_weights(model))
    weights = {**{name: own[name] for name in added}, **found}
    check_shapes(own, weights, str(path))
    return weights, added


def _all_weights(directory: Path) -> dict[str, Tensor]:
    found = load_tensors(directory / WEIGHTS, hint=_WEIGHTS_HINT)
    _check_owner(directory, _owner_of(directory))
    return found


def open_model(
    directory: Path | str,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | Literal["recipe"] | DecodingDtype | None = torch.float32,
    disabled: Mapping[SiteName, Collection[int]] | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    any_task: bool = False,
) -> Bundle:
    """Open a model directory for decoding.

    Args:
        device: or its name, as for `pick_device`.
        dtype: of the packed weights, or its name in recipes, or ``recipe`` for the dtype of the model's recipe; None
            leaves the weights unpacked, as they were trained.
        disabled: heads, from 1, that give zeros in addition to those of the recipe; `Bundle.recipe` has them, too.
        languages: of source and target, instead of those of the recipe; `Bundle.recipe` has them, too.
        any_task: open a language model, too, which otherwise is a UserError.
    """
    check_lists(languages=languages)
    device = pick_device(device, "--device") if isinstance(device, str) else device

    def read(real: Path) -> Bundle:
        manifest = read_manifest(real)
        _check_files(real, manifest["files"])
        stored = _stored_recipe(real)
        recipe = without_heads(load_resolved_recipe(stored, origin=str(real / RECIPE)), disabled or {})
        recipe = with_languages(recipe, *languages)
        if not any_task:
            check_translates(recipe, directory)
        tokenizers = Tokenizers.load(real / "tokenizers")
        features = FeatureSet.load(real / "features", tokenizers)
        sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
        model = build_model(recipe.model, **sizes, seed=recipe.training.seed)
        digest = _read_weights(real, model, _owner(manifest["files"], stored))
        return Bundle(recipe, tokenizers, features, model, device, digest, manifest["files"], text=text_sides(real))

    bundle = read_consistently(Path(directory), _READ, read)
    if any(languages):
        _ = bundle.frames  # refuses what the model does not have
    model = bundle.model.to(device).eval()
    chosen = named_dtype(model, bundle.recipe.decoding.dtype if dtype == "recipe" else dtype)
    return bundle if chosen is None else replace(bundle, dtype=chosen, built=build(model, chosen, final=True))
