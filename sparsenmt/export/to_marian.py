"""A plain Transformer, or a student with a recurrent decoder, as files of Marian (https://marian-nmt.github.io).

A model that was imported from Marian and has not been changed becomes the very files that it came from. Of any other
the files are made anew: `decoder.yml`, the model, its vocabularies, and its shortlist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.errors import UserError
from sparsenmt.export.activation_ranges import activation_alphas
from sparsenmt.export.marian_files import bin_file, has_levels, is_matrix, levels_of, multiplier_of, npz_file
from sparsenmt.export.marian_vocabularies import VocabularyFile, vocabulary_files
from sparsenmt.export.marian_weights import ACTIVATIONS, MarianWeights, is_new, marian_weights, start_vector
from sparsenmt.export.plain_transformer import PlainTransformer
from sparsenmt.export.target import NO_CHOICES, ExportTarget, FileChoices, length_penalty
from sparsenmt.importers.marian import decoding_of, decoding_settings
from sparsenmt.importers.marian_files import INT8, Values
from sparsenmt.importers.marian_layout import MarianLayout
from sparsenmt.importers.marian_shortlist import binary_shortlist
from sparsenmt.recipe import schema
from sparsenmt.storage.files import write_bytes, write_text
from sparsenmt.storage.tensors import digest_of

NAME = "Marian"
_EPSILON, _MOST_EPSILON = 1e-6, 1e-5  # of Marian's normalisations; the difference is far below that of a rounding
_BATCH = 32  # sentences
_FACTOR = 3.0  # Marian's `max-length-factor`
_HINT = "Run the model with `sparsenmt decode`, or export it for another program."
_MODEL_NAMES = {"npz": "model.npz", "bin": "model.bin", INT8: "model.intgemm.alphas.bin"}
_CODE = """\
from pymarian import Translator

translator = Translator(
    models={model},
    vocabs={vocabularies},
    beam_size={beam},
    normalize={penalty},
    max_length_factor={factor},{shortlist}
    mini_batch={batch},
    maxi_batch=100,
    maxi_batch_sort="src",
    quiet=True,
)
lines = ["..."]
for line in translator.translate(lines):
    print(line)
"""
_BERGAMOT = """\
import subprocess

lines = ["..."]
command = ["bergamot", "--model-config-paths", {settings}, "--cpu-threads", "1"]
print(subprocess.run(command, input="\\n".join(lines), text=True, check=True, capture_output=True).stdout)
"""


@dataclass(frozen=True)
class _Files:
    """The files of a model.

    Args:
        kind: of the model file: ``npz``, ``bin`` or ``int8``.
        unchanged: True if the weights are those that were imported.
        shortlist: the name of the file; "": there is none.
    """

    layout: MarianLayout | None
    kind: str
    unchanged: bool
    model: str
    vocabularies: tuple[VocabularyFile, VocabularyFile]
    shortlist: str
    settings: str

    @staticmethod
    def of(bundle: Bundle, kind: str | None) -> _Files:
        layout = MarianLayout.read(bundle.tokenizers.layout)
        unchanged = layout is not None and digest_of(bundle.model.state_dict()) == layout.weights
        own = None if layout is None else _kind_of(layout)
        kind = kind or own or "npz"
        shortlist = ""
        if bundle.recipe.decoding.shortlist not in (None, "none"):
            shortlist = (layout.shortlist if layout else "") or "lex.bin"
        return _Files(
            layout=layout,
            kind=kind,
            unchanged=unchanged,
            model=layout.model if layout is not None and kind == own else _MODEL_NAMES[kind],
            vocabularies=vocabulary_files(bundle.tokenizers, layout),
            shortlist=shortlist,
            settings=(layout.settings if layout else "") or "decoder.yml",
        )


def _kind_of(layout: MarianLayout) -> str:
    """The kind of the file that a model was imported from."""
    if layout.multipliers:
        return INT8
    return "npz" if layout.model.endswith(".npz") else "bin"


def _write(plain: PlainTransformer, bundle: Bundle, directory: Path, choices: FileChoices) -> None:
    """Write all files of a model into a directory.

    Raises:
        UserError: Marian does not compute the model, or 8 bits need more than it has.
    """
    files = _Files.of(bundle, choices.file)
    ids = files.vocabularies[0].ids, files.vocabularies[1].ids
    data = None
    if choices.text is not None and files.kind != INT8:
        hint = "Leave it out, or write 8 bits: --file int8."
        raise UserError("a text shows the ranges of numbers of 8 bits, and this is fp32", where="--text", hint=hint)
    if files.unchanged and files.layout and files.kind == _kind_of(files.layout) and choices.text is None:
        data = _original(files.layout, marian_weights(plain, ids, new=False))  # what is imported is no other kind
    batch = _batch(plain) if data is None else _BATCH
    if data is None:
        _check(plain, bundle, files.kind)
        weights = marian_weights(plain, ids, new=is_new(plain))
        if files.kind == INT8:
            data = _in_8_bits(weights, plain, bundle, files, choices)
        else:
            data = (npz_file if files.kind == "npz" else bin_file)(weights.configuration, weights.tensors)
    write_bytes(directory / files.model, data)
    for each, side in zip(files.vocabularies, ("source", "target"), strict=True):
        write_bytes(directory / each.name, each.data)
        if each.pieces:
            write_bytes(directory / f"{side}.spm", each.pieces)
    if files.shortlist:
        shortlist = bundle.shortlist(bundle.recipe.decoding)
        assert shortlist is not None
        best = files.layout.shortlist_best if files.layout else 0
        write_bytes(directory / files.shortlist, binary_shortlist(shortlist, *ids, best))
    write_text(directory / files.settings, _settings(bundle.recipe.decoding, files, batch))


def _original(layout: MarianLayout, weights: MarianWeights) -> bytes | None:
    """The model file that an unchanged model came from; None if it cannot be made of the weights."""

    def values(place: Values) -> bytes:
        name = place.name
        tensor = weights.tensors[f"{name}t"].t() if name == "decoder_ff_logit_out_W" else weights.tensors[name]
        if place.kind == INT8:
            return levels_of(name, tensor, layout.multipliers[name]).tobytes()
        return tensor.numpy().astype(place.kind).tobytes("F" if place.by_columns else "C")

    try:
        return layout.filled(values)
    except KeyError:
        return None


def _check(plain: PlainTransformer, bundle: Bundle, kind: str) -> None:
    """Raise UserError for what Marian, or Bergamot for a file in 8 bits, does not compute."""
    section, frames = plain.section, bundle.tokenizers.frames
    fixed = {"positions": "sinusoidal", "sinusoids": "tensor2tensor", "first_position": 0, "embedding_scale": "sqrt"}
    for key, wanted in fixed.items():
        if (value := getattr(section, key)) != wanted:
            raise _refused(f"{NAME} does not compute `{key}: {value}`", f"model.{key}")
    if section.activation not in ACTIVATIONS:
        raise _refused(f"{NAME} does not compute `activation: {section.activation}`", "model.activation")
    if section.norm_epsilon > _MOST_EPSILON:
        message = f"{NAME} normalises with the epsilon {_EPSILON:g}, not {section.norm_epsilon:g}"
        raise _refused(message, "model.norm_epsilon")
    if plain.encoder_heads != plain.decoder_heads:
        message = f"{NAME} has the same number of heads everywhere, not {plain.encoder_heads} and {plain.decoder_heads}"
        raise _refused(message, "model.attention.encoder_self.heads.count")
    if replace(frames, languages={}) not in (Frames(), Frames(source_prefix=["target"])):
        raise _refused(f"{NAME} puts no tokens of languages around a sentence", "decoding.target_language")
    starts = bool(start_vector(plain).any())
    reads_first = "recurrent layers" if section.norm == "post" and section.recurrence else ""
    if starts and (section.embedding_norm or reads_first):
        raise _refused(
            f"{NAME} begins a target with zeros, this model with a trained row of <s>, which "
            f"{reads_first or 'normalised embeddings'} cannot make up for",
            "model.recurrence" if reads_first else "model.embedding_norm",
        )
    if kind == INT8:
        _check_8_bits(plain, starts=starts)


def _check_8_bits(plain: PlainTransformer, *, starts: bool) -> None:
    section = plain.section
    hint = "Write fp32 (`--file npz`): `pymarian convert --gemm-type intgemm8` converts it to 8 bits of Marian's own."
    if is_new(plain):
        message = "in 8 bits, a decoder with self-attention has its norms after the sub-layers"
        raise UserError(message, where="model.norm", hint=hint)
    if starts:
        message = "in 8 bits, a target begins with zeros, and this model with a trained row of <s>"
        raise UserError(message, where="--file int8", hint=hint)
    if section.tie_embeddings not in ("all", "target"):
        message = f"in 8 bits, the output has the table of the target, not `tie_embeddings: {section.tie_embeddings}`"
        raise UserError(message, where="model.tie_embeddings", hint=hint)


def _refused(message: str, where: str) -> UserError:
    return UserError(message, where=where, hint=_HINT)


def _in_8_bits(
    weights: MarianWeights, plain: PlainTransformer, bundle: Bundle, files: _Files, choices: FileChoices
) -> bytes:
    """The model file in 8 bits, with the multipliers of the inputs of products."""
    matrices: Mapping[str, Tensor] = {name: each for name, each in weights.tensors.items() if is_matrix(name)}
    kept = {} if files.layout is None else files.layout.multipliers
    same = {name: kept[name] for name, each in matrices.items() if name in kept and has_levels(each, kept[name])}
    multipliers = {name: same.get(name) or multiplier_of(each) for name, each in matrices.items()}
    if choices.text is not None:
        alphas = activation_alphas(bundle, plain, choices.text)
    elif files.layout is not None and len(same) == len(matrices) and files.layout.alphas:
        alphas = files.layout.alphas
    else:
        raise UserError(
            "the ranges of what its matrices are multiplied with are not known"
            + (", and not those from before the matrices changed" if kept else ""),
            where="--file int8",
            hint="Name a text in the source language, of some hundred lines: --text FILE.",
        )
    return bin_file(weights.configuration, weights.tensors, multipliers, alphas)


def _batch(plain: PlainTransformer) -> int:
    """The sentences of a batch: Marian 1.12.42 computes nothing right of a padded sentence in `transformer-new`."""
    return 1 if is_new(plain) else _BATCH


def _settings(decoding: schema.Decoding, files: _Files, batch: int) -> str:
    """The text of the decoding settings: the original one if it says the same."""
    names = [each.name for each in files.vocabularies]
    layout = files.layout
    if layout is not None and layout.settings:
        before = decoding_settings(layout.settings_text.encode(), Path(layout.settings))
        same = all(getattr(decoding, key) == value for key, value in decoding_of(before).items())
        same = same and (batch != 1 or before.get("mini-batch") == 1)
        given = before.get("models"), before.get("vocabs"), (before.get("shortlist") or [""])[0]
        if same and given == ([files.model], names, files.shortlist):  # they may have named files elsewhere
            return layout.settings_text
    found: dict[str, Any] = {
        "relative-paths": True,
        "models": [files.model],
        "vocabs": names,
        **({"shortlist": [files.shortlist, False]} if files.shortlist else {}),
        **_search(decoding),
        **{"word-penalty": 0, "mini-batch": batch, "maxi-batch": 100, "maxi-batch-sort": "src", "workspace": 512},
        **({"gemm-precision": "int8shiftAlphaAll"} if files.kind == INT8 else {}),
    }
    return "".join(f"{key}: {_quoted(value)}\n" for key, value in found.items())


def _search(decoding: schema.Decoding) -> dict[str, Any]:
    """The recipe's search, as far as Marian has it."""
    factor = decoding.max_length_factor
    if not factor or decoding.max_length_offset > math.ceil(factor):  # Marian's longest output has no offset
        factor = max(factor, _FACTOR)
    return {
        "beam-size": strategy_of(decoding).width,
        "normalize": length_penalty(decoding),
        "max-length-factor": factor,
        **({"allow-unk": True} if decoding.unknown != "forbid" else {}),
    }


def _usage(plain: PlainTransformer, bundle: Bundle, choices: FileChoices) -> str:
    """The code that runs the model."""
    files, search = _Files.of(bundle, choices.file), _search(bundle.recipe.decoding)
    if files.kind == INT8:
        return _BERGAMOT.format(settings=_quoted(files.settings))
    return _CODE.format(
        model=_quoted([files.model]),
        vocabularies=_quoted([each.name for each in files.vocabularies]),
        beam=search["beam-size"],
        penalty=search["normalize"],
        factor=search["max-length-factor"],
        batch=_batch(plain),
        shortlist=f"\n    shortlist={_quoted([files.shortlist, 'false'])}," if files.shortlist else "",
    )


def _quoted(value: Any) -> str:
    """A value as Python and YAML read it: names of files may have any characters."""
    return json.dumps(value, ensure_ascii=False)


def _notes(plain: PlainTransformer) -> list[str]:
    notes = []
    if plain.section.norm_epsilon != _EPSILON and not is_new(plain):
        notes.append(
            f"Marian's normalisations add {_EPSILON:g} to the variance, this model was trained with "
            f"{plain.section.norm_epsilon:g}: scores differ in the fifth digit."
        )
    if is_new(plain):
        notes.append(
            "The model is of the type `transformer-new`, for Marian 1.12 or later: older decoders do not normalise "
            "keys and values where the norms stand first. That type does not hide padding in 1.12.42: translate one "
            "sentence at a time, as the code above does."
        )
    if start_vector(plain).any():
        notes.append(
            "Marian begins a target with zeros, the model with a trained vector: "
            + ("a layer in front of the decoder adds it." if plain.section.norm == "pre" else "biases make up for it.")
        )
    return notes


def target(choices: FileChoices) -> ExportTarget:
    """The format with these choices."""
    return ExportTarget(
        NAME,
        lambda: None,
        lambda plain, bundle, directory, _: _write(plain, bundle, directory, choices),
        lambda plain, bundle, _: _usage(plain, bundle, choices),
        _notes,
        computes=frozenset({("recurrence", "ssru")}),
        own_vocabularies=True,
        choose=target,
    )


TARGET = target(NO_CHOICES)
