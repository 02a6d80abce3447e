"""Make a model directory of a model of another program."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.methods import load_resolved_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_card import write_model_card
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_model import ForeignModel
from sparsenmt.importers.programs import read_foreign_model
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.files import check_absent, new_directory, sha256_file

_DATA = ("train", "dev")
_LANGUAGE = re.compile(r"[A-Za-z0-9]+([-_@][A-Za-z0-9]+)*")
Languages = tuple[str | None, str | None]
"""Codes of source and target; None: that which the model names."""


def import_model(
    source: Path,
    output: Path,
    *,
    name: str | None = None,
    languages: Languages = (None, None),
    vocabularies: tuple[Path, ...] = (),
) -> None:
    """Write the model directory ``output``, complete or not at all.

    Args:
        source: the model of another program.
        name: of the model; None: that of the source.
        languages: of a model of several languages those that it translates unless others are given.
        vocabularies: of a single file of Marian: of source and target, or one of both.

    Raises:
        UserError: the source cannot be imported, or ``output`` exists or is inside of the source.
    """
    check_absent(output)
    if source.resolve() in output.resolve().parents:
        raise UserError(
            f"it is inside of {source}, which is read and not written to",
            where=str(output),
            hint="Name a directory elsewhere.",
        )
    found = read_foreign_model(source, vocabularies)
    recipe = _recipe(found, source, output, name or source.resolve().name, languages)
    sizes = {"source_size": found.tokenizers.source.size, "target_size": found.tokenizers.target.size}
    with torch.device("meta"):
        build_model(recipe.model, **sizes, seed=0).load_state_dict(found.weights, assign=True)  # names and shapes
    hashes = {path.name: sha256_file(path) for path in found.files}
    origin = {"path": str(source.resolve()), "weights": hashes, "notes": list(found.notes)}
    with new_directory(output.resolve(), source) as partial:
        parts = partial, recipe, found.tokenizers, FeatureSet({})
        model_directory.initialise(*parts, "imported", imported_from=origin, shortlist=found.shortlist, text=found.text)
        model_directory.write_weights(partial, found.weights, after=0, made_of=[])
    write_model_card(output)
    _tell(output, recipe, found)


def _recipe(found: ForeignModel, source: Path, output: Path, name: str, named: Languages) -> Recipe:
    """Return the recipe of the model. It has no training data: its paths are those where a user will put them."""
    output = output.resolve()
    data, decoding = dict(found.recipe.get("data", {})), dict(found.recipe.get("decoding", {}))
    frames = found.tokenizers.frames
    sides = zip(("source_language", "target_language"), named, ("source", "target"), strict=True)
    for key, given, usual in sides:
        if given is not None and frames.uses(key.removesuffix("_language")):
            decoding[key] = given
        code = given if given is not None else decoding.get(key) or data.get(key, usual)
        if not _LANGUAGE.fullmatch(code):  # names of files begin with it
            raise UserError(
                f"{code!r} is no code of a language",
                where=f"--{key.replace('_', '-')}" if given is not None else str(source),
                hint=f"Give one of letters and digits, such as de or pt_BR: --{key.replace('_', '-')} CODE.",
            )
        data[key] = re.split("[-_@]", code)[0]  # en_XX and eng_Latn are text in en and eng, and zh-cn in zh
    chosen = decoding.get("source_language"), decoding.get("target_language")
    if not any(code is None and frames.uses(side) for side, code in zip(("source", "target"), chosen, strict=True)):
        frames.choose(*chosen)
    languages = data["source_language"], data["target_language"]
    places = [dict(zip(("source", "target"), (f"{part}.{code}" for code in languages), strict=True)) for part in _DATA]
    if languages[0] == languages[1]:  # as of summaries
        places = [{"source": f"{part}.source", "target": f"{part}.target"} for part in _DATA]
    data |= {"directory": f"{output}-data", "train": places[:1], "dev": places[1]}
    data["tokenizer"] = {**data.get("tokenizer", {}), "from_model": str(output)}
    return load_resolved_recipe(
        {**found.recipe, "name": name, "directory": str(output), "data": data, "decoding": decoding},
        origin=str(source),
    )


def _tell(output: Path, recipe: Recipe, found: ForeignModel) -> None:
    """Report the size of the imported model, its notes, and how to use it."""
    model, sizes = recipe.model, [found.tokenizers.source.size, found.tokenizers.target.size]
    count = sum(tensor.numel() for tensor in found.weights.values())
    layers = f"{model.encoder_layers} encoder and {model.decoder_layers} decoder layers of dimension {model.dimension}"
    vocabularies = (
        f"a vocabulary of {sizes[0]:,}" if found.tokenizers.shared else f"vocabularies of {sizes[0]:,} and {sizes[1]:,}"
    )
    notify(f"{output}: {layers}, {count:,} weights, {vocabularies} tokens")
    for note in found.notes:
        notify(note)
    notify(f"translate with it: sparsenmt decode {output}")
