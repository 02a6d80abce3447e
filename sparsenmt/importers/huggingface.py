"""Models of Hugging Face Transformers: a directory with ``config.json``, weights, and the files of a tokenizer.

Most families share one architecture (that of BART), and differ in what `families.family.Family` lists. Transformers is
not needed.

Shapes: D model dimension, P positions, V their vocabulary, W this program's.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.families.family import UNUSED_POSITIONS, Family, load_family
from sparsenmt.importers.families.table import FAMILIES
from sparsenmt.importers.families.tokens import TokenizerFiles
from sparsenmt.importers.foreign_files import (
    COPY_AGAIN,
    SWITCH,
    TEXT,
    ForeignTensors,
    ValueKind,
    check_values,
    check_weights,
    read_object,
    real_number,
    unfit,
    whole_number,
)
from sparsenmt.importers.foreign_model import ForeignModel, expected_weights
from sparsenmt.importers.huggingface_search import SEARCH_KEYS, SEARCH_KINDS, SearchSettings, decoding_settings, listed
from sparsenmt.importers.huggingface_tokenizers import HuggingFaceTokenizers, check_class
from sparsenmt.model.embeddings import Wavelengths, sinusoids
from sparsenmt.model.protocol import NEVER
from sparsenmt.model.transformer import Tie, table_keys
from sparsenmt.recipe.errors import show
from sparsenmt.storage.files import invalid_file, regular_file
from sparsenmt.storage.tensors import load_foreign_tensors

CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_INDEX = ".index.json"  # of weights in several files
_UNUSED = ("model.encoder.version", "model.decoder.version")  # in old files
_MOST_SHARED = 16  # times that all tensors may be as large as the file, as they may share their values
_SHARED, _OUTPUT = "model.shared.weight", "lm_head.weight"
_EMBEDDED = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_TIED = _EMBEDDED[1], _OUTPUT  # of a model of two vocabularies
_SAME_TABLE = 2e-3  # distance of sinusoids that were stored in half precision
PADDING = "pad_token_id"
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


def recognizes(source: Path) -> bool:
    """Return True if this is a directory with ``config.json``."""
    return (source / CONFIG).is_file()


def read(directory: Path, vocabularies: Sequence[Path] = ()) -> ForeignModel:
    """Convert a model of Transformers.

    Args:
        vocabularies: must be empty: they are those of the directory.

    Raises:
        UserError: the architecture is not among `FAMILIES`, or a file is missing or does not fit.
    """
    if vocabularies:
        raise UserError(
            f"{directory} has its tokenizers beside its weights",
            where="--vocabulary",
            hint="Leave it out: it belongs to a single .npz or .bin file of Marian.",
        )
    config = Config.read(directory)
    check_class(TokenizerFiles(directory, config.values), config.family)
    tokens = HuggingFaceTokenizers.read(directory, config.values)
    files = weight_files(directory)
    found = convert(config, read_weights(files), tokens)
    sides = zip(("source_language", "target_language"), tokens.languages, strict=True)
    found.recipe["decoding"] |= {key: code for key, code in sides if code is not None}
    notes = *found.notes, *tokens.notes, *_token_notes(config.search, tokens)
    return replace(found, files=tuple(files), notes=notes)


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
        if not isinstance(kind, str) or kind not in FAMILIES:
            names = ", ".join(f"{each.title} ({name})" for name, each in FAMILIES.items())
            raise UserError(
                f"models of the type {show(kind)} cannot be imported",
                where=f"{path}: model_type",
                hint=f"Name a model of one of these types: {names}; or one of Marian's own files.",
            )
        family = load_family(kind)
        check_values(values, {**_KINDS, **family.kinds}, path)
        search = SearchSettings.read(directory, values)
        own = {key: value for key, value in values.items() if value is not None and key not in SEARCH_KEYS - {PADDING}}
        forced = listed(search.values.get("forced_bos_token_id"))
        firsts = {"decoder_start_token_id": search.start, "eos_token_id": next(iter(search.ends), None)}
        firsts["forced_bos_token_id"] = forced[0] if len(forced) == 1 else None
        of_search = {**search.values, **firsts}
        known = {key: value for key, value in of_search.items() if value is not None}
        found = cls(path, family, {**_DEFAULTS, **family.keys({**family.defaults, **known, **own})}, search)
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
            raise unfit(self.path, f"the size {key} is missing")
        return int(value)

    def model(self) -> dict[str, Any]:
        """The `model` section of the recipe, but for what only weights and vocabularies say."""
        name = self.values["activation_function"]
        if name not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            key = next(key for key in ("feed_forward_proj", "activation_function") if key in self.values)
            raise UserError(
                f"the activation {show(name)} cannot be imported",
                where=f"{self.path}: {key}",
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
            **self.family.model(self.values),
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


def read_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """Read all tensors of a model in fp32, of one file or of several.

    Raises:
        UserError: a file is missing or truncated, or a pickle has more than tensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        found = _tensors_of(path)
        check_weights(found, path)
        if twice := sorted(found.keys() & tensors.keys()):
            raise unfit(path, f"{twice[0]} is in two files of the index")
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
    raise unfit(path, problem)


def _are_tensors(loaded: Any, most: int) -> bool:
    """Return True for tensors by name with no more bytes than ``most``; a pickle can repeat values without end."""
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        return False
    tensors = [each for each in loaded.values() if isinstance(each, Tensor)]
    return len(tensors) == len(loaded) and sum(each.numel() * each.element_size() for each in tensors) <= most


def convert(config: Config, tensors: Mapping[str, Tensor], tokens: HuggingFaceTokenizers) -> ForeignModel:
    """Convert the weights of a model.

    Args:
        tensors: by their names in Transformers.

    Raises:
        UserError: a tensor is missing, too many, or of another shape.
    """
    taken = ForeignTensors(tensors, config.path.parent, CONFIG)
    taken.ignore(*_UNUSED, *config.family.unused)
    position_keys, weights = _positions(config, taken)
    source, target, output, notes = _tables(config, taken)
    target_ids = tokens.target_ids
    tie: Tie
    if tokens.tokenizers.shared and _equal(source, target):
        tie = "all" if _equal(target, output) else "inputs"
    else:
        tie = "target" if _equal(target, output) else "none"
    uses = (source, tokens.source_ids), (target, target_ids), (output, target_ids)
    for name, (table, ids) in zip(table_keys(tie), uses, strict=True):
        if int(ids.max()) >= table.shape[0]:
            raise UserError(
                f"the vocabulary has the id {int(ids.max())}, but the embeddings have {table.shape[0]} rows",
                where=str(config.path),
                hint="Check that tokenizer and weights are of one model.",
            )
        weights.setdefault(f"embeddings.{name}", table[ids.clamp_min(0)] * (ids >= 0)[:, None])  # zeros for -1
    bias = _bias(config.family, taken, output.shape[0], target_ids)
    section = {**config.model(), **position_keys, "tie_embeddings": tie, "output_bias": bias is not None}
    if bias is not None:
        weights["output_bias"] = bias
    for name, shape in expected_weights(section, config.path, len(tokens.source_ids), len(target_ids)).items():
        if name not in weights:
            weights[name] = config.family.take(taken, config.values, name, shape)
    taken.check_all_taken(
        "Check that weights and configuration are of one model, and that it is one that generates text."
    )
    pad, unknown, start, *others = target_ids.tolist()
    decoding, more = decoding_settings(
        config.search.values,
        len(tokens.tokenizers.frames.target_prefix),
        unknown=unknown,
        never={pad, start} - {unknown, *others},
        padding_comes=config.family.padding_comes,
    )
    decoding |= {"long": "cut"} if config.family.summarizes else {}
    notes += [*config.search.notes, *more]
    if unnamed := output.shape[0] - len(set(target_ids.tolist()) - {-1}):
        notes.append(f"{unnamed:,} rows of the output are left out: the tokenizer has no token for them.")
    recipe = {"model": section, "data": {"tokenizer": {"shared": tokens.tokenizers.shared}}, "decoding": decoding}
    most = config.number("max_position_embeddings")
    text = TextSides((min(most, tokens.limit or most) - 1, most - 1))  # `</s>` not counted
    return ForeignModel(recipe, weights, tokens.tokenizers, tuple(notes), text=text)


def _positions(config: Config, taken: ForeignTensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys of positions, and the weights of learned ones."""
    length, size, kind = config.number("max_position_embeddings"), config.number("d_model"), config.family.positions
    names = {"source": "model.encoder.embed_positions.weight", "target": "model.decoder.embed_positions.weight"}
    if kind == "none":
        return {"positions": "none"}, {}
    if kind == "after_padding":
        for name in names.values():  # of old files
            taken.ignore(name, f"{name}s")
        return {"first_position": int(config.values[PADDING]) + 1}, {}
    if kind == "learned":
        tables = {
            side: taken.take(name, (length + UNUSED_POSITIONS, size))[UNUSED_POSITIONS:] for side, name in names.items()
        }
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


def _tables(config: Config, taken: ForeignTensors) -> tuple[Tensor, Tensor, Tensor, list[str]]:
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
    notes = []
    if any(not _equal(stored[one[0]], stored[name]) for name in one):
        notes.append(
            f"{CONFIG} says that these tables are one, and the weights have different ones: {', '.join(one)}. Each is "
            f"used as it is stored, as in Transformers 5; earlier versions take {one[0]} for all."
        )
    return source, target, output, notes


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _bias(family: Family, taken: ForeignTensors, rows: int, ids: Tensor) -> Tensor | None:
    """(W) the bias of the output; None: it is 0. A token that they do not have, or that is there twice, never comes."""
    theirs = taken.get("final_logits_bias", (1, rows)) if family.output_bias else None
    bias = torch.zeros(len(ids)) if theirs is None else theirs[0][ids.clamp_min(0)]
    bias[ids < 0] = NEVER
    if not family.padding_comes or int(ids[PAD]) in (int(ids[UNK]), int(ids[EOS])):
        bias[PAD] = NEVER
    if int((ids == ids[BOS]).sum()) > 1:  # the decoder begins with a token that has a place of its own
        bias[BOS] = NEVER
    return bias if bool(bias.any()) else None
