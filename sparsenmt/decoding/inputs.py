"""Sources for a model from lines of text: tokenized, cut to the model's length, batched.

Shapes: B sentences, S source tokens, </s> included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import framed_feature, pad
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.line_tags import tags_end
from sparsenmt.data.sentences import divide
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.terminology import Term, terms_behind, terms_within
from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.frame import Frame
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, unknown_texts
from sparsenmt.data.vocabulary import BOS, EOS, UNK
from sparsenmt.decoding.unusual_text import FoundLines, warn_of_unusual_lines
from sparsenmt.engine.ensemble import EnsembleSource
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import nonfinite_method
from sparsenmt.process.progress import notify
from sparsenmt.recipe.choices import LongLines
from sparsenmt.recipe.schema import Data


@dataclass(frozen=True)
class SourceLine:
    """A tokenized line of input.

    Args:
        number: the line's number in its text, from 0.
        ids: tokens and `</s>`, in their frame; `</s>` alone for a line of nothing but white space.
        cut: number of tokens beyond `Bundle.max_source_length`, which are left out.
        whole: of a part of a long line, the line; `text` is the part, with the tags of the line before it.
        part: of a part, its number in the line, from 0.
        parts: of a line that was translated in parts, their number; its ids are theirs.
        tags: the part-of-speech tags given for the line.
        frame: the tokens around the sentence.
        prefix: the tokens that its translation begins with.
        terms: what must, or should, stand in its translation.
    """

    number: int
    text: str
    ids: list[int]
    cut: int = 0
    tags: TaggedSentence | None = None
    frame: Frame = field(default_factory=Frame)
    prefix: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()
    whole: str | None = None
    part: int = 0
    parts: int = 1

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
        """True for a line of nothing but white space."""
        return self.kept == 0

    @property
    def kept(self) -> int:
        """Number of tokens that are read, `</s>` and the frame not counted."""
        return len(self.ids) - 1 - self.frame.size

    @property
    def as_read(self) -> tuple[int, list[int], str, int]:
        """The line for `UnusualText.add`; one that is cut, or was divided, is not judged by its length."""
        return self.number, self.ids, self.text, 0 if self.cut or self.parts > 1 else self.kept

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


def usual_lengths(bundle: Bundle) -> str:
    """Return, in words, the source tokens beyond which a line is long."""
    several, most = bundle.whole_lengths
    return f"{several:,} tokens" + (f", or {most:,} in a sentence" if most > several else "")


def parts_summary(found: FoundLines, bundle: Bundle) -> str:
    """Return the note about lines that were translated in parts."""
    were = "1 line was" if found.count == 1 else f"{found.count:,} lines were"
    lengths = f"what the model was trained on ({usual_lengths(bundle)})"
    return f"{were} longer than {lengths}, and translated in parts (decoding.long): {found.numbers}"


def warn_of_unusual_sources(bundle: Bundle, lines: Iterable[SourceLine], text: str) -> None:
    """Report what is unusual in sources, as `UnusualText` finds it, and divided ones; ``text``: its name."""
    lines = list(lines)
    warn_of_unusual_lines(bundle, (line.as_read for line in lines), text, "source")
    divided = FoundLines()
    for number in dict.fromkeys(line.number for line in lines if line.parts > 1 or line.whole is not None):
        divided.add(1, [number + 1])
    if divided.count:
        notify(f"{text}: {parts_summary(divided, bundle)}")


def warn_of_sources(bundle: Bundle, lines: Sequence[SourceLine], text: str, done: str) -> None:
    """Report what is unusual in sources, divided ones, and cut ones.

    Of cut ones, their number if the recipe cuts them, otherwise every line that is too long for the model.

    Args:
        text: the name of the text in messages.
        done: the participle for what happens to the tokens that are kept, e.g. "translated".
    """
    warn_of_unusual_sources(bundle, lines, text)
    cut = [line for line in lines if line.cut]
    if cut and bundle.cuts_by_choice:
        notify(cut_summary(len(cut), bundle.max_source_length))
        return
    for line in cut:
        notify(cut_warning(f"{text}, line {line.number + 1},", line.kept, line.cut, done))


def read_sources(
    bundle: Bundle, lines: Sequence[InputLine], *, prompts: bool = False, long: LongLines = "cut"
) -> list[SourceLine]:
    """Tokenize lines; tokens beyond the model's length are cut and counted, and a blank line has none.

    A tag such as ``>>fra<<`` before a line is its language, in a model whose sources begin with that of the target.

    Args:
        prompts: True if a language model continues them: spaces alone are tokens, too.
        long: ``split`` gives several sources with one number for a line beyond `Bundle.whole_lengths`, unless tags are
            given for it; ``refuse`` refuses every line beyond them.

    Raises:
        UserError: the model does not have the language of a tag; or a line is refused.
    """
    most, usual, frames = bundle.max_source_length, bundle.frames.source, bundle.tokenizers.frames
    result = list[SourceLine]()
    whole = 0 if long == "cut" else bundle.whole_lengths[0]
    # In parts: all tokens of long lines, before most are cut off, would need much memory.
    for part in bounded_batches(lines, lambda line: len(line.text)):
        framed: list[tuple[Frame | None, str]] = [(None, line.text) for line in part]
        if frames.tagged:
            options = bundle.recipe.decoding
            framed = [frames.of_line(line.text, options, f"line {line.number + 1:,}") for line in part]
        encoded = bundle.tokenizers.source.encode_batch([text for _, text in framed])
        for line, (own, text), ids in zip(part, framed, encoded, strict=True):
            if not prompts and not text.strip():  # some tokenizers make tokens of spaces, or of \r
                ids = []
            frame = usual if own is None else own
            terms = terms_behind(line.terms, len(line.text) - len(text))
            if long != "cut" and len(ids) > whole and (long == "refuse" or line.tags is None):
                parts = _read_parts(bundle, replace(line, text=text, terms=terms), frame, refuse=long == "refuse")
                if parts:
                    result += parts
                    continue
            kept = frame.around([*ids[:most], EOS])
            cut = max(len(ids) - most, 0)
            result.append(
                SourceLine(
                    line.number, text, kept, cut, line.tags, frame, line.prefix, terms_within(terms, 0, len(text))
                )
            )
    return result


def _read_parts(bundle: Bundle, line: InputLine, frame: Frame, *, refuse: bool) -> list[SourceLine]:
    """Tokenize the parts of a long line, none if it need not be divided; its target prefix belongs to the first.

    refuse: raise UserError if there are several.
    """
    tokenizer, (several, most) = bundle.tokenizers.source, bundle.whole_lengths
    any_task = bundle.recipe.data.source_language == Data.model_fields["source_language"].default
    begin = tags_end(line.text, tokenizer, tasks=any_task)
    tags, text = line.text[:begin], line.text[begin:]
    terms, own = terms_behind(line.terms, begin), len(tokenizer.encode(tags))
    spans = divide(
        text,
        lambda texts: [len(ids) for ids in tokenizer.encode_batch(texts)],
        max(several - own, 1),
        max(most - own, 1),
        [term.span for term in terms],
    )
    if len(spans) == 1:
        return []
    if refuse:
        raise UserError(
            f"the line is longer than what the model was trained on: {usual_lengths(bundle)}",
            where=f"line {line.number + 1:,}",
            hint="Split it, or translate it in parts with --long split.",
        )
    texts = [tags + text[slice(*span)] for span in spans]
    limit, result = bundle.max_source_length, list[SourceLine]()
    ends = [*(first for first, _ in spans[1:]), len(text)]  # a term belongs to the part in which it begins
    for (first, _), end, part, ids in zip(spans, ends, texts, tokenizer.encode_batch(texts), strict=True):
        inside = terms_within(terms, first, end, before=begin)
        kept, cut = frame.around([*ids[:limit], EOS]), max(len(ids) - limit, 0)
        place = len(result)
        result.append(SourceLine(line.number, part, kept, cut, None, frame, terms=inside, whole=line.text, part=place))
    result[0] = replace(result[0], prefix=line.prefix)
    return result


def line_indices(sources: Iterable[SourceLine]) -> list[int]:
    """Return for each source the index of its line, from 0: the parts of a line follow one another."""
    return [count - 1 for count in accumulate(source.part == 0 for source in sources)]


def merge_sources(parts: Sequence[SourceLine]) -> SourceLine:
    """Return the line of some parts; of a line that was not divided, itself."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        text=parts[0].whole or "",
        ids=[token for line in parts for token in line.ids],
        cut=sum(line.cut for line in parts),
        terms=tuple(term for line in parts for term in line.terms),
        whole=None,
        part=0,
        parts=len(parts),
    )


def make_source(bundle: Bundle, lines: Sequence[SourceLine]) -> Source:
    """Return a padded batch with its features; of an ensemble, with those of its other members, in their tokens."""
    own = _source_of(bundle, lines)
    if not bundle.others:
        return own
    given = [InputLine(line.number, line.text, line.tags) for line in lines]
    others = []
    for other in bundle.others:
        if other.tokenizers is bundle.tokenizers:  # another depth of the same model
            others.append(own)
            continue
        for line in lines:
            if line.frame != bundle.frames.source:
                raise UserError(
                    "a language before a line is not read by the other members of an ensemble",
                    where=f"line {line.number + 1:,}",
                    hint="Name it with --source-language and --target-language.",
                )
        read = read_sources(other, given)
        for line, first in zip(read, lines, strict=True):
            if line.cut and not first.cut:
                notify(cut_warning(f"line {line.number + 1}", line.kept, line.cut, f"read by {other.recipe.name}"))
        others.append(_source_of(other, read))
    return EnsembleSource(own.tokens, own.valid, own.features, tuple(others))


def _source_of(bundle: Bundle, lines: Sequence[SourceLine]) -> Source:
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


def not_finite(line: SourceLine, bundle: Bundle | None = None) -> UserError:
    """Return the error about a model whose scores of a line are NaN or infinite.

    Args:
        bundle: reads the line once more, to find out if a method from outside the package is the reason.
    """
    if bundle is not None:
        error = nonfinite_method(bundle.model.modules(), lambda: _read_again(bundle, line))
        if error is not None:
            return error
    return UserError(
        "the model's scores are not finite numbers",
        where=f"line {line.number + 1:,}",
        hint="Its training has diverged: average earlier checkpoints, or train it again with a lower learning rate.",
    )


@torch.no_grad()
def _read_again(bundle: Bundle, line: SourceLine) -> None:
    """Run the encoder on a line, and the decoder on its first token; or a language model on a line."""
    source = make_source(bundle, [line])
    first = torch.full((1, 1), BOS, device=bundle.device) if bundle.model.plan.encoder else source.tokens
    for memory in bundle.model.encode(source).memories.values():
        bundle.model.decode(first, memory)
