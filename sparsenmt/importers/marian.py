"""Models of Marian: transformer encoders with transformer decoders, of self-attention or of SSRU (production students).

The configuration inside the model file decides what is computed; a file of decoding settings (`decoder.yml`,
`config.yml`) only names the files and the search. Every tensor must have the expected shape, and none may be left.
Shapes: D model dimension, F inner dimension, V and U tokens of a vocabulary in this program and in Marian.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import (
    SWITCH,
    ForeignTensors,
    ValueKind,
    check_values,
    read_settings,
    real_number,
    whole_number,
)
from sparsenmt.importers.foreign_model import ForeignModel, expected_weights
from sparsenmt.importers.marian_files import read_marian_file
from sparsenmt.importers.marian_layout import MarianLayout
from sparsenmt.importers.marian_names import weight_name
from sparsenmt.importers.marian_shortlist import most_translations, read_marian_shortlist
from sparsenmt.importers.marian_vocabularies import MarianVocabulary, read_vocabulary
from sparsenmt.model.protocol import NEVER
from sparsenmt.recipe.choices import OWN_SHORTLIST
from sparsenmt.recipe.errors import show
from sparsenmt.storage.files import regular_file

_HINT = (
    "Imported are transformer encoders with transformer decoders, with self-attention or with `dec-cell: ssru`: "
    "export another kind with Marian's own tools, or distil it."
)
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "lemma-dim-emb": (0,),
    "input-types": ([], ["sequence", "sequence"]),
    "right-left": (False,),
    "ulr": (False,),
}
"""The values that can be imported of keys of the configuration, the default first."""
_YAML = (".yml", ".yaml")
_NAMES = ValueKind(
    "a list of names of files",
    lambda value: isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value),
)
_SETTINGS = {
    **{"models": _NAMES, "vocabs": _NAMES, "beam-size": whole_number(1, 1 << 16), "normalize": real_number(0, 100)},
    **{"max-length-factor": real_number(0.01, 1000), "allow-unk": SWITCH},
    "shortlist": ValueKind(
        "a list that begins with the name of a file", lambda value: isinstance(value, list) and _NAMES.fits(value[:1])
    ),
}
"""The values that keys of decoding settings may have."""
_TRAINED_LENGTH = 200  # tokens: no file says with which `max-length` a model was trained; students are with this one
_MOST_SIZE, _MOST_LAYERS = 1 << 16, 1000  # as in recipes
_GELU = 1.702  # Marian's gelu(x) is x sigmoid(1.702 x), which is silu(1.702 x) / 1.702
_NORMS = {("n", "a"): "pre", ("", "an"): "post"}
"""The place of the norms by `transformer-preprocess` and `transformer-postprocess`, dropout aside."""


@dataclass(frozen=True)
class MarianFiles:
    """The files of a model, and the settings of its search."""

    model: Path
    vocabularies: tuple[Path, Path]
    settings: Mapping[str, Any]
    shortlist: Path | None = None
    settings_file: Path | None = None


def recognizes(source: Path) -> bool:
    """Return True if this is a model file, a file of decoding settings, or a directory with one."""
    if source.is_dir():
        return any("models" in _mapping(path) for path in _yaml_files(source))
    return source.suffix in (".bin", ".npz", *_YAML)


def read(source: Path, vocabularies: Sequence[Path] = ()) -> ForeignModel:
    """Read a model.

    Args:
        source: a directory with decoding settings, such a file, or a model file.
        vocabularies: those of a model file: of source and target, or one of both.

    Raises:
        UserError: something is missing, damaged, or not computed by this program.
    """
    files = marian_files(source, vocabularies)
    found = read_marian_file(files.model)
    config = {key: values[0] for key, values in _DEFAULTS.items()} | found.configuration
    _check_architecture(config, files.model)
    shared = files.vocabularies[0] == files.vocabularies[1]
    reading, written = (read_vocabulary(files.vocabularies[i], side) for i, side in enumerate(("source", "target")))
    pair = (reading, reading if shared and reading.same_as(written) else written)
    frames = Frames(dict(reading.languages), source_prefix=["target"] if reading.languages else [])
    weights = _Weights(found.tensors, config, files.model, pair)
    converted = weights.convert()
    notes = [] if not found.multipliers else ["The weights were dequantised from 8 bits; inputs of products are not."]
    if found.configuration.get("transformer-tied-layers"):
        notes.append("Decoder layers that share their weights (`transformer-tied-layers`) were copied.")
    if weights.norm == "pre":
        notes.append("Older versions of Marian normalised only the queries of self-attention: such models differ here.")
    decoding, shortlist = decoding_of(files.settings), None
    layout = MarianLayout.of(files.model, found, converted, files.vocabularies)
    if files.settings_file is not None:
        name, text = files.settings_file.name, files.settings_file.read_bytes().decode()
        layout = replace(layout, settings=name, settings_text=text)
    if files.shortlist is not None:
        shortlist = read_marian_shortlist(files.shortlist, files.settings["shortlist"][1:], pair)
        decoding["shortlist"] = OWN_SHORTLIST
        if (best := most_translations(files.shortlist)) > 0:
            layout = replace(layout, shortlist=files.shortlist.name, shortlist_best=best)
        notes.append("Each sentence uses its shortlist, as Marian does; `decode --shortlist none` uses all tokens.")
    if files.settings.get("word-penalty"):
        notes.append("`word-penalty` is left out.")
    return ForeignModel(
        recipe={"model": weights.section(), "data": {"tokenizer": {"shared": shared}}, "decoding": decoding},
        weights=converted,
        tokenizers=Tokenizers(pair[0].tokenizer, pair[1].tokenizer, shared, frames, layout=layout.content()),
        notes=tuple(notes),
        shortlist=shortlist,
        text=TextSides((_TRAINED_LENGTH, _TRAINED_LENGTH)),
        files=(files.model,),
    )


def marian_files(source: Path, vocabularies: Sequence[Path] = ()) -> MarianFiles:
    """Find the files of a model; arguments as for `read`.

    Raises:
        UserError: one is missing.
    """
    if source.is_dir() or source.suffix in _YAML:
        path, settings = _settings(source)
        settings_file: Path | None = path
        if vocabularies:
            raise UserError(
                f"{path.name} names the vocabularies",
                where="--vocabulary",
                hint="Leave it out; or name the model file (.npz or .bin) itself, whose vocabularies it gives.",
            )
        models, named = settings.get("models") or [], settings.get("vocabs") or []
        if len(models) != 1 or len(named) != 2:
            raise UserError(
                f"it names {len(models)} models and {len(named)} vocabularies, and one model with two is imported",
                where=str(path),
                hint="Import one model of an ensemble by its file, with --vocabulary.",
            )
        model, *found = (_beside(path, str(name)) for name in (*models, *named))
    else:
        path, model, found, settings, settings_file = source, source, list(vocabularies), {}, None
        if not 1 <= len(found) <= 2:
            raise UserError(
                "a model file says nothing about its vocabularies",
                where=str(source),
                hint="Add --vocabulary FILE (once, or for source and target), or name the folder of its decoder.yml.",
            )
    for each in (model, *found):
        if not each.is_file():
            raise UserError("there is no such file", where=str(each), hint="Copy the whole model directory.")
    named = settings.get("shortlist")
    shortlist = _beside(path, named[0]) if named else None
    return MarianFiles(model, (found[0], found[-1]), settings, shortlist, settings_file)


def _settings(source: Path) -> tuple[Path, dict[str, Any]]:
    """The decoding settings of a directory, or in a file."""
    found = [(path, value) for path in _yaml_files(source) if "models" in (value := _mapping(path))]
    found.sort(key=lambda each: each[0].name != "decoder.yml")
    if not found:
        raise UserError(
            "there is no file of decoding settings (`models:` and `vocabs:`) in it",
            where=str(source),
            hint="Name the model file (.npz or .bin) itself, with --vocabulary.",
        )
    return found[0]


def _yaml_files(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(path for path in source.iterdir() if path.suffix in _YAML)


def _mapping(path: Path) -> dict[str, Any]:
    """The settings in a file; empty of another one, such as a vocabulary."""
    try:
        with open(path, "rb", opener=regular_file) as stream:
            text = stream.read((1 << 22) + 1)  # more is refused
    except OSError:
        return {}
    if not re.search(rb"^models:", text, re.MULTILINE):
        return {}
    return decoding_settings(text, path)


def decoding_settings(text: bytes, path: Path) -> dict[str, Any]:
    """The settings of decoding in a text, with values of their kinds; ``path``: of the file, for messages.

    Raises:
        UserError: it is something else.
    """
    values = read_settings(text, path)
    check_values(values, _SETTINGS, path)
    return values


def _beside(settings: Path, name: str) -> Path:
    """A file that settings name: beside them, or where they say."""
    return next(
        (path for path in (settings.parent / name, Path(name)) if path.is_file()), settings.parent / Path(name).name
    )


def _check_architecture(config: Mapping[str, Any], path: Path) -> None:
    """Refuse what this program does not compute, by its key."""
    for key, allowed in _DEFAULTS.items():
        if config[key] not in allowed:
            raise _refused(key, config[key], path)
    if config["transformer-decoder-autoreg"] == "rnn":
        for key, wanted in (("dec-cell", "ssru"), ("layer-normalization", False)):
            if config.get(key, wanted) != wanted:
                raise _refused(key, config[key], path)


def _refused(key: str, value: Any, path: Path) -> UserError:
    given = value if isinstance(value, str) and len(value) < 100 else show(value)
    return UserError(f"a model with `{key}: {given}` cannot be imported", where=str(path), hint=_HINT)


def decoding_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The section of decoding; Marian never generates unknown tokens unless it is told to."""
    factor, alpha = float(settings.get("max-length-factor", 3)), float(settings.get("normalize", 0))
    return {
        "beam_size": int(settings.get("beam-size", 12)),
        "length_penalty": "average" if alpha else "none",
        "alpha": alpha,
        "max_length_factor": factor,
        "max_length_offset": math.ceil(factor),  # for </s>
        "unknown": "allow" if settings.get("allow-unk") else "forbid",
    }


class _Weights:
    """The tensors of a model, converted one by one.

    Args:
        tensors: by Marian's names.
        config: the configuration inside the model file.
        path: the model file, for messages.
        vocabularies: of source and target.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        path: Path,
        vocabularies: tuple[MarianVocabulary, MarianVocabulary],
    ) -> None:
        self._tensors = ForeignTensors(tensors, path, "its configuration")
        self._config, self._path, self._vocabularies = config, path, vocabularies
        self._found: dict[str, Tensor] = {}
        self._dimension = self._number("dim-emb")
        self.norm = self._norm()
        self._recurrent = config["transformer-decoder-autoreg"] == "rnn"
        self._top = self._operations("transformer-postprocess-top", ("", "n")) == "n"
        self._emb = self._operations("transformer-postprocess-emb", ("", "n")) == "n"
        activation = config.get("transformer-ffn-activation", "relu")
        if activation not in ("relu", "swish", "gelu"):
            raise _refused("transformer-ffn-activation", activation, path)
        self._activation = str(activation)
        wide = self._number("transformer-dim-ffn")
        own = "transformer-decoder-dim-ffn"
        self._wide = {"encoder": wide, "decoder": self._number(own) if config.get(own) else wide}

    def _number(self, key: str) -> int:
        value = self._config.get(key)
        if type(value) is not int or not 0 < value <= (_MOST_LAYERS if key.endswith("-depth") else _MOST_SIZE):
            raise _refused(key, value, self._path)
        return value

    def _operations(self, key: str, allowed: Sequence[str]) -> str:
        """The operations at a place; dropout is a matter of training."""
        value = str(self._config.get(key) or "")
        if value.replace("d", "") not in allowed:
            raise _refused(key, value, self._path)
        return value.replace("d", "")

    def _norm(self) -> str:
        given = [str(self._config.get(f"transformer-{key}process") or "") for key in ("pre", "post")]
        place = _NORMS.get((given[0].replace("d", ""), given[1].replace("d", "")))
        if place is None:
            raise _refused("transformer-preprocess", f"{given[0]}, transformer-postprocess: {given[1]}", self._path)
        return place

    def section(self) -> dict[str, Any]:
        """The section `model` of the recipe."""
        found: dict[str, Any] = {
            "dimension": self._dimension,
            "feed_forward": self._wide["encoder"],
            "heads": self._number("transformer-heads"),
            "encoder_layers": self._number("enc-depth"),
            "decoder_layers": self._number("dec-depth"),
            "norm": self.norm,
            "norm_epsilon": 1e-6,
            "activation": "relu" if self._activation == "relu" else "silu",
            "tie_embeddings": self._tie,
            "output_bias": True,
        }
        if self._top != (self.norm == "pre"):
            found["final_norm"] = self._top
        if self._wide["decoder"] != self._wide["encoder"]:
            found["decoder_feed_forward"] = self._wide["decoder"]
        if self._recurrent:
            found["recurrence"] = {"name": "ssru"}
        if self._emb:
            found["embedding_norm"] = True
        if (table := self._found.get("positions.source.weight")) is not None:  # then Marian scales no embeddings
            found |= {"positions": "learned", "embedding_scale": "none", "max_positions": table.shape[0]}
        return found

    def convert(self) -> dict[str, Tensor]:
        """Convert all weights.

        Raises:
            UserError: a tensor is missing, has another shape, or has no place here.
        """
        self._tables()
        sizes = [vocabulary.tokenizer.size for vocabulary in self._vocabularies]
        blocks = {"encoder": range(1, self._number("enc-depth") + 1), "decoder": self._decoder_blocks()}
        for name, shape in expected_weights(self.section(), self._path, *sizes).items():
            if name not in self._found:
                self._found[name] = self._weight(name, shape, blocks)
        self._tensors.check_all_taken(_HINT)
        return self._found

    def _weight(self, name: str, shape: tuple[int, ...], blocks: Mapping[str, Sequence[int]]) -> Tensor:
        """Convert a weight of a stack, or of a normalisation; ``blocks``: of each layer, the number of its block."""
        side, *inner, kind = name.split(".")
        if inner[-2:] in (["self", "o"], ["cross", "o"]) and self._config.get("transformer-no-projection"):
            return torch.zeros(shape) if kind == "bias" else torch.eye(shape[0])
        block = blocks[side][int(inner[1])] if inner[0] == "layers" else None
        theirs = weight_name(name, norm=self.norm, recurrent=self._recurrent, block=block)
        if len(shape) == 1:
            found = self._tensors.take(theirs, (1, *shape))[0].clone()
        else:  # Marian's matrices are multiplied from the right
            found = self._tensors.take(theirs, shape[::-1]).t().contiguous()
        if self._activation == "gelu" and ".feed_forward.inner." in name:
            return found * _GELU
        return found / _GELU if self._activation == "gelu" and name.endswith(".feed_forward.outer.weight") else found

    def _decoder_blocks(self) -> list[int]:
        """The number of the block of every decoder layer, from 1."""
        depth, tied = self._number("dec-depth"), self._config.get("transformer-tied-layers") or []
        if not tied:
            return list(range(1, depth + 1))
        if not isinstance(tied, list) or len(tied) != depth or not all(type(each) is int for each in tied):
            raise _refused("transformer-tied-layers", tied, self._path)
        return list(tied)

    @property
    def _tie(self) -> str:
        """The tables that are one, as in the recipe."""
        inputs, output = (bool(self._config.get(f"tied-embeddings{part}")) for part in ("-src", ""))
        if self._config.get("tied-embeddings-all") or (inputs and output):
            return "all"
        return "inputs" if inputs else "target" if output else "none"

    def _tables(self) -> None:
        tie, size = self._tie, self._dimension
        if tie in ("all", "inputs"):
            self._found["embeddings.shared"] = self._table("Wemb", 0)
        else:
            self._found["embeddings.source"] = self._table("encoder_Wemb", 0)
            self._found["embeddings.target"] = self._table("decoder_Wemb", 1)
        target = self._vocabularies[1]
        if tie in ("inputs", "none"):
            old = "decoder_ff_logit_out_W"  # (D, U), in models of old versions
            if old in self._tensors:
                table = self._tensors.take(old, (size, target.size)).t()
            else:
                table = self._tensors.take("decoder_ff_logit_out_Wt", (target.size, size))
            self._found["embeddings.output"] = target.rows(table)
        bias = torch.zeros(target.size)
        if not self._config.get("output-omit-bias"):
            bias = self._tensors.take("decoder_ff_logit_out_b", (1, target.size))[0]
        self._found["output_bias"] = target.rows(bias, missing=NEVER)
        if (rows := self._tensors.rows("Wpos")) is not None:
            positions = self._tensors.take("Wpos", (rows, size))
            self._found |= {f"positions.{side}.weight": positions.clone() for side in ("source", "target")}

    def _table(self, name: str, side: int) -> Tensor:
        vocabulary = self._vocabularies[side]
        sizes = self._config.get("dim-vocabs")
        if not isinstance(sizes, list) or len(sizes) != 2 or sizes[side] != vocabulary.size:
            raise UserError(
                f"it has {vocabulary.size:,} tokens; the model was trained with {str(sizes)[:100]}",
                where=str(vocabulary.path),
                hint="Name the vocabulary that belongs to the model.",
            )
        return vocabulary.rows(self._tensors.take(name, (vocabulary.size, self._dimension)))
