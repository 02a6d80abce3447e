"""An experiment: trained models on texts by metrics, each against its baseline; what is measured is kept beside them.

`compare`, `sweep` and `finetune-l0` are experiments that differ in their models, texts and tables. The results of all
are `Observation`s, one of a model on a text by a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.evaluation.observation import Observation
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.evaluation.tokenizer_choice import fit_to_text
from sparsenmt.metric import TEXT_METRICS
from sparsenmt.recipe.schema import Recipe
from sparsenmt.training.training_log import training_speed, training_time, training_updates
from sparsenmt.workflows.evaluation.evaluate import (
    AS_IN_RECIPE,
    Evaluation,
    ModelRun,
    check_metrics_fit,
    evaluate,
    kept_evaluation,
)
from sparsenmt.workflows.evaluation.evaluate_text import TextEvaluation, evaluate_text, kept_text_evaluation
from sparsenmt.workflows.evaluation.reference_texts import PlainText, TestText, evaluation_text

Text = TestText | PlainText
Measured = Evaluation | TextEvaluation


@dataclass(frozen=True)
class ExperimentModel:
    """A trained model of an experiment.

    Args:
        labels: axis -> label, for tables.
        group: the name without the seed of training; None: the name.
        baseline: the model that it is compared with; None: there is none.
    """

    name: str
    directory: Path
    recipe: Recipe
    labels: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    baseline: ExperimentModel | None = None

    def text(self, kind: str) -> Text | None:
        """Return the recipe's ``dev`` or ``test`` text, if it has one."""
        return evaluation_text(self.recipe, kind)


@dataclass(frozen=True)
class Experiment:
    """Models, the metrics that judge them, and how they run.

    Args:
        models: in the order of tables.
        scoring: of all models; without metrics: each by that of its recipe's validation.
        test: significance test of the differences to the baselines.
        run: device, and changes to the decoding options of the recipes.
        attention: True to count attended positions, too.
        fitted: results of `scoring_of`, by what they depend on.
    """

    models: Sequence[ExperimentModel]
    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    test: PairedTest = field(default_factory=PairedTest)
    run: ModelRun = AS_IN_RECIPE
    attention: bool = True
    fitted: dict[tuple[Any, ...], ScoringOptions] = field(default_factory=dict, compare=False)

    def asked_of(self, model: ExperimentModel) -> ScoringOptions:
        """Return the settings of a model's scores, before its text is known."""
        return self.scoring.with_default((metric_of(model.recipe),))

    def scoring_of(self, model: ExperimentModel, text: Text) -> ScoringOptions:
        """Return the settings of a model's scores, with the tokenizer that fits its text."""
        asked, data = self.asked_of(model), model.recipe.data
        if isinstance(text, PlainText) or asked.unspaced is not None:
            return asked
        key = (asked, text, data.target_language, model.recipe.training.validation.tokenize)
        if key not in self.fitted:
            self.fitted[key] = fit_to_text(asked, text.read()[1], {model.name: model.recipe})
        return self.fitted[key]

    def measure(self, model: ExperimentModel, text: Text) -> Measured:
        """Measure a model on a text, unless the results are kept.

        Raises:
            UserError: a file or the model is not what it must be.
        """
        if isinstance(text, PlainText):
            return evaluate_text(model.directory, text, attention=self.attention, device=self.run.device)
        scoring = self.scoring_of(model, text)
        return evaluate(model.directory, text, scoring, attention=self.attention, run=self.run)

    def kept(self, model: ExperimentModel, text: Text) -> Measured | None:
        """Return the kept results of `measure`, or None; the model is not opened."""
        if isinstance(text, PlainText):
            return kept_text_evaluation(model.directory, text)
        return kept_evaluation(model.directory, text, self.scoring_of(model, text), self.run)

    def observe_set(
        self, kind: str, measure: Callable[[ExperimentModel, Text], Measured | None] | None = None
    ) -> list[Observation]:
        """Return the results of all models on the ``dev`` or ``test`` texts of their recipes.

        Args:
            measure: returns the results of a model on its text, None if there are none; None: `Experiment.measure`.
        """
        texts, found = {model.name: model.text(kind) for model in self.models}, {}
        for model in self.models:
            text = texts[model.name]
            results = None if text is None else (measure or self.measure)(model, text)
            if results is not None:
                found[model.name] = results
        return self.observe(kind, texts, found)

    def observe(self, name: str, texts: Mapping[str, Text | None], found: Mapping[str, Measured]) -> list[Observation]:
        """Return the results of all models on one set, one for each model and metric.

        Args:
            name: of the set, in tables.
            texts: the text of every model.
            found: what was measured; models that are not in it have observations without values.
        """
        return [each for model in self.models for each in self._observed(model, name, texts, found)]

    def _observed(
        self, model: ExperimentModel, name: str, texts: Mapping[str, Text | None], found: Mapping[str, Measured]
    ) -> list[Observation]:
        """Return the results of a model, one for each metric; other arguments: those of `observe`."""
        text, own, baseline = texts[model.name], found.get(model.name), model.baseline
        other = None if baseline is None else found.get(baseline.name)
        against = baseline.group if baseline is not None and texts[baseline.name] == text else None
        if own is None or text is None:
            empty = [{**model.labels, "set": name, "metric": metric} for metric in self.asked_of(model).metrics]
            return [Observation(model.name, labels, {}, group=model.group, baseline=against) for labels in empty]
        measured, scoring, result = self._values(model, own, other), self.scoring_of(model, text), []
        for metric in scoring.metrics:
            key = scoring.key(metric)
            comparable = other is None or _are_comparable(own, other, metric)
            result.append(
                Observation(
                    model.name,
                    {**model.labels, "set": name, "metric": metric},
                    {"quality": own.scores[key], **measured},
                    test=self._difference(model, own, other, metric, text) if comparable else None,
                    sentences=own.sentences,
                    signature=own.signatures[key],
                    group=model.group,
                    baseline=against if comparable else None,
                )
            )
        return result

    def _difference(
        self, model: ExperimentModel, own: Measured, other: Measured | None, metric: str, text: Text
    ) -> dict[str, float] | None:
        """Return `Comparison.record` of the difference to the baseline; None: there is none, or not on this text."""
        if other is None or own.key["text"] != other.key["text"]:
            return None
        if isinstance(own, TextEvaluation) and isinstance(other, TextEvaluation):
            return own.against(other, metric, self.test)
        assert isinstance(own, Evaluation) and isinstance(other, Evaluation) and isinstance(text, TestText)
        scoring, language = self.scoring_of(model, text), model.recipe.data.target_language
        return own.against(other, metric, text, language, scoring, self.test)

    def _values(self, model: ExperimentModel, own: Measured, other: Measured | None) -> dict[str, float | None]:
        """Return the values of `Observation` that do not depend on a metric; ``other``: results of the baseline."""
        attended, density = (own.overall(name) if self.attention else None for name in ("attended", "density"))
        theirs = None if other is None else other.overall("attended")
        speed, deviation = training_speed(model.directory)
        values = {
            "fewer_attended": None if attended is None or theirs is None else theirs / attended,
            "parameters": own.parameters,
            "sparsity": own.sparsity,
            "attended": attended,
            "density": density,
            "training_speed": speed,
            "training_deviation": deviation,
            "training_seconds": training_time(model.directory),
            "updates": training_updates(model.directory),
        }
        if isinstance(own, TextEvaluation):
            values |= {"mean_span": own.mean_span, "longest_span": own.longest_span}
        return values


def _are_comparable(own: Measured, other: Measured, metric: str) -> bool:
    """Return False for a metric by token of models with different vocabularies, whose tokens are not the same."""
    if metric not in TEXT_METRICS or TEXT_METRICS[metric].per != "token":
        return True
    ours, theirs = (ModelIdentity("", each.key["files"], {}, 0).vocabularies for each in (own, other))
    return ours == theirs


def metric_of(recipe: Recipe) -> str:
    """Return the metric that judges a recipe's models: that of validation; where it is the loss, BLEU, of texts BPC."""
    metric = recipe.training.validation.metric
    if recipe.data.is_language_model:
        return metric if metric in TEXT_METRICS else "bpc"
    return "bleu" if metric == "loss" else metric


def agreed_scoring(
    text: TestText, scoring: ScoringOptions, recipes: Mapping[str, Recipe], *, reads_documents: bool = True
) -> tuple[ScoringOptions, str | None]:
    """Return the settings of the scores of all models of a table on one text, and the language of the text.

    Args:
        recipes: by the model's label.
        reads_documents: as for `check_scoring`.

    Raises:
        UserError: the text lacks what a metric needs, or the recipes lead to different languages or tokenizers.
    """
    check_metrics_fit(text, scoring, reads_documents=reads_documents)
    language = scoring.language_of({label: recipe.data.target_language for label, recipe in recipes.items()})
    return fit_to_text(scoring, text.read()[1], recipes), language
