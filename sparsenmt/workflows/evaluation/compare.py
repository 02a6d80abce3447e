"""Trained models side by side on one text: quality with significance tests, size, attention and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparsenmt.analysis.labels import SITE_NAMES
from sparsenmt.arguments import from_fields, strings_to_paths
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.decoding.decoding_time import DecodingTime, time_decoding
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.observation import SEEDS_NOTE, Observation, seeds_table
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.metric import TEXT_METRICS, metric_label
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.model_labels import check_models, model_labels
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.report.plots import Panel, curves, describe
from sparsenmt.report.tables import Kind, Report, Table, Value, columns, shown_if
from sparsenmt.workflows.evaluation.evaluate import Evaluation, ModelRun, translate_in_batches, translate_text
from sparsenmt.workflows.evaluation.evaluate_text import TextEvaluation, check_text_metrics
from sparsenmt.workflows.evaluation.experiment import (
    Experiment,
    ExperimentModel,
    Measured,
    Text,
    agreed_scoring,
    metric_of,
)
from sparsenmt.workflows.evaluation.method_gain import GAIN_NOTES, GainMeasurement, MethodGain, gain_table
from sparsenmt.workflows.evaluation.reference_texts import PlainText, TestText, given_text, shared_text

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure


_OF_TRANSLATIONS = (
    *("source", "reference", "documents", "tags", "beam_size", "batch_tokens", "batch_sentences"),
    *("speed_lines", "rounds", "sacrebleu_p", "explain"),
)
"""Fields of `CompareRequest`, named as their options, that have no meaning for language models."""


@dataclass(frozen=True)
class CompareRequest(ModelRun):
    """The arguments of `compare_models`.

    Args:
        source: text to translate; None: the ``kind`` text of the recipes, which must be the same for all.
        text: text that language models read; None: as for ``source``.
        reference: its reference; given with ``source`` only.
        documents: document ids of the source's lines.
        tags: part-of-speech tags of the source.
        baseline: model that the others are tested against; None: the first.
        scoring: without metrics: the first recipe's, with BLEU chrF, too.
        attention, speed: measure the attended positions; the time of decoding.
        test: significance test of the differences to the baseline.
        sacrebleu_p: show sacrebleu's own p-value on the terminal, too; files always hold it.
        speed_lines: lines that are timed, at most.
        rounds: turns of each model; the fastest counts.
        batch_sentences: lines of a batch while decoding is timed; None: as many as fit the recipe's `batch_tokens`.
        explain: say for each method what it leaves out, and whether that saves time.
    """

    models: Sequence[Path]
    source: Path | None = None
    reference: Path | None = None
    documents: Path | None = None
    tags: Path | None = None
    text: Path | None = None
    kind: Literal["test", "dev"] = "test"
    baseline: Path | None = None
    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    attention: bool = True
    test: PairedTest = field(default_factory=PairedTest)
    sacrebleu_p: bool = False
    speed: bool = True
    speed_lines: int = 200
    rounds: int = 3
    batch_sentences: int | None = None
    explain: bool = False
    files: ReportFiles = field(default_factory=ReportFiles)

    def __post_init__(self) -> None:
        check_lists(models=self.models)
        strings_to_paths(self)


@from_fields(CompareRequest, CompareRequest)
def compare_models(request: CompareRequest) -> Report:
    """Evaluate models on one text, each by its own recipe's decoding options, and write the files asked for.

    Args:
        request: or its fields: ``compare_models(["runs/a", "runs/b"], speed=False)``.

    Raises:
        UserError: an option, a file or a model is not what it must be.
    """
    comparison = measure_models(request)
    made = comparison.report()
    request.files.write(made, comparison.draw)
    return made


def measure_models(request: CompareRequest) -> ModelComparison:
    """Measure what `compare_models` reports; errors are the same."""
    everybody, wanted = list(request.models), request.baseline
    if wanted is not None and all(model.resolve() != wanted.resolve() for model in everybody):
        everybody.insert(0, wanted)
    check_models(everybody)
    request.files.check([request.source, request.reference, request.documents, request.tags, request.text])
    request.use_processors()
    labels = model_labels(everybody)
    first = (wanted or request.models[0]).resolve()
    baseline = next(label for label, path in labels.items() if path.resolve() == first)
    recipes = {label: read_recipe(path) for label, path in labels.items()}
    text, scoring = _text_and_scoring(request, labels, recipes)
    experiment = Experiment(
        _experiment_models(labels, recipes, baseline), scoring, request.test, request, request.attention
    )
    found = {model.name: experiment.measure(model, text) for model in experiment.models}
    speeds = decoding_speeds(labels, text, request) if request.speed and isinstance(text, TestText) else {}
    gains = _gains(request, labels, recipes, found, text) if request.explain else []
    return ModelComparison(request, experiment, text, baseline, found, speeds, gains)


def _experiment_models(
    labels: Mapping[str, Path], recipes: Mapping[str, Recipe], baseline: str
) -> list[ExperimentModel]:
    """Return the models in the order of ``labels``, those that differ in the seed of training alone as a group.

    A group is called like its first model. Models that have the same seed, too, are each a group of their own.
    """
    alike: dict[str, dict[str, int]] = {}
    for label, recipe in recipes.items():
        settings = recipe.model_dump_json(exclude={"name": True, "directory": True, "training": {"seed"}})
        alike.setdefault(settings, {})[label] = recipe.training.seed
    groups = {
        label: next(iter(seeds)) if len(set(seeds.values())) == len(seeds) else label
        for seeds in alike.values()
        for label in seeds
    }

    def made(label: str, against: ExperimentModel | None = None) -> ExperimentModel:
        recipe = recipes[label]
        seed = {"seed": str(recipe.training.seed)}
        return ExperimentModel(label, labels[label], recipe, seed, groups[label], against)

    base = made(baseline)
    return [base if label == baseline else made(label, base) for label in labels]


def _text_and_scoring(
    request: CompareRequest, labels: Mapping[str, Path], recipes: Mapping[str, Recipe]
) -> tuple[Text, ScoringOptions]:
    """Return the text to compare on, and the settings of its scores; UserError if tasks or options do not fit."""
    tasks = {label: recipe.data.is_language_model for label, recipe in recipes.items()}
    if len(set(tasks.values())) > 1:
        other = next(label for label, own in tasks.items() if own is not next(iter(tasks.values())))
        raise UserError(
            f"{next(iter(tasks))} and this model have different tasks, translation and language modelling",
            where=str(labels[other]),
            hint="Compare models of one task.",
        )
    asked = request.scoring
    if all(tasks.values()):
        for option in _OF_TRANSLATIONS:
            if getattr(request, option) != getattr(CompareRequest, option):
                raise UserError(
                    "has no meaning for language models, which read one text",
                    where="--" + option.replace("_", "-"),
                    hint="Leave it out, or name the text with --text.",
                )
        scoring = asked.with_default((metric_of(next(iter(recipes.values()))),))
        check_text_metrics(scoring)
        if request.text is not None:
            return PlainText(request.text.name.split(".")[0] or "text", request.text), scoring
        return shared_text(labels, request.kind, PlainText), scoring
    if request.text is not None:
        raise UserError("the models translate", where="--text", hint="Name a text with --source and --reference.")
    given = given_text(request.source, request.reference, request.documents, request.tags)
    text = given or shared_text(labels, request.kind, TestText)
    packing = [labels[label] for label, recipe in recipes.items() if recipe.data.documents is not None]
    if request.batch_sentences is not None and text.documents is not None and packing:
        raise UserError(
            f"{packing[0]} reads blocks of sentences, not single ones",
            where="--batch-sentences",
            hint="Leave it out: the size of batches is `decoding.batch_tokens` of the recipe.",
        )
    metric = metric_of(next(iter(recipes.values())))
    scoring = asked.with_default((metric, "chrf") if metric == "bleu" else (metric,))
    return text, agreed_scoring(text, scoring, recipes)[0]


def decoding_speeds(
    models: Mapping[str, Path], text: TestText, request: CompareRequest
) -> dict[str, DecodingTime[list[TranslatedLine]]]:
    """Time models in turns on the first lines of a text; returns the seconds for each target token, `</s>` included.

    A model is read anew for each of its turns, so that no more than one is in memory.
    """

    def translate(directory: Path) -> Callable[[Sequence[str]], list[TranslatedLine]]:
        bundle, size = request.open(directory), request.batch_sentences
        if size is not None:
            return lambda sources: translate_in_batches(bundle, text, len(sources), size)
        return lambda sources: translate_text(bundle, text, sources)[1]

    with progress_bar("decoding speed", request.rounds * len(models), unit="model") as advance:
        sources = text.read()[0][: request.speed_lines]
        times = time_decoding(
            lambda: ((label, translate(directory)) for label, directory in models.items()),
            sources,
            rounds=request.rounds,
            advance=advance,
        )
    found: dict[str, DecodingTime[list[TranslatedLine]]] = {}
    for label, each in times.items():
        best = [one.hypotheses[0] for one in each.result]
        found[label] = each.per(max(sum(len(one.tokens) + one.ended for one in best), 1))
    return found


def _gains(
    request: CompareRequest,
    labels: Mapping[str, Path],
    recipes: Mapping[str, Recipe],
    found: Mapping[str, Measured],
    text: Text,
) -> list[MethodGain]:
    """Measure the gain of every method of the models."""
    assert isinstance(text, TestText)
    evaluations = {label: each for label, each in found.items() if isinstance(each, Evaluation)}
    chosen = {
        label: recipe.model_copy(update={"decoding": request.options(recipe)}) for label, recipe in recipes.items()
    }

    opened = request.open, partial(request.open, dtype=None)
    return GainMeasurement(labels, chosen, evaluations, *opened, text, request.speed_lines, request.rounds).measure()


@dataclass(frozen=True)
class ModelComparison:
    """Models that were measured on one text.

    Args:
        baseline: the model that the others are tested against.
        found: what was measured, by model.
        speeds: of decoding, seconds a target token, `</s>` included; of all models, or of none.
        gains: of the methods of the models, if they are explained.
    """

    request: CompareRequest
    experiment: Experiment
    text: Text
    baseline: str
    found: Mapping[str, Measured]
    speeds: Mapping[str, DecodingTime[list[TranslatedLine]]]
    gains: Sequence[MethodGain] = ()

    @cached_property
    def observations(self) -> list[Observation]:
        """The results by model and metric; a model of the baseline's group has no other group to compare with."""
        found = self.experiment.observe(self.text.name, dict.fromkeys(self.found, self.text), self.found)
        own = next(each.group for each in found if each.variant == self.baseline)
        return [replace(each, baseline=None) if each.group == own else each for each in found]

    @property
    def tested(self) -> list[tuple[Observation, Mapping[str, float]]]:
        """The observations that were tested against the baseline, and the tests."""
        return [(each, each.test) for each in self.observations if each.test]

    @property
    def kind(self) -> Kind:
        """The kind of columns of scores: bits per character differ in the third decimal."""
        return "number" if self.experiment.scoring.metrics[0] in TEXT_METRICS else "score"

    def report(self) -> Report:
        """Make the tables: models, means over seeds, tests against the baseline by each metric, attention by site."""
        request, names = self.request, list(self.found)
        several = len({each.group for each in self.observations}) < len(names)
        seeds = [seeds_table(self.observations)] if several else []
        sites = [self._sites()] if request.attention else []
        settings = {
            "models": names,
            "baseline": self.baseline,
            **self.experiment.scoring.record(),
            **request.test.record(),
            "text": self.text.name,
            "batch_sentences": request.batch_sentences,
            **request.record(),
        }
        gains = [gain_table(self.gains)] if self.gains else []
        tables = (self._models(), *seeds, self._significance(), *sites, *gains)
        return Report("compare", tables, (*self._notes(), *[SEEDS_NOTE] * len(seeds)), settings)

    def _models(self) -> Table:
        """Return the table of quality, size, attention and speed: a row for each model."""
        rows: list[tuple[Value, ...]] = []
        observations, attention = self.observations, self.request.attention
        of_texts = any(isinstance(each, TextEvaluation) for each in self.found.values())
        spans = ("mean_span", "longest_span") if of_texts else ()
        training = ("training_speed", "training_deviation", "training_seconds")
        measured = ("parameters", "sparsity", "attended", "density", *spans, *training)
        for name in self.found:
            own = [each for each in observations if each.variant == name]
            scores, test = [each.values["quality"] for each in own], own[0].test or {}
            values = (own[0].values[each] for each in measured)
            rows.append((name, *scores, test.get("difference"), test.get("p_value"), *values, *self._speeds(name)))
        filtered = any(each.values["sparsity"] is not None for each in observations)
        spanned, timed = any(each.values.get("mean_span") is not None for each in observations), bool(self.speeds)
        metrics = " ".join(self.experiment.scoring.metrics)
        speeds = ("rate decoding decoding_median", "share spread", "score decoding_ratio", "text speed")
        heads = columns(
            *("text model", f"{self.kind} {metrics} difference", "number p_value", "count parameters"),
            *(shown_if(filtered, "share sparsity"), shown_if(attention, "number attended")),
            *(shown_if(attention, "share density"), of_texts * shown_if(spanned, "number mean_span longest_span")),
            *("rate training", "share training_deviation", "rate training_seconds"),
            *(shown_if(timed, group) for group in speeds),
        )
        return Table("models", f"{self.text.name}: {self.found[self.baseline].size}", heads, tuple(rows))

    def _speeds(self, name: str) -> tuple[Value, ...]:
        """Return the cells of decoding: tokens a second, their median, spread, ratio to the baseline, comparison."""
        if not self.speeds:
            return (None,) * 5
        own, other = self.speeds[name], self.speeds[self.baseline]
        compared = None if name == self.baseline else own.against(other)
        return 1 / own.seconds, 1 / own.median, own.spread, other.seconds / own.seconds, compared

    def _significance(self) -> Table:
        """Return the table of tests against the baseline: a row for each tested model and metric."""
        names = ("difference", "low", "high", "p_value", "sacrebleu_p")
        rows = tuple(
            (each.variant, metric_label(each.labels["metric"]), each.values["quality"], *map(test.get, names))
            for each, test in self.tested
        )
        scores = columns(f"{self.kind} score difference low high")
        tested = columns("number p_value", shown_if(self.request.sacrebleu_p, "number sacrebleu_p"))
        intervals = ", with 95% intervals" * any(test.get("low") is not None for _, test in self.tested)
        heads = (*columns("text model metric"), *scores, *tested)
        return Table("significance", f"against {self.baseline}{intervals}", heads, rows)

    def _sites(self) -> Table:
        """Return the table of attention: a row for each model and site."""
        values = tuple(
            (label, name, sites[site].attended, sites[site].visible, sites[site].density)
            for label, own in self.found.items()
            if (sites := own.attention) is not None
            for site, name in SITE_NAMES.items()
            if site in sites
        )
        heads = columns("text model site", "number attended visible", "share density")
        return Table("attention", "attended positions per query", heads, values, across="site", shown="attended")

    def _notes(self) -> Iterator[str]:
        """Yield notes that explain the columns."""
        request, metrics = self.request, self.experiment.scoring.metrics
        used = request.test.describe(int(test["segments"]) for _, test in self.tested)
        yield f"difference: {metric_label(metrics[0])} less that of {self.baseline}; p-value: {used}"
        for name in metrics:
            signed: dict[str | None, list[str]] = {}
            for each in self.observations:
                if each.labels["metric"] == name:
                    signed.setdefault(each.signature, []).append(each.variant)
            for signature, labels in signed.items():
                of_models = f" of {', '.join(labels)}" if len(signed) > 1 else ""
                yield f"{metric_label(name)}{of_models}: {signature}"
        if request.beam_size is not None:
            yield f"beam search: beam size {request.beam_size} in place of the recipes'"
        yield "training: target tokens/s by the training's own log, which other work on the machine slows down"
        yield "training deviation: median deviation of the lines of that log from their median"
        yield "training seconds: of all updates by that log, without validations; estimated for logs of older versions"
        if self.speeds:
            lines = "" if request.batch_sentences is None else f" in batches of {request.batch_sentences:,} lines"
            yield f"decoding: target tokens/s{lines}, the models taking turns, fastest turn; ratio: to the baseline"
            yield "spread: excess time of the slowest turn over the fastest; speed: equal where turns overlap"
        if request.explain:
            yield from GAIN_NOTES if self.gains else ("explain: the models have no method, so there is nothing to say",)

    def draw(self) -> Figure:
        """Draw quality against speed, with title and caption."""
        names, metric = list(self.found), self.experiment.scoring.metrics[0]
        label, of_texts = metric_label(metric), metric in TEXT_METRICS
        title = f"{label} against {'attended positions and speed' if of_texts else 'speed'}"
        title += f"\n{', '.join(names)}; text: {self.text.name}"
        drawn = "95% interval of the difference from it, added to its"
        caption = f"dashed: {self.baseline}; vertical lines: {drawn} {label}" if len(names) > 1 else ""
        return describe(curves(self._panels(metric), share_y=True), title, caption=caption)

    def _panels(self, metric: str) -> list[Panel]:
        """Plot quality by a metric against the speeds that are known; UserError if none is."""
        label, of_texts, panels = metric_label(metric), metric in TEXT_METRICS, []
        observed = {each.variant: each for each in self.observations if each.labels["metric"] == metric}
        quality = {name: each.values["quality"] for name, each in observed.items()}
        base = quality[self.baseline] or 0.0
        ends = {
            name: (base + each.test["low"], base + each.test["high"])
            for name, each in observed.items()
            if each.test and "low" in each.test
        }
        level = (f"{label} of {self.baseline}", base) if ends else None
        speeds: dict[str, Mapping[str, float | None]] = {
            "attended": {name: each.values["attended"] for name, each in observed.items() if of_texts},
            "decoding": {name: 1 / each.seconds for name, each in self.speeds.items()},
            "training": {name: each.values["training_speed"] for name, each in observed.items()},
        }
        for name, values in speeds.items():
            series = {model: [(x, quality[model])] for model, x in values.items() if x is not None}
            if series:
                intervals = {model: [ends.get(model)] for model in series}
                speed = f"speed of {name} (target tokens a second)"
                words = "attended positions a query" if name == "attended" else speed
                text = f"{label} on {self.text.name}"
                panels.append(Panel(words, text, series, style="points", intervals=intervals, level=level))
        if not panels:
            hint = "Leave --no-speed out."
            raise UserError("there is nothing to draw: no speed was measured", where="--plot", hint=hint)
        return panels
