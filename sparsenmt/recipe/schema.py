"""The recipe as typed, validated objects. Every key a recipe may hold stands here, with its documentation.

``docs/recipes.md`` is generated from these descriptions. Options of sparsity methods are not here: they belong to the
methods, and `recipe.load` receives them as a mapping from names to types.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

Probability = float


class Section(BaseModel):
    """A part of the recipe: immutable, unknown keys forbidden."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MethodChoice(BaseModel):
    """A sparsity method plugged into a socket: its ``name``, and the method's own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="Name of a registered method.")

    @property
    def options(self) -> dict[str, Any]:
        """The options beside ``name``, as written."""
        return dict(self.model_extra or {})


class MemoryChoice(MethodChoice):
    """A memory filter, with the place where it stands."""

    at: Literal["output", "between"] = Field(
        "output", description="`output`: after the encoder; `between`: between every two encoder layers."
    )
    per: Literal["model", "exit"] = Field(
        "model",
        description="At the output of an encoder that has several trained exits: one filter for all (`model`), or for "
        "each `exit` its own.",
    )


class Heads(Section):
    """What the heads of an attention site are."""

    given: MethodChoice | None = Field(None, description="Heads whose weights are given, not learned.")
    count: PositiveInt | None = Field(
        None, le=2**16, description="Number of heads at this site; default: `model.heads`."
    )
    disabled: list[PositiveInt] = Field(
        [],
        description="Heads that give zeros, in every layer, by their numbers from 1: given heads come first, in their "
        "order. Of a trained model, `--disable-heads` of `decode` and `score` does the same.",
    )


class Site(Section):
    """One attention site: which keys a query may see, how scores become weights, which heads are given."""

    pattern: MethodChoice = Field(MethodChoice(name="full"), description="Which keys a query may see.")
    transform: MethodChoice = Field(MethodChoice(name="softmax"), description="How scores become weights.")
    heads: Heads = Field(Heads(), description="Number of heads, and heads with given weights.")


class Attention(Section):
    """The three attention sites."""

    encoder_self: Site = Field(Site(), description="Self-attention of the encoder.")
    decoder_self: Site = Field(Site(), description="Self-attention of the decoder.")
    cross: Site = Field(Site(), description="Attention of the decoder to the encoder's output.")


class Dropout(Section):
    """Probabilities of dropping, in training only."""

    residual: Probability = Field(0.1, ge=0, lt=1, description="On the output of every sub-layer and on embeddings.")
    attention: Probability = Field(0.0, ge=0, lt=1, description="On attention weights.")
    activation: Probability = Field(0.0, ge=0, lt=1, description="Inside the feed-forward network, after activation.")


class Model(Section):
    """The Transformer and the methods plugged into its sockets."""

    preset: Literal["tiny", "small", "base", "big"] | None = Field(
        None, description="Sizes to start from; every key beside it overrides the preset's value."
    )
    dimension: PositiveInt = Field(512, le=2**16, description="Model dimension D.")
    feed_forward: PositiveInt = Field(2048, le=2**20, description="Inner dimension of the feed-forward networks.")
    heads: PositiveInt = Field(8, le=2**16, description="Attention heads; must divide `dimension`.")
    encoder_layers: PositiveInt = Field(6, le=1000, description="Encoder layers N.")
    decoder_layers: PositiveInt = Field(6, le=1000, description="Decoder layers M.")
    norm: Literal["pre", "post"] = Field("pre", description="Layer normalisation before or after each sub-layer.")
    activation: Literal["relu", "gelu", "silu"] = Field("relu", description="Activation of the feed-forward networks.")
    positions: Literal["sinusoidal", "learned"] = Field("sinusoidal", description="Position encodings.")
    max_positions: PositiveInt = Field(1024, le=2**20, description="Longest sequence, in pieces; longer input is cut.")
    tie_embeddings: Literal["all", "target", "none"] = Field(
        "all",
        description="`all`: source, target and output share one table (needs a shared vocabulary); "
        "`target`: target and output; `none`: three tables.",
    )
    dropout: Dropout = Field(Dropout(), description="Dropout probabilities.")
    attention: Attention = Field(Attention(), description="The three attention sites.")
    memory: list[MemoryChoice] = Field([], description="Filters that decide which encoder outputs go on.")
    depth: MethodChoice = Field(
        MethodChoice(name="plain"), description="Which layers run, which are shared, which exits are trained."
    )


class Ramp(Section):
    """A value that changes linearly with the updates."""

    from_: float = Field(alias="from", description="Value at the beginning.")
    to: float = Field(description="Value at the end of the change, and after it.")
    steps: PositiveInt = Field(description="Updates over which the value changes.")
    after: NonNegativeInt = Field(
        0, description="Update at which the change begins; `finetune-l0` counts from its own first update."
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AuxiliaryLoss(Section):
    """One auxiliary loss: its weight, or a target that a controller drives the weight to."""

    weight: NonNegativeFloat | Ramp | None = Field(None, description="Without it, and without a target, 1.")
    target: float | Ramp | None = Field(
        None,
        description="Instead of a weight: the share of gates to close, between 0 and 1, or `{from, to, steps}`. It is "
        "measured with the gates of evaluation on training batches; a controller moves the weight, also below 0.",
    )
    tolerance: float = Field(
        0.02, gt=0, lt=1, description="With a target: validations farther from it than this are never the best."
    )
    proportional: NonNegativeFloat = Field(6.0, description="With a target: weight per distance from it.")
    integral: NonNegativeFloat = Field(0.05, description="With a target: weight gained per distance and update.")
    max_weight: PositiveFloat = Field(5.0, description="With a target: largest size of the weight.")
    release: PositiveFloat = Field(4.0, description="With a target: beyond it, the gain shrinks so many times faster.")
    damping: NonNegativeFloat = Field(20.0, description="With a target: weight lost per share closed in an update.")
    smoothing: float = Field(0.7, ge=0, lt=1, description="With a target: smoothing of the share over updates.")


class Corpus(Section):
    """One line-aligned pair of text files, plain or gzipped."""

    name: str | None = Field(None, description="Name in reports; default: the source file's name.")
    source: str = Field(description="Path of the source text, relative to the folder of the file that names it.")
    target: str = Field(description="Path of the target text, line-aligned with the source.")
    tags: str | None = Field(
        None,
        description="Path of part-of-speech tags of the source, for methods that read them: CoNLL-U, or lines of "
        "`word_TAG`; sentence n belongs to line n. Default: the tagger makes them.",
    )
    documents: str | None = Field(
        None,
        description="Path of document ids, line-aligned with the source: where the id changes, a document ends. For "
        "`data.documents`, and for the metric `dbleu`. Default: every line is by itself.",
    )
    weight: PositiveFloat = Field(
        1.0, le=10_000, description="How often the corpus is seen in an epoch (2 = twice, 0.5 = half)."
    )


class TokenizerSection(Section):
    """How text becomes pieces."""

    kind: Literal["bpe", "unigram", "char", "word"] = Field(
        "bpe", description="SentencePiece BPE or unigram, characters, or white-space separated words."
    )
    vocabulary_size: PositiveInt = Field(
        8000, le=2**24, description="Pieces in a vocabulary (an upper bound for char and word)."
    )
    shared: bool = Field(True, description="One vocabulary for both languages.")
    character_coverage: float = Field(1.0, gt=0, le=1, description="Share of characters the vocabulary covers.")
    lowercase: bool = Field(False, description="Lowercase all text.")
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = Field(
        "nmt_nfkc", description="SentencePiece's normalisation rule."
    )
    max_training_lines: PositiveInt = Field(2_000_000, description="Lines that the vocabulary is trained on, at most.")
    user_symbols: list[str] = Field(
        [],
        description="Words that are one piece each, such as the markers `<n>` between turns or sentences and `<doc>` "
        "between documents; they count in `vocabulary_size`.",
    )


class TaggerSection(Section):
    """What tags the source where a method reads part-of-speech tags, here and when the model decodes."""

    name: Literal["hanta", "spacy", "stanza", "given"] = Field(
        "hanta", description="A tagger that is installed; `given`: none, tags stand beside every text."
    )
    language: str | None = Field(None, description="Code of its language; default: `data.source_language`.")


class Filters(Section):
    """Training pairs that are left out, and counted. No pair of `dev` is left out."""

    max_length: PositiveInt | None = Field(256, description="Drop pairs with more pieces than this on either side.")
    max_ratio: PositiveFloat | None = Field(
        None, description="Drop pairs whose lengths differ by more than this factor."
    )
    max_source_length: PositiveInt | None = Field(
        None,
        le=8192,
        description="Cut sources to this many pieces (instead of dropping them): here, in `dev`, and when the model "
        "decodes or scores. At most `max_length`, and less than `model.max_positions`.",
    )


class Documents(Section):
    """Blocks of consecutive sentences of a document, each of which the model reads and writes as one long sentence.

    `data.filters` look at the sentences, before they are packed.
    """

    max_length: PositiveInt = Field(
        512,
        le=2**20,
        description="Longest block, in pieces of either language, separators and `</s>` included; a sentence that is "
        "longer stands alone. At most `model.max_positions`.",
    )
    source_length: PositiveInt | None = Field(
        None,
        description="Longest block where the target is not known, as in `decode`; default: `max_length`. Lower it "
        "where targets have more pieces than sources: otherwise outputs become longer than any in training.",
    )
    separator: str = Field(
        "<sep>", description="Word between two sentences of a block: one piece, which `prepare` adds to the vocabulary."
    )


class Data(Section):
    """Text, tokenizer and the prepared binary store."""

    directory: str = Field(description="Where `prepare` writes, and `train` reads, the binary data.")
    source_language: str = Field(
        "source", description="Language code of the source, such as `en`: what the tagger goes by."
    )
    target_language: str = Field("target", description="Language code of the target, for reports.")
    train: list[Corpus] = Field(min_length=1, description="Training corpora.")
    dev: Corpus = Field(description="Validation text.")
    test: Corpus | None = Field(
        None, description="Test text: what `sparsenmt demo` translates at its end. Other commands are given files."
    )
    tokenizer: TokenizerSection = Field(TokenizerSection(), description="How text becomes pieces.")
    filters: Filters = Field(Filters(), description="Training pairs that are left out.")
    tagger: TaggerSection = Field(TaggerSection(), description="What tags the source, where a method reads tags.")
    documents: Documents | None = Field(
        None,
        description="Pack the sentences of documents into blocks; default: every line is by itself. `{}` is enough.",
    )


class Optimizer(Section):
    """Adam (Kingma and Ba 2015)."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: PositiveFloat = Field(1e-9, description="Term that avoids division by zero.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decoupled weight decay (AdamW) on matrices.")


class Validation(Section):
    """How and when the model is validated."""

    every: PositiveInt = Field(1000, description="Updates between validations.")
    metric: Literal["loss", "bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "dbleu"] = Field(
        "bleu",
        description="What `keep_best` and early stopping look at; anything but `loss` decodes the dev set. `dbleu` "
        "needs `data.dev.documents`.",
    )
    beam_size: PositiveInt = Field(4, le=10_000, description="Beam size of validation decoding.")
    patience: PositiveInt | None = Field(None, description="Stop after this many validations without a new best.")
    max_sentences: PositiveInt | None = Field(None, description="Decode only the first so many dev sentences.")


class Training(Section):
    """The training run."""

    seed: NonNegativeInt = Field(
        1, lt=2**32, description="Fixes initialisation, data order and dropout (exactly, on the CPU)."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: CUDA where there is one.")
    compute_dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="Precision of the arithmetic; weights are kept in fp32. `auto`: bf16 where it is native."
    )
    threads: PositiveInt | None = Field(None, description="CPU threads; default: all cores.")
    max_updates: PositiveInt = Field(100_000, description="Updates of the weights, at most.")
    max_epochs: PositiveInt | None = Field(None, description="Passes over the training data, at most.")
    batch_tokens: PositiveInt = Field(
        4096, description="Size of a batch: rows times the longer of the padded source and target lengths, at most."
    )
    accumulate_tokens: PositiveInt | None = Field(
        None, description="Tokens an update sees, if more than `batch_tokens`: that many batches are accumulated."
    )
    learning_rate: PositiveFloat = Field(5e-4, description="Peak learning rate.")
    schedule: Literal["inverse_sqrt", "linear", "constant"] = Field(
        "inverse_sqrt",
        description="After the warm-up: fall with 1/sqrt(update), linearly to 0 at `max_updates`, or stay.",
    )
    warmup_updates: NonNegativeInt = Field(4000, description="Updates over which the learning rate rises linearly.")
    optimizer: Optimizer = Field(Optimizer(), description="Adam's constants.")
    clip_norm: PositiveFloat | None = Field(1.0, description="Largest norm of the gradient.")
    skip_nonfinite: NonNegativeInt = Field(
        0, description="Updates whose loss or gradient is not finite that are left out before training stops."
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Mass of the target distribution spread uniformly.")
    loss_normalization: Literal["tokens", "sentences"] = Field(
        "tokens", description="Mean over target tokens, or over a sentence's tokens and then over sentences."
    )
    validation: Validation = Field(Validation(), description="How and when the model is validated.")
    log_every: PositiveInt = Field(50, description="Updates between lines of `metrics.jsonl`.")
    save_every: PositiveInt = Field(1000, description="Updates between checkpoints.")
    keep_last: PositiveInt = Field(5, description="Checkpoints kept: the newest.")
    keep_best: NonNegativeInt = Field(1, description="Checkpoints kept beside them: the best by the metric.")
    average_last: NonNegativeInt = Field(
        0,
        description="At the end, average this many of the kept checkpoints into the model; "
        "0 = take the best that was kept (see `keep_best`).",
    )


class Decoding(Section):
    """Defaults of `decode`, `score` and validation."""

    method: Literal["beam", "greedy", "sample"] = Field("beam", description="Search method.")
    beam_size: PositiveInt = Field(
        4,
        le=10_000,
        description="Hypotheses a sentence. The search stops when that many have ended with `</s>`, "
        "or at the longest output.",
    )
    length_penalty: Literal["gnmt", "average", "none"] = Field(
        "gnmt",
        description="Score of a hypothesis: log-probability / ((5 + length) / 6)^alpha, / length^alpha, or as is.",
    )
    alpha: NonNegativeFloat = Field(0.6, le=10, description="Exponent of the length penalty.")
    max_length_factor: NonNegativeFloat = Field(1.0, description="Longest output: factor x source pieces + offset.")
    max_length_offset: NonNegativeInt = Field(50, description="Longest output: factor x source pieces + offset.")
    min_length: NonNegativeInt = Field(0, description="Shortest output, in pieces.")
    no_repeat_ngram: NonNegativeInt = Field(0, description="Never repeat an n-gram of this length; 0 = allowed.")
    temperature: PositiveFloat = Field(1.0, description="Sampling: divides the logits.")
    top_k: NonNegativeInt = Field(0, description="Sampling: only the k most probable pieces; 0 = all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sampling: the smallest set of pieces with this mass.")
    seed: NonNegativeInt = Field(1, lt=2**32, description="Sampling: seed.")
    batch_tokens: PositiveInt = Field(2048, description="Source tokens in a batch, padding included, times the beam.")
    dtype: Literal["auto", "fp32", "bf16", "int8"] = Field(
        "fp32", description="Of matrix products in `decode`; auto = the fastest, by a measurement at the start."
    )
    encoder_layers: PositiveInt | None = Field(
        None, description="Encoder layers that run, from the first on; default: all that were trained to be the last."
    )
    decoder_layers: PositiveInt | None = Field(None, description="Decoder layers that run, likewise.")

    @property
    def encoder_exits(self) -> tuple[int, ...] | None:
        """Depth of the encoder whose output is wanted; None: the deepest that was trained."""
        return None if self.encoder_layers is None else (self.encoder_layers,)

    @property
    def decoder_exits(self) -> tuple[int, ...] | None:
        """The same of the decoder."""
        return None if self.decoder_layers is None else (self.decoder_layers,)

    @property
    def depth(self) -> tuple[int, int] | None:
        """Encoder and decoder layers that run, where both are given."""
        return (self.encoder_layers, self.decoder_layers) if self.encoder_layers and self.decoder_layers else None

    def at(self, depth: tuple[int, int] | None) -> Decoding:
        """These settings at a depth: encoder and decoder layers that run; None: the deepest that were trained."""
        encoder, decoder = depth or (None, None)
        return self.model_copy(update={"encoder_layers": encoder, "decoder_layers": decoder})


class Recipe(Section):
    """Everything a run is: a Transformer plus sparsity methods plugged into its sockets, and its data."""

    name: str = Field(description="Name of the run.")
    directory: str = Field(description="Model directory that `train` writes, relative to the working directory.")
    model: Model = Field(Model(), description="The Transformer and its methods.")
    losses: dict[str, AuxiliaryLoss] = Field({}, description="Weights of auxiliary losses, by name.")
    data: Data = Field(description="Text, tokenizer and the prepared data.")
    training: Training = Field(Training(), description="The training run.")
    decoding: Decoding = Field(Decoding(), description="Defaults of decoding.")
