"""The gain of every sparsity method of a model: what it leaves out, and whether that saves time on this machine.

Each method is compared with a *dense twin*: a model of the list that differs in this method alone, and decodes alike,
or the same weights with the method switched off, where that leaves their shapes as they are. What is skipped in fact is
counted in the matrix products along the references, in which both give the same lengths. Time is that of decoding, in
turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.estimates import SKIPS_NOTHING, reasons_without_gain
from sparsenmt.assemble.methods import chosen_methods, declared_refusal
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import model_identity
from sparsenmt.decoding.decoding_time import DecodingTime, time_decoding
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.engine.build import build
from sparsenmt.engine.native_engine import kernels_in_use
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import Pattern
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.method_choice import MethodChoice, Site
from sparsenmt.recipe.schema import ModelSection, Recipe
from sparsenmt.report.tables import Table, Value, columns
from sparsenmt.sparsity.registry import Socket
from sparsenmt.workflows.evaluation.benchmark.flops import count_arithmetic, product_rate
from sparsenmt.workflows.evaluation.evaluate import Evaluation, text_lines, translate_text
from sparsenmt.workflows.evaluation.reference_texts import TestText

_COUNTED = 16  # lines in which products are counted
_LITTLE = 0.005  # a share of the products that is as good as none


@dataclass(frozen=True)
class PluggedChoice:
    """A method that a recipe plugs in, other than the defaults."""

    key: str
    socket: Socket
    choice: MethodChoice

    @property
    def site(self) -> SiteName | None:
        """Its attention site, if it has one."""
        part = self.key.split(".")[2] if self.key.startswith("model.attention.") else None
        return next((site for site in SITES if site == part), None)


@dataclass(frozen=True)
class DenseTwin:
    """The model that a method is compared with.

    Args:
        name: in tables.
        model: label of a model of the list; None: the same weights, with the method switched off.
        section: the model section without the method.
    """

    name: str
    model: str | None
    section: ModelSection


@dataclass(frozen=True)
class MethodGain:
    """A method, and what it gains.

    Args:
        nominal: its sparsity: the share of encoder outputs that it drops, of visible positions without weight, of keys
            that a query may not see, of fixed heads, or of layers that do not run; None: it has none, or not measured.
        skipped: share of the twin's matrix products that are not executed; None: there is no twin.
        kernel: what computes it.
        time: of decoding.
        twin_time: of the twin; None: there is no twin.
        limit: the rate of the model's products in decoding, as a share of what they reach alone.
        reason: why it saves no time by itself; None: it may.
    """

    model: str
    plugged: PluggedChoice
    nominal: float | None
    skipped: float | None
    kernel: str
    twin: DenseTwin | None
    time: DecodingTime[int]
    twin_time: DecodingTime[int] | None
    limit: float
    reason: str | None

    @property
    def compared(self) -> str | None:
        """The comparison of the turns with those of the twin."""
        return None if self.twin_time is None else self.time.against(self.twin_time)

    @property
    def speed(self) -> float | None:
        """The seconds of the twin over those of the model, a token, in the fastest turns."""
        return None if self.twin_time is None else self.twin_time.seconds / self.time.seconds

    @property
    def why(self) -> str | None:
        """The reason why it does not pay; None: it does."""
        if self.compared == "faster":
            return None
        if self.reason is not None:
            return self.reason
        if self.twin is None or self.skipped is None:
            return "there is no dense twin: weights of other shapes; name a model without it, too"
        if self.skipped < _LITTLE:
            return SKIPS_NOTHING.get(self.plugged.socket, "it skips no product")
        share = f"{self.skipped:.1%} of the products are skipped"
        return f"{share}; the turns {'overlap' if self.compared == 'equal' else 'do not show it'}"


GAIN_HEADS = columns(
    *("text model method", "hidden text key", "share nominal skipped", "text kernel", "score speed", "text turns twin"),
    *("share limit", "text pays reason"),
)

GAIN_NOTES = (
    "methods: nominal is a method's own sparsity; skipped: the share of its dense twin's matrix products that is not "
    "executed, along the references; speed: times that of the twin in decoding; turns: equal where they overlap",
    "limit: the rate of the products in decoding, as a share of what fp32 products of these shapes reach alone",
)


def gain_table(gains: Sequence[MethodGain]) -> Table:
    """Return the table of methods, a row for each method of each model."""
    rows: list[tuple[Value, ...]] = []
    for each in gains:
        place = each.plugged.site or each.plugged.socket
        pays = None if each.compared is None else "yes" if each.compared == "faster" else "no"
        rows.append(
            (
                *(each.model, f"{each.plugged.choice.name} ({place.replace('_', ' ')})", each.plugged.key),
                *(each.nominal, each.skipped, each.kernel, each.speed, each.compared),
                *(None if each.twin is None else each.twin.name, each.limit, pays, each.why),
            )
        )
    return Table("methods", "does each method pay here?", GAIN_HEADS, tuple(rows))


@dataclass(frozen=True)
class GainMeasurement:
    """The measurement of the methods of several models on one text.

    Args:
        models: label -> directory.
        recipes: label -> recipe, with its decoding options.
        found: label -> what was measured of its quality and attention.
        open_packed, open_plain: open a model for decoding, and with weights as they were trained.
        speed_lines, rounds: lines that are timed; turns.
    """

    models: Mapping[str, Path]
    recipes: Mapping[str, Recipe]
    found: Mapping[str, Evaluation]
    open_packed: Callable[[Path], Bundle]
    open_plain: Callable[[Path], Bundle]
    text: TestText
    speed_lines: int
    rounds: int

    def measure(self) -> list[MethodGain]:
        """Return the gain of every method that a recipe plugs in; models with none have no row."""
        plugged = {label: plugged_choices(recipe.model) for label, recipe in self.recipes.items()}
        twins = {(label, each.key): self._twin(label, each) for label in self.models for each in plugged[label]}
        times = self._times(twins)
        gains = []
        for label, directory in self.models.items():
            if not plugged[label]:
                continue
            plain = self.open_plain(directory)
            reasons = reasons_without_gain(plain.recipe.model, plain.model)
            own, limit = self._count(plain), self._limit(plain, times[label])
            kernel = kernels_in_use(self.open_packed(directory).engine)
            for each in plugged[label]:
                twin = twins[label, each.key]
                other = None if twin is None else self._count(self._plain_twin(twin, plain))
                skipped = None if other is None else 1 - own / other
                beside = None if twin is None else times[twin.model or f"{label} {each.key}"]
                nominal, reason = self._nominal(label, each, plain), reasons.get(each.key)
                gains.append(
                    MethodGain(label, each, nominal, skipped, kernel, twin, times[label], beside, limit, reason)
                )
        return gains

    def _twin(self, label: str, plugged: PluggedChoice) -> DenseTwin | None:
        """Return the dense twin of a method: a model of the list, otherwise the same weights; None: there is none."""
        recipe = self.recipes[label]
        section = without_method(recipe.model, plugged)
        if section is None or declared_refusal(section) is not None:
            return None
        decoding = recipe.decoding.at(None) if plugged.socket == "depth" else recipe.decoding
        for other, each in self.recipes.items():
            same = each.model == section and each.decoding.recorded() == decoding.recorded()
            if other != label and same and self._vocabularies(other) == self._vocabularies(label):
                return DenseTwin(other, other, section)
        found = DenseTwin("same weights, switched off", None, section)
        with suppress(UserError, ValueError):
            _switched_off(found, self.open_plain(self.models[label]))
            return found
        return None

    def _vocabularies(self, label: str) -> dict[str, str]:
        return model_identity(self.models[label]).vocabularies

    def _plain_twin(self, twin: DenseTwin, plain: Bundle) -> Bundle:
        """Return the twin with weights as they were trained."""
        if twin.model is not None:
            return self.open_plain(self.models[twin.model])
        return _switched_off(twin, plain)

    def _times(self, twins: Mapping[tuple[str, str], DenseTwin | None]) -> dict[str, DecodingTime[int]]:
        """Return the seconds a target token of all models, and of twins of the same weights, by label and key."""
        own = {key: twin for key, twin in twins.items() if twin is not None and twin.model is None}

        def systems() -> Iterator[tuple[str, Callable[[Sequence[str]], int]]]:
            for label, directory in self.models.items():
                yield label, partial(self._tokens, self.open_packed(directory))
            for (label, key), twin in own.items():
                packed = self.open_packed(self.models[label])
                made = _switched_off(twin, self.open_plain(self.models[label]))
                dtype = packed.dtype or torch.float32
                del packed
                yield (
                    f"{label} {key}",
                    partial(self._tokens, replace(made, dtype=dtype, built=build(made.model, dtype))),
                )

        with progress_bar("methods", self.rounds * (len(self.models) + len(own)), unit="turn") as advance:
            lines = self.text.read()[0][: self.speed_lines]
            found = time_decoding(systems, lines, rounds=self.rounds, advance=advance)
        return {name: each.per(max(each.result, 1)) for name, each in found.items()}

    def _count(self, plain: Bundle) -> float:
        """Return the FLOP of the matrix products along the references."""
        references, options = self.text.read()[1][:_COUNTED], plain.recipe.decoding
        sources = text_lines(plain, self.text, len(references))
        depth = plain.model.plan.depth(options.encoder_layers, options.decoder_layers)
        return count_arithmetic(lambda: list(score_pairs(plain, sources, references, depth=depth))).flop

    def _limit(self, plain: Bundle, time: DecodingTime[int]) -> float:
        """Return the rate of the products in decoding, as a share of what they reach alone."""
        tokens: list[int] = []
        lines = self.text.read()[0][:_COUNTED]
        work = count_arithmetic(lambda: tokens.append(self._tokens(plain, lines)))
        rate = work.flop / max(tokens[0], 1) / time.seconds
        return rate / product_rate(work, torch.float32, plain.device)

    def _nominal(self, label: str, plugged: PluggedChoice, plain: Bundle) -> float | None:
        """Return `MethodGain.nominal`."""
        site, attention, model = plugged.site, self.found[label].attention or {}, plain.model
        if plugged.socket == "memory":
            return self.found[label].sparsity if len(plain.recipe.model.memory) == 1 else None  # of all together
        if plugged.socket == "depth":
            running, all_layers = plain.depth, (len(model.plan.encoder), len(model.plan.decoder))
            return 1 - sum(running) / sum(all_layers)
        if site is None:
            return None
        if plugged.socket == "transform":
            density = attention[site].density if site in attention else None
            return None if density is None else 1 - density
        if plugged.socket == "heads":
            names = model.head_names(site)
            return sum(name != "learned" for name in names) / len(names)
        if plugged.socket == "pattern":
            stack = model.encoder if site == "encoder_self" else model.decoder
            pattern = stack.steps.at(0, "cross" if site == "cross" else "self").pattern
            side, lines = plain.tokenizers.source, self.text.read()[site == "decoder_self"][:_COUNTED]
            side = plain.tokenizers.target if site == "decoder_self" else side
            lengths = [len(ids) + 1 for ids in side.encode_batch(lines)]
            return None if pattern is None else hidden_share(pattern, lengths, causal=site == "decoder_self")
        return None

    def _tokens(self, bundle: Bundle, lines: Sequence[str]) -> int:
        """Translate the first lines by the recipe; returns the number of target tokens, `</s>` included."""
        found = translate_text(bundle, self.text, lines)[1]
        return sum(len(each.hypotheses[0].tokens) + each.hypotheses[0].ended for each in found)


def plugged_choices(section: ModelSection) -> list[PluggedChoice]:
    """Return the methods that a model section plugs in, but for the defaults."""
    usual = {(method.socket, method.name) for _, method, _ in chosen_methods(ModelSection())}
    return [
        PluggedChoice(key, method.socket, choice)
        for key, method, choice in chosen_methods(section)
        if (method.socket, method.name) not in usual
    ]


def without_method(section: ModelSection, plugged: PluggedChoice) -> ModelSection | None:
    """Return the section with a method switched off; None: that has no meaning, as a cell has weights of its own."""
    site, usual = plugged.site, Site()
    if plugged.socket == "memory":
        place = int(plugged.key.rpartition(".")[2])
        return section.model_copy(update={"memory": [each for i, each in enumerate(section.memory) if i != place]})
    if plugged.socket == "depth":
        return section.model_copy(update={"depth": ModelSection().depth})
    if site is None:
        return None
    before: Site = getattr(section.attention, site)
    if plugged.socket == "heads":
        after = before.model_copy(update={"heads": before.heads.model_copy(update={"given": None})})
    else:
        after = before.model_copy(update={plugged.socket: getattr(usual, plugged.socket)})
    return section.model_copy(update={"attention": section.attention.model_copy(update={site: after})})


def _switched_off(twin: DenseTwin, plain: Bundle) -> Bundle:
    """Return the model without a method, with the same weights; ValueError if it has others, or of other shapes."""
    sizes = plain.tokenizers.source.size, plain.tokenizers.target.size
    model = build_model(twin.section, source_size=sizes[0], target_size=sizes[1], seed=0)
    weights, own = plain.model.state_dict(), model.state_dict()
    if any(name not in weights or weights[name].shape != tensor.shape for name, tensor in own.items()):
        raise ValueError("the weights have other names or shapes")
    model.load_state_dict({name: weights[name] for name in own})
    decoding = plain.recipe.decoding
    decoding = decoding if twin.section.depth == plain.recipe.model.depth else decoding.at(None)
    recipe = plain.recipe.model_copy(update={"model": twin.section, "decoding": decoding})
    return replace(plain, recipe=recipe, model=model.to(plain.device).eval())


def hidden_share(pattern: Pattern, lengths: Sequence[int], *, causal: bool) -> float:
    """Return the share of the keys that queries may not see, of sequences of these lengths."""
    seen = every = 0
    for length in lengths:
        places = torch.arange(length)
        visible = (places[None, :] <= places[:, None]) if causal else torch.ones(length, length, dtype=torch.bool)
        mask = pattern(places[None], places[None], visible[None, None]).expand(1, -1, length, length)
        seen += int((mask & visible).sum())
        every += int(visible.sum()) * mask.shape[1]
    return 1 - seen / max(every, 1)
