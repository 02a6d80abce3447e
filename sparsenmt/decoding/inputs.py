"""Sources for a model from lines of text: tokenized, cut to the model's length, batched.

Shapes: B sentences, S source tokens, </s> included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from sparsenmt.data.batching import framed_feature, pad
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.frame import Frame, begins_with_language
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, unknown_texts
from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.data.word_spaces import character_count
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import Source
from sparsenmt.progress import notify
from sparsenmt.store import Bundle

_NAMED = 5  # lines whose numbers a warning names


@dataclass(frozen=True)
class SourceLine:
    """A tokenized line of input.

    Args:
        number: the line's number in its text, from 0.
        ids: tokens and `</s>`, in their frame; `</s>` alone for a line of nothing but spaces.
        cut: number of tokens beyond `Bundle.max_source_length`, which are left out.
        tags: the part-of-speech tags given for the line.
        frame: the tokens around the sentence.
    """

    number: int
    text: str
    ids: list[int]
    cut: int = 0
    tags: TaggedSentence | None = None
    frame: Frame = field(default_factory=Frame)

    @property
    def sentence(self) -> list[int]:
        """Tokens and `</s>` without their frame."""
        return self.ids[len(self.frame.prefix) : len(self.ids) - len(self.frame.suffix)]

    @property
    def plain_ids(self) -> list[int]:
        """The tokens, with `</s>` in place of those of the frame, which belong to the sentence as little."""
        frame = self.frame
        return [*[EOS] * len(frame.prefix), *self.sentence, *[EOS] * len(frame.suffix)] if frame else self.ids

    @property
    def empty(self) -> bool:
        """True for a line of nothing but spaces."""
        return self.kept == 0

    @property
    def kept(self) -> int:
        """Number of tokens that are read, `</s>` and the frame not counted."""
        return len(self.ids) - 1 - self.frame.size

    def token_names(self, tokenizer: Tokenizer) -> list[str]:
        """Return the tokens as strings, `</s>` included; an unknown one is its text."""
        return tokenizer.pieces(self.ids, unknown_texts(tokenizer, self.text) if UNK in self.ids else ())


def cut_warning(line: str, kept: int, cut: int, done: str) -> str:
    """Return the warning about a line whose last ``cut`` tokens are left out.

    Args:
        done: the verb for the others, e.g. ``"translated"``.
    """
    return f"warning: {line} is too long: {kept} of {kept + cut} tokens are {done}"


def cut_summary(cut: int, limit: int) -> str:
    """Return the note about sources that were cut because the recipe limits their length."""
    sources = "1 source was" if cut == 1 else f"{cut:,} sources were"
    return f"{sources} cut to {limit:,} token{'' if limit == 1 else 's'} (data.filters.max_source_length)"


class UnknownLines:
    """The lines of a text of which a model's vocabulary knows less than half: by characters, spaces not counted.

    A run of unknown characters is one token of SentencePiece, so that a share of tokens would say little. Also the
    lines that begin with the name of a language, which is text like any other.
    """

    def __init__(self, bundle: Bundle, side: Literal["source", "target"] = "source") -> None:
        language = getattr(bundle.recipe.data, f"{side}_language")
        self._tokenizer: Tokenizer = getattr(bundle.tokenizers, side)
        self._side = side if language == side else f"{side} ({language})"  # the side is the default
        self._vocabulary = "the model's vocabulary" if bundle.tokenizers.shared else f"the {side} vocabulary"
        self._read, self._found, self._first = 0, 0, list[int]()
        self._languages = bundle.tokenizers.language_names
        self._translates = not bundle.recipe.data.is_language_model
        self._named = list[int]()

    def add(self, number: int, ids: Sequence[int], text: str) -> bool:
        """Read a line, numbered from 0; return True if it is mostly unknown."""
        characters = character_count(text)
        self._read += characters > 0
        if len(self._named) < _NAMED and self._translates and begins_with_language(text, self._languages):
            self._named.append(number + 1)
        if UNK not in ids:
            return False
        if 2 * sum(map(character_count, unknown_texts(self._tokenizer, text))) <= characters:
            return False
        self._found += 1
        self._first += [number + 1] if len(self._first) < _NAMED else []
        return True

    def counts(self) -> tuple[int, int, list[int], list[int]]:
        """Return the lines that were read, those that were found, and the numbers of the first of both kinds."""
        return self._read, self._found, self._first, self._named

    def merge(self, read: int, found: int, first: Sequence[int], named: Sequence[int]) -> None:
        """Add the `counts` of lines that come after these."""
        self._read, self._found, self._first = self._read + read, self._found + found, [*self._first, *first][:_NAMED]
        self._named = [*self._named, *named][:_NAMED]

    def warning(self, text: str = "") -> str | None:
        """Return the warning about these lines; None if there are none. ``text``: its name."""
        warnings = filter(None, (self._unknown_warning(text), self._language_warning(text)))
        return "\n".join(warnings) or None

    def _language_warning(self, text: str) -> str | None:
        if not self._named:
            return None
        lines = f"line{'s' if len(self._named) > 1 else ''} {', '.join(map(str, self._named))}"
        more = " and others" if len(self._named) == _NAMED else ""
        begin = "begin" if len(self._named) > 1 else "begins"
        why = "remove it, and give --source-language and --target-language" if self._languages else "the model has none"
        name = f"{text}: " if text else ""
        return f"warning: {name}{lines}{more} {begin} with the name of a language, which is read as text: {why}"

    def _unknown_warning(self, text: str) -> str | None:
        if not self._found:
            return None
        lines = f"{self._found:,} of {self._read:,} lines are" if self._read > 1 else "the line is"
        more = ", ..." if self._found > len(self._first) else ""
        numbers = f" (line{'s' if self._found > 1 else ''} {', '.join(map(str, self._first))}{more})"
        why = f"another language or script than the model's {self._side}, or swapped sides"
        return f"warning: {text and f'{text}: '}{lines} mostly unknown to {self._vocabulary}{numbers}: {why}"


def warn_of_unknown_lines(
    bundle: Bundle, lines: Iterable[tuple[int, Sequence[int], str]], text: str, side: Literal["source", "target"]
) -> None:
    """Report the lines (number from 0, tokens, text) of one side that are mostly unknown, if there are any."""
    unknown = UnknownLines(bundle, side)
    for line in lines:
        unknown.add(*line)
    if (warning := unknown.warning(text)) is not None:
        notify(warning)


def warn_of_unknown_sources(bundle: Bundle, lines: Iterable[SourceLine], text: str) -> None:
    """Report the sources that are mostly unknown, if there are any; ``text``: its name in messages."""
    warn_of_unknown_lines(bundle, ((line.number, line.ids, line.text) for line in lines), text, "source")


def warn_of_sources(bundle: Bundle, lines: Sequence[SourceLine], text: str, done: str) -> None:
    """Report sources that are mostly unknown, and cut ones.

    Of cut ones, their number if the recipe cuts them, otherwise every line that is too long for the model.

    Args:
        text: the name of the text in messages.
        done: the participle for what happens to the tokens that are kept, e.g. "translated".
    """
    warn_of_unknown_sources(bundle, lines, text)
    cut = [line for line in lines if line.cut]
    if cut and bundle.cuts_by_choice:
        notify(cut_summary(len(cut), bundle.max_source_length))
        return
    for line in cut:
        notify(cut_warning(f"{text}, line {line.number + 1},", line.kept, line.cut, done))


def read_sources(bundle: Bundle, lines: Sequence[InputLine]) -> list[SourceLine]:
    """Tokenize lines; tokens beyond the model's length are cut and counted, and a blank line has none.

    A tag such as ``>>fra<<`` before a line is its language, in a model whose sources begin with that of the target.

    Raises:
        UserError: the model does not have the language of a tag.
    """
    most, usual, frames = bundle.max_source_length, bundle.frames.source, bundle.tokenizers.frames
    result = []
    # In parts: all tokens of long lines, before most are cut off, would need much memory.
    for part in bounded_batches(lines, lambda line: len(line.text)):
        framed: list[tuple[Frame | None, str]] = [(None, line.text) for line in part]
        if frames.tagged:
            options = bundle.recipe.decoding
            framed = [frames.of_line(line.text, options, f"line {line.number + 1:,}") for line in part]
        encoded = bundle.tokenizers.source.encode_batch([text for _, text in framed])
        for line, (own, text), ids in zip(part, framed, encoded, strict=True):
            if not text.strip(" "):  # some tokenizers make a token of a space
                ids = []
            frame = usual if own is None else own
            kept = frame.around([*ids[:most], EOS])
            result.append(SourceLine(line.number, text, kept, max(len(ids) - most, 0), line.tags, frame))
    return result


def make_source(bundle: Bundle, lines: Sequence[SourceLine]) -> Source:
    """Return a padded batch with its features."""
    tokens, valid = pad([line.ids for line in lines])
    features = {}
    computed = [bundle.features.compute(line.sentence, line.text, line.tags) for line in lines]
    for name in bundle.features.names:
        rows = [framed_feature(row[name], line.frame) for row, line in zip(computed, lines, strict=True)]
        features[name] = pad(rows)[0].to(bundle.device)
    return Source(tokens.to(bundle.device), valid.to(bundle.device), features)


@contextmanager
def describe_out_of_memory(
    batch: Sequence[SourceLine], shape: str, *, batch_tokens: int, single_hint: str
) -> Iterator[None]:
    """Replace an out-of-memory error of the block by one that names the batch and says what to change.

    Args:
        shape: the rest of the batch's shape, e.g. ``"beam 4"``.
        batch_tokens: the limit that the batch was made with; see `length_batches`.
        single_hint: the hint for a batch of one sentence, which no limit makes smaller.

    Raises:
        UserError: instead of PyTorch's error.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        longest, count = max(batch, key=lambda line: len(line.ids)), len(batch)
        sentences = "1 sentence" if count == 1 else f"{count:,} sentences"
        smaller = f"Lower decoding.batch_tokens (`decode` and `score`: --batch-tokens), now {batch_tokens:,}."
        raise UserError(
            f"out of memory on a batch of {sentences}, {len(longest.ids):,} source tokens long, {shape}",
            where=f"line {longest.number + 1:,}" + (" and others" if count > 1 else ""),
            hint=single_hint if count == 1 else smaller,
        ) from None


def not_finite(line: SourceLine) -> UserError:
    """Return the error about a model whose scores of a line are NaN or infinite."""
    return UserError(
        "the model's scores are not finite numbers",
        where=f"line {line.number + 1:,}",
        hint="Its training has diverged: average earlier checkpoints, or train it again with a lower learning rate.",
    )
