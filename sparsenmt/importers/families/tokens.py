"""The tokens of a model of Transformers, and the files that they are read from.

Vocabularies of this program begin with PAD, UNK, BOS and EOS; all other tokens follow in their own order. BOS is the
row with which their decoder begins, which is often that of another token: of EOS, or of padding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import sentencepiece

from sparsenmt.data.tokenizers.added_tokens import AddedToken
from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.pipeline_tokenizer import PipelineTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import BOS, SPECIAL_TOKENS
from sparsenmt.errors import UserError
from sparsenmt.importers.foreign_files import check_tokens, read_content, read_object

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
PIPELINE = "tokenizer.json"
LANGUAGE_CODE = re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
"""The token of a language, which is its code: ``en_XX``, ``eng_Latn``."""
MASK = "<mask>"
_MASKS = re.compile(r"<mask(_[12])?>|<unk_\d+>")  # those of PEGASUS, too
_SETTINGS, _ADDED = "tokenizer_config.json", "added_tokens_decoder"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
_MOST_BYTES = 1 << 28  # of a tokenizer's file


def incomplete(place: Path, message: str) -> UserError:
    """The error of a tokenizer's file that is missing, damaged, or does not fit the others."""
    return UserError(message, where=str(place), hint="Copy the whole directory as the original program wrote it.")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a directory.

    Args:
        config: of the model: its ``config.json``, with what ``generation_config.json`` says beside it.
        language: matches the names of languages' tokens; a group is the code.
    """

    directory: Path
    config: Mapping[str, Any]
    language: re.Pattern[str] | None = None

    @property
    def settings_path(self) -> Path:
        """The settings of the tokenizer."""
        return self.directory / _SETTINGS

    @property
    def settings(self) -> dict[str, Any]:
        """The contents of the settings; empty without them."""
        return self.object(_SETTINGS)

    def path(self, *names: str) -> Path | None:
        """The first of these files that exists."""
        return next((path for name in names if (path := self.directory / name).is_file()), None)

    def required(self, *names: str) -> Path:
        """The first of these files that exists; UserError if none does."""
        if (path := self.path(*names)) is None:
            message = f"a file of the model's tokenizer is missing: {' or '.join(names)}"
            raise incomplete(self.directory, message)
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
            raise incomplete(path, "not a vocabulary: its ids are not 0 to V - 1")
        return sorted(values, key=values.__getitem__)

    def added(self) -> dict[int, AddedToken]:
        """The tokens that are added to those of the model, by their ids there."""
        found: dict[int, AddedToken] = {}
        rows, special = self.config["vocab_size"], set(self.special())
        for file, key in ((PIPELINE, "added_tokens"), ("added_tokens.json", ""), (_SETTINGS, _ADDED)):
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
                message = f"the added tokens are no names with ids below {rows:,}, the rows of the model's tables"
                raise incomplete(self.directory / file, message) from None
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
        found = self.language.fullmatch(name) if self.language else None
        return next(filter(None, found.groups()), "") if found else ""

    def sentencepiece(self, *names: str, first: Sequence[str] = ()) -> tuple[bytes, list[str]]:
        """A SentencePiece model, and its tokens.

        Args:
            names: of the file, if it has not a usual one.
            first: tokens with which it begins, as those of its family do.

        Raises:
            UserError: it is missing or damaged, or begins with others.
        """
        path = self.required(*names or SENTENCEPIECE_FILES)
        model = read_content(path, _MOST_BYTES)
        try:
            processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
            pieces = [str(processor.id_to_piece(id_)) for id_ in range(processor.get_piece_size())]
        except (RuntimeError, ValueError):
            raise incomplete(path, "not a SentencePiece model, or a damaged one") from None
        if pieces[: len(first)] != list(first):
            raise incomplete(path, f"the model's tokens do not begin with {', '.join(first)}")
        return model, pieces

    def special(self) -> list[str]:
        """The additional special tokens in their order."""
        for name in ("special_tokens_map.json", _SETTINGS):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = self.object(name).get(key)
                if tokens and isinstance(tokens, list):
                    return [str(token.get("content") if isinstance(token, dict) else token) for token in tokens]
        return []


@dataclass(frozen=True)
class Tokens:
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

    def with_added(self, files: TokenizerFiles) -> Tokens:
        """These tokens of a family, and those that a user added to them.

        Raises:
            UserError: an added token has the id of another one.
        """
        names, own, markers = list(self.names), files.named(), set(self.markers)
        found = []
        for id_, token in sorted(files.added().items()):
            language, known = files.language_of(token.content), id_ < len(self.names)
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
        return replace(self, names=names, markers=frozenset(markers), languages=languages, added=tuple(found))

    def tokenizer(self, order: TokenOrder, place: Path) -> Tokenizer:
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
            raise incomplete(place, f"not a tokenizer: {reason}") from None


@dataclass(frozen=True)
class TokenOrder:
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
    def of(cls, names: Sequence[str], files: TokenizerFiles, rows: int) -> TokenOrder:
        """Put the special tokens first. ``names`` by their ids; ``rows`` of the table."""
        check_tokens(names, files.directory)
        if len(names) > rows:
            message = f"the tokenizer has {len(names):,} tokens, and the model's tables have {rows:,} rows"
            raise incomplete(files.directory, message)
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


def read_fairseq(files: TokenizerFiles, usual: Callable[[int], list[str]] = lambda first: []) -> Tokens:
    """The tokens of mBART and NLLB: SentencePiece's moved by one, then languages, then the mask.

    Args:
        usual: returns the languages, by the id of the first one, of a folder that names none.
    """
    model, pieces = files.sentencepiece(first=("<unk>", "<s>", "</s>"))
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]]
    first, added = len(names), files.added()
    own = {
        id_: token.content for id_, token in added.items() if files.language_of(token.content) or token.content == MASK
    }
    if not any(map(files.language_of, own.values())):
        listed = [token for token in files.special() if files.language_of(token)]
        own = dict(enumerate([*(listed or usual(first)), MASK], first))
    names += [f"<unused_{id_}>" for id_ in range(first, max(own, default=first - 1) + 1)]
    for id_, name in own.items():
        if id_ >= first:
            names[id_] = name
    markers = {0, *range(first, len(names))} - (added.keys() - own.keys())
    return Tokens(names, frozenset(markers), sentencepiece=model).with_added(files)


def read_pipeline(files: TokenizerFiles) -> Tokens:
    """The tokens of ``tokenizer.json``."""
    path = files.required(PIPELINE)
    described = read_object(path)
    try:
        vocabulary = described["model"]["vocab"]
        if isinstance(vocabulary, list):
            by_id = dict(enumerate(name for name, _ in vocabulary))
        else:
            by_id = {id_: name for name, id_ in vocabulary.items()}
        added, own = files.added(), files.named()
        by_id |= {id_: token.content for id_, token in added.items()}
        if not all(type(id_) is int and 0 <= id_ < files.config["vocab_size"] for id_ in by_id):
            raise ValueError
        listed = {int(token["id"]): token for token in described["added_tokens"]}
        special = {id_ for id_, token in listed.items() if token["special"]}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise incomplete(path, "not a tokenizer") from None
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
    return Tokens(names, markers, _languages(files, names, markers), b"", description, tuple(users.values()))


def _languages(files: TokenizerFiles, names: Sequence[str], among: Iterable[int]) -> dict[str, int]:
    return {code: id_ for id_ in sorted(among) if (code := files.language_of(names[id_]))}
