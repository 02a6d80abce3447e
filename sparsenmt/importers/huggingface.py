"""Models of Hugging Face Transformers: a directory with ``config.json``, weights, and the files of a tokenizer.

The families share one architecture (that of BART), and differ in what `Family` lists. Transformers is not needed.

Shapes: D model dimension, P positions, V their vocabulary, W this program's.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt.assemble import build_model
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import (
    BEYOND,
    COPY_AGAIN,
    SWITCH,
    TEXT,
    ValueKind,
    check_values,
    check_weights,
    read_object,
    real_number,
    whole_number,
)
from sparsenmt.importers.foreign_model import ForeignModel
from sparsenmt.importers.huggingface_search import SEARCH_KEYS, SEARCH_KINDS, SearchSettings, decoding_settings, listed
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers, tokenizer_limit
from sparsenmt.model.embeddings import Wavelengths, sinusoids
from sparsenmt.model.protocol import NEVER
from sparsenmt.model.transformer import Tie, table_keys
from sparsenmt.recipe import schema
from sparsenmt.recipe.errors import show
from sparsenmt.storage.files import invalid_file, regular_file
from sparsenmt.storage.tensors import load_foreign_tensors
from sparsenmt.transformers_names import LAYER_NAMES

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"  # of weights in several files
_UNUSED = frozenset({"model.encoder.version", "model.decoder.version"})  # in old files
_MOST_SHARED = 16  # times that all tensors may be as large as the file, as they may share their values
_SHARED, _OUTPUT = "model.shared.weight", "lm_head.weight"
_EMBEDDED = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_TIED = _EMBEDDED[1], _OUTPUT  # of a model of two vocabularies
_SAME_TABLE = 2e-3  # distance of sinusoids that were stored in half precision


PADDING = "pad_token_id"
_M2M_100 = {"activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1}
_CLASSES: dict[str, tuple[str, ...]] = {
    "marian": ("Marian",),
    "bart": ("Bart", "Roberta"),
    "mbart": ("MBart", "MBart50"),
    "pegasus": ("Pegasus",),
    "m2m_100": ("M2M100", "Nllb"),
}
_DESCRIBED = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})  # classes of any ``tokenizer.json``


@dataclass(frozen=True)
class Family:
    """A family of models: what its configuration does not say, or leaves out.

    Args:
        positions: ``learned``: of a table whose first two rows are not used; ``paper``: sinusoids, unless the weights
            have a table; ``after_padding``: sinusoids that begin after the id of the padding.
        output_bias: the output may have a bias.
        padding_comes: the padding has a share of the softmax. Marian has no such token; Transformers gives it a row of
            zeros, whose logit is 0.
        defaults: of keys that a configuration may lack.
    """

    title: str
    norm: Literal["pre", "post"]
    positions: Literal["learned", "paper", "after_padding"]
    embedding_norm: bool = False
    output_bias: bool = True
    padding_comes: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "marian": Family("Marian (OPUS-MT)", "post", "paper", padding_comes=False),
    "bart": Family("BART", "post", "learned", embedding_norm=True),
    "mbart": Family("mBART", "pre", "learned", embedding_norm=True),
    "pegasus": Family("PEGASUS", "pre", "paper", defaults={PADDING: 0}),
    "m2m_100": Family("M2M-100 or NLLB", "pre", "after_padding", output_bias=False, defaults=_M2M_100),
}
"""By `model_type` of the configuration."""

_DEFAULTS: dict[str, Any] = {
    **{"activation_function": "gelu", "scale_embedding": False, "max_position_embeddings": 1024, PADDING: 1},
    **{"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "tie_word_embeddings": True},
}
_ACTIVATIONS = {
    **{"relu": "relu", "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
}
_SIZE, _LAYERS, _COUNT = whole_number(1, 1 << 16), whole_number(1, 1000), whole_number(0, 1 << 20)
_ROWS, _POSITIONS, _RATE = whole_number(1, 1 << 22), whole_number(1, 1 << 17), real_number(0, 0.999)
_KINDS: dict[str, ValueKind] = {
    **{"model_type": TEXT, "activation_function": TEXT, "scale_embedding": SWITCH, "tie_word_embeddings": SWITCH},
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), _SIZE),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), _LAYERS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), _LAYERS),
    **{"vocab_size": _ROWS, "decoder_vocab_size": _ROWS, "max_position_embeddings": _POSITIONS},
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), _RATE),
    **SEARCH_KINDS,
}
"""The values that keys of the configuration may have."""


def read(directory: Path) -> ForeignModel:
    """Convert a model of Transformers.

    Raises:
        UserError: the architecture is not among `FAMILIES`, or a file is missing or does not fit.
    """
    config = Config.read(directory)
    _check_tokenizer_class(directory, config)
    tokens = HuggingFaceTokenizers.read(directory, config.values)
    found = convert(config, read_weights(directory), tokens.tokenizers, tokens.source_ids, tokens.target_ids)
    sides = zip(("source_language", "target_language"), tokens.languages, strict=True)
    found.recipe["decoding"] |= {key: code for key, code in sides if code is not None}
    more = *tokens.notes, *_token_notes(config.search, tokens), *_bare_notes(directory)
    return replace(found, notes=(*found.notes, *more))


def _check_tokenizer_class(directory: Path, config: Config) -> None:
    """Raise UserError for a tokenizer whose class is not one of the family's: it may put other tokens around a text."""
    path = directory / TOKENIZER_CONFIG
    for file, values in ((path, read_object(path) if path.exists() else {}), (config.path, config.values)):
        name = values.get("tokenizer_class")
        if name is None:
            continue
        known = [f"{each}Tokenizer" for each in (*_CLASSES[config.values["model_type"]], "Marian")]
        if (directory / "tokenizer.json").is_file():
            known += _DESCRIBED
        if not isinstance(name, str) or name.removesuffix("Fast") not in {each.removesuffix("Fast") for each in known}:
            raise UserError(
                f"the tokenizer {show(name)} is none of the family {config.family.title}",
                where=f"{file}: tokenizer_class",
                hint="It may divide text otherwise, or put other tokens around it. If it does not, replace the name by "
                f"{known[0]}, and compare the tokens.",
            )
        return


def _token_notes(search: SearchSettings, tokens: HuggingFaceTokenizers) -> list[str]:
    """Notes on tokens with which the decoder begins and ends here, and not in Transformers."""
    frames, ids, notes = tokens.tokenizers.frames, tokens.target_ids.tolist(), []
    if search.ends and search.ends[0] != ids[EOS]:
        notes.append(
            f"eos_token_id: {search.ends[0]} is not the tokenizer's end of a text, {ids[EOS]}, which ends outputs."
        )
    if frames.target_start == BOS and search.start is not None and search.start != ids[BOS]:
        notes.append(f"decoder_start_token_id: {search.start} is left out: the decoder begins with {ids[BOS]}.")
    forced = listed(search.values.get("forced_bos_token_id"))
    languages = {ids[id_] for id_ in frames.languages.values()}
    prefix = {ids[id_] for id_ in frames.target_prefix if isinstance(id_, int)}
    first = languages if frames.target_prefix == ["target"] else prefix
    if forced and not (len(forced) == 1 and forced[0] in first):
        notes.append(f"forced_bos_token_id: {forced[0]} is left out: outputs of this model begin without it.")
    if not forced and frames.target_prefix == ["target"] and search.start in languages:
        notes.append("The decoder begins with two languages, the second of which Transformers does not give it.")
    return notes


def _bare_notes(directory: Path) -> list[str]:
    """A note if a tokenizer that is all in ``tokenizer.json`` puts no tokens around a source."""
    path, settings = directory / "tokenizer.json", directory / TOKENIZER_CONFIG
    if not (path.is_file() and settings.is_file() and read_object(settings).get("tokenizer_class") in _DESCRIBED):
        return []
    around = json.dumps(read_object(path).get("post_processor"))
    if '"cls"' in around or '"SpecialToken"' in around:
        return []
    return ["tokenizer.json puts no tokens around a source; here it has those of its family, as its end."]


@dataclass(frozen=True)
class Config:
    """The configuration of a model: ``config.json``, with the ids of tokens that its search has, and that search."""

    path: Path
    family: Family
    values: Mapping[str, Any]
    search: SearchSettings

    @classmethod
    def read(cls, directory: Path) -> Config:
        """Read the configuration.

        Raises:
            UserError: a file is missing or broken, or the architecture cannot be imported.
        """
        path = directory / CONFIG
        values = read_object(path)
        kind = values.get("model_type")
        family = FAMILIES.get(kind) if isinstance(kind, str) else None
        if family is None:
            names = ", ".join(f"{each.title} ({name})" for name, each in FAMILIES.items())
            raise UserError(
                f"models of the type {show(kind)} cannot be imported",
                where=f"{path}: model_type",
                hint=f"Name a model of one of these types: {names}; or one of Marian's own files.",
            )
        check_values(values, _KINDS, path)
        search = SearchSettings.read(directory, values)
        own = {key: value for key, value in values.items() if value is not None and key not in SEARCH_KEYS - {PADDING}}
        forced = listed(search.values.get("forced_bos_token_id"))
        firsts = {"decoder_start_token_id": search.start, "eos_token_id": next(iter(search.ends), None)}
        firsts["forced_bos_token_id"] = forced[0] if len(forced) == 1 else None
        of_search = {**search.values, **firsts}
        known = {key: value for key, value in of_search.items() if value is not None}
        found = cls(path, family, {**_DEFAULTS, **family.defaults, **known, **own}, search)
        rows = max(found.number("vocab_size"), int(found.values.get("decoder_vocab_size") or 0))
        for key in (PADDING, "eos_token_id", "decoder_start_token_id", "forced_bos_token_id"):
            ids = listed(found.values.get(key))
            if any(id_ >= rows for id_ in ids) and (key in search.values or key in own):
                raise UserError(
                    f"{key} is {max(ids)}, but the tables have {rows} rows", where=f"{path}: {key}", hint=COPY_AGAIN
                )
        return found

    def number(self, key: str) -> int:
        """A size; UserError if it is missing."""
        value = self.values.get(key)
        if value is None:
            raise UserError(f"the size {key} is missing", where=str(self.path), hint=COPY_AGAIN)
        return int(value)

    def model(self) -> dict[str, Any]:
        """The `model` section of the recipe, but for what only weights and vocabularies say."""
        name = self.values["activation_function"]
        if name not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise UserError(
                f"the activation {show(name)} cannot be imported",
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


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights of a model: one, or those of an index.

    Raises:
        UserError: there are none.
    """
    for name in _WEIGHTS:
        if (directory / name).exists():
            return [directory / name]
        if (index := directory / f"{name}{_INDEX}").exists():
            found = read_object(index).get("weight_map")
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
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        found = _tensors_of(path)
        check_weights(found, path)
        if twice := sorted(found.keys() & tensors.keys()):
            raise UserError(f"{twice[0]} is in two files of the index", where=str(path), hint=COPY_AGAIN)
        tensors |= {name: tensor.float() for name, tensor in found.items()}
    if not any(name.startswith("model.") for name in tensors):  # saved without the output layer
        tensors = {name if name.startswith("lm_head.") else f"model.{name}": each for name, each in tensors.items()}
    return tensors


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_foreign_tensors(path, hint=COPY_AGAIN)
    try:
        with warnings.catch_warnings(), open(path, "rb", opener=regular_file) as stream:
            warnings.simplefilter("ignore")  # old pickle protocols
            size = stream.seek(0, io.SEEK_END)
            if zipfile.is_zipfile(stream):  # PyTorch stores tensors as they are
                members = zipfile.ZipFile(stream).infolist()
                if any(each.compress_type for each in members) or sum(each.file_size for each in members) > size:
                    raise ValueError
            stream.seek(0)
            loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except OSError as error:
        problem = error.strerror or "cannot be read"
    except (RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        problem = "is truncated or damaged"
    except Exception:  # of the reader of pickles
        raise UserError(
            "is damaged, or holds other objects than tensors, which are never loaded: they could run any program",
            where=str(path),
            hint="Name a directory with model.safetensors, or save the weights with `torch.save(model.state_dict())`.",
        ) from None
    else:
        if _are_tensors(loaded, _MOST_SHARED * size):
            return dict(loaded)
        problem = "is not a dictionary of tensors by name"
    raise UserError(problem, where=str(path), hint=COPY_AGAIN)


def _are_tensors(loaded: Any, most: int) -> bool:
    """Return True for tensors by name with no more bytes than ``most``; a pickle can repeat values without end."""
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        return False
    tensors = [each for each in loaded.values() if isinstance(each, Tensor)]
    return len(tensors) == len(loaded) and sum(each.numel() * each.element_size() for each in tensors) <= most


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
    source, target, output, notes = _tables(config, taken)
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
    bias = _bias(config.family, taken, output.shape[0], target_ids)
    section = {**config.model(), **position_keys, "tie_embeddings": tie, "output_bias": bias is not None}
    if bias is not None:
        weights["output_bias"] = bias
    with torch.device("meta"):
        sizes = {"source_size": len(source_ids), "target_size": len(target_ids)}
        try:
            expected = build_model(schema.Model.model_validate(section), **sizes, seed=0).state_dict()
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"its sizes do not belong together: {reason}", where=str(config.path), hint=BEYOND
            ) from None
    for name, like in expected.items():
        if name not in weights:
            weights[name] = taken.take(_their_name(name), tuple(like.shape))
    taken.check_all_taken()
    notes += config.search.notes
    pad, unknown, start, *others = target_ids.tolist()
    decoding, more = decoding_settings(
        config.search.values,
        len(tokenizers.frames.target_prefix),
        unknown=unknown,
        never={pad, start} - {unknown, *others},
        padding_comes=config.family.padding_comes,
    )
    notes += more
    if unnamed := output.shape[0] - len(set(target_ids.tolist()) - {-1}):
        notes.append(f"{unnamed:,} rows of the output are left out: the tokenizer has no token for them.")
    recipe = {"model": section, "data": {"tokenizer": {"shared": tokenizers.shared}}, "decoding": decoding}
    most = config.number("max_position_embeddings")
    text = TextSides((min(most, tokenizer_limit(config.path.parent) or most) - 1, most - 1))  # `</s>` not counted
    return ForeignModel(recipe, weights, tokenizers, tuple(notes), text=text)


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
                hint=COPY_AGAIN,
            )
        return found

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a name; UserError without it, or if its shape is another one."""
        found = self.get(name, shape)
        if found is None:
            raise UserError(
                f"{name} is missing; expected: a tensor of the shape {_shape(shape)}",
                where=str(self._place),
                hint=COPY_AGAIN,
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
        return {"first_position": int(config.values[PADDING]) + 1}, {}
    if kind == "learned":
        tables = {side: taken.take(name, (length + 2, size))[2:] for side, name in names.items()}
    else:
        found = {side: taken.get(name, (length, size)) for side, name in names.items()}
        tables = {side: table for side, table in found.items() if table is not None}
        if not tables:
            return {"sinusoids": "paper"}, {}
        kinds: tuple[Wavelengths, ...] = ("paper", "tensor2tensor")
        for wavelengths in kinds:
            expected = sinusoids(length, size, wavelengths).float()
            if all(float((table - expected).abs().max()) < _SAME_TABLE for table in tables.values()):
                return {"sinusoids": wavelengths}, {}
        tables = {side: taken.take(name, (length, size)) for side, name in names.items()}
    return {"positions": "learned"}, {f"positions.{side}.weight": table for side, table in tables.items()}


def _tables(config: Config, taken: _Tensors) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """(V, D) embeddings of the source and of the target, and the matrix of the output; notes on contradictions.

    Of tables that the configuration ties, each is used as it is stored; of those that are not stored, the shared one.
    """
    size, rows = config.number("d_model"), config.number("vocab_size")
    target_rows = int(config.values.get("decoder_vocab_size") or rows)
    places = {_SHARED: rows, _EMBEDDED[1]: target_rows, _EMBEDDED[0]: rows, _OUTPUT: target_rows}
    stored = {name: table for name, count in places.items() if (table := taken.get(name, (count, size))) is not None}
    tied = bool(config.values["tie_word_embeddings"])
    together = tied and config.values.get("share_encoder_decoder_embeddings") is not False
    shared = next(iter(stored.values()), None) if together else stored.get(_SHARED)
    source, target = (stored.get(name, shared) for name in _EMBEDDED)
    if source is None or target is None:
        source = taken.take(_SHARED, (rows, size))
        target = source if target is None else target
    output = stored.get(_OUTPUT)
    if output is None:
        again = shared if together and shared is not None else target
        output = again if tied else taken.take(_OUTPUT, (target_rows, size))
    one = [*stored] if together else [name for name in _TIED if name in stored] if tied else []
    if any(not _equal(stored[one[0]], stored[name]) for name in one):
        names = ", ".join(one)
        return (
            source,
            target,
            output,
            [
                f"{CONFIG} says that these tables are one, and the weights have different ones: {names}. Each is used "
                f"as it is stored, as in Transformers 5; earlier versions take {one[0]} for all."
            ],
        )
    return source, target, output, []


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """(V, D), (W) -> (W, D): the rows of these ids, zeros for -1."""
    return table[ids.clamp_min(0)] * (ids >= 0)[:, None]


def _bias(family: Family, taken: _Tensors, rows: int, ids: Tensor) -> Tensor | None:
    """(W) the bias of the output; None: it is 0. A token that they do not have, or that is there twice, never comes."""
    theirs = taken.get("final_logits_bias", (1, rows)) if family.output_bias else None
    bias = torch.zeros(len(ids)) if theirs is None else theirs[0][ids.clamp_min(0)]
    bias[ids < 0] = NEVER
    if not family.padding_comes or int(ids[PAD]) in (int(ids[UNK]), int(ids[EOS])):
        bias[PAD] = NEVER
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
