"""The equalities of the conformance kit on a trained model and lines of text, each with its figure.

Compared are the log-probabilities of given target tokens, in nats; below -1 a difference is relative, so that unlikely
tokens weigh no more than likely ones. The tolerances:

float64     `checks.EXACT`
fp32        `RELATIVE`, as design rule 9 says; of translations, near ties may differ
bf16, int8  the largest difference between this dtype and float64 on the same lines. Sums in another order move some
            input of a product across the boundary between two rounded values, and all that follows feels a step of
            rounding: that may be as much as rounding does to these lines anyway, and no more. Where not only products
            are rounded but every state (bf16 without compiled kernels), it may be twice that: both that are compared
            are so far from float64, each in its own way.

That products in bf16 and int8 round as they should is a check of its own, `rounding`: the error of each column, over
the one that evenly distributed rounding has (a variance of a twelfth of the squared step).
Shapes: B lines, T target tokens of the longest, N real tokens of all, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import pad
from sparsenmt.data.input_line import numbered_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.forced_decoding import token_log_probabilities
from sparsenmt.decoding.inputs import SourceLine, make_source, read_sources
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.build import build, dtype_name, packed, packs
from sparsenmt.engine.products import rounded_product
from sparsenmt.model.depth_plan import Depth
from sparsenmt.model.linear import Linear
from sparsenmt.model.protocol import Source
from sparsenmt.recipe.choices import NO_SHORTLIST
from sparsenmt.testing.checks import EXACT

RELATIVE, NEAR_TIE, MOST_TIES = 1e-4, 1e-3, 0.005
"""In fp32, of design rule 9: difference of log-probabilities, gap of translations that differ, and their share."""
ROUNDED = 2.0
"""The largest error of a column of a product, over the one that rounding explains; 64 inputs scatter by a tenth."""
UNSOUND = 1e300
"""The figure of what is not finite, as JSON has no infinity."""
_INPUTS = 64
_LEVELS, _INPUT_LEVELS = 127, 255  # of int8: of a weight without its sign, of an input


@dataclass(frozen=True)
class Figure:
    """A measured difference, and its tolerance.

    Args:
        check: its name in `CHECKS`.
        case: the dtype, engine or depth.
        measured: the largest difference.
        allowed: the largest that keeps the promise.
    """

    check: str
    case: str
    measured: float
    allowed: float

    @property
    def holds(self) -> bool:
        """True if the promise is kept; NaN keeps none."""
        return self.measured <= self.allowed


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with the text that it is checked on.

    Args:
        bundle: opened unpacked on a CPU, in fp32.
        sources: lines; of a language model they are not read.
        targets: (T) tokens after each, `</s>` included.
    """

    bundle: Bundle
    sources: tuple[str, ...]
    targets: tuple[tuple[int, ...], ...]

    @cached_property
    def exact(self) -> Bundle:
        """The unpacked model in float64."""
        return replace(self.bundle, model=copy.deepcopy(self.bundle.model).double())

    @cached_property
    def unpacked(self) -> Bundle:
        """The unpacked model in fp32, for observers."""
        return replace(self.bundle, model=copy.deepcopy(self.bundle.model))

    @cached_property
    def by_operators(self) -> Bundle:
        """The engine of PyTorch's operators, with packed weights."""
        model = copy.deepcopy(self.bundle.model)
        return replace(self.bundle, model=model, dtype=torch.float32, built=packed(model))

    @cached_property
    def engines(self) -> dict[str, Bundle]:
        """Name of a dtype -> the engine that `decode` would use here."""
        return {dtype_name(dtype): self._built(dtype) for dtype in self.dtypes}

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtypes that this machine can decode the model in, fp32 first."""
        return [d for d in (torch.float32, torch.bfloat16, torch.int8) if packs(self.bundle.model, d)]

    @cached_property
    def rounding_effect(self) -> dict[str, float]:
        """Name of a dtype below fp32 -> its largest difference to float64."""
        expected = log_probabilities(self, self.exact)
        return {
            name: difference(log_probabilities(self, bundle), expected)
            for name, bundle in self.engines.items()
            if name != "fp32"
        }

    def allowed(self, name: str) -> float:
        """The tolerance of equalities within an engine of this dtype."""
        if name in (promised := {"float64": EXACT, "fp32": RELATIVE}):
            return promised[name]
        of_products = self.engines[name].model.output_table.dtype == torch.float32
        return self.rounding_effect[name] * (1 if of_products else 2)

    def _built(self, dtype: torch.dtype) -> Bundle:
        model = copy.deepcopy(self.bundle.model)
        return replace(self.bundle, model=model, dtype=dtype, built=build(model, dtype, final=True))

    @cached_property
    def lines(self) -> list[SourceLine]:
        """The tokenized sources; none of a language model."""
        if self.bundle.recipe.data.is_language_model:
            return []
        return read_sources(self.bundle, list(numbered_lines(self.sources)))

    @property
    def depths(self) -> list[Depth]:
        """The depths that are checked: the usual one, and the trained ones of fewest and of most layers."""
        trained = self.bundle.model.plan.depths()
        return list(dict.fromkeys((self.bundle.depth, trained[0], trained[-1])))


def log_probabilities(
    model: TrainedModel,
    bundle: Bundle,
    *,
    chosen: Sequence[int] | None = None,
    stepwise: bool = False,
    compact: bool = True,
    depth: Depth | None = None,
) -> Tensor:
    """Return the natural log-probabilities (N) of the target tokens of the chosen lines, by an engine.

    Args:
        bundle: with the engine.
        chosen: numbers of lines, which are one batch; None: all.
        stepwise: decode token by token, with a cache, instead of all at once.
        compact: drop what filters close.
        depth: encoder and decoder layers; None: the usual ones.
    """
    numbers, frame = range(len(model.targets)) if chosen is None else chosen, bundle.frames.target
    rows, (encoder, decoder) = [model.targets[i] for i in numbers], depth or bundle.depth
    outputs, valid = pad(rows)
    inputs, _ = pad([frame.before(row) for row in rows])
    lines, engine = [model.lines[i] for i in numbers] if model.lines else [], bundle.engine
    with torch.inference_mode():
        source = make_source(bundle, lines) if lines else Source.none(len(rows), inputs.device)
        exits = (encoder,) if lines else None
        memory = engine.encode(source, exits=exits, compact=compact and bundle.model.compacts).memory
        cache = engine.new_cache(memory, exits=(decoder,), at_once=not stepwise)
        parts = inputs.split(1, 1) if stepwise else (inputs,)
        hidden = torch.cat([engine.step(part, cache) for part in parts], 1)[:, len(frame.prefix) :]
        return token_log_probabilities(engine, hidden[valid], outputs[valid])


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of log-probabilities (N), relative to those below -1; `UNSOUND` if one is NaN."""
    expected = expected.double()
    apart = (found.double() - expected).abs() / expected.abs().clamp_min(1)
    return float(apart.nan_to_num(UNSOUND, UNSOUND).max())


def check_steps(model: TrainedModel) -> Iterator[Figure]:
    """Step by step = at once, in every dtype, and in float64 at several depths (design rule 1)."""
    for depth in model.depths:
        both = [log_probabilities(model, model.exact, stepwise=each, depth=depth) for each in (True, False)]
        yield Figure("steps", f"float64, depth {depth[0]}-{depth[1]}", difference(*both), EXACT)
    for name, bundle in model.engines.items():
        both = [log_probabilities(model, bundle, stepwise=each) for each in (True, False)]
        yield Figure("steps", name, difference(*both), model.allowed(name))


def check_batch(model: TrainedModel) -> Iterator[Figure]:
    """Alone = in a batch, in every dtype (design rule 9)."""
    for name, bundle in ({"float64": model.exact} | model.engines).items():
        whole = log_probabilities(model, bundle, stepwise=True)
        alone = [log_probabilities(model, bundle, chosen=[i], stepwise=True) for i in range(len(model.targets))]
        yield Figure("batch", name, difference(torch.cat(alone), whole), model.allowed(name))


def check_compaction(model: TrainedModel) -> Iterator[Figure]:
    """Compacted = masked: dropped positions may be removed (design rule 3). Nothing without a filter that compacts."""
    if model.bundle.model.compacts:
        for name, bundle in {"float64": model.exact, "fp32": model.engines["fp32"]}.items():
            both = [log_probabilities(model, bundle, stepwise=True, compact=each) for each in (True, False)]
            yield Figure("compaction", name, difference(*both), model.allowed(name))


def check_engines(model: TrainedModel) -> Iterator[Figure]:
    """Both engines, and the model as it was trained = float64, in fp32 (design rule 11)."""
    expected = log_probabilities(model, model.exact)
    found = {"as trained": model.unpacked, "PyTorch": model.by_operators, "in use here": model.engines["fp32"]}
    for name, bundle in found.items():
        yield Figure("engines", name, difference(log_probabilities(model, bundle), expected), RELATIVE)


def check_rounding(model: TrainedModel) -> Iterator[Figure]:
    """The products of every weight in bf16 and int8 have no larger errors than rounding has."""
    for dtype in model.dtypes[1:]:
        products = [(rounded_product(weight, dtype), weight) for weight in _weights(model.bundle)]
        errors = [rounding_error(made, weight, dtype) / (1 + made.shares_bits) for made, weight in products if made]
        if errors:
            yield Figure("rounding", dtype_name(dtype), max(errors), ROUNDED)


def _weights(bundle: Bundle) -> Iterator[Tensor]:
    """The weights (out, in) of the blocks, and the output table (V, D)."""
    for stack in (bundle.model.encoder, bundle.model.decoder):
        yield from (part.weight.detach() for part in stack.layers.modules() if isinstance(part, Linear))
    yield bundle.model.output_table.detach()


def rounding_error(product: Callable[[Tensor], Tensor], weight: Tensor, dtype: torch.dtype) -> float:
    """Return the largest error of a column of a product of random inputs, over the one that rounding explains.

    Args:
        weight: (out, in), which ``product`` multiplies with, rounded.
    """
    x = torch.randn(_INPUTS, weight.shape[1], generator=torch.Generator().manual_seed(1))
    wide, wide_weight = x.double(), weight.double()
    if dtype == torch.int8:
        span = x.amax(1, keepdim=True).clamp_min(0) - x.amin(1, keepdim=True).clamp_max(0)
        steps, weight_steps = span / _INPUT_LEVELS, weight.abs().amax(1, keepdim=True) / _LEVELS
    else:  # eight digits of a number between 2^(e-1) and 2^e
        steps, weight_steps = (torch.ldexp(torch.ones_like(v), v.frexp().exponent - 8) for v in (x, weight))
    variances = wide.square() @ weight_steps.expand_as(weight).double().square().T
    variances += steps.expand_as(x).double().square() @ wide_weight.square().T
    error = (product(x).double() - wide @ wide_weight.T).square().mean(0)
    explained = (variances / 12).mean(0)
    ratio = (error / explained.clamp_min(torch.finfo(torch.float32).tiny)).sqrt()
    return float(ratio.nan_to_num(UNSOUND, UNSOUND).max())


def check_search(model: TrainedModel) -> Iterator[Figure]:
    """Beam search: its log-probabilities = those of forced decoding; translations alone = in a batch."""
    if not model.lines:
        return
    exact, single = _translated(model, model.exact, 0), _translated(model, model.engines["fp32"], 0)
    for name, bundle, found in (("float64", model.exact, exact), ("fp32", model.engines["fp32"], single)):
        outputs = tuple((*each.tokens, *[EOS] * each.ended) for each in found)
        again = replace(model, targets=outputs)
        forced = [float(log_probabilities(again, bundle, chosen=[i]).double().sum()) for i in range(len(outputs))]
        scores = torch.tensor([each.log_probability for each in found], dtype=torch.float64)
        measured = difference(scores, torch.tensor(forced, dtype=torch.float64))
        yield Figure("search", f"{name}, log-probabilities", measured, model.allowed(name))
    alone = _translated(model, model.exact, 1)
    differ = sum(a.tokens != b.tokens for a, b in zip(alone, exact, strict=True))
    yield Figure("search", "float64, lines that differ", float(differ), 0.0)
    pairs = list(zip(_translated(model, model.engines["fp32"], 1), single, strict=True))
    gaps = [abs(a.score - b.score) for a, b in pairs if a.tokens != b.tokens]
    yield Figure("search", "fp32, score gap of lines that differ", max(gaps, default=0.0), NEAR_TIE)
    yield Figure("search", "fp32, lines that differ", float(len(gaps)), float(max(1, int(MOST_TIES * len(pairs)))))


def _translated(model: TrainedModel, bundle: Bundle, window: int) -> list[Hypothesis]:
    """The best translation of every line, in batches, or ``window`` lines at a time."""
    usual = bundle.recipe.decoding
    changes = {"method": "beam", "shortlist": NO_SHORTLIST, "long": "cut", "unknown": "forbid"}
    lines = list(numbered_lines(model.sources))
    options = usual.model_copy(update=changes)
    with torch.inference_mode():
        found = translate_lines(bundle, lines, options, window=window or len(lines))
        return [each.hypotheses[0] for each in found]


Check = Callable[[TrainedModel], Iterator[Figure]]
CHECKS: dict[str, Check] = {
    "steps": check_steps,
    "batch": check_batch,
    "compaction": check_compaction,
    "engines": check_engines,
    "rounding": check_rounding,
    "search": check_search,
}
"""The checks by name."""
