"""Tokenizers of Hugging Face directories, and the places of their ids in tables.

Vocabularies of this program begin with PAD, UNK, BOS and EOS; all other tokens follow in their own order. BOS is the
row with which their decoder begins, which is often that of another token: of EOS, or of padding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor

from sparsenmt.data.tokenizers.added_tokens import AddedToken
from sparsenmt.data.tokenizers.frame import TAG, Frames
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.pipeline_tokenizer import RANDOM, PipelineTokenizer, byte_pair_description
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, SPACE, SPECIAL_TOKENS, UNK
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import check_tokens, read_content, read_object
from sparsenmt.storage.files import without_mark

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
_SETTINGS, _ADDED = "tokenizer_config.json", "added_tokens_decoder"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
_TAKE_ALL = "Copy the whole directory as the original program wrote it."
_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART_50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_M2M = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_WMT_21 = "en ha is ja cs ru zh de"
_LANGUAGES = {
    "marian": TAG,
    "mbart": re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})"),
    "m2m_100": re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})|__([a-z]{2,3})__"),
}
"""The names of languages' tokens, with the code."""
_MASK = "<mask>"
_MASKS = re.compile(r"<mask(_[12])?>|<unk_\d+>")  # those of PEGASUS, too
_PEGASUS_OFFSET = 103
_MOST_BYTES = 1 << 28  # of a tokenizer's file
_SHOWN = 8  # tokens in a note


def tokenizer_limit(directory: Path) -> int | None:
    """The most tokens of a source, `</s>` counted, that the settings of a tokenizer name; None if they name none."""
    limit = _Files(directory, {}).object(_SETTINGS).get("model_max_length")
    return limit if type(limit) is int and 1 < limit < 1 << 30 else None  # 10 to the 30 stands for none


@dataclass(frozen=True)
class _Files:
    """The files of a directory."""

    directory: Path
    config: Mapping[str, Any]

    def path(self, *names: str) -> Path | None:
        """The first of these files that exists."""
        return next((path for name in names if (path := self.directory / name).is_file()), None)

    def required(self, *names: str) -> Path:
        """The first of these files that exists; UserError if none does."""
        if (path := self.path(*names)) is None:
            raise UserError(
                f"a file of the model's tokenizer is missing: {' or '.join(names)}",
                where=str(self.directory),
                hint=_TAKE_ALL,
            )
        return path

    def object(self, *names: str) -> dict[str, Any]:
        """The JSON object in the first of these files that exists; empty without one."""
        path = self.path(*names)
        return {} if path is None else read_object(path)

    def vocabulary(self, path: Path) -> list[str]:
        """The tokens of a ``vocab.json`` in the order of their ids; UserError unless the ids are 0 to V - 1."""
        values = read_object(path)
        ids = list(values.values())
        if not ids or not all(type(id_) is int for id_ in ids) or sorted(ids) != list(range(len(ids))):
            raise UserError("not a vocabulary: its ids are not 0 to V - 1", where=str(path), hint=_TAKE_ALL)
        return sorted(values, key=values.__getitem__)

    def added(self) -> dict[int, AddedToken]:
        """The tokens that are added to those of the model, by their ids there."""
        found: dict[int, AddedToken] = {}
        rows, special = self.config["vocab_size"], set(self.special())
        for file, key in (("tokenizer.json", "added_tokens"), ("added_tokens.json", ""), (_SETTINGS, _ADDED)):
            try:
                values = self.object(file)
                given = (values.get(key) if key else values) or {}
                if isinstance(given, list):
                    rows_of = [(token["id"], token) for token in given]
                elif key:
                    rows_of = [(int(id_), token) for id_, token in given.items()]
                else:
                    rows_of = [(id_, {"content": name, "special": name in special}) for name, id_ in given.items()]
                for id_, token in rows_of:
                    name = token["content"]
                    if type(id_) is not int or not 0 <= id_ < rows or not isinstance(name, str) or not name:
                        raise ValueError
                    flags = {flag: token.get(flag) is True for flag in ("special", "lstrip", "rstrip", "single_word")}
                    found[id_] = AddedToken(id_, name, **flags)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise UserError(
                    f"the added tokens are no names with ids below {rows:,}, the rows of the model's tables",
                    where=str(self.directory / file),
                    hint=_TAKE_ALL,
                ) from None
        return found

    def named(self) -> set[str]:
        """The tokens that the model itself has beside its text: end, padding and others, by any name."""
        found = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
        for name in ("special_tokens_map.json", _SETTINGS):
            for key in _NAMED:
                token = self.object(name).get(key)
                token = token.get("content") if isinstance(token, dict) else token
                found |= {token} if isinstance(token, str) else set()
        return found

    def language_of(self, name: str) -> str:
        """The code of a language's token, such as ``en_XX``, ``eng_Latn``, ``__en__`` or ``>>en<<``; "" of others."""
        found = self._languages.fullmatch(name) if self._languages else None
        return next(filter(None, found.groups()), "") if found else ""

    @cached_property
    def _languages(self) -> re.Pattern[str] | None:
        return _LANGUAGES.get("marian" if self.path("source.spm") else self.config["model_type"])

    def special(self) -> list[str]:
        """The additional special tokens in their order."""
        for name in ("special_tokens_map.json", _SETTINGS):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = self.object(name).get(key)
                if tokens and isinstance(tokens, list):
                    return [str(token.get("content") if isinstance(token, dict) else token) for token in tokens]
        return []


@dataclass(frozen=True)
class HuggingFaceTokenizers:
    """Tokenizers, and the id there of each id here: rows of their tables in this program's order; -1: no such token.

    Args:
        languages: codes of source and target that the directory names; None: none.
        notes: what differs from the files, and what was added to the model's tokens.
    """

    tokenizers: Tokenizers
    source_ids: Tensor
    target_ids: Tensor
    languages: tuple[str | None, str | None] = (None, None)
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizers:
        """Read the tokenizers of a directory.

        Args:
            config: of the model: its ``config.json``, with what ``generation_config.json`` says beside it.

        Raises:
            UserError: a file is missing, damaged, or does not fit the others.
        """
        files = _Files(directory, config)
        if config["model_type"] == "marian" or files.path("source.spm"):  # also what `export` writes
            return _read_marian(files)
        tokens = _read_tokens(files)
        order = _Order.of(tokens.names, files, rows=config["vocab_size"])
        tokenizer = tokens.tokenizer(order, files.directory)
        frames = _frames(tokens, order, files)
        ids = torch.tensor(order.theirs)
        languages = _default_languages(tokens, files)
        notes = (*_notes(tokens, files), *_template_notes(tokens, order, frames, files))
        return cls(Tokenizers(tokenizer, tokenizer, True, frames), ids, ids, languages, notes)


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a model.

    Args:
        names: by their ids.
        markers: their ids of tokens that are no text.
        languages: code -> its id.
        sentencepiece: the bytes of the model that divides text; or
        description: of a tokenizer of the `tokenizers` package.
        added: tokens that a user added; they are found in a text before it is divided.
    """

    names: list[str]
    markers: frozenset[int]
    languages: dict[str, int] = field(default_factory=dict)
    sentencepiece: bytes = b""
    description: bytes = b""
    added: tuple[AddedToken, ...] = ()

    def tokenizer(self, order: _Order, place: Path) -> Tokenizer:
        """The tokenizer with the ids of this program; ``place`` is named in messages."""
        first = len(SPECIAL_TOKENS)
        markers = [
            id_ for id_, their in enumerate(order.theirs) if id_ >= first and their in self.markers | order.unused
        ]
        added = [replace(token, id=order.places[token.id]) for token in self.added]
        if self.sentencepiece:
            return PieceTokenizer(self.sentencepiece, order.names, markers, added)
        hidden = [token.id for token in added if token.special]
        try:
            return PipelineTokenizer(self.description, order.theirs[first:], order.names, markers, hidden)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"not a tokenizer: {reason}", where=str(place), hint=_TAKE_ALL) from None


@dataclass(frozen=True)
class _Order:
    """The tokens in the order of this program.

    Args:
        theirs: the id there of each id here; -1: no such token.
        names: of the tokens after the special ones.
        places: the id here of each id there; BOS only of a token that has no other.
        unused: their ids of rows without a token.
    """

    theirs: list[int]
    names: list[str]
    places: dict[int, int]
    unused: frozenset[int]

    @classmethod
    def of(cls, names: Sequence[str], files: _Files, rows: int) -> _Order:
        """Put the special tokens first. ``names`` by their ids; ``rows`` of the table."""
        check_tokens(names, files.directory)
        if len(names) > rows:
            message = f"the tokenizer has {len(names):,} tokens, and the model's tables have {rows:,} rows"
            raise UserError(message, where=str(files.directory), hint=_TAKE_ALL)
        places = {name: id_ for id_, name in reversed(list(enumerate(names)))}

        def special(key: str, name: str) -> int:
            """The id that the configuration names, unless it is that of another vocabulary."""
            id_ = files.config.get(f"{key}_token_id")
            if not isinstance(id_, int) or not 0 <= id_ < rows or (name in places and names[id_ : id_ + 1] != [name]):
                return places.get(name, -1)
            return id_

        pad, eos, unknown = special("pad", "<pad>"), special("eos", "</s>"), places.get("<unk>", -1)
        start = files.config.get("decoder_start_token_id")
        start = start if isinstance(start, int) and 0 <= start < rows else eos
        alone = {start} & {places.get("<s>", -1)}  # otherwise BOS is a second place of another token
        others = [id_ for id_ in range(rows) if id_ not in {pad, unknown, eos} | alone]
        unused = range(len(names), rows)
        all_names = [*names, *(f"<unused_{id_}>" for id_ in unused)]
        theirs = [pad, unknown, start, eos, *others]
        ours = {start: BOS} | {their: id_ for id_, their in enumerate(theirs) if id_ != BOS}
        return cls(theirs, _unique([all_names[id_] for id_ in others]), ours, frozenset(unused))


def _unique(names: Sequence[str]) -> list[str]:
    """The names of the tokens after the special ones; a number distinguishes equal ones."""
    seen = set(SPECIAL_TOKENS)
    found = []
    for name in names:
        while name in seen:
            name += "_"
        seen.add(name)
        found.append(name)
    return found


def _read_tokens(files: _Files) -> _Tokens:
    """The tokens of a model with one vocabulary."""
    kind = files.config["model_type"]
    if kind == "bart":
        return _read_pipeline(files) if files.path("tokenizer.json") else _read_byte_pairs(files)
    if kind not in _SENTENCEPIECE:
        known = ", ".join(["marian", "bart", *_SENTENCEPIECE])
        message = f"tokenizers of {kind!r} models are not known"
        raise UserError(message, where=str(files.directory), hint=f"Import a model of one of the types: {known}.")
    if files.path(*SENTENCEPIECE_FILES) or not files.path("tokenizer.json"):
        return _SENTENCEPIECE[kind](files)
    return _read_pipeline(files)


def _sentencepiece_pieces(files: _Files, *names: str) -> tuple[bytes, list[str]]:
    """A SentencePiece model, and its tokens.

    Raises:
        UserError: it is missing or damaged.
    """
    path = files.required(*names)
    model = read_content(path, _MOST_BYTES)
    try:
        processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        return model, [str(processor.id_to_piece(id_)) for id_ in range(processor.get_piece_size())]
    except (RuntimeError, ValueError):
        message = "not a SentencePiece model, or a damaged one"
        raise UserError(message, where=str(path), hint=_TAKE_ALL) from None


def _check_pieces(files: _Files, pieces: Sequence[str], first: Sequence[str]) -> None:
    """Raise UserError unless a SentencePiece model begins with these tokens, as those of its family do."""
    if list(pieces[: len(first)]) != list(first):
        path = files.required(*SENTENCEPIECE_FILES)
        raise UserError(f"the model's tokens do not begin with {', '.join(first)}", where=str(path), hint=_TAKE_ALL)


def _with_added(files: _Files, tokens: _Tokens) -> _Tokens:
    """The tokens of a family, and those that a user added to them.

    Raises:
        UserError: an added token has the id of another one.
    """
    names, own, markers = list(tokens.names), files.named(), set(tokens.markers)
    found = []
    for id_, token in sorted(files.added().items()):
        language, known = files.language_of(token.content), id_ < len(tokens.names)
        if token.content in own or (known and id_ in markers and names[id_] == token.content):
            continue
        if known and names[id_] not in (token.content, f"<unused_{id_}>"):
            raise UserError(
                f"the added token {token.content!r} has the id {id_:,}, which is that of {names[id_]!r}",
                where=str(files.directory),
                hint="Give it an id of its own and a row in the model's tables, or remove it from the tokenizer.",
            )
        markers |= set(range(len(names), id_))
        names += [f"<unused_{unused}>" for unused in range(len(names), id_ + 1)]
        names[id_] = token.content
        if language:
            markers.add(id_)
        else:
            markers.discard(id_)
            found.append(token)
    languages = _languages(files, names, markers)
    return replace(tokens, names=names, markers=frozenset(markers), languages=languages, added=tuple(found))


def _read_fairseq(files: _Files) -> _Tokens:
    """The tokens of mBART and NLLB: SentencePiece's moved by one, then languages, then the mask."""
    model, pieces = _sentencepiece_pieces(files, *SENTENCEPIECE_FILES)
    _check_pieces(files, pieces, ("<unk>", "<s>", "</s>"))
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]]
    first, added = len(names), files.added()
    own = {
        id_: token.content for id_, token in added.items() if files.language_of(token.content) or token.content == _MASK
    }
    if not any(map(files.language_of, own.values())):
        listed = [token for token in files.special() if files.language_of(token)]
        if not listed and files.config["model_type"] == "mbart":
            listed = [*_MBART.split(), *(_MBART_50.split() if _is_mbart_50(files, (), first) else ())]
        own = dict(enumerate([*listed, _MASK], first))
    names += [f"<unused_{id_}>" for id_ in range(first, max(own, default=first - 1) + 1)]
    for id_, name in own.items():
        if id_ >= first:
            names[id_] = name
    markers = {0, *range(first, len(names))} - (added.keys() - own.keys())
    return _with_added(files, _Tokens(names, frozenset(markers), sentencepiece=model))


def _read_m2m(files: _Files) -> _Tokens:
    """The tokens of M2M-100: a vocabulary, then languages. NLLB, of the same type, has no vocabulary."""
    if files.path("vocab.json") is None:
        return _read_fairseq(files)
    model, _ = _sentencepiece_pieces(files, *SENTENCEPIECE_FILES)
    names = files.vocabulary(files.required("vocab.json"))
    settings = files.object(_SETTINGS)
    codes = _WMT_21 if settings.get("language_codes") == "wmt21" else _M2M
    markers = {id_ for id_, name in enumerate(names) if name == "<s>"}
    markers |= set(range(len(names), len(names) + len(codes.split())))
    names += [f"__{code}__" for code in codes.split()]
    return _with_added(files, _Tokens(names, frozenset(markers), sentencepiece=model))


def _read_pegasus(files: _Files) -> _Tokens:
    """The tokens of PEGASUS: padding, EOS, masks and ``<unk_N>`` of pre-training, then SentencePiece's from <unk>."""
    model, pieces = _sentencepiece_pieces(files, *SENTENCEPIECE_FILES)
    _check_pieces(files, pieces, ("<pad>", "</s>", "<unk>"))
    offset = files.object(_SETTINGS).get("offset", _PEGASUS_OFFSET)
    if type(offset) is not int or not 0 <= offset < 1 << 16:
        raise UserError("the offset is no number of tokens", where=str(files.directory / _SETTINGS), hint=_TAKE_ALL)
    own = ["<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))] if offset else []
    markers = frozenset(range(2, 2 + len(own)))
    return _with_added(files, _Tokens(["<pad>", "</s>", *own, *pieces[2:]], markers, sentencepiece=model))


_SENTENCEPIECE: dict[str, Callable[[_Files], _Tokens]] = {
    "mbart": _read_fairseq,
    "m2m_100": _read_m2m,
    "pegasus": _read_pegasus,
}


def _read_byte_pairs(files: _Files) -> _Tokens:
    """The tokens of byte-level BPE: ``vocab.json`` and ``merges.txt``."""
    names = files.vocabulary(files.required("vocab.json"))
    merges = files.required("merges.txt")
    lines = without_mark(merges.read_bytes(), str(merges)).decode("utf-8", errors="replace").split("\n")
    rows = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    pairs = [(row[0], row[-1]) for row in rows]
    settings = files.object(_SETTINGS)
    markers = frozenset(id_ for id_, name in enumerate(names) if name in ("<s>", _MASK))
    tokens = _with_added(files, _Tokens(names, markers))
    description = byte_pair_description(
        {name: id_ for id_, name in enumerate(names)},
        pairs,
        [{**asdict(token), "special": False, "normalized": not token.special} for token in tokens.added],
        prefix_space=bool(settings.get("add_prefix_space")),
    )
    return replace(tokens, description=description)


def _read_pipeline(files: _Files) -> _Tokens:
    """The tokens of ``tokenizer.json``."""
    path = files.required("tokenizer.json")
    described = read_object(path)
    try:
        vocabulary = described["model"]["vocab"]
        found = enumerate(name for name, _ in vocabulary) if isinstance(vocabulary, list) else _by_id(vocabulary)
        added, own = files.added(), files.named()
        by_id = {**dict(found), **{id_: token.content for id_, token in added.items()}}
        if not all(type(id_) is int and 0 <= id_ < files.config["vocab_size"] for id_ in by_id):
            raise ValueError
        listed = {int(token["id"]): token for token in described["added_tokens"]}
        special = {id_ for id_, token in listed.items() if token["special"]}
    except (KeyError, TypeError, ValueError):
        raise UserError("not a tokenizer", where=str(path), hint=_TAKE_ALL) from None
    names = [str(by_id.get(id_, f"<unused_{id_}>")) for id_ in range(max(by_id, default=-1) + 1)]
    users = {
        id_: token
        for id_, token in added.items()
        if token.content not in own and not files.language_of(token.content) and not _MASKS.fullmatch(token.content)
    }
    for id_, token in users.items():  # the package looks for them; decoding leaves out those that are special
        listed[id_] = {"normalized": not token.special, **listed.get(id_, {}), **asdict(token), "special": False}
    described["added_tokens"] = [listed[id_] for id_ in sorted(listed)]
    markers = frozenset(special - users.keys())
    description = json.dumps(described, ensure_ascii=False).encode(errors="surrogatepass")
    return _Tokens(names, markers, _languages(files, names, markers), b"", description, tuple(users.values()))


def _by_id(vocabulary: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    return ((id_, name) for name, id_ in vocabulary.items())


def _languages(files: _Files, names: Sequence[str], among: Iterable[int]) -> dict[str, int]:
    return {code: id_ for id_ in sorted(among) if (code := files.language_of(names[id_]))}


def _frames(tokens: _Tokens, order: _Order, files: _Files) -> Frames:
    """The frames of a family."""
    languages = {code: order.places[id_] for code, id_ in tokens.languages.items()}
    settings = files.object(_SETTINGS)
    if not languages:
        forced = files.config.get("forced_bos_token_id")
        bart = files.config["model_type"] == "bart" and "<s>" in tokens.names
        begin = [order.places[tokens.names.index("<s>")]] if bart else []
        prefix = [order.places[forced]] if isinstance(forced, int) and forced in order.places else []
        return Frames(source_prefix=[*begin], target_prefix=[*prefix])
    if settings.get("legacy_behaviour"):
        return Frames(languages, source_suffix=["source"], target_prefix=["target"])
    if files.config["model_type"] == "mbart" and not _is_mbart_50(files, languages):
        return Frames(languages, source_suffix=["source"], target_start="target")
    return Frames(languages, source_prefix=["source"], target_prefix=["target"])


def _is_mbart_50(files: _Files, languages: Iterable[str], first: int = 0) -> bool:
    """Return True for mBART-50, False for mBART-25, of which it has all languages.

    Args:
        languages: those that are named, if any; otherwise the tokens after the languages decide, or the rows.
        first: the id of the first language.
    """
    name = files.object(_SETTINGS).get("tokenizer_class")
    if isinstance(name, str) and "MBart" in name:
        return "MBart50" in name
    if languages := set(languages):
        return not languages.isdisjoint(_MBART_50.split())
    few, many = (first + len(codes.split()) + 1 for codes in (_MBART, f"{_MBART} {_MBART_50}"))
    after = [id_ for id_, token in files.added().items() if id_ >= first and token.content not in files.named()]
    return few not in after and min(after, default=many) >= many and files.config["vocab_size"] >= many


def _default_languages(tokens: _Tokens, files: _Files) -> tuple[str | None, str | None]:
    """The languages of source and target that a directory names."""
    settings = files.object(_SETTINGS)
    codes = {id_: code for code, id_ in tokens.languages.items()}
    ids = [files.config.get(f"{key}_token_id") for key in ("forced_bos", "decoder_start")]
    forced = [codes.get(id_) if isinstance(id_, int) else None for id_ in ids]
    given = [settings.get(key) for key in ("src_lang", "tgt_lang")]
    named = [code if isinstance(code, str) and code in tokens.languages else None for code in given]
    return named[0], next((code for code in (*forced, named[1]) if code), None)


def _read_marian(files: _Files) -> HuggingFaceTokenizers:
    """Read an OPUS-MT model: a SentencePiece model for each side, and one vocabulary, or two."""
    separate = bool(files.object(_SETTINGS).get("separate_vocabs", files.path("target_vocab.json")))
    path = files.required("vocab.json")
    paths = [path, files.required("target_vocab.json") if separate else path]
    rows = [files.config["vocab_size"], files.config.get("decoder_vocab_size") or files.config["vocab_size"]]
    sides = []
    for name, vocabulary, size in zip(("source.spm", "target.spm"), paths, rows, strict=True):
        model, _ = _sentencepiece_pieces(files, name)
        names = files.vocabulary(vocabulary)
        markers = {id_ for id_, each in enumerate(names) if files.language_of(each)}
        tokens = _with_added(files, _Tokens(names, frozenset(markers), sentencepiece=model))
        if separate and tokens.added:
            raise UserError(
                f"the token {tokens.added[0].content!r} was added to a model with two vocabularies",
                where=str(files.directory),
                hint="It is not known to which of them it belongs: remove it, and its rows of the tables.",
            )
        order = _Order.of(tokens.names, files, size)
        if order.theirs[UNK] < 0:
            raise UserError("the vocabulary has no <unk>", where=str(vocabulary), hint=_TAKE_ALL)
        sides.append((tokens, order, tokens.tokenizer(order, files.directory)))
    (tokens, order, source), (_, target_order, target) = sides
    if not separate and files.required("source.spm").read_bytes() == files.required("target.spm").read_bytes():
        target = source
    languages = {code: order.places[id_] for code, id_ in tokens.languages.items()}
    frames = Frames(languages, source_prefix=["target"] if languages else [])
    ids = torch.tensor(order.theirs), torch.tensor(target_order.theirs)
    return HuggingFaceTokenizers(Tokenizers(source, target, not separate, frames), *ids, notes=_notes(tokens, files))


def _notes(tokens: _Tokens, files: _Files) -> tuple[str, ...]:
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
    settings = files.object(_SETTINGS).get("sp_model_kwargs")
    if isinstance(settings, dict) and settings.get("enable_sampling"):
        notes.append("`enable_sampling` of the tokenizer is off: a text is divided in one way.")
    model = json.loads(tokens.description).get("model") if tokens.description else {}
    for key in (key for key in RANDOM if isinstance(model, dict) and model.get(key)):
        notes.append(f"`{key}` of the tokenizer is off: a text is divided in one way.")
    return tuple(notes)


def _template_notes(tokens: _Tokens, order: _Order, frames: Frames, files: _Files) -> Iterator[str]:
    """A note, if the post-processor of ``tokenizer.json`` puts other tokens around a source than its family has."""
    text, language = "TEXT", "LANGUAGE"
    post = (json.loads(tokens.description).get("post_processor") if tokens.description else None) or {}
    found: list[str] = []
    try:
        for step in post.get("processors", [post]):
            if step.get("type") == "TemplateProcessing":
                found = [each["SpecialToken"]["id"] if "SpecialToken" in each else text for each in step["single"]]
            elif step.get("type") in ("RobertaProcessing", "BertProcessing"):
                found = [step["cls"][0], text, step["sep"][0]]
        found = [language if files.language_of(each) else each for each in found]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise UserError("not a post-processor", where=str(files.directory / "tokenizer.json"), hint=_TAKE_ALL) from None
    places = [*frames.source_prefix, text, EOS, *frames.source_suffix]
    names = {place: tokens.names[order.theirs[place]] for place in places if isinstance(place, int)}
    own = [names[place] if isinstance(place, int) else text if place == text else language for place in places]
    if found and found != own:
        yield f"Sources are {' '.join(own)}, as in its family, not {' '.join(found)} of `tokenizer.json`."
