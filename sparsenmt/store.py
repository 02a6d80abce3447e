"""Model directories: self-contained (design rule 10).

``recipe.yaml``           the resolved recipe
``tokenizers/``           the vocabularies
``features/``             fitted source features
``weights.safetensors``   the model
``manifest.json``         format, data fingerprint, provenance
``metrics.jsonl``         what training reported
``checkpoints/``          states of training
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import sparsenmt
from sparsenmt.assemble import build_model
from sparsenmt.data.features import FeatureSet
from sparsenmt.data.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.files import make_readable, new_directory
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.load import dump, load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.sparsity.registry import methods
from sparsenmt.training.reporting import METRICS

FORMAT = 1
WEIGHTS, MANIFEST, RECIPE = "weights.safetensors", "manifest.json", "recipe.yaml"

_HINT = "Name a directory that `sparsenmt train` wrote."


@dataclass(frozen=True)
class Bundle:
    """A model with all that it takes to use it."""

    recipe: Recipe
    tokenizers: Tokenizers
    features: FeatureSet
    model: Transformer
    device: torch.device

    @property
    def max_positions(self) -> int:
        return self.recipe.model.max_positions


def initialise(directory: Path, recipe: Recipe, tokenizers: Tokenizers, features: FeatureSet, fingerprint: str) -> None:
    """Make a model directory: everything but the weights. The manifest comes last: without it, the rest is void."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", where=str(directory)) from None
    (directory / METRICS).unlink(missing_ok=True)
    tokenizers.save(directory / "tokenizers")
    features.save(directory / "features")
    text = dump(recipe)
    _write(directory / RECIPE, text)
    manifest = {
        "format": FORMAT,
        "data_fingerprint": fingerprint,
        "provenance": {
            "sparsenmt": sparsenmt.__version__,
            "git_revision": _git_revision(),
            "recipe_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "seed": recipe.training.seed,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    _write(directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def is_unfinished(directory: Path) -> bool:
    """Whether there is nothing in a directory but what an interrupted `initialise` leaves."""
    written = {"tokenizers", "features", RECIPE, f".{RECIPE}.tmp", f".{MANIFEST}.tmp"}
    return all(path.name in written for path in directory.iterdir())


def copy_model(source: Path, target: Path, weights: Mapping[str, Tensor]) -> None:
    """Make a model directory like ``source`` with other weights, without metrics and checkpoints.

    It is complete or not there at all. UserError if it exists.
    """
    check_absent(target)
    left_out = shutil.ignore_patterns(WEIGHTS, METRICS, "checkpoints", "tensorboard", ".*")
    with new_directory(target.resolve()) as partial:
        shutil.copytree(source, partial, ignore=left_out, dirs_exist_ok=True)
        write_weights(partial, weights)


def check_absent(directory: Path) -> None:
    """UserError if there is something of that name."""
    if directory.exists():
        raise UserError("the directory exists", where=str(directory), hint="Name another one, or remove it.")


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a model directory; UserError if it is none."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        what = "this is not a model directory" if directory.exists() else "there is no such model directory"
        raise UserError(what, where=str(directory), hint=_HINT) from None
    except (OSError, ValueError):
        raise UserError("the manifest is damaged", where=str(directory / MANIFEST)) from None
    if not isinstance(manifest, dict) or "data_fingerprint" not in manifest:
        raise UserError("this is not a model directory", where=str(directory), hint=_HINT)
    if manifest.get("format") != FORMAT:
        raise UserError("written by another version of this program", where=str(directory / MANIFEST))
    return manifest


def write_weights(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Put the model's weights into its directory, complete or not at all."""
    aside = directory / f".{WEIGHTS}.tmp"
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, aside)
    make_readable(aside)
    os.replace(aside, directory / WEIGHTS)


def read_recipe(directory: Path) -> Recipe:
    """The resolved recipe of a model directory."""
    path = directory / RECIPE
    try:
        values = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise UserError("the model's recipe is missing or damaged", where=str(path))
    return load_resolved(values, methods(), origin=str(path))


def read_weights(file: Path) -> dict[str, Tensor]:
    """Weights by name; UserError if the file is missing or damaged."""
    try:
        return load_file(file)
    except FileNotFoundError:
        hint = "Training writes them when it ends; `sparsenmt average` makes them from checkpoints."
        raise UserError("the model has no weights", where=str(file), hint=hint) from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"the weights are damaged ({error})", where=str(file)) from None


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into a model; UserError unless names and shapes are the same."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if wanted != found:
        names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        detail = "; ".join(f"{n}: {found.get(n, 'missing')} instead of {wanted.get(n, 'nothing')}" for n in names[:5])
        count, detail = len(names), f"{detail}; ..." if len(names) > 5 else detail
        raise UserError(f"{count} weights do not fit the recipe: {detail}", where=where)
    model.load_state_dict(dict(weights))


def open_model(
    directory: Path | str, *, device: torch.device | None = None, dtype: torch.dtype | None = torch.float32
) -> Bundle:
    """Open a model directory for decoding.

    Args:
        device: default CUDA where there is one.
        dtype: of the packed weights; None leaves the model as it was trained, unpacked.
    """
    directory = Path(directory)
    read_manifest(directory)
    recipe = read_recipe(directory)
    tokenizers = Tokenizers.load(directory / "tokenizers")
    features = FeatureSet.load(directory / "features", tokenizers)
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(
        recipe.model, source_size=tokenizers.source.size, target_size=tokenizers.target.size, seed=recipe.training.seed
    )
    load_weights(model, read_weights(directory / WEIGHTS), str(directory / WEIGHTS))
    model.to(device).eval()
    if dtype is not None:
        model.pack(dtype)
    return Bundle(recipe, tokenizers, features, model, device)


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8", newline="\n")
    os.replace(aside, path)


def _git_revision() -> str | None:
    """The revision of this program's source, if it runs from a checkout."""
    file = Path(__file__).resolve()
    git = ["git", "-C", str(file.parent)]
    try:
        # An installed copy may lie inside somebody else's checkout: only one that tracks this file counts.
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, timeout=5, check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode().strip()
