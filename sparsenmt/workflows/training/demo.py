"""Prepare, train, decode and score on the built-in demo corpus."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sparsenmt
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.data.text import StrPath, read_lines, write_lines
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import Score, corpus_scores, scores_in_words
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.recipe.resolve import Overrides, as_settings
from sparsenmt.storage.files import directory_lock, explain_directory_errors
from sparsenmt.workflows.evaluation.evaluate import AS_IN_RECIPE, ModelRun
from sparsenmt.workflows.training.prepare import prepare
from sparsenmt.workflows.training.train import train


@dataclass(repr=False)
class DemoResult:
    """The translated test set of the demo, its scores, and the time that each stage took."""

    sources: list[str]
    references: list[str]
    outputs: list[str] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"DemoResult({scores_in_words(self.scores)}; {len(self.sources):,} sentences)"

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Keep the seconds that the block takes as those of a stage."""
        began = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - began


def demo(directory: StrPath = "runs/demo", overrides: Overrides = (), run: ModelRun = AS_IN_RECIPE) -> DemoResult:
    """Run all stages in a directory, or resume after those that were finished; ``model`` in it is the model directory.

    Args:
        overrides: laid over the demo's recipe: ``key.path=value`` each, or values by their keys.
        run: of decoding.

    Raises:
        TypeError: the overrides are a single string.
        UserError: an override is wrong, or another process runs the demo in the directory.
    """
    directory, settings = Path(directory), as_settings(overrides)
    os.environ["SPARSENMT_DEMO"] = str((directory / "corpus").resolve())
    places = [f"directory={directory / 'model'}", f"data.directory={directory / 'data'}"]
    recipe = load_recipe(find_recipe("demo.yaml"), [*places, *settings])
    if recipe.data.test is None:
        raise UserError("the demo needs a test set", where="data.test", hint="Leave out the override data.test=null.")
    with explain_directory_errors(directory, another="--directory"):
        directory.mkdir(parents=True, exist_ok=True)
    with resumable(), directory_lock(directory, "runs the demo here"):
        write_demo_corpus(directory / "corpus")
        result = DemoResult(list(read_lines(recipe.data.test.source)), list(read_lines(recipe.data.test.target)))
        with result.timed("prepare"):
            notify(prepare(recipe).describe())
        with result.timed("train"):
            train(recipe)
        with result.timed("decode"):
            bundle = run.open(Path(recipe.directory))
            result.outputs = translate_texts(bundle, result.sources, bundle.recipe.decoding)
            write_lines(directory / "test.output", result.outputs)
        result.scores = corpus_scores(result.outputs, [result.references], ScoringSettings(("bleu", "chrf", "ter")))
    return result


def find_recipe(name: str) -> Path:
    """Return the path of a shipped recipe, in the checkout or in the installed package."""
    package = Path(sparsenmt.__file__).parent
    for folder in (package.parent / "recipes", package / "_recipes"):
        if (folder / name).is_file():
            return folder / name
    raise UserError("the recipe is not installed", where=name, hint="Run from a checkout, or reinstall the package.")
