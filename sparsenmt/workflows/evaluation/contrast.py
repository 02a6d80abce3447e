"""Contrastive evaluation: read or build a test suite, score it with models by forced decoding, report accuracies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sparsenmt.arguments import from_fields, strings_to_paths
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model_directory import MANIFEST, read_manifest, read_recipe
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.prepare.chosen_lines import read_chosen_lines
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.decoding.disabled_heads import heads_by_model
from sparsenmt.decoding.inputs import read_sources, warn_of_unusual_sources
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.contrast.contrast_report import ModelDecisions, drawn, item_lines, report, report_notes
from sparsenmt.evaluation.contrast.decisions import decide
from sparsenmt.evaluation.contrast.entries import as_entries
from sparsenmt.evaluation.contrast.items import Suite
from sparsenmt.evaluation.contrast.line_files import read_line_files
from sparsenmt.evaluation.contrast.scoring import SuiteScorer
from sparsenmt.evaluation.contrast.suites import check_items, open_suite
from sparsenmt.evaluation.contrast.training_text import Side, exclude_training
from sparsenmt.model.sites import SiteName
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.load import load
from sparsenmt.report.model_labels import check_models, model_labels
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.report.tables import Report
from sparsenmt.sparsity.registry import methods
from sparsenmt.storage.files import explain_write_errors, write_json
from sparsenmt.workflows.decoding.depth_choice import at_depth
from sparsenmt.workflows.decoding.input_text import attach, open_tag_file

_RECIPES = (".yaml", ".yml")
_USAGE = "See `sparsenmt contrast --help` for the ways to call it."


@dataclass(frozen=True)
class ContrastRequest(ModelOptions):
    """The arguments of `contrast`.

    Args:
        models: model directories; empty: only build the suite.
        suite: a suite in one of the known formats; None: the line-aligned files ``source``, ``correct``, ``incorrect``.
        suite_format: format of the suite; None: detected.
        types: error types to keep; empty: all.
        origins: corpora to keep; empty: all.
        training: recipes, model directories or text files whose sentences are left out.
        tags: part-of-speech tags of the suite's sources.
        normalize: divide log-probabilities by the number of tokens.
        batch_tokens: sources in a batch times the longest, or times the targets; None: the recipe's.
        encoder_layers, decoder_layers: layers that run; None: the recipe's, or all.
        disabled_heads: ``[MODEL=]SITE:N,N`` values: heads that give zeros.
        files: files for the report.
        items_file: file for a table of all items.
        suite_file: file for the suite as JSON.
    """

    models: Sequence[Path] = ()
    suite: Path | None = None
    source: Path | None = None
    correct: Path | None = None
    incorrect: Sequence[Path] = ()
    suite_format: str | None = None
    types: Sequence[str] = ()
    origins: Sequence[str] = ()
    training: Sequence[Path] = ()
    tags: Path | None = None
    normalize: bool = False
    batch_tokens: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    disabled_heads: Sequence[str] = ()
    files: ReportFiles = field(default_factory=ReportFiles)
    items_file: Path | None = None
    suite_file: Path | None = None

    def __post_init__(self) -> None:
        check_lists(
            models=self.models,
            incorrect=self.incorrect,
            types=self.types,
            origins=self.origins,
            training=self.training,
            disabled_heads=self.disabled_heads,
        )
        strings_to_paths(self)

    def check(self) -> None:
        """Raise UserError for options and files that do not fit one another, before anything is read."""
        self._check_suite()
        files = self.files
        if not self.models:
            outputs = {"--json": files.json, "--csv": files.csv, "--items": self.items_file, "--plot": files.plot}
            for option, path in outputs.items():
                if path is not None:
                    raise UserError("there is no model to write about", where=option, hint="Name a model directory.")
            if self.suite_file is None:
                raise UserError("there is no model", where="MODEL_DIR", hint=_USAGE)
        check_models(self.models)
        inputs = [self.suite, self.source, self.correct, *self.incorrect, self.tags, *self.training]
        files.check(inputs, {"--items": self.items_file, "--save-suite": self.suite_file})

    def _check_suite(self) -> None:
        """Raise UserError unless a suite or its three line-aligned files are named."""
        if self.suite is None and not (self.source and self.correct and self.incorrect):
            given = {"--source": self.source, "--correct": self.correct, "--incorrect": self.incorrect}
            missing = [option for option, value in given.items() if not value]
            if len(missing) == len(given):
                raise UserError("there is no test suite", where="SUITE", hint=_USAGE)
            raise UserError("is missing: line-aligned files need all three", where=missing[0], hint=_USAGE)
        if self.suite is None and self.suite_format is not None:
            raise UserError("is given beside --source", where="--format", hint="Leave one of the two out.")
        if self.suite is not None and (self.suite / MANIFEST).is_file():
            raise UserError("this is a model directory, and no test suite follows", where=str(self.suite), hint=_USAGE)


@dataclass(frozen=True)
class ContrastResult:
    """The suite and the decisions of every model.

    Args:
        models: empty if there was no model.
        shown: the report; None if there was no model.
    """

    suite: Suite
    models: list[ModelDecisions]
    shown: Report | None

    def __repr__(self) -> str:
        return (
            f"ContrastResult({len(self.suite.items):,} items, models: {', '.join(each.label for each in self.models)})"
        )


@from_fields(ContrastRequest, ContrastRequest)
def contrast(request: ContrastRequest) -> ContrastResult:
    """Score a contrastive suite with every model, and write the files asked for.

    Args:
        request: or its fields: ``contrast(["runs/de-en"], suite="lingeval97.json")``.

    Raises:
        UserError: an option, a file, the suite or a model is not what it must be.
    """
    request.check()
    request.use_processors()
    labels = model_labels(request.models)
    disabled = heads_by_model(labels, request.disabled_heads)
    suite = read_suite(request)
    if request.suite_file is not None:
        with explain_write_errors(request.suite_file):
            write_json(request.suite_file, as_entries(suite))
    if not request.models:
        return ContrastResult(suite, [], None)
    models = [_decide(request, suite, label, path, disabled[label]) for label, path in labels.items()]
    notes = list(report_notes(suite, models, normalize=request.normalize))
    notes += [f"disabled heads: {', '.join(request.disabled_heads)}"] if request.disabled_heads else []
    made = report(suite, models, notes=notes, normalize=request.normalize)
    chosen = {
        "types": list(request.types),
        "origins": list(request.origins),
        "models": [str(path) for path in request.models],
        "disabled_heads": list(request.disabled_heads),
        "exclude_training": [str(path) for path in request.training],
    }
    made = replace(made, settings={**made.settings, **chosen})
    request.files.write(made, lambda: drawn(suite, models))
    if request.items_file is not None:
        write_lines(request.items_file, item_lines(suite, models))
    return ContrastResult(suite, models, made)


def read_suite(request: ContrastRequest) -> Suite:
    """Read the suite, and keep the items asked for; UserError if it is not sound, or no item is left."""
    if request.suite is not None:
        suite = open_suite(request.suite, request.suite_format)
    else:
        assert request.source is not None and request.correct is not None
        suite = check_items(read_line_files(request.source, request.correct, request.incorrect))
    suite = suite.select(request.types, request.origins)
    if request.training:
        suite = exclude_training(suite, _training_texts(request.training))
        if not suite.items:
            raise UserError(
                "the training text holds every item of the suite",
                where=suite.name,
                hint="Take another suite, or leave --exclude-training out.",
            )
    return check_items(suite)


def _training_texts(paths: Sequence[Path]) -> Iterator[tuple[Side, Iterable[str]]]:
    """Yield the lines of every training file with their side; of recipes and models those that were chosen."""
    for path in paths:
        if path.is_dir():
            read_manifest(path)
            corpora = read_recipe(path).data.train
        elif path.name.endswith(_RECIPES):
            corpora = load(path, methods()).data.train
        else:
            yield "either", _with_progress(path, read_lines(path))
            continue
        for corpus in corpora:
            for key, text in corpus.files.items():
                side: Side = "source" if key == "source" else "target" if key == "target" else "either"
                yield side, _with_progress(text, read_chosen_lines(corpus, text))


def _with_progress(path: Path | str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of a file, with a progress bar."""
    with progress_bar(f"training text {Path(path).name}", None, unit="line") as advance:
        for line in lines:
            yield line
            advance(1)


def _decide(
    request: ContrastRequest, suite: Suite, label: str, directory: Path, disabled: Mapping[SiteName, Collection[int]]
) -> ModelDecisions:
    """Score the suite with one model, without its disabled heads, and decide every item, in the order of the suite."""
    bundle = open_model(directory, device=request.device, disabled=disabled, languages=request.languages)
    _warn_of_languages(suite, label, bundle)
    tags = open_tag_file(request.tags, bundle)
    given = None if tags is None else [line.tags for line in attach(suite.sources, suite.name, tags) if line.tags]
    scorer = SuiteScorer(suite, given)
    decoding = at_depth(bundle.model.plan, bundle.recipe.decoding, request.encoder_layers, request.decoder_layers)
    limit = request.batch_tokens or decoding.batch_tokens
    with progress_bar(label, scorer.sources) as advance:
        scored = scorer.score(bundle, batch_tokens=limit, depth=decoding.depth, advance=advance)
    warn_of_unusual_sources(bundle, read_sources(bundle, input_lines(suite.sources)), f"{label}: {suite.name}")
    decisions = tuple(map(partial(decide, normalize=request.normalize), scored))
    return ModelDecisions(label, decisions, sum(each.is_cut for each in scored))


def _warn_of_languages(suite: Suite, label: str, bundle: Bundle) -> None:
    """Warn if the languages in the suite's file names are not those of the model's recipe."""
    data = bundle.recipe.data
    own = data.source_language, data.target_language
    unknown = ("source", "target")  # the defaults of recipes
    if suite.languages not in (None, own) and own != unknown:
        theirs = "-".join(suite.languages or ())
        notify(f"warning: {suite.name}: the suite is {theirs}, the model {label} is {'-'.join(own)}")
