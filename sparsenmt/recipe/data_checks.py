"""Contradictions between keys of the data section."""

from __future__ import annotations

from collections.abc import Iterator

from sparsenmt.recipe.errors import Complaint, Contradiction, named_keys
from sparsenmt.recipe.schema import (
    BYTE_TOKENS,
    Data,
    Documents,
    Filters,
    TokenizerSection,
)

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # as in every vocabulary
_RESERVED = "\u2581"  # stands for a space inside tokens


def check_tokenizer(tokenizer: TokenizerSection) -> Iterator[Contradiction]:
    here, symbols = "data.tokenizer", tokenizer.user_symbols
    size = f"{here}.vocabulary_size"
    least, counted, keys = len(_SPECIAL), "special tokens", [size]
    if tokenizer.kind == "byte" and tokenizer.vocabulary_size != (tokens := BYTE_TOKENS + len(symbols)):
        complaint = Complaint(f"bytes and special tokens are {tokens}", f"Leave the key out, or write {tokens}.")
        yield Contradiction(named_keys(size, f"{here}.kind"), complaint)
    if tokenizer.vocabulary_size > least:
        least, counted, keys = least + len(symbols), "special tokens and user symbols", [size, f"{here}.user_symbols"]
    if tokenizer.vocabulary_size <= least:
        complaint = Complaint(
            f"must be greater than {least}, the number of {counted}",
            "Leave the key out for the default, or write some thousands.",
        )
        yield Contradiction(named_keys(*keys), complaint)
    lowest = 0.98
    if tokenizer.kind in ("bpe", "unigram") and tokenizer.character_coverage < lowest:
        complaint = Complaint(
            f"must be at least {lowest} for SentencePiece's kinds, bpe and unigram",
            "Raise it, or set `data.tokenizer.kind` to char.",
        )
        yield Contradiction(named_keys("data.tokenizer.character_coverage", "data.tokenizer.kind"), complaint)
    seen: set[str] = set()
    for number, symbol in enumerate(symbols):
        unfit = _symbol_complaint(symbol, tokenizer.lowercase)
        if unfit is None and symbol in seen:
            unfit = Complaint(f"'{symbol}' occurs twice", "Remove it here.")
        seen.add(symbol)
        if unfit is not None:
            yield Contradiction(named_keys(f"data.tokenizer.user_symbols.{number}"), unfit)


def _symbol_complaint(symbol: str, lowercase: bool) -> Complaint | None:
    """The reason why a symbol could not be found in text, or would be taken for something else."""
    if not symbol:
        return Complaint("is empty", "Write a word, such as `<n>`, or remove it.")
    if symbol in _SPECIAL:
        return Complaint(f"'{symbol}' is a special token of every vocabulary", "Choose another word, such as `<n>`.")
    if any(character.isspace() or character in _RESERVED or not character.isprintable() for character in symbol):
        return Complaint(
            f"{symbol!r} contains white space, U+2581 or a control character",
            "A symbol is one word of the text, between spaces.",
        )
    if lowercase and symbol != symbol.lower():
        return Complaint(
            f"'{symbol}' does not occur in lowercased text", f"Write '{symbol.lower()}', or remove `lowercase`."
        )
    return None


def check_filters(filters: Filters) -> Iterator[Contradiction]:
    cut, longest = filters.max_source_length, filters.max_length
    if cut is not None and longest is not None and cut > longest:
        complaint = Complaint(
            f"sources cut to {cut} tokens would be left out, because `max_length` is {longest}",
            "Raise `data.filters.max_length`, or set it to null.",
        )
        yield Contradiction(named_keys("data.filters.max_source_length", "data.filters.max_length"), complaint)


def check_data(data: Data) -> Iterator[Contradiction]:
    first: dict[str, int] = {}
    for index, corpus in enumerate(data.train):
        if corpus.name is not None and first.setdefault(corpus.name, index) != index:
            complaint = Complaint(f"two training corpora are named '{corpus.name}'", "Give one of them another name.")
            yield Contradiction(named_keys(f"data.train.{index}.name"), complaint)
    corpora = {f"data.train.{index}": corpus for index, corpus in enumerate(data.train)}
    for key, text in {**corpora, "data.dev": data.dev, "data.test": data.test}.items():
        if text is not None and text.source and text.source == text.target:
            complaint = Complaint("source and target are the same file", "Name the file of each language.")
            yield Contradiction(named_keys(f"{key}.target", f"{key}.source"), complaint)
    yield from _corpora(data)
    yield from _stages(data)
    yield from _subword_sampling(data)
    if data.documents is not None:
        yield from _documents(data, data.documents)


def _corpora(data: Data) -> Iterator[Contradiction]:
    """Lines and tags are of training corpora, and must make sense there."""
    others = {"data.dev": data.dev, "data.test": data.test}
    for key, name in ((key, name) for key in others for name in ("lines", "lines_seed", "tag")):
        if getattr(others[key], name, None) is not None:
            complaint = Complaint("is a key of training corpora", "Remove it, and prepare the text itself.")
            yield Contradiction(named_keys(f"{key}.{name}"), complaint)
    for index, corpus in enumerate(data.train):
        seed, lines = named_keys(f"data.train.{index}.lines_seed", f"data.train.{index}.lines")
        if corpus.lines_seed is not None and corpus.lines is None:
            yield Contradiction((seed,), Complaint("there is no number of lines to draw", "Add `lines`."))
        elif corpus.lines_seed is not None and data.documents is not None:
            complaint = Complaint("a sample of lines would take documents apart", "Leave it out: the first lines.")
            yield Contradiction((seed, lines, *named_keys("data.documents")), complaint)
        tag = corpus.tag
        unfit = None if tag is None else _symbol_complaint(tag, data.tokenizer.lowercase)
        if tag is not None and unfit is None and set("<>") & set(tag):
            unfit = Complaint(f"'{tag}' has angle brackets, which the token of a tag gets", "Write the name alone.")
        if unfit is not None:
            yield Contradiction(named_keys(f"data.train.{index}.tag"), unfit)


def _stages(data: Data) -> Iterator[Contradiction]:
    """Stages follow each other, and have text."""
    before = 0
    names = [corpus.label for corpus in data.train]
    for index, stage in enumerate(data.stages):
        here = f"data.stages.{index}"
        if stage.after <= before:
            complaint = Complaint(f"the stage before begins after update {before}", "Write the stages in their order.")
            yield Contradiction(named_keys(f"{here}.after"), complaint)
        before = stage.after
        if unknown := [name for name in stage.weights if name not in names]:
            complaint = Complaint(
                f"there is no training corpus '{unknown[0]}'", f"Write one of: {', '.join(names)} (`name`)."
            )
            yield Contradiction(named_keys(f"{here}.weights", "data.train"), complaint)
        elif not any(stage.weights.get(name, 1) for name in names):
            complaint = Complaint("every corpus is left out", "Give one of them a weight above 0.")
            yield Contradiction(named_keys(f"{here}.weights"), complaint)


def _subword_sampling(data: Data) -> Iterator[Contradiction]:
    """BPE has merges to skip, unigram divisions to draw from; those of a model are checked when it is read."""
    kind, sampling = data.tokenizer.kind, data.subword_regularization
    if sampling is None or data.tokenizer.from_model is not None:
        return
    for side, options in (("source", sampling.source), ("target", sampling.target)):
        key, needed = ("dropout", "bpe") if options is None or options.dropout is not None else ("alpha", "unigram")
        if options is not None and kind != needed:
            complaint = Complaint(
                f"belongs to `kind: {needed}`, not to {kind}",
                "Write `dropout` for bpe, `alpha` for unigram; tokens of other kinds are not divided.",
            )
            keys = named_keys(f"data.subword_regularization.{side}.{key}", "data.tokenizer.kind")
            yield Contradiction(keys, complaint)


def _documents(data: Data, documents: Documents) -> Iterator[Contradiction]:
    here = "data.documents"
    if all(corpus.documents is None for corpus in data.train):
        complaint = Complaint(
            "there is nothing to pack: no training corpus names its documents",
            "Write `documents`, the path of their ids, beside `source` and `target`; or remove the section.",
        )
        yield Contradiction(named_keys(here), complaint)
    unfit = _symbol_complaint(documents.separator, data.tokenizer.lowercase)
    if unfit is not None:
        yield Contradiction(named_keys(f"{here}.separator", here), unfit)
    longest = documents.max_length
    if documents.source_length is not None and documents.source_length > longest:
        complaint = Complaint(
            f"must be at most `max_length`, {longest}, not {documents.source_length}", "Lower it, or leave it out."
        )
        yield Contradiction(named_keys(f"{here}.source_length", f"{here}.max_length"), complaint)
    cut = data.filters.max_source_length
    if cut is not None and cut < longest - 1:
        complaint = Complaint(
            f"blocks of {longest} tokens would be cut to {cut}",
            "Lower `data.documents.max_length`, or leave `data.filters.max_source_length` out.",
        )
        yield Contradiction(named_keys("data.filters.max_source_length", f"{here}.max_length"), complaint)
