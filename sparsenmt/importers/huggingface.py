"""Models of Hugging Face Transformers: a directory with ``config.json``, weights, and the files of a tokenizer.

The families share one architecture (that of BART), and differ in what `Family` lists. Transformers is not needed.

Shapes: D model dimension, P positions, V their vocabulary, W this program's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt.assemble import build_model
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import BOS
from sparsenmt.errors import UserError
from sparsenmt.files import invalid_file, read_json
from sparsenmt.importers.foreign_model import ForeignModel
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers
from sparsenmt.model.embeddings import Wavelengths, sinusoids
from sparsenmt.model.protocol import NEVER
from sparsenmt.model.transformer import Tie, table_keys
from sparsenmt.recipe import schema
from sparsenmt.tensors import load_foreign_tensors
from sparsenmt.transformers_names import LAYER_NAMES

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"  # of weights in several files
_INCOMPLETE = "Copy all files of the model again."
_UNUSED = frozenset({"model.encoder.version", "model.decoder.version"})  # in old files
_SAME_TABLE = 2e-3  # distance of sinusoids that were stored in half precision


@dataclass(frozen=True)
class Family:
    """A family of models: what its configuration does not say, or leaves out.

    Args:
        positions: ``learned``: of a table whose first two rows are not used; ``paper``: sinusoids, unless the weights
            have a table; ``after_padding``: sinusoids that begin after the id of the padding.
        defaults: of keys that a configuration may lack.
    """

    title: str
    norm: Literal["pre", "post"]
    positions: Literal["learned", "paper", "after_padding"]
    embedding_norm: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "marian": Family("Marian (OPUS-MT)", "post", "paper"),
    "bart": Family("BART", "post", "learned", embedding_norm=True),
    "mbart": Family("mBART", "pre", "learned", embedding_norm=True),
    "pegasus": Family("PEGASUS", "pre", "paper"),
    "m2m_100": Family(
        "M2M-100 or NLLB", "pre", "after_padding", defaults={"activation_function": "relu", "scale_embedding": True}
    ),
}
"""By `model_type` of the configuration."""

_DEFAULTS: dict[str, Any] = {
    **{"activation_function": "gelu", "scale_embedding": False, "max_position_embeddings": 1024, "pad_token_id": 1},
    **{"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "tie_word_embeddings": True},
}
_ACTIVATIONS = {
    **{"relu": "relu", "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
}


def read(directory: Path) -> ForeignModel:
    """Convert a model of Transformers.

    Raises:
        UserError: the architecture is not among `FAMILIES`, or a file is missing or does not fit.
    """
    config = Config.read(directory)
    tokens = HuggingFaceTokenizers.read(directory, config.values)
    found = convert(config, read_weights(directory), tokens.tokenizers, tokens.source_ids, tokens.target_ids)
    sides = zip(("source_language", "target_language"), tokens.languages, strict=True)
    found.recipe["data"] |= {key: code for key, code in sides if code is not None}
    return found


@dataclass(frozen=True)
class Config:
    """The configuration of a model: ``config.json``, and the settings of its search."""

    path: Path
    family: Family
    values: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> Config:
        """Read the configuration; what ``generation_config.json`` says of the search goes first.

        Raises:
            UserError: a file is missing or broken, or the architecture cannot be imported.
        """
        path = directory / CONFIG
        values, search = _mapping(path), directory / GENERATION_CONFIG
        kind = values.get("model_type")
        family = FAMILIES.get(str(kind))
        if family is None:
            names = ", ".join(f"{each.title} ({name})" for name, each in FAMILIES.items())
            raise UserError(
                f"models of the type {kind!r} cannot be imported",
                where=f"{path}: model_type",
                hint=f"Name a model of one of these types: {names}; or one of Marian's own files.",
            )
        more = _mapping(search) if search.exists() else {}
        return cls(path, family, {**_DEFAULTS, **family.defaults, **_given(values), **_given(more)})

    def number(self, key: str) -> int:
        """A size.

        Raises:
            UserError: it is missing, or not a positive number.
        """
        value = self.values.get(key)
        if type(value) is not int or value < 1:
            found = "is missing" if value is None else f"is {value!r}, not a positive number"
            raise UserError(f"the size {key} {found}", where=str(self.path), hint=_INCOMPLETE)
        return value

    def model(self) -> dict[str, Any]:
        """The `model` section of the recipe, but for what only weights and vocabularies say."""
        name = str(self.values["activation_function"])
        if name not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise UserError(
                f"the activation {name!r} cannot be imported",
                where=f"{self.path}: activation_function",
                hint=f"Name a model with one of: {known}.",
            )
        heads, decoder_heads = self.number("encoder_attention_heads"), self.number("decoder_attention_heads")
        other = {site: {"heads": {"count": decoder_heads}} for site in ("decoder_self", "cross")}
        wide, decoder_wide = self.number("encoder_ffn_dim"), self.number("decoder_ffn_dim")
        dropouts = ("residual", "dropout"), ("attention", "attention_dropout"), ("activation", "activation_dropout")
        return {
            "dimension": self.number("d_model"),
            "feed_forward": wide,
            **({} if decoder_wide == wide else {"decoder_feed_forward": decoder_wide}),
            "heads": heads,
            **({} if decoder_heads == heads else {"attention": other}),
            "encoder_layers": self.number("encoder_layers"),
            "decoder_layers": self.number("decoder_layers"),
            "norm": self.family.norm,
            "embedding_norm": self.family.embedding_norm,
            "embedding_scale": "sqrt" if self.values["scale_embedding"] else "none",
            "activation": _ACTIVATIONS[name],
            "max_positions": self.number("max_position_embeddings"),
            "dropout": {ours: self.values[theirs] for ours, theirs in dropouts},
        }


def _mapping(path: Path) -> dict[str, Any]:
    values = read_json(path, hint=_INCOMPLETE)
    if not isinstance(values, dict):
        raise invalid_file(path, "not a configuration of Transformers")
    return values


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights of a model: one, or those of an index.

    Raises:
        UserError: there are none.
    """
    for name in _WEIGHTS:
        if (directory / name).exists():
            return [directory / name]
        if (index := directory / f"{name}{_INDEX}").exists():
            found = _mapping(index).get("weight_map")
            names = set(found.values()) if isinstance(found, dict) else set()
            if not names or any(not isinstance(each, str) or Path(each).name != each for each in names):
                raise invalid_file(index, "not an index of weights")
            return [directory / each for each in sorted(names)]
    raise UserError(
        f"there are no weights: neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}",
        where=str(directory),
        hint="Copy the weights of PyTorch beside config.json; those of TensorFlow and Flax cannot be read.",
    )


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read all tensors of a model in fp32, of one file or of several.

    Raises:
        UserError: a file is missing or truncated, or a pickle has more than tensors.
    """
    tensors = {name: tensor for path in weight_files(directory) for name, tensor in _tensors_of(path).items()}
    if not any(name.startswith("model.") for name in tensors):  # saved without the output layer
        tensors = {name if name.startswith("lm_head.") else f"model.{name}": each for name, each in tensors.items()}
    return {name: tensor.float() for name, tensor in tensors.items()}


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_foreign_tensors(path, hint=_INCOMPLETE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old pickle protocols
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        problem = error.strerror or "cannot be read"
    except (RuntimeError, EOFError, ValueError, KeyError):
        problem = "is truncated or damaged"
    except Exception:  # of the reader of pickles
        raise UserError(
            "is damaged, or holds other objects than tensors, which are never loaded: they could run any program",
            where=str(path),
            hint="Name a directory with model.safetensors, or save the weights with `torch.save(model.state_dict())`.",
        ) from None
    else:
        if isinstance(loaded, dict) and all(isinstance(each, Tensor) for each in loaded.values()):
            return loaded
        problem = "is not a dictionary of tensors"
    raise UserError(problem, where=str(path), hint=_INCOMPLETE)


def convert(
    config: Config, tensors: Mapping[str, Tensor], tokenizers: Tokenizers, source_ids: Tensor, target_ids: Tensor
) -> ForeignModel:
    """Convert the weights of a model.

    Args:
        tensors: by their names in Transformers.
        source_ids, target_ids: (W) their id of each of this program's, -1 where they have none.

    Raises:
        UserError: a tensor is missing, too many, or of another shape.
    """
    taken = _Tensors(config.path.parent, tensors)
    position_keys, weights = _positions(config, taken)
    source, target, output = _tables(config, taken)
    for ids, table in ((source_ids, source), (target_ids, target)):
        if int(ids.max()) >= table.shape[0]:
            raise UserError(
                f"the vocabulary has the id {int(ids.max())}, but the embeddings have {table.shape[0]} rows",
                where=str(config.path),
                hint="Check that tokenizer and weights are of one model.",
            )
    tie: Tie
    if tokenizers.shared and _equal(source, target):
        tie = "all" if _equal(target, output) else "inputs"
    else:
        tie = "target" if _equal(target, output) else "none"
    uses = (source, source_ids), (target, target_ids), (output, target_ids)
    for name, (table, ids) in zip(table_keys(tie), uses, strict=True):
        weights.setdefault(f"embeddings.{name}", _rows(table, ids))
    bias = _bias(taken, output.shape[0], target_ids)
    section = {**config.model(), **position_keys, "tie_embeddings": tie, "output_bias": bias is not None}
    if bias is not None:
        weights["output_bias"] = bias
    with torch.device("meta"):
        sizes = {"source_size": len(source_ids), "target_size": len(target_ids)}
        expected = build_model(schema.Model.model_validate(section), **sizes, seed=0).state_dict()
    for name, like in expected.items():
        if name not in weights:
            weights[name] = taken.take(_their_name(name), tuple(like.shape))
    taken.check_all_taken()
    decoding, notes = decoding_settings(config.values)
    if unnamed := output.shape[0] - len(set(target_ids.tolist()) - {-1}):
        notes.append(f"{unnamed:,} rows of the output are left out: the tokenizer has no token for them.")
    recipe = {"model": section, "data": {"tokenizer": {"shared": tokenizers.shared}}, "decoding": decoding}
    return ForeignModel(recipe, weights, tokenizers, tuple(notes))


class _Tensors:
    """Tensors by name, each of which must be taken.

    Args:
        place: the directory, for messages.
    """

    def __init__(self, place: Path, tensors: Mapping[str, Tensor]) -> None:
        self._place, self._tensors = place, tensors
        self._taken = set(_UNUSED)

    def ignore(self, *names: str) -> None:
        """Take tensors that are not used, if there are any."""
        self._taken.update(names)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor of a name, if there is one; UserError if its shape is another one."""
        found = self._tensors.get(name)
        self._taken.add(name)
        if found is not None and tuple(found.shape) != shape:
            raise UserError(
                f"{name} has the shape {_shape(found.shape)}; expected: {_shape(shape)}, as {CONFIG} says",
                where=str(self._place),
                hint=_INCOMPLETE,
            )
        return found

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a name; UserError without it, or if its shape is another one."""
        found = self.get(name, shape)
        if found is None:
            raise UserError(
                f"{name} is missing; expected: a tensor of the shape {_shape(shape)}",
                where=str(self._place),
                hint=_INCOMPLETE,
            )
        return found

    def check_all_taken(self) -> None:
        """Raise UserError for tensors that belong to another architecture."""
        if left := sorted(self._tensors.keys() - self._taken):
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise UserError(
                f"{left[0]}{more} belong to no part of the model that {CONFIG} describes",
                where=str(self._place),
                hint="Check that weights and configuration are of one model, and that it is one that generates text.",
            )


def _shape(shape: tuple[int, ...] | torch.Size) -> str:
    return "x".join(map(str, shape))


def _positions(config: Config, taken: _Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys of positions, and the weights of learned ones."""
    length, size, kind = config.number("max_position_embeddings"), config.number("d_model"), config.family.positions
    names = {"source": "model.encoder.embed_positions.weight", "target": "model.decoder.embed_positions.weight"}
    if kind == "after_padding":
        for name in names.values():  # of old files
            taken.ignore(name, f"{name}s")
        return {"first_position": int(config.values["pad_token_id"]) + 1}, {}
    if kind == "learned":
        tables = {side: taken.take(name, (length + 2, size))[2:] for side, name in names.items()}
    else:
        found = {side: taken.get(name, (length, size)) for side, name in names.items()}
        tables = {side: table for side, table in found.items() if table is not None}
        kinds: tuple[Wavelengths, ...] = ("paper", "tensor2tensor")
        for wavelengths in kinds:
            expected = sinusoids(length, size, wavelengths).float()
            if all(float((table - expected).abs().max()) < _SAME_TABLE for table in tables.values()):
                return {"sinusoids": wavelengths}, {}
        tables = {side: taken.take(name, (length, size)) for side, name in names.items()}
    return {"positions": "learned"}, {f"positions.{side}.weight": table for side, table in tables.items()}


def _tables(config: Config, taken: _Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """(V, D) embeddings of the source and of the target, and the matrix of the output."""
    size, rows = config.number("d_model"), config.number("vocab_size")
    target_rows = int(config.values.get("decoder_vocab_size") or rows)
    shared = taken.get("model.shared.weight", (rows, size))
    names = ("model.encoder.embed_tokens.weight", rows), ("model.decoder.embed_tokens.weight", target_rows)
    embedded = []
    for name, count in names:
        own = taken.get(name, (count, size))
        embedded.append(own if own is not None else shared)
    output = taken.get("lm_head.weight", (target_rows, size))
    source, target = embedded
    if source is None or target is None:
        source = taken.take("model.shared.weight", (rows, size))
        target = source if target is None else target
    if output is None:
        tied = config.values["tie_word_embeddings"]
        output = target if tied else taken.take("lm_head.weight", (target_rows, size))
    return source, target, output


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """(V, D), (W) -> (W, D): the rows of these ids, zeros for -1."""
    return table[ids.clamp_min(0)] * (ids >= 0)[:, None]


def _bias(taken: _Tensors, rows: int, ids: Tensor) -> Tensor | None:
    """(W) the bias of the output; None: it is 0. A token that they do not have, or that is there twice, never comes."""
    theirs = taken.get("final_logits_bias", (1, rows))
    bias = torch.zeros(len(ids)) if theirs is None else theirs[0][ids.clamp_min(0)]
    bias[ids < 0] = NEVER
    if int((ids == ids[BOS]).sum()) > 1:  # the decoder begins with a token that has a place of its own
        bias[BOS] = NEVER
    return bias if bool(bias.any()) else None


def _their_name(name: str) -> str:
    """The name in Transformers of a weight of a stack, or of the normalisation of embeddings."""
    parts = name.split(".")
    if parts[0] == "embedding_norm":
        return f"model.{'encoder' if parts[1] == 'source' else 'decoder'}.layernorm_embedding.{parts[2]}"
    if parts[1] == "norm":
        return f"model.{parts[0]}.layer_norm.{parts[2]}"
    module, kind = ".".join(parts[3:-1]), parts[-1]
    return f"model.{'.'.join(parts[:3])}.{LAYER_NAMES[module]}.{kind}"


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{"repetition_penalty": (1.0,), "encoder_no_repeat_ngram_size": (0,), "diversity_penalty": (0.0,)},
    **{"num_beam_groups": (1,), "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "typical_p": (1.0,)},
    **{"penalty_alpha": (0.0,), "exponential_decay_length_penalty": (), "forced_decoder_ids": ([],)},
}
"""Settings of a search that this program does not have, with the values that change nothing."""


def decoding_settings(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The `decoding` section for the settings of a search, and notes on those that this program does not have."""
    beams, longest = int(config.get("num_beams", 1)), int(config.get("max_length", 20))
    if (new := config.get("max_new_tokens")) is not None:
        longest = int(new) + 1  # theirs counts the token with which the decoder begins
    penalty = float(config.get("length_penalty", 1.0))
    section: dict[str, Any] = {
        "beam_size": beams,
        **{"length_penalty": "average", "alpha": max(penalty, 0.0)},
        **{"max_length_factor": 0.0, "max_length_offset": max(longest - 1, 1)},
        "min_length": max(int(config.get("min_length", 0)) - 1, 0),
        "no_repeat_ngram": int(config.get("no_repeat_ngram_size", 0)),
    }
    notes = []
    if penalty < 0:
        notes.append(f"length_penalty {penalty:g} is not available: hypotheses are ranked by their log-probability.")
    if config.get("do_sample"):
        section |= {"method": "sampling", "temperature": float(config.get("temperature", 1.0))}
        section |= {"top_k": int(config.get("top_k", 50)), "top_p": float(config.get("top_p", 1.0))}
    elif beams > 1 and config.get("early_stopping") is not True:
        notes.append(
            "The search ends when as many hypotheses as the beam is wide have ended; that of Transformers, without "
            "early_stopping, when no other can become better."
        )
    bad = [row for row in config.get("bad_words_ids") or [] if row != [config["pad_token_id"]]]
    if [config.get("unk_token_id")] in bad:
        section["unknown"] = "forbid"
        bad.remove([config["unk_token_id"]])
    if bad:
        notes.append(f"{len(bad)} of the sequences in bad_words_ids may come: there is no key for them.")
    for key, values in _NEUTRAL.items():
        if config.get(key) is not None and config[key] not in values:
            notes.append(f"{key}: {config[key]} is not available, and left out.")
    return section, notes
