"""The plan for production: the cheapest model, and the cheapest way to decode it, that is still good enough.

The folder of a plan holds ``model/``, the chosen model directory, ``plan.txt``, ``.json``, ``.csv`` and ``.png``, the
kept trials, ``trials/``, and the cut models and shortlists that were tried, ``tried/``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import torch

from sparsenmt.arguments import from_fields, strings_to_paths
from sparsenmt.assemble.model import depth_plan
from sparsenmt.assemble.model_directory import model_identity, read_recipe
from sparsenmt.data.text import read_blocks
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.metrics import statistics
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import Comparison, PairedTest, compare_statistics
from sparsenmt.metric import METRICS
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import duration, notify
from sparsenmt.recipe.model_use import check_translates, with_given, with_languages
from sparsenmt.report.model_labels import check_models, model_labels, models_in
from sparsenmt.report.output_files import ReportFiles, WrittenTable
from sparsenmt.storage.files import (
    directory_lock,
    explain_directory_errors,
    make_directories,
    old_path,
    remove_tree,
)
from sparsenmt.storage.kept_work import KeptWork
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.evaluation.experiment import agreed_scoring, metric_of
from sparsenmt.workflows.evaluation.reference_texts import TestText, given_text, shared_text
from sparsenmt.workflows.plan.budget import Budget, check_metric
from sparsenmt.workflows.plan.candidate import AXES, OF_CORPORA, PlanCandidate, PlanModel, candidates
from sparsenmt.workflows.plan.elimination import Finding, choose, climb, front, halve, kept_of, rounds_of
from sparsenmt.workflows.plan.plan_table import PlanRow, PlanTable, dry_run_report
from sparsenmt.workflows.plan.training_steps import write_training_steps
from sparsenmt.workflows.plan.trials import TOGETHER, PlanTrial, Trials, Workshop

MODEL, TRIALS, CHOSEN = "model", "trials", "chosen.json"
_SEED = 1  # of the order of lines
_Z = 1.96  # half the width of a 95% interval, in standard errors
_TUNED = 2  # candidates of the last round for which axes of time alone are tried


@dataclass(frozen=True)
class PlanRequest(ModelOptions):
    """The arguments of `plan`.

    Args:
        models: model directories, or folders of such; the first one by its recipe is the reference.
        output: the folder of the plan.
        source, reference: text on which quality and time are measured; None: the models' text ``kind``.
        corpora: pairs of a source and a target text for shortlists and cut vocabularies.
        budget: what may be lost, and what may be used.
        axes: names of the axes that are tried; empty: all.
        turns: of each candidate in a round.
        exhaustive: measure every combination of all axes on the whole text, instead of successive halving.
        dry_run: only tell what would be tried.
        with_training: write the recipes and the sweep of steps that need training, too.
    """

    models: Sequence[Path]
    output: Path
    source: Path | None = None
    reference: Path | None = None
    kind: str = "dev"
    corpora: Sequence[tuple[Path, Path]] = ()
    budget: Budget = field(default_factory=Budget)
    axes: Sequence[str] = ()
    turns: int = 3
    exhaustive: bool = False
    dry_run: bool = False
    with_training: bool = False

    def __post_init__(self) -> None:
        check_lists(models=self.models, corpora=self.corpora, axes=self.axes)
        strings_to_paths(self)


@dataclass(frozen=True)
class PlanResult:
    """The end of a plan.

    Args:
        chosen: what was chosen, or comes nearest; None: of a dry run.
        meets: True if it meets quality and limits.
        model: the chosen model directory; None: nothing was written.
        rows: the measurements of the last round.
        shown: the report and its files.
    """

    chosen: PlanRow | None
    meets: bool
    model: Path | None
    rows: Sequence[PlanRow]
    shown: WrittenTable = field(repr=False)


@from_fields(PlanRequest, PlanRequest)
def plan(request: PlanRequest) -> PlanResult:
    """Find the cheapest candidate that meets a budget, and write it as a model directory; resumes where it stopped.

    Args:
        request: or its fields: ``plan(["runs/a"], output="runs/plan", budget=Budget("bleu", 0.5))``.

    Raises:
        UserError: an option, a file or a model is not what it must be.
    """
    made = _Plan(request)
    made.warn_of_axes()
    if request.dry_run:
        return made.dry_run()
    with resumable(made.kept):
        with explain_directory_errors(request.output, another="--output"):
            make_directories(request.output)
        with directory_lock(request.output, "writes a plan there"):
            return made.write(made.search())


class _Plan:
    """The steps of `plan`. Making one raises UserError for what is invalid, before anything is measured."""

    def __init__(self, request: PlanRequest) -> None:
        self.request, self.budget = request, request.budget
        directories = [each for place in request.models for each in models_in(place)]
        check_models(directories)
        for pair in request.corpora:
            deque(read_blocks(pair), 0)  # raises if they are not line-aligned
        if request.output.exists() and not request.output.is_dir():
            raise UserError("this is a file", where=str(request.output), hint="Name a directory as --output.")
        if (request.output / MODEL).exists() and not (request.output / TRIALS).is_dir():
            hint = "Name a new folder, or one that a plan wrote, as --output."
            raise UserError("exists, and no plan wrote it", where=str(request.output / MODEL), hint=hint)
        output = request.output.resolve()
        for each in directories:
            if each.resolve() in (output / MODEL, output, *output.parents):
                hint = "Name another folder as --output, outside of the models that are given."
                raise UserError("the plan would be written into this model, or replace it", where=str(each), hint=hint)
        device = request.use_processors()
        self.models = {label: self._model(label, path, device) for label, path in model_labels(directories).items()}
        first = next(iter(self.models.values()))
        self.reference = PlanCandidate(first.label)
        given = given_text(request.source, request.reference)
        self.text = given or shared_text(model_labels(directories), request.kind, TestText)
        metric = self.budget.metric or metric_of(first.recipe)
        check_metric(metric)
        recipes = {label: model.recipe for label, model in self.models.items()}
        self.scoring, language = agreed_scoring(self.text, ScoringOptions((metric,)), recipes)
        self._settings, self.metric = self.scoring.settings(language=language), METRICS[metric]
        self.budget = replace(self.budget, metric=metric)
        sources, references = self.text.read()
        if not any(each.strip() for each in sources):
            raise UserError("there is no text in it", where=self.text.name, hint="Name a text with sentences.")
        order = random.Random(_SEED).sample(range(len(sources)), len(sources))
        self.references = [references[i] for i in order]
        self.trials = Trials(
            self.models,
            self.reference,
            [sources[i] for i in order],
            request.output / TRIALS,
            Workshop(request.output / "tried", cuts_depths=self.budget.memory is not None),
            turns=request.turns,
            languages=request.languages,
        )
        self.rounds = [len(sources)] if request.exhaustive else rounds_of(len(sources))
        self.seen: dict[PlanCandidate, tuple[int, Finding]] = {}

    def _model(self, label: str, directory: Path, device: torch.device) -> PlanModel:
        """Return a model of the plan; UserError unless it translates."""
        request, identity = self.request, model_identity(directory)
        recipe = with_languages(read_recipe(directory), *request.languages)
        check_translates(recipe, directory)
        recipe = recipe.model_copy(update={"decoding": with_given(recipe.decoding, threads=request.threads)})
        corpora, threads = tuple((*pair,) for pair in request.corpora), torch.get_num_threads()
        plan = depth_plan(recipe.model)
        is_cut = bool(corpora) and _can_be_cut(directory)
        return PlanModel(label, directory, recipe, identity, plan, corpora, device, threads, is_cut)

    @cached_property
    def candidates(self) -> list[PlanCandidate]:
        """All that is tried in the first round, the reference first."""
        wanted = set(self.request.axes or AXES)
        every = (each for model in self.models.values() for each in candidates(model, all_axes=self.request.exhaustive))
        return [each for each in every if wanted.issuperset(dict(each.choices))]

    def kept(self) -> str:
        """Return what an interrupted plan keeps, for the user; "": nothing was measured."""
        measured = any((self.request.output / TRIALS).glob("*.json"))
        return "the trials that were measured are kept" if measured else ""

    def warn_of_axes(self) -> None:
        """Warn of axes that were asked for and of which no model has a second value."""
        for name in dict.fromkeys(self.request.axes):
            if not any(AXES[name].values(model) for model in self.models.values()):
                more = "" if self.request.corpora or name not in OF_CORPORA else "; --corpus makes one"
                notify(f"warning: --axis {name}: there is nothing to try beside the choice of the recipe{more}")

    def search(self) -> list[PlanRow]:
        """Return the measurements of the last round."""
        if self.request.exhaustive:
            found = self._measure(self.candidates, self.rounds[-1])
        else:
            steps, allowed = (self.rounds, self._measure, self._tune), self.budget.loss
            found = halve(self.candidates, *steps, allowed=allowed, reference=self.reference)
            found = climb(found, self._neighbours, *steps, allowed=allowed, reference=self.reference)
        last = list(found)
        trials = self._trials(last, self.rounds[-1])
        compared = self._compare(trials, self._best(trials))
        rows = [self._row(each, trials[each], compared[each]) for each in last]
        self.seen |= {row.candidate: (self.rounds[-1], row.finding) for row in rows}  # all from one best
        return rows

    def _neighbours(self, candidate: PlanCandidate) -> list[PlanCandidate]:
        """Return the candidates of the first round that differ from one in a single choice, or in the model alone."""
        axes = [name for name, axis in AXES.items() if not axis.keeps_outputs]
        own = [candidate.model, *map(candidate.get, axes)]
        others = {each: [each.model, *map(each.get, axes)] for each in self.candidates}
        return [each for each, its in others.items() if sum(a != b for a, b in zip(own, its, strict=True)) == 1]

    def _trials(self, chosen: Sequence[PlanCandidate], lines: int) -> dict[PlanCandidate, PlanTrial]:
        alone = lines == self.rounds[-1] or self.budget.latency is not None
        return self.trials.measure(chosen, lines, alone=alone)

    def _measure(self, chosen: Sequence[PlanCandidate], lines: int) -> Mapping[PlanCandidate, Finding]:
        """Try candidates on the first lines: against the reference, on the whole text against the best."""
        trials = self._trials(chosen, lines)
        against = self._best(trials) if lines == self.rounds[-1] else self.reference
        compared = self._compare(trials, against)
        found = {each: self._finding(each, trials[each], compared[each]) for each in chosen}
        self.seen |= {each: (lines, finding) for each, finding in found.items()}
        return found

    def _finding(self, candidate: PlanCandidate, trial: PlanTrial, compared: Comparison) -> Finding:
        """Return the measurement of a candidate, of which a positive difference is better."""
        difference = compared.difference
        error = None if difference.half_width is None else difference.half_width / _Z
        over = self.budget.excess(self._measures(candidate, trial))
        return Finding(trial.speeds, self._sign * difference.value, error, tuple(over.values()))

    @property
    def _sign(self) -> int:
        return -1 if self.metric.lower_is_better else 1

    def _measures(self, candidate: PlanCandidate, trial: PlanTrial) -> dict[str, float | None]:
        """Return the measures that have limits."""
        return {"memory": trial.memory, "size": self.trials.size(candidate), "latency": trial.latency}

    def _best(self, trials: Mapping[PlanCandidate, PlanTrial]) -> PlanCandidate:
        """Return the candidate with the best value."""
        return max(trials, key=lambda each: self._sign * self._value(trials[each]))

    def _value(self, trial: PlanTrial) -> float:
        (own,) = statistics(trial.translations, [self.references[: len(trial.translations)]], self._settings)
        return own.score(own.values.sum(0))

    def _compare(
        self, trials: Mapping[PlanCandidate, PlanTrial], against: PlanCandidate
    ) -> dict[PlanCandidate, Comparison]:
        """Compare the translations of candidates with those of one by the paired bootstrap."""
        texts = {each: tuple(trial.translations) for each, trial in trials.items()}
        references = [self.references[: len(texts[against])]]
        (baseline,) = statistics(texts[against], references, self._settings)
        made: dict[tuple[str, ...], Comparison] = {}
        for lines in texts.values():
            if lines not in made:
                (own,) = statistics(lines, references, self._settings)
                (made[lines],) = compare_statistics([(own, baseline)], PairedTest())
        return {each: made[lines] for each, lines in texts.items()}

    def _tune(self, left: Sequence[PlanCandidate], lines: int) -> list[PlanCandidate]:
        """Choose the axes of time alone, one after the other, for the most promising candidates, on some lines."""
        wanted = set(self.request.axes or AXES)
        found = {each: self.seen[each][1] for each in left if each in self.seen} or self._measure(left, lines)
        tuned = []
        for candidate in sorted(found, key=lambda each: -found[each].merit(self.budget.loss))[:_TUNED]:
            best = candidate
            for axis in (each for each in AXES.values() if each.keeps_outputs and each.name in wanted):
                tried = [best, *(best.at(axis.name, value) for value in axis.values(self.models[best.model]))]
                measured = self._measure([self.reference, *(each for each in tried if each != self.reference)], lines)
                fastest = max(tried, key=lambda each: measured[each].merit(self.budget.loss))
                best = best if measured[best].equals(measured[fastest]) else fastest
            tuned.append(best)
        return tuned

    def _row(self, candidate: PlanCandidate, trial: PlanTrial, compared: Comparison) -> PlanRow:
        """Return the figures of a candidate on the whole text."""
        measures = self._measures(candidate, trial)
        finding = self._finding(candidate, trial, compared)
        over = {
            name: (value, self.budget.limits[name])
            for name in self.budget.excess(measures)
            if (value := measures[name])
        }
        return PlanRow(candidate, trial, compared, finding, self.trials.size(candidate), over)

    def write(self, rows: Sequence[PlanRow]) -> PlanResult:
        """Choose, write the chosen model directory and the report."""
        by_candidate = {row.candidate: row for row in rows}
        findings = {each: row.finding for each, row in by_candidate.items()}
        costs = {each: (len(each.choices), row.size, -row.finding.speed) for each, row in by_candidate.items()}
        found, meets = choose(findings, self.budget.loss, costs.__getitem__)
        chosen, output = by_candidate[found], self.request.output
        if not meets:
            self._remove_model()
        model = self._write_model(chosen) if meets else None
        points = {
            each: (self._sign * row.compared.system.value, row.finding.speed) for each, row in by_candidate.items()
        }
        table = PlanTable(
            self.text, self.metric, self.scoring, self.budget, rows, chosen, meets, front(points), self.seen
        )
        steps = self._training() if self.request.with_training else []
        report, files = table.report(steps), ReportFiles.in_folder(output, "plan")
        written = files.write(report, table.draw, shown := str(report))
        return PlanResult(chosen, meets, model, rows, WrittenTable(shown, written))

    def _write_model(self, row: PlanRow) -> Path:
        """Write the chosen model directory, unless it is there."""
        candidate, output = row.candidate, self.request.output / MODEL
        model = self.models[candidate.model]
        ready, options = self.trials.workshop.ready(candidate, model), self.trials.workshop.options(candidate, model)
        asked = {
            "model": model.identity.digest,
            "decoding": options.recorded(),
            "threads": options.threads,
            "vocabulary": self.trials.workshop.digest(model) if candidate.get("vocabulary") is not None else None,
        }
        kept = KeptWork(self.request.output / CHOSEN, asked, dict)
        if kept.find() is not None and output.exists():
            return output
        self._remove_model()
        encoder, decoder = model.depths.depth(options.encoder_layers, options.decoder_layers)
        slice_model(ready.directory, output, encoder_layers=encoder, decoder_layers=decoder, decoding=options)
        kept.write(chosen=str(candidate))
        return output

    def _remove_model(self) -> None:
        """Remove the model directory that an earlier plan chose, which may miss this budget, and its record."""
        output = self.request.output / MODEL
        (self.request.output / CHOSEN).unlink(missing_ok=True)
        remove_tree(old_path(output))
        if output.exists():
            output.rename(old_path(output))
            remove_tree(old_path(output))

    def dry_run(self) -> PlanResult:
        """Return what would be tried, and how long it takes at the reference's speed."""
        lines = self.rounds[0]
        seconds = self.trials.reference_seconds(min(lines, 100)) / min(lines, 100)
        counts = [len(self.candidates)]
        for _ in self.rounds[1:]:
            counts.append(min(counts[-1], kept_of(counts[-1]) + 2))
        wanted = set(self.request.axes or AXES)
        if not self.request.exhaustive:
            later = [axis for axis in AXES.values() if axis.keeps_outputs and axis.name in wanted]
            values = max(sum(len(axis.values(model)) for axis in later) for model in self.models.values())
            counts[-1] += _TUNED * (len(self.rounds) > 1 and values > 0)
            counts[max(len(counts) - 2, 0)] += _TUNED * values
        shared = 1 + 1 / TOGETHER  # with the turns of the reference
        times = [n * size * seconds * self.request.turns * shared for n, size in zip(counts, self.rounds, strict=True)]
        axes = [
            (label, axis.name, ", ".join(axis.text(value) for value in axis.values(model)))
            for label, model in self.models.items()
            for axis in AXES.values()
            if axis.values(model) and axis.name in wanted
        ]
        rounds = list(zip(count(1), self.rounds, counts, map(duration, times), strict=False))
        report = dry_run_report(axes, rounds, duration(sum(times)))
        return PlanResult(None, True, None, (), WrittenTable(str(report), []))

    def _training(self) -> list[str]:
        """Write the steps that need training, of the reference model; returns the commands."""
        model, request = self.models[self.reference.model], self.request
        recipe = with_languages(read_recipe(model.directory), *request.languages)
        folder = request.output / "training"
        return write_training_steps(model.directory, recipe, folder, request.models, self._options())

    def _options(self) -> list[object]:
        """Return the options with which the plan is made again."""
        request, words = self.request, list[object]()
        if request.source is not None:
            words += ["--source", request.source, "--reference", request.reference]
        words += [each for pair in request.corpora for each in ("--corpus", *pair)]
        words += self.budget.options()
        words += [each for axis in request.axes for each in ("--axis", axis)]
        for name in ("turns", "threads", "device", "source_language", "target_language"):
            if (value := getattr(request, name)) != getattr(PlanRequest, name):
                words += [f"--{'rounds' if name == 'turns' else name.replace('_', '-')}", value]
        return [*words, *["--exhaustive"] * request.exhaustive, "-o", request.output]


def _can_be_cut(directory: Path) -> bool:
    """Return True if the vocabularies of a model can be cut to a text; says why not."""
    tokenizers = Tokenizers.load(directory / "tokenizers")
    try:
        for each in (tokenizers.source, tokenizers.target):
            each.required(())
    except ValueError as error:
        notify(f"{directory}: its vocabulary is not cut: {error}")
        return False
    return True
