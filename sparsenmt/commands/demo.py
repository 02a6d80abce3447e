"""``sparsenmt demo``: everything from raw text to a scored translation, on the built-in corpus."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Recipe

SAMPLES = 5


@click.command("demo", short_help="Prepare, train, decode and score on the built-in demo corpus.")
@click.argument("overrides", nargs=-1)
@click.option(
    "--directory", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True, help="Where to work."
)
def command(overrides: tuple[str, ...], directory: Path) -> None:
    """Write a small English-German corpus, train a model on it, translate its test set and score the translations.

    What is finished in the directory is not done again: after an interrupt the same command goes on. OVERRIDES change
    single keys of the demo's recipe, for instance training.max_updates=200.
    """
    from sparsenmt.assemble import load_recipe
    from sparsenmt.files import directory_lock, explain_directory_errors
    from sparsenmt.interrupts import Interrupted

    os.environ["SPARSENMT_DEMO"] = str((directory / "corpus").resolve())
    places = [f"directory={directory / 'model'}", f"data.directory={directory / 'data'}"]
    recipe = load_recipe(find_recipe("demo.yaml"), [*places, *overrides])
    if recipe.data.test is None:
        raise UserError("the demo needs a test set", where="data.test", hint="Leave out the override data.test=null.")
    with explain_directory_errors(directory, another="--directory"):
        directory.mkdir(parents=True, exist_ok=True)
    try:
        with directory_lock(directory, "runs the demo here"):
            _run(recipe, directory)
    except Interrupted as stop:  # whatever the stage, what is finished stays
        stop.resumable = True
        raise


def _run(recipe: Recipe, directory: Path) -> None:
    """All stages, one after the other."""
    from sparsenmt.assemble import required_features
    from sparsenmt.data.demo.corpus import write_demo_corpus
    from sparsenmt.data.prepare.pipeline import prepare
    from sparsenmt.data.text import read_lines, write_lines
    from sparsenmt.decoding.translate import translate_texts
    from sparsenmt.evaluation.metrics import corpus_scores
    from sparsenmt.evaluation.score_table import table
    from sparsenmt.store import open_model
    from sparsenmt.workflows.train import train

    assert recipe.data.test is not None
    write_demo_corpus(directory / "corpus")
    seconds: dict[str, float] = {}
    with _timed(seconds, "prepare"):
        click.echo(prepare(recipe.data, features=required_features(recipe)).describe(), err=True)
    with _timed(seconds, "train"):
        train(recipe)
    sources, references = list(read_lines(recipe.data.test.source)), list(read_lines(recipe.data.test.target))
    with _timed(seconds, "decode"):
        bundle = open_model(recipe.directory)
        outputs = translate_texts(bundle, sources, recipe.decoding)
        write_lines(directory / "test.output", outputs)
    scores = corpus_scores(outputs, [references], metrics=("bleu", "chrf", "ter"))
    click.echo(f"{_samples(sources, references, outputs)}\n")
    click.echo(table(scores, note=_times(seconds)))


def find_recipe(name: str) -> Path:
    """A shipped recipe: from the checkout, or from the installed package."""
    import sparsenmt

    package = Path(sparsenmt.__file__).parent
    for folder in (package.parent / "recipes", package / "_recipes"):
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        "the recipe is not installed", where=name, hint="Run from a checkout, or install the package again."
    )


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - began


def _samples(sources: list[str], references: list[str], outputs: list[str]) -> str:
    """Some translations, evenly spread over the test set."""
    chosen = range(0, len(sources), max(len(sources) // SAMPLES, 1))[:SAMPLES]
    return "\n".join(
        f"\n  source     {sources[i]}\n  reference  {references[i]}\n  output     {outputs[i]}" for i in chosen
    )


def _times(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
