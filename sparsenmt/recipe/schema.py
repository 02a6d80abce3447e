"""The recipe as typed, validated objects: every key that a recipe may have, with its documentation.

``docs/reference/recipes.md`` is generated from these descriptions. Options of sparsity methods are not here: they
belong to the methods, and `recipe.load` receives them as a mapping from names to types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss
from sparsenmt.recipe.choices import (
    LARGEST_BEAM,
    Preset,
    ScoringTokenizer,
    TrackerName,
    device_name,
)
from sparsenmt.recipe.data_sections import BYTE_TOKENS as BYTE_TOKENS
from sparsenmt.recipe.data_sections import Corpus as Corpus
from sparsenmt.recipe.data_sections import CorpusStage as CorpusStage
from sparsenmt.recipe.data_sections import Data as Data
from sparsenmt.recipe.data_sections import Documents as Documents
from sparsenmt.recipe.data_sections import Filters as Filters
from sparsenmt.recipe.data_sections import SubwordRegularization as SubwordRegularization
from sparsenmt.recipe.data_sections import SubwordSampling as SubwordSampling
from sparsenmt.recipe.data_sections import TaggerSection as TaggerSection
from sparsenmt.recipe.data_sections import TokenizerSection as TokenizerSection
from sparsenmt.recipe.decoding_section import Decoding as Decoding
from sparsenmt.recipe.method_choice import Attention, MemoryChoice, MethodChoice
from sparsenmt.recipe.section import Section
from sparsenmt.recipe.table_names import ValidationMetric
from sparsenmt.recipe.task_keys import with_language_defaults, with_task_defaults, without_foreign_keys


class Dropout(Section):
    """Dropout probabilities, in training only."""

    residual: float = Field(0.1, ge=0, lt=1, description="On the output of every sub-layer and on embeddings.")
    attention: float = Field(0.0, ge=0, lt=1, description="On attention weights.")
    activation: float = Field(0.0, ge=0, lt=1, description="In the feed-forward networks, after the activation.")


class ModelSection(Section):
    """The Transformer and the methods plugged into its sockets."""

    preset: Preset | None = Field(
        None, description="Sizes to start from; the other keys of this section override them."
    )
    dimension: PositiveInt = Field(512, le=2**16, description="Model dimension D.")
    feed_forward: PositiveInt = Field(2048, le=2**20, description="Inner dimension of the feed-forward networks.")
    heads: PositiveInt = Field(
        8, le=2**16, description="Number of attention heads; must divide `dimension`, unless `head_size` is set."
    )
    head_size: PositiveInt | None = Field(
        None, le=2**16, description="Dimension of a head. Default: `dimension` over the number of heads."
    )
    encoder_layers: NonNegativeInt = Field(
        6, le=1000, description="Number of encoder layers N. A language model has none."
    )
    decoder_layers: PositiveInt = Field(6, le=1000, description="Number of decoder layers M.")
    norm: Literal["pre", "post"] = Field("pre", description="Layer normalisation before or after each sub-layer.")
    norm_kind: Literal["layer", "rms"] = Field(
        "layer",
        description="`layer`: layer normalisation; `rms`: by the root mean square, without mean and bias (Zhang and "
        "Sennrich 2019).",
    )
    final_norm: bool | None = Field(
        None, description="Normalisation after the last layer of each side. Default: true with `norm: pre`."
    )
    norm_epsilon: PositiveFloat = Field(
        1e-5, le=1, description="Number added to the variance in every layer normalisation."
    )
    decoder_feed_forward: PositiveInt | None = Field(
        None, le=2**20, description="Inner dimension in the decoder. Default: `feed_forward`."
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = Field(
        "relu", description="Activation of the feed-forward networks; `gelu_tanh` approximates `gelu`."
    )
    glu: bool = Field(
        False,
        description="Gated linear units in the feed-forward networks: the activation of one projection times a second "
        "one (Shazeer 2020).",
    )
    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="Absolute position encodings, added to the embeddings."
    )
    sinusoids: Literal["tensor2tensor", "paper"] = Field(
        "tensor2tensor",
        description="Wavelengths of sinusoidal positions. `tensor2tensor`: from 2 pi to 10000 * 2 pi inclusive, as in "
        "Marian and fairseq; `paper`: 10000^(2i/D) * 2 pi, as in Transformers' Marian and PEGASUS.",
    )
    first_position: NonNegativeInt = Field(
        0, le=2**20, description="Number of the first sinusoidal position: 2 in M2M-100 and NLLB."
    )
    max_positions: PositiveInt = Field(1024, le=2**20, description="Longest sequence, in tokens; longer input is cut.")
    embedding_scale: Literal["sqrt", "none"] = Field(
        "sqrt", description="Factor of the embeddings: `sqrt`: the square root of `dimension`; `none`: 1."
    )
    embedding_norm: bool = Field(
        False, description="Layer normalisation of the embeddings, after positions were added."
    )
    tie_embeddings: Literal["all", "inputs", "target", "none"] = Field(
        "all",
        description="`all`: source, target and output share one table (needs a shared vocabulary); `inputs`: source "
        "and target share one (likewise); `target`: target and output share one; `none`: three tables.",
    )
    output_bias: bool = Field(False, description="A bias for every token of the output.")
    dropout: Dropout = Field(Dropout(), description="Dropout probabilities.")
    attention: Attention = Field(Attention(), description="The three attention sites.")
    recurrence: MethodChoice | None = Field(
        None,
        description="A recurrent layer in the place of the decoder's self-attention: one state vector in place of keys "
        "and values. `attention.decoder_self` then has no meaning. Default: none.",
    )
    memory: list[MemoryChoice] = Field([], description="Filters that select which encoder outputs are kept.")
    depth: MethodChoice = Field(
        MethodChoice(name="plain"),
        description="Which layers run, which share their weights, and which exits are trained.",
    )
    segment_memory: NonNegativeInt = Field(
        0,
        le=2**20,
        description="Language models: number of positions before a segment whose states every layer attends to.",
    )

    younger = frozenset(
        {
            *("segment_memory", "final_norm", "norm_epsilon", "decoder_feed_forward", "sinusoids", "first_position"),
            *("embedding_scale", "embedding_norm", "output_bias", "recurrence", "head_size", "norm_kind", "glu"),
        }
    )

    @property
    def shares_vocabulary(self) -> bool:
        """True if a table is shared by source and target, which needs one vocabulary."""
        return self.tie_embeddings in ("all", "inputs")


class Validation(Section):
    """Validation during training."""

    every: PositiveInt = Field(1000, description="Number of updates between validations.")
    metric: ValidationMetric = Field(
        "bleu",
        description="Metric for `keep_best` and early stopping; all but `loss` decode the validation text. `dbleu` "
        "needs `data.dev.documents`. Default of a language model: `bpc`.",
    )
    tokenize: ScoringTokenizer | None = Field(
        None,
        description="sacrebleu's tokenizer for BLEU, d-BLEU and `length`, here and in `score`, `compare` and `sweep`. "
        "Default: what fits `data.target_language` and the text: 13a, or `zh`, `ja-mecab`, `ko-mecab` or `char`.",
    )
    beam_size: PositiveInt = Field(4, le=LARGEST_BEAM, description="Beam size of validation.")
    patience: PositiveInt | None = Field(None, description="Stop after this many validations without a new best.")
    max_sentences: PositiveInt | None = Field(
        None, description="Decode only this many sentences, from the beginning of the validation text."
    )


class Optimizer(Section):
    """Adam (Kingma and Ba 2015) or Adagrad (Duchi et al. 2011), and its constants."""

    name: Literal["adam", "adagrad"] = Field("adam", description="`adam`, or `adagrad`.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's decay of the first moment.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Adam's decay of the second moment.")
    epsilon: PositiveFloat = Field(1e-9, description="Term that avoids division by zero.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Adam's decoupled weight decay (AdamW) of matrices.")
    initial_sum: NonNegativeFloat = Field(0.0, description="Adagrad's sums of squared gradients before training.")

    @model_serializer(mode="wrap")
    def serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The section as plain values, without the keys of the other optimizer; `name` is younger than recipes."""
        values: dict[str, Any] = handler(self)
        foreign = {key for name, keys in OPTIMIZER_KEYS.items() if name != self.name for key in keys}
        return {key: value for key, value in values.items() if key not in foreign and (key, value) != ("name", "adam")}


OPTIMIZER_KEYS = {"adam": ("beta1", "beta2", "weight_decay"), "adagrad": ("initial_sum",)}
"""The keys of `training.optimizer` that have a meaning for one optimizer only."""


class Adapters(Section):
    """Low-rank adapters (LoRA, Hu et al. 2021) that are trained in place of the model's own weights."""

    rank: PositiveInt = Field(8, le=4096, description="Rank of the adapters' product B A.")
    alpha: PositiveFloat = Field(16.0, description="The product is multiplied by alpha / rank.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the adapters' inputs.")
    targets: list[str] = Field(
        ["q", "v"],
        min_length=1,
        description="Linear layers with an adapter, by a part of the name, such as `q`, `k`, `v`, `o`, "
        "`feed_forward.inner`, `feed_forward.outer`; `self`, `cross`, `cross.q`, `feed_forward`, `encoder`, "
        "`decoder.layers.0`.",
    )


class GuidedAlignment(Section):
    """A loss that draws one head of cross-attention towards given word alignments (Chen et al. 2016; Garg et al. 2019).

    `data.train.N.alignments` names the links of a corpus; pairs of corpora without any have no such loss.
    """

    layer: PositiveInt = Field(description="Decoder layer of the head, from 1. Garg et al. take the last but one.")
    head: PositiveInt = Field(1, description="Number of the head, from 1; fixed heads come first, and learn nothing.")
    weight: PositiveFloat = Field(
        0.05, description="Factor of the cross-entropy of a target token's attention and its links."
    )


class Training(Section):
    """The training run."""

    seed: NonNegativeInt = Field(
        1, lt=2**32, description="Random seed of initialisation, data order and dropout (exact on the CPU)."
    )
    device: Annotated[str, AfterValidator(device_name)] = Field(
        "auto", description="`auto`: CUDA if available; `cpu`; `cuda`, or `cuda:1` for the second of several."
    )
    compute_dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="Precision of the arithmetic; weights are kept in fp32. `auto`: bf16 if it is native."
    )
    compile: bool = Field(
        False,
        description="Compile the layers with `torch.compile`: fewer launches on a GPU, after minutes of compiling; not "
        "timed there yet.",
    )
    deterministic: bool = Field(
        False,
        description="The same results in every run on a GPU, too, more slowly: PyTorch's deterministic algorithms. A "
        "method that has none on the device is refused.",
    )
    threads: PositiveInt | None = Field(None, description="Number of CPU threads. Default: all cores.")
    max_updates: PositiveInt = Field(100_000, description="Largest number of updates.")
    max_epochs: PositiveInt | None = Field(None, description="Largest number of passes over the training data.")
    max_hours: PositiveFloat | None = Field(
        None,
        description="Stop after this many hours of updates, validations and checkpoints, those before an interruption "
        "included. The last update is validated and saved as always; a schedule that falls to 0 does not reach it.",
    )
    batch_tokens: PositiveInt = Field(
        4096,
        description="Largest size of a batch: rows times the longer of the padded source and target lengths. "
        "Default on a GPU: 25000, at most `accumulate_tokens`; the run keeps it wherever it goes on.",
    )
    accumulate_tokens: PositiveInt | None = Field(
        None,
        description="Tokens per update, if more than `batch_tokens`: gradients of several batches are accumulated.",
    )
    streams: PositiveInt = Field(
        16,
        le=2**20,
        description="Language models: number of equal parts of the text that are read side by side, each from its "
        "beginning to its end.",
    )
    segment_length: PositiveInt = Field(
        512,
        le=2**20,
        description="Language models: tokens of a segment. An update reads one segment of every stream, in batches of "
        "`batch_tokens` tokens.",
    )
    learning_rate: PositiveFloat = Field(5e-4, description="Peak learning rate.")
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = Field(
        "inverse_sqrt",
        description="Learning rate after the warm-up: falls with 1/sqrt(update), falls linearly or as half a cosine to "
        "0 at `max_updates`, or stays constant.",
    )
    warmup_updates: NonNegativeInt = Field(4000, description="Updates over which the learning rate rises linearly.")
    optimizer: Optimizer = Field(Optimizer(), description="The optimizer and its constants.")
    clip_norm: PositiveFloat | None = Field(1.0, description="Largest norm of the gradient; null: any.")
    clip: Literal["total", "tensor", "step"] = Field(
        "total",
        description="Object of `clip_norm`. `total`: the whole gradient; `tensor`: the gradient of each parameter; "
        "`step`: the same, but only the step of Adagrad is shortened, and its sums take the gradient as it is "
        "(Sukhbaatar et al. 2019).",
    )
    lora: Adapters | None = Field(
        None,
        description="Train low-rank adapters; weights of methods (gates) are trained too, all else is frozen. "
        "Checkpoints keep adapters apart; the final weights are merged.",
    )
    freeze: list[str] = Field(
        [],
        description="Parts of the model that are not trained, by the names of their weights: `encoder`, `decoder`, "
        "`embeddings` (with the output table where they share it), `memory` (filters), `positions`; or deeper, as in "
        "`decoder.layers.0` or `*.feed_forward`.",
    )
    guided_alignment: GuidedAlignment | None = Field(
        None, description="Guide one head of cross-attention towards `data.train.N.alignments`."
    )
    skip_nonfinite: NonNegativeInt = Field(
        0, description="Number of updates with a non-finite loss or gradient to skip before training stops."
    )
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="Mass of the target distribution spread uniformly. Default of a language model: 0."
    )
    loss_normalization: Literal["tokens", "sentences"] = Field(
        "tokens",
        description="`tokens`: mean over target tokens; `sentences`: mean over each sentence's tokens, then over "
        "sentences.",
    )
    validation: Validation = Field(Validation(), description="Validation during training.")
    log_every: PositiveInt = Field(50, description="Number of updates between lines of `metrics.jsonl`.")
    trackers: list[TrackerName] | None = Field(
        None,
        description="Programs that get the numbers of the log, too; their own variables say where, as "
        "`WANDB_MODE=offline`. Default: TensorBoard, if it is installed; `[]`: none.",
    )
    save_every: PositiveInt = Field(1000, description="Number of updates between checkpoints.")
    keep_last: PositiveInt = Field(5, description="Number of newest checkpoints to keep.")
    keep_best: NonNegativeInt = Field(
        1, description="Number of further checkpoints to keep: the best by the validation metric."
    )
    average_last: NonNegativeInt = Field(
        0,
        description="Number of newest checkpoints that may be averaged into the final model (see `choose_average`); "
        "0 = use the best one kept (see `keep_best`).",
    )
    choose_average: Literal["dev", "none"] = Field(
        "dev",
        description="`dev`: the final model is the best on the validation text, by `validation.metric`, of the means "
        "of the newest 1, 2, 4, ... and `average_last` checkpoints and of the best one kept; auxiliary losses with a "
        "target decide first, and with a loss that has a weight only there is no choice. `none`: the mean of exactly "
        "`average_last`.",
    )

    younger = frozenset(
        {"clip", "compile", "deterministic", "freeze", "lora", "max_hours", "guided_alignment", "trackers"}
    )

    @property
    def falls_to_zero(self) -> bool:
        """True if the learning rate of every update depends on `max_updates`, after which it is 0."""
        return self.schedule in ("linear", "cosine")


class Recipe(Section):
    """A complete run: a Transformer with sparsity methods plugged into its sockets, its data, training and decoding."""

    name: str = Field(description="Name of the run.")
    directory: str = Field(description="Model directory that `train` writes, relative to the working directory.")
    license: str | None = Field(
        None, description="Licence of the model, for its card (`README.md`): an identifier such as `cc-by-4.0`."
    )
    model: ModelSection = Field(ModelSection(), description="The Transformer and its methods.")
    losses: dict[str, AuxiliaryLoss] = Field({}, description="Auxiliary losses by name.")
    data: Data = Field(description="Text, tokenizer and the prepared data.")
    training: Training = Field(Training(), description="The training run.")
    decoding: Decoding = Field(Decoding(), description="Defaults of decoding.")

    @model_validator(mode="before")
    @classmethod
    def _task_defaults(cls, values: Any) -> Any:
        """Fill in what is different by default in a language model, which has no encoder, and in some languages."""
        return with_language_defaults(with_task_defaults(values))

    @model_serializer(mode="wrap")
    def serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The recipe as plain values, without the keys of the other task; `license` is younger than recipes."""
        values = without_foreign_keys(handler(self), self.data.task)
        return {key: value for key, value in values.items() if (key, value) != ("license", None)}
