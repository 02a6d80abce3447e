"""``sparsenmt contrast``: contrastive test suites by forced decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from sparsenmt.commands.options import depth_options, tags_option
from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.items import FORMATS
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.evaluation.contrast.contrast_report import Judged
    from sparsenmt.evaluation.contrast.items import Suite
    from sparsenmt.recipe.schema import Data
    from sparsenmt.store import Bundle

_PATH = click.Path(path_type=Path)
_RECIPES = (".yaml", ".yml")


@dataclass(frozen=True)
class ContrastRequest:
    """What the command was asked for."""

    models: tuple[Path, ...]
    suite: Path | None
    """None: line-aligned files."""
    source: Path | None
    correct: Path | None
    incorrect: tuple[Path, ...]
    layout: str | None
    types: tuple[str, ...]
    origins: tuple[str, ...]
    training: tuple[Path, ...]
    tags_file: Path | None
    normalize: bool
    batch_tokens: int | None
    encoder_layers: int | None
    decoder_layers: int | None
    files: dict[str, Path | None]


@click.command("contrast", short_help="Contrastive test suites by forced decoding.")
@click.argument("arguments", metavar="MODEL_DIR... SUITE", type=_PATH, nargs=-1)
@click.option("--format", "layout", type=click.Choice(FORMATS[1:]), help="Of the suite.  [default: found out]")
@click.option("--source", type=_PATH, help="Instead of SUITE: the source text, a sentence a line.")
@click.option("--correct", type=_PATH, help="With --source: the correct translations.")
@click.option("--incorrect", type=_PATH, multiple=True, help="With --source: wrong translations; repeat for more.")
@click.option("--type", "types", multiple=True, help="Only this type of error; repeat for more.")
@click.option("--origin", "origins", multiple=True, help="Only sentences of this corpus; repeat for more.")
@click.option(
    "--exclude-training",
    "training",
    type=_PATH,
    multiple=True,
    help="Leave out what stands in this training text: a recipe, a model directory, or a file of lines; repeatable.",
)
@click.option("--normalize", is_flag=True, help="Divide log-probabilities by the number of pieces, </s> included.")
@tags_option
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    help="Sources in a batch times the longest, or times its targets.  [default: the recipe's]",
)
@depth_options
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--json", "json_file", type=_PATH, help="Write all tables as JSON.")
@click.option("--csv", "csv_file", type=_PATH, help="Write the table of all items as CSV; further tables beside it.")
@click.option("--items", "items_file", type=_PATH, help="Write every item and what became of it, with tabs.")
@click.option("--plot", "plot_file", type=_PATH, help="Draw it: a name in .png or .svg; needs matplotlib.")
@click.option("--save-suite", "suite_file", type=_PATH, help="Write the suite as JSON, after --type and the others.")
def command(
    arguments: tuple[Path, ...],
    json_file: Path | None,
    csv_file: Path | None,
    items_file: Path | None,
    plot_file: Path | None,
    suite_file: Path | None,
    threads: int | None,
    **asked: Any,
) -> None:
    """How often models find the correct translation more probable than wrong ones.

    \b
    sparsenmt contrast MODEL_DIR... SUITE
    sparsenmt contrast MODEL_DIR... --source S --correct C --incorrect I [--incorrect I2]
    sparsenmt contrast SUITE --save-suite FILE
        no model: only build the suite

    SUITE is a folder of DistilLingEval or one with several of them, LingEval97's JSON, JSON of MuCoW or ContraWSD, or
    the key of a MuCoW translation suite (de-en.key.txt), out of which pairs are made.

    An item is right if the correct target's log-probability is higher than that of every wrong one; ties are wrong.
    Intervals are Wilson's, at 95%; further models are compared with the first by the exact McNemar test.
    """
    plain = any(asked[name] for name in ("source", "correct", "incorrect"))
    suite = None if plain or not arguments else arguments[-1]
    files = {
        "--json": json_file,
        "--csv": csv_file,
        "--items": items_file,
        "--plot": plot_file,
        "--save-suite": suite_file,
    }
    job = ContrastRequest(models=arguments if plain else arguments[:-1], suite=suite, files=files, **asked)
    check(job)
    if threads is not None:
        from sparsenmt.devices import use_threads

        use_threads(threads)
    run(job)


_WAYS = "See `sparsenmt contrast --help` for the ways to call it."


def check(job: ContrastRequest) -> None:
    """Find out what is wrong before anything is read.

    Raises:
        UserError: the options do not fit one another, or a file or a model directory is not what it must be.
    """
    if job.suite is None and not (job.source and job.correct and job.incorrect):
        given = {"--source": job.source, "--correct": job.correct, "--incorrect": job.incorrect}
        missing = [option for option, value in given.items() if not value]
        if len(missing) == len(given):
            raise UserError("there is no test suite", where="SUITE", hint=_WAYS)
        raise UserError("is missing: line-aligned files need all three", where=missing[0], hint=_WAYS)
    if job.suite is None and job.layout is not None:
        raise UserError("is given beside --source", where="--format", hint="Leave one of the two out.")
    if job.suite is not None and (job.suite / "manifest.json").is_file():
        raise UserError("this is a model directory, and no test suite follows", where=str(job.suite), hint=_WAYS)
    if not job.models:
        for option in ("--json", "--csv", "--items", "--plot"):
            if job.files[option] is not None:
                raise UserError("there is no model to write about", where=option, hint="Name a model directory.")
        if job.files["--save-suite"] is None:
            raise UserError("there is no model", where="MODEL_DIR", hint=_WAYS)
    from sparsenmt.report.model_labels import check_models
    from sparsenmt.report.output_files import check_outputs

    check_models(job.models)
    inputs = [job.suite, job.source, job.correct, *job.incorrect, job.tags_file, *job.training]
    check_outputs(job.files, inputs)
    if job.files["--plot"] is not None:
        from sparsenmt.report.plots import check_plot

        check_plot(job.files["--plot"])


def run(job: ContrastRequest) -> None:
    """Read the suite, score it with every model, and report."""
    suite = read_suite(job)
    if job.files["--save-suite"] is not None:
        save_suite(suite, job.files["--save-suite"])
    if not job.models:
        for note in (f"{len(suite.items):,} items", *suite.notes):
            click.echo(note)
        return

    from dataclasses import replace

    from sparsenmt.evaluation.contrast.contrast_report import item_lines, panels, report, shown, standing_notes
    from sparsenmt.report.model_labels import model_labels
    from sparsenmt.report.tables import render, write_report

    judged = [judge(job, suite, label, directory) for label, directory in model_labels(job.models).items()]
    notes = standing_notes(suite, judged, normalize=job.normalize)
    made = report(suite, judged, notes=notes, normalize=job.normalize)
    chosen = {"types": list(job.types), "origins": list(job.origins), "models": [str(path) for path in job.models]}
    chosen["exclude_training"] = [str(path) for path in job.training]
    made = replace(made, settings={**made.settings, **chosen})
    write_report(made, json=job.files["--json"], csv=job.files["--csv"])
    if job.files["--items"] is not None:
        from sparsenmt.data.text import write_lines

        write_lines(job.files["--items"], item_lines(suite, judged))
    if job.files["--plot"] is not None:
        from sparsenmt.report.plots import curves, save

        save(curves(panels(suite, judged)), job.files["--plot"])
    click.echo(render(shown(suite, judged, notes)))


def read_suite(job: ContrastRequest) -> Suite:
    """The items that are wanted.

    Raises:
        UserError: the suite is not sound, or nothing is left of it.
    """
    from sparsenmt.evaluation.contrast.line_files import read_line_files
    from sparsenmt.evaluation.contrast.suites import check_items, open_suite
    from sparsenmt.evaluation.contrast.training_text import exclude_training

    if job.suite is not None:
        suite = open_suite(job.suite, job.layout)
    else:
        assert job.source is not None and job.correct is not None
        suite = check_items(read_line_files(job.source, job.correct, job.incorrect))
    suite = suite.select(job.types, job.origins)
    if job.training:
        suite = exclude_training(suite, training_texts(job.training))
        if not suite.items:
            raise UserError(
                "the training text holds every item of the suite",
                where=suite.name,
                hint="Take another suite, or leave --exclude-training out.",
            )
    return check_items(suite)


def training_texts(paths: Sequence[Path]) -> Iterator[tuple[Literal["source", "target", "either"], Iterable[str]]]:
    """The lines of all training files, with their sides."""
    import os

    from sparsenmt.data.text import read_lines
    from sparsenmt.progress import Bars
    from sparsenmt.recipe.load import load
    from sparsenmt.sparsity.registry import methods
    from sparsenmt.store import read_manifest, read_recipe

    bars = Bars(not os.environ.get("TQDM_DISABLE"))

    def lines(path: str | Path) -> Iterator[str]:
        return bars.over(read_lines(path), f"training text {Path(path).name}")

    for path in paths:
        data: Data | None = None
        if path.is_dir():
            read_manifest(path)
            data = read_recipe(path).data
        elif path.name.endswith(_RECIPES):
            data = load(path, methods()).data
        if data is None:
            yield "either", lines(path)
            continue
        for corpus in data.train:
            yield "source", lines(corpus.source)
            yield "target", lines(corpus.target)


def save_suite(suite: Suite, path: Path) -> None:
    """Write the suite as JSON."""
    from sparsenmt.evaluation.contrast.entries import as_entries
    from sparsenmt.files import explain_write_errors, write_json

    with explain_write_errors(path):
        write_json(path, as_entries(suite))


def judge(job: ContrastRequest, suite: Suite, label: str, directory: Path) -> Judged:
    """Score the suite with one model, and decide."""
    from sparsenmt.evaluation.contrast.contrast_report import Judged
    from sparsenmt.evaluation.contrast.decisions import decide
    from sparsenmt.evaluation.contrast.scoring import Questions
    from sparsenmt.store import open_model
    from sparsenmt.workflows.depth_choice import at_depth
    from sparsenmt.workflows.input_text import attach, open_tag_file

    bundle = open_model(directory)
    warn_of_languages(suite, label, bundle)
    tags = open_tag_file(job.tags_file, bundle)
    given = None if tags is None else [line.tags for line in attach(suite.sources, suite.name, tags) if line.tags]
    questions = Questions(suite, given)
    decoding = bundle.recipe.decoding
    depth = at_depth(bundle.model.plan, decoding, job.encoder_layers, job.decoder_layers).depth
    limit = job.batch_tokens or decoding.batch_tokens
    with progress_bar(label, len(questions)) as advance:
        scored = questions.answer(bundle, batch_tokens=limit, depth=depth, advance=advance)
    cut = sum(each.is_cut for each in scored)
    return Judged(label, tuple(decide(each, normalize=job.normalize) for each in scored), cut)


def warn_of_languages(suite: Suite, label: str, bundle: Bundle) -> None:
    """Say so where the names of the suite's files and the model's recipe have other languages."""
    data = bundle.recipe.data
    own = data.source_language, data.target_language
    unknown = ("source", "target")  # the defaults of recipes
    if suite.languages not in (None, own) and own != unknown:
        theirs = "-".join(suite.languages or ())
        click.echo(f"warning: {suite.name}: the suite is {theirs}, the model {label} is {'-'.join(own)}", err=True)
