"""Tokenizers of Hugging Face directories, and the places of their ids in tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.tokenizers.frame import TAG, Frames
from sparsenmt.data.tokenizers.pipeline_tokenizer import RANDOM
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.families.family import Family, load_family
from sparsenmt.importers.families.table import FAMILIES
from sparsenmt.importers.families.tokens import PIPELINE, TokenizerFiles, TokenOrder, Tokens, incomplete, read_pipeline
from sparsenmt.recipe.errors import show

_PAIR = ("source.spm", "target.spm")
_DESCRIBED = frozenset({"PreTrainedTokenizer", "TokenizersBackend"})  # classes of any ``tokenizer.json``
_SHOWN = 8  # tokens in a note


@dataclass(frozen=True)
class HuggingFaceTokenizers:
    """Tokenizers, and the id there of each id here: rows of their tables in this program's order; -1: no such token.

    Args:
        languages: codes of source and target that the directory names; None: none.
        limit: the most tokens of a source, `</s>` counted, that the settings name; None: they name none.
        notes: what differs from the files, and what was added to the model's tokens.
    """

    tokenizers: Tokenizers
    source_ids: Tensor
    target_ids: Tensor
    languages: tuple[str | None, str | None] = (None, None)
    limit: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizers:
        """Read the tokenizers of a directory.

        Args:
            config: of the model: its ``config.json``, with what ``generation_config.json`` says beside it.

        Raises:
            UserError: a file is missing, damaged, or does not fit the others.
        """
        family = load_family(config["model_type"])
        files = TokenizerFiles(directory, config, family.language)
        if family.read_tokens is None or files.path(_PAIR[0]):  # also what `export` writes
            found = _read_pair(replace(files, language=TAG))
        else:
            own = files.path(*family.own_files) or not files.path(PIPELINE)
            tokens = family.read_tokens(files) if own else read_pipeline(files)
            order = TokenOrder.of(tokens.names, files, rows=config["vocab_size"])
            tokenizer = tokens.tokenizer(order, directory)
            frames = _frames(family, tokens, order, files)
            ids = torch.tensor(order.theirs)
            notes = (*_notes(tokens, files), *_template_notes(tokens, order, frames, files))
            tokenizers = Tokenizers(tokenizer, tokenizer, True, frames)
            found = cls(tokenizers, ids, ids, _default_languages(tokens, files), notes=notes)
        limit = files.settings.get("model_max_length")
        return replace(found, limit=limit if type(limit) is int and 1 < limit < 1 << 30 else None)  # 10^30: none


def _class_of(name: object) -> str | None:
    """The name of a tokenizer's class; the fast one of a family has the same."""
    return name.removesuffix("Fast") if isinstance(name, str) else None


def check_class(files: TokenizerFiles, family: Family) -> None:
    """Raise UserError for a tokenizer whose class is not one of the family's: it may put other tokens around a text."""
    for file, values in ((files.settings_path, files.settings), (files.directory / "config.json", files.config)):
        name = values.get("tokenizer_class")
        if name is None:
            continue
        known = [f"{each}Tokenizer" for each in (*family.tokenizers, "Marian")]
        if _class_of(name) not in {*known, *(_DESCRIBED if files.path(PIPELINE) else ())}:
            raise UserError(
                f"the tokenizer {show(name)} is none of the family {FAMILIES[files.config['model_type']].title}",
                where=f"{file}: tokenizer_class",
                hint="It may divide text otherwise, or put other tokens around it. If it does not, replace the name by "
                f"{known[0]}, and compare the tokens.",
            )
        return


def _frames(family: Family, tokens: Tokens, order: TokenOrder, files: TokenizerFiles) -> Frames:
    """The frames of a family."""
    if tokens.languages:
        languages = {code: order.places[id_] for code, id_ in tokens.languages.items()}
        return replace(family.language_frames(files, languages), languages=languages)
    forced = files.config.get("forced_bos_token_id")
    begins = family.begins and "<s>" in tokens.names
    return Frames(
        source_prefix=[order.places[tokens.names.index("<s>")]] if begins else [],
        target_prefix=[order.places[forced]] if isinstance(forced, int) and forced in order.places else [],
    )


def _default_languages(tokens: Tokens, files: TokenizerFiles) -> tuple[str | None, str | None]:
    """The languages of source and target that a directory names."""
    codes = {id_: code for code, id_ in tokens.languages.items()}
    ids = [files.config.get(f"{key}_token_id") for key in ("forced_bos", "decoder_start")]
    forced = [codes.get(id_) if isinstance(id_, int) else None for id_ in ids]
    given = [files.settings.get(key) for key in ("src_lang", "tgt_lang")]
    named = [code if isinstance(code, str) and code in tokens.languages else None for code in given]
    return named[0], next((code for code in (*forced, named[1]) if code), None)


def _read_pair(files: TokenizerFiles) -> HuggingFaceTokenizers:
    """Read an OPUS-MT model: a SentencePiece model for each side, and one vocabulary, or two."""
    separate = bool(files.settings.get("separate_vocabs", files.path("target_vocab.json")))
    path = files.required("vocab.json")
    paths = [path, files.required("target_vocab.json") if separate else path]
    rows = [files.config["vocab_size"], files.config.get("decoder_vocab_size") or files.config["vocab_size"]]
    sides = []
    for name, vocabulary, size in zip(_PAIR, paths, rows, strict=True):
        model, _ = files.sentencepiece(name)
        names = files.vocabulary(vocabulary)
        markers = {id_ for id_, each in enumerate(names) if files.language_of(each)}
        tokens = Tokens(names, frozenset(markers), sentencepiece=model).with_added(files)
        if separate and tokens.added:
            raise UserError(
                f"the token {tokens.added[0].content!r} was added to a model with two vocabularies",
                where=str(files.directory),
                hint="It is not known to which of them it belongs: remove it, and its rows of the tables.",
            )
        order = TokenOrder.of(tokens.names, files, size)
        if order.theirs[UNK] < 0:
            raise incomplete(vocabulary, "the vocabulary has no <unk>")
        sides.append((tokens, order, tokens.tokenizer(order, files.directory)))
    (tokens, order, source), (other, target_order, target) = sides
    if not separate and tokens.sentencepiece == other.sentencepiece:
        target = source
    languages = {code: order.places[id_] for code, id_ in tokens.languages.items()}
    frames = Frames(languages, source_prefix=["target"] if languages else [])
    ids = torch.tensor(order.theirs), torch.tensor(target_order.theirs)
    notes = (*_notes(tokens, files), *_template_notes(tokens, order, frames, files))
    return HuggingFaceTokenizers(Tokenizers(source, target, not separate, frames), *ids, notes=notes)


def _notes(tokens: Tokens, files: TokenizerFiles) -> tuple[str, ...]:
    """The tokens that were added, and what a tokenizer was saved with and is not used."""
    notes = []
    if tokens.added:
        named = ", ".join(token.content for token in tokens.added[:_SHOWN])
        more = ", ..." if len(tokens.added) > _SHOWN else ""
        notes.append(f"Added tokens, each of which is one token wherever it stands in a text: {named}{more}.")
        if tokens.sentencepiece and not files.path("vocab.json"):
            notes.append(f"A space before them belongs to no token; fast tokenizers make one of it, {SPACE!r}.")
    known = {token.content for token in tokens.added} | set(tokens.names)
    if lost := [token for token in files.special() if token not in known]:
        more = ", ..." if len(lost) > _SHOWN else ""
        notes.append(f"Special tokens without an id are text: {', '.join(lost[:_SHOWN])}{more}.")
    settings = files.settings.get("sp_model_kwargs")
    if isinstance(settings, dict) and settings.get("enable_sampling"):
        notes.append("`enable_sampling` of the tokenizer is off: a text is divided in one way.")
    model = json.loads(tokens.description).get("model") if tokens.description else {}
    for key in (key for key in RANDOM if isinstance(model, dict) and model.get(key)):
        notes.append(f"`{key}` of the tokenizer is off: a text is divided in one way.")
    return tuple(notes)


def _template_notes(tokens: Tokens, order: TokenOrder, frames: Frames, files: TokenizerFiles) -> Iterator[str]:
    """A note, if the post-processor of ``tokenizer.json`` puts other tokens around a source than its family has.

    It decides in Transformers where the file describes the tokenizer, by its class, or since there is no other one.
    """
    text, language = "TEXT", "LANGUAGE"
    described = _class_of(files.settings.get("tokenizer_class")) in _DESCRIBED
    if not files.path(PIPELINE) or not (tokens.description or described):
        return
    post, found = files.object(PIPELINE).get("post_processor") or {}, list[str]()
    try:
        for step in post.get("processors", [post]):
            if step.get("type") == "TemplateProcessing":
                found = [each["SpecialToken"]["id"] if "SpecialToken" in each else text for each in step["single"]]
            elif step.get("type") in ("RobertaProcessing", "BertProcessing"):
                found = [step["cls"][0], text, step["sep"][0]]
        found = [language if files.language_of(each) else each for each in found]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise incomplete(files.directory / PIPELINE, "not a post-processor") from None
    places = [*frames.source_prefix, text, EOS, *frames.source_suffix]
    names = {place: tokens.names[order.theirs[place]] for place in places if isinstance(place, int)}
    own = [names[place] if isinstance(place, int) else text if place == text else language for place in places]
    if described and found in ([], [text]):
        yield f"{PIPELINE} puts no tokens around a source; here it has those of its family, as its end."
    elif found and found != own:
        yield f"Sources are {' '.join(own)}, as in its family, not {' '.join(found)} of `{PIPELINE}`."
