"""A model directory that is opened for use: its model with vocabularies and features, and the weights to begin from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt.assemble.long_lines import long_lines, whole_lengths
from sparsenmt.assemble.methods import chosen_methods, load_resolved_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import (
    READ,
    RECIPE,
    WEIGHTS,
    WEIGHTS_HINT,
    ModelIdentity,
    check_files,
    check_owner,
    owner_in,
    owner_of,
    read_manifest,
    recorded_plugins,
    stored_recipe,
    text_sides,
    weights_file,
)
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.shortlist import Shortlist, Shortlists
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.frame import FramePair
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.engine.build import build, dtype_name, named_dtype
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError, check_lists
from sparsenmt.model.depth_plan import Depth
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import method_weights
from sparsenmt.model.transformer import Transformer
from sparsenmt.plugins.record import recorded
from sparsenmt.process.devices import pick_device
from sparsenmt.recipe.choices import DecodingDtype, LongLines
from sparsenmt.recipe.model_use import check_translates, with_languages, without_heads
from sparsenmt.recipe.schema import Decoding, ModelSection, Recipe
from sparsenmt.storage.tensors import FITTING, check_shapes, digest_of, load_tensors, read_into
from sparsenmt.storage.versions import read_consistently


@dataclass(frozen=True)
class Bundle:
    """A model with everything that using it takes.

    Args:
        weights_digest: hash of the weights that were read.
        files: path -> hash and size of the vocabularies and fitted features, as in the manifest.
        dtype: data type of the packed weights; None: the weights are unpacked, as they were trained.
        text: the sides of the training text; None: not known, as of models of earlier versions.
        built: the engine of packed weights; None: the unpacked ones are used.
        others: the further members of an ensemble, whose engine is ``built``: they have the same target vocabulary.
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
    others: tuple[Bundle, ...] = ()

    def __repr__(self) -> str:
        return f"Bundle({self.description})"

    @property
    def description(self) -> str:
        """The model in a line: its name, languages, size, methods other than the defaults, dtype and device."""
        recipe, (encoder, decoder) = self.recipe, self.depth
        data, usual = recipe.data, {method.name for _, method, _ in chosen_methods(ModelSection())}
        task = "language model" if data.is_language_model else f"{data.source_language}-{data.target_language}"
        layers = f"{decoder} layers" if data.is_language_model else f"{encoder} + {decoder} layers"
        added = sorted({method.name for _, method, _ in chosen_methods(recipe.model)} - usual)
        dtype = "unpacked" if self.dtype is None else dtype_name(self.dtype)
        parts = [task, f"{layers} of {recipe.model.dimension}", *added, f"{dtype} on {self.device}"]
        return f"{recipe.name}: {', '.join(parts)}"

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
        return ModelIdentity.of(self.recipe, self.weights_digest, self.files)

    @cached_property
    def frames(self) -> FramePair:
        """The tokens around sources and targets, of the languages of `decoding`; UserError if these cannot be used."""
        return self.tokenizers.frames.of(self.recipe.decoding)

    @property
    def max_positions(self) -> int:
        """Most tokens of a source or target, `</s>` and frame included."""
        return min(bundle.recipe.model.max_positions for bundle in (self, *self.others))

    @property
    def max_source_length(self) -> int:
        """Most source tokens that are read, `</s>` and frame not counted."""
        chosen, most = self.recipe.data.filters.max_source_length, self.max_positions - 1 - self.frames.source.size
        return most if chosen is None else min(chosen, most)

    @property
    def whole_lengths(self) -> tuple[int, int]:
        """Return `long_lines.whole_lengths` of this model."""
        return whole_lengths(self.recipe, self.text, self.max_source_length)

    def long_lines(self, options: Decoding) -> LongLines:
        """Return `long_lines.long_lines` of this model."""
        return long_lines(self.recipe, options, cuts=self.cuts_by_choice)

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


def check_identity(bundle: Bundle, identity: ModelIdentity, directory: Path) -> None:
    """Check that an opened model is the one that a result is recorded for.

    Raises:
        UserError: it is another one.
    """
    if bundle.identity().digest != identity.digest:
        raise UserError(
            "the model was replaced while it was used",
            where=str(directory),
            hint="Start the command again when no other process writes to the directory.",
        )


def _read_weights(directory: Path, model: torch.nn.Module, owner: str) -> str:
    """Load the weights of a model directory into a model; returns their hash.

    Args:
        owner: `owner_of` of the directory.

    Raises:
        UserError: they are missing, damaged, do not fit, or belong to another model directory.
    """
    path = weights_file(directory)
    try:
        digest = read_into(path, model.state_dict(), hint=WEIGHTS_HINT)
    except ValueError as error:
        raise UserError(str(error), where=str(path), hint=FITTING) from None
    check_owner(directory, owner)
    return digest


def starting_weights(directory: Path, model: torch.nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of a model directory for a model that may have additional sparsity methods with parameters.

    Returns:
        all of the model's weights, and the names of those that the directory lacks, whose values are the model's own.

    Raises:
        UserError: the weights are missing or damaged, or other parameters differ.
    """

    def read(real: Path) -> dict[str, Tensor]:
        found = load_tensors(weights_file(real), hint=WEIGHTS_HINT)
        check_owner(real, owner_in(real))
        return found

    own, found = model.state_dict(), read_consistently(directory, READ, read)
    added = sorted((own.keys() - found.keys()) & method_weights(model))
    weights = {**{name: own[name] for name in added}, **found}
    check_shapes(own, weights, str(directory / WEIGHTS))
    return weights, added


def open_model(
    directory: Path | str,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | Literal["recipe"] | DecodingDtype | None = torch.float32,
    disabled: Mapping[SiteName, Collection[int]] | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    any_task: bool = False,
    weights: Callable[[Path], Mapping[str, Tensor]] | None = None,
) -> Bundle:
    """Open a model directory for decoding.

    Args:
        device: or its name: ``cpu``, ``cuda``, ``cuda:1``; ``auto`` is CUDA if available, otherwise the CPU.
        dtype: of the packed weights, or its name in recipes, or ``recipe`` for the dtype of the model's recipe; None
            leaves the weights unpacked, as they were trained.
        disabled: heads, from 1, that give zeros in addition to those of the recipe; `Bundle.recipe` has them, too.
        languages: of source and target, instead of those of the recipe; `Bundle.recipe` has them, too.
        any_task: open a language model, too.
        weights: reads others than the directory's final ones, which may be missing then.

    Raises:
        UserError: the directory is no model, a file of it is damaged, an option does not fit the model; or it is a
            language model, without ``any_task``.
    """
    check_lists(languages=languages)
    device = pick_device(device, "--device") if isinstance(device, str) else device

    def read(real: Path) -> Bundle:
        manifest = read_manifest(real)
        check_files(real, manifest["files"])
        stored = stored_recipe(real)
        with recorded(recorded_plugins(real)):
            recipe = without_heads(load_resolved_recipe(stored, origin=str(real / RECIPE)), disabled or {})
        recipe = with_languages(recipe, *languages)
        if not any_task:
            check_translates(recipe, directory)
        tokenizers = Tokenizers.load(real / "tokenizers")
        features = FeatureSet.load(real / "features", tokenizers)
        sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
        model = build_model(recipe.model, **sizes, seed=recipe.training.seed)
        if weights is None:
            digest = _read_weights(real, model, owner_of(manifest["files"], stored))
        else:
            given = weights(real)
            check_shapes(model.state_dict(), given, str(real))
            model.load_state_dict(given)
            digest = digest_of(given)
        return Bundle(recipe, tokenizers, features, model, device, digest, manifest["files"], text=text_sides(real))

    bundle = read_consistently(Path(directory), READ, read)
    if any(languages):
        _ = bundle.frames  # refuses what the model does not have
    model = bundle.model.to(device).eval()
    chosen = named_dtype(model, bundle.recipe.decoding.dtype if dtype == "recipe" else dtype)
    return bundle if chosen is None else replace(bundle, dtype=chosen, built=build(model, chosen, final=True))
