"""The sections of a recipe about its data: corpora, tokenizer, filters, mixture of corpora.

They are part of the `schema`, which has their names, too.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sparsenmt.recipe.section import Section


class Corpus(Section):
    """A line-aligned pair of text files; of a language model, one text. Files are plain or gzipped."""

    name: str | None = Field(None, description="Name in reports. Default: the name of the source file, or of the text.")
    source: str = Field(
        "",
        description="Path of the source text, relative to the folder of the recipe that names it. Required for a "
        "translation.",
    )
    target: str = Field(
        "", description="Path of the target text, line-aligned with the source. Required for a translation."
    )
    text: str = Field("", description="Path of the text of a language model, which requires it.")
    tags: str | None = Field(
        None,
        description="Path of part-of-speech tags of the source, for methods that read them: CoNLL-U, or lines of "
        "`word_TAG`; sentence n belongs to line n. Default: the tagger makes them.",
    )
    documents: str | None = Field(
        None,
        description="Path of document ids, line-aligned with the source: a document ends where the id changes. Needed "
        "by `data.documents` and by the metric `dbleu`. Default: every line is a document.",
    )
    alignments: str | None = Field(
        None,
        description="Path of word alignments, `0-0 1-2` on line n for pair n: places of a source and a target word "
        "between spaces, from 0. Read by `training.guided_alignment`.",
    )
    weight: PositiveFloat = Field(
        1.0, le=10_000, description="How often the corpus is seen in an epoch (2 = twice, 0.5 = half of it)."
    )
    lines: PositiveInt | None = Field(
        None, description="Training corpora: use this many lines, the first ones unless `lines_seed` is set."
    )
    lines_seed: NonNegativeInt | None = Field(
        None, description="Seed of a random sample of `lines` lines, in their order, in place of the first ones."
    )
    tag: str | None = Field(
        None,
        description="Training corpora: name of a token before every source, `bt` of `<bt>`: where the text comes from "
        "(Caswell et al. 2019, tagged back-translation), its domain, or the language to translate to. `prepare` adds "
        "it to the vocabulary. Of a text to translate, `dev` included, write it at the beginning of the lines.",
    )

    younger = frozenset({"source", "target", "text", "lines", "lines_seed", "tag", "alignments"})

    @property
    def label(self) -> str:
        """The name in reports and stages: that of the file, unless there is another."""
        return self.name or PurePath(self.text or self.source).name

    @property
    def tag_token(self) -> str | None:
        """The token of the tag; None: there is no tag."""
        return None if self.tag is None else f"<{self.tag}>"

    @property
    def files(self) -> dict[str, str]:
        """The path of every text by its key: source and target, or the text of a language model."""
        return {"text": self.text} if self.text else {"source": self.source, "target": self.target}


BYTE_TOKENS = 260
"""Tokens of a vocabulary of bytes: 256, and the special tokens."""


class TokenizerSection(Section):
    """The conversion of text to tokens."""

    kind: Literal["bpe", "unigram", "char", "word", "byte"] = Field(
        "bpe",
        description="SentencePiece BPE or unigram, characters, white-space separated words, or the bytes of UTF-8.",
    )
    vocabulary_size: PositiveInt = Field(
        8000,
        le=2**24,
        description="Number of tokens in a vocabulary (an upper bound for char and word). Bytes have 256, and the "
        "special tokens.",
    )
    shared: bool = Field(True, description="One vocabulary for both languages.")
    character_coverage: float = Field(1.0, gt=0, le=1, description="Share of characters that the vocabulary covers.")
    lowercase: bool = Field(False, description="Lowercase all text.")
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = Field(
        "nmt_nfkc",
        description="SentencePiece's rule. Default of languages with zero-width joiners, as Persian: `nfkc`.",
    )
    max_training_lines: PositiveInt = Field(
        2_000_000, description="Largest number of lines that the vocabulary is trained on."
    )
    from_model: str | None = Field(
        None,
        description="Model directory whose tokenizers are used as they are, instead of learning some; relative to the "
        "folder of the recipe. For further training of a model that was imported. Of the other keys only `shared` "
        "counts.",
    )
    user_symbols: list[str] = Field(
        [],
        description="Words that are a single token each, such as markers `<n>` between turns or sentences and `<doc>` "
        "between documents; they count in `vocabulary_size`.",
    )

    younger = frozenset({"from_model"})

    @model_validator(mode="before")
    @classmethod
    def _count_bytes(cls, values: Any) -> Any:
        """Fill in the number of bytes and special tokens."""
        if isinstance(values, dict) and values.get("kind") == "byte" and "vocabulary_size" not in values:
            symbols = values.get("user_symbols")
            return {**values, "vocabulary_size": BYTE_TOKENS + (len(symbols) if isinstance(symbols, list) else 0)}
        return values


class TaggerSection(Section):
    """The part-of-speech tagger of the source, for methods that read tags; also used when the model decodes."""

    name: Literal["hanta", "spacy", "stanza", "given"] = Field(
        "hanta", description="An installed tagger; `given`: none, every text comes with its tags."
    )
    language: str | None = Field(None, description="Code of its language. Default: `data.source_language`.")


_Western = Literal["latin", "cyrillic", "greek", "arabic", "hebrew", "armenian", "georgian", "ethiopic", "mongolian"]
_Indian = Literal["devanagari", "bengali", "gurmukhi", "gujarati", "oriya", "tamil", "telugu", "kannada", "malayalam"]
_Eastern = Literal["sinhala", "thai", "lao", "tibetan", "myanmar", "khmer", "hangul", "hiragana", "katakana", "cjk"]
Script = Literal[_Western, _Indian, _Eastern]
"""Scripts, by the first word of the Unicode names of their letters."""


class Filters(Section):
    """Filters of the training pairs. Pairs left out are counted; no pair of `dev` is left out."""

    max_length: PositiveInt | None = Field(256, description="Leave out pairs with more tokens than this on a side.")
    max_ratio: PositiveFloat | None = Field(
        None, description="Leave out pairs whose lengths differ by more than this factor."
    )
    max_source_length: PositiveInt | None = Field(
        None,
        le=8192,
        description="Cut sources to this many tokens instead of leaving them out: in training, in `dev`, and when the "
        "model decodes or scores. At most `max_length`, and less than `model.max_positions`.",
    )
    same_text: bool = Field(
        False, description="Leave out pairs whose target is the source, but for case and white space."
    )
    max_repetition: PositiveInt | None = Field(
        None, description="Leave out pairs in which one character, not a space, is repeated more often in a row."
    )
    source_scripts: list[Script] = Field(
        [],
        description="Scripts of the source as Unicode names them, such as `latin`, or `hiragana`, `katakana` and "
        "`cjk`: pairs whose source has fewer than `min_script_share` of its letters in them are left out.",
    )
    target_scripts: list[Script] = Field([], description="The same of the target.")
    min_script_share: float = Field(0.5, gt=0, le=1, description="See `source_scripts`.")
    languages: bool = Field(
        False,
        description="Leave out pairs with a side that is reliably not in `data.source_language` or "
        "`data.target_language` (CLD2; needs `pip install sparsenmt[languages]`). Short sentences are rarely reliable.",
    )
    duplicates: bool = Field(
        False, description="Leave out pairs that occurred before in the corpus: 60 bytes of memory for each pair."
    )

    younger = frozenset(
        {"same_text", "max_repetition", "source_scripts", "target_scripts", "min_script_share", "languages"}
        | {"duplicates"}
    )

    @property
    def reads_text(self) -> bool:
        """True if a filter decides by more than the numbers of tokens; examples of what is left out are then kept."""
        scripts = self.source_scripts or self.target_scripts
        return bool(self.same_text or self.max_repetition or scripts or self.languages or self.duplicates)


class SubwordSampling(Section):
    """Random division of the words of one side into tokens."""

    dropout: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="BPE-dropout (Provilkov et al. 2020): probability that a merge is skipped, as by SentencePiece; "
        "0.1 is usual. For `kind: bpe`.",
    )
    alpha: PositiveFloat | None = Field(
        None,
        le=100,
        description="Unigram sampling (Kudo 2018): a division is drawn with its probability to the power of alpha; 0.1 "
        "to 0.5 are usual. For `kind: unigram`.",
    )
    nbest: PositiveInt | None = Field(
        None, le=1024, description="Unigram: draw from this many best divisions of a sentence. Default: from all."
    )

    younger = frozenset({"dropout", "alpha", "nbest"})

    @model_validator(mode="after")
    def _one_kind(self) -> SubwordSampling:
        """Check that one of the two kinds is chosen."""
        if (self.dropout is None) == (self.alpha is None):
            raise ValueError("set either `dropout`, of BPE, or `alpha`, of unigram")
        if self.nbest is not None and self.alpha is None:
            raise ValueError("`nbest` belongs to `alpha`, of unigram")
        return self


class SubwordRegularization(Section):
    """Another division into tokens every time that a training sentence is read; none in validation and decoding.

    The prepared data do not change: a sentence is put together from its tokens and divided anew while the update before
    is computed. The division depends on the seed, the epoch and the line alone.
    """

    source: SubwordSampling | None = Field(None, description="Sampling of sources. Default: none.")
    target: SubwordSampling | None = Field(None, description="Sampling of targets. Default: none.")

    younger = frozenset({"source", "target"})


class CorpusStage(Section):
    """Other weights of the training corpora from an update on."""

    after: PositiveInt = Field(description="Update after which the stage begins; an epoch that is not complete ends.")
    weights: dict[str, Annotated[float, Field(ge=0, le=10_000)]] = Field(
        description="Weight of a corpus, by its name; 0 leaves it out. Others have their `weight`."
    )
    temperature: PositiveFloat | None = Field(
        None, le=1000, description="Temperature of the stage. Default: `data.temperature`."
    )

    younger = frozenset({"temperature"})


class Documents(Section):
    """Blocks of consecutive sentences of a document; the model reads and writes each block as one long sentence.

    `data.filters` apply to the sentences, before they are packed.
    """

    max_length: PositiveInt = Field(
        512,
        le=2**20,
        description="Longest block, in tokens of either language, including separators and `</s>`; a longer sentence "
        "is a block of its own. At most `model.max_positions`.",
    )
    source_length: PositiveInt | None = Field(
        None,
        description="Longest block when the target is not known, as in `decode`. Default: `max_length`. Lower it "
        "if targets have more tokens than sources: otherwise outputs become longer than any in training.",
    )
    separator: str = Field(
        "<sep>", description="Word between two sentences of a block: one token, added to the vocabulary by `prepare`."
    )


class Data(Section):
    """Text, tokenizer and the prepared binary data."""

    task: Literal["translation", "language_model"] = Field(
        "translation",
        description="`translation`: from a source to a target; `language_model`: a decoder without a source, of one "
        "text.",
    )
    directory: str = Field(description="Directory of the binary data that `prepare` writes and `train` reads.")
    source_language: str = Field("source", description="Language code of the source, such as `en`; used by the tagger.")
    target_language: str = Field(
        "target",
        description="Language code of the target, or of a language model's text, such as `ja`; for reports and for the "
        "words of scores.",
    )
    train: list[Corpus] = Field(min_length=1, description="Training corpora.")
    dev: Corpus = Field(description="Validation text.")
    test: Corpus | None = Field(
        None, description="Test text of `sparsenmt demo`, `compare`, `sweep` and `depth-table`."
    )
    tokenizer: TokenizerSection = Field(TokenizerSection(), description="The conversion of text to tokens.")
    filters: Filters = Field(Filters(), description="Filters of the training pairs.")
    tagger: TaggerSection = Field(TaggerSection(), description="Part-of-speech tagger of the source.")
    documents: Documents | None = Field(
        None,
        description="Pack the sentences of documents into blocks; `{}` packs with the defaults. Default: every line "
        "is independent.",
    )
    temperature: PositiveFloat = Field(
        1.0,
        le=1000,
        description="Temperature T of the mixture of corpora (Arivazhagan et al. 2019): shares are proportional to "
        "(pairs x `weight`)^(1/T), and an epoch keeps its size. 1: as the weights say; 5: small corpora are seen more "
        "often; a large T: all alike.",
    )
    stages: list[CorpusStage] = Field([], description="Mixtures of later updates, such as clean data at the end.")
    subword_regularization: SubwordRegularization | None = Field(
        None, description="Random division of training sentences into tokens. Default: none."
    )

    younger = frozenset({"task", "temperature", "stages", "subword_regularization"})

    @property
    def is_language_model(self) -> bool:
        """True if the task is a language model, False if it is a translation."""
        return self.task == "language_model"
