"""A report on one trained model or several: one page, and the same document as JSON.

The figures are those of the commands that each section names, made by the same functions. A finished section is kept
in a hidden folder beside the page until the page is written: an interrupted report resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sparsenmt
from sparsenmt.arguments import from_fields
from sparsenmt.assemble.model_directory import METRICS_FILE, model_identity
from sparsenmt.engine.numerics import numerics
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.recipe.load import dump
from sparsenmt.report.page.document import Document, ReportSection, write_document
from sparsenmt.report.page.html_page import write_report_page
from sparsenmt.report.page.table_views import without_gaps
from sparsenmt.storage.files import (
    directory_lock,
    explain_directory_errors,
    explain_write_errors,
    hidden_path,
    make_directories,
    remove_tree,
    sha256_file,
    sha256_text,
)
from sparsenmt.storage.kept_work import KeptWork
from sparsenmt.workflows.evaluation.report import facts, figures, quality, sentences, words
from sparsenmt.workflows.evaluation.report.report_data import ReportData, missing_part
from sparsenmt.workflows.evaluation.report.report_request import ReportRequest

Fill = Callable[[ReportData, ReportSection], ReportSection]
"""Returns a section with its parts. UserError: the reason why there are none."""


@dataclass(frozen=True)
class SectionMaker:
    """A section without its parts, and the function that fills it.

    Args:
        kept: False for what is made quickly.
    """

    section: ReportSection
    fill: Fill
    kept: bool = True


@dataclass(frozen=True)
class KeptSection:
    """A section as it is kept."""

    section: ReportSection


@from_fields(ReportRequest, ReportRequest)
def write_model_report(request: ReportRequest) -> Document:
    """Make a report on trained models, and write its page and JSON, each complete or not at all.

    Args:
        request: or its fields: ``write_model_report(["runs/a"], "test.en", "report.html", reference="test.de")``.

    Raises:
        UserError: an option, a file or a model is not what it must be.
    """
    request.check()
    device = request.use_processors()
    data = ReportData(request)
    _read_inputs(data)
    folder = hidden_path(request.output, "sections")
    asked = {**_settings(data), **_identity(data), "numerics": numerics(device)}
    with resumable("the sections that are finished are kept"):
        with explain_directory_errors(folder, another="--output"):
            make_directories(folder)
        with directory_lock(folder, "writes this report"):
            makers = section_makers(data, folder)
            for number, maker in enumerate(makers, start=1):
                section = maker.section
                notify(f"section {number} of {len(makers)}: {section.title}")
                data.made[section.name] = _made(data, maker, folder / f"{section.name}.json", asked)
            title, program = f"Report on {', '.join(data.labels)}", f"sparsenmt {sparsenmt.__version__}"
            settings: dict[str, str | int | float | None] = {**_settings(data)}
            document = Document(title, program, tuple(data.labels), settings, tuple(data.made.values()))
            if request.json is not None:
                with explain_write_errors(request.json):
                    write_document(document, request.json)
            write_report_page(document, request.output)
            remove_tree(folder)
    return document


def _read_inputs(data: ReportData) -> None:
    """Read texts and models, so that what is wrong with them is said before a model translates."""
    assert data.session.lines
    _ = data.session.given_targets
    if data.request.reference is not None:
        assert data.references
    for _ in data.session.opened():
        pass


def _made(data: ReportData, maker: SectionMaker, path: Path, asked: Mapping[str, Any]) -> ReportSection:
    """Return a section that is kept, or make and keep it; one without parts is not kept, as its reason may go."""
    kept = KeptWork(path, asked, KeptSection)
    found = kept.find() if maker.kept else None
    if found is not None:
        return found.section
    try:
        made = maker.fill(data, maker.section)
    except UserError as error:
        if error.resumable:
            raise
        return missing_part(maker.section, error)
    drawn = [replace(each, panels=tuple(map(without_gaps, each.panels))) for each in made.diagrams]
    made = replace(made, diagrams=tuple(drawn))
    if maker.kept:
        with explain_write_errors(path):
            kept.write(section=json.loads(json.dumps(made, default=vars)))
    return made


def _settings(data: ReportData) -> dict[str, str | int | None]:
    """Return option -> value."""
    asked = data.request
    paths = {name: getattr(asked, name) for name in ("source", "reference", "target", "tags")}
    named = {name: None if path is None else str(path) for name, path in paths.items()}
    named |= {"suites": " ".join(map(str, asked.suites)) or None, "metrics": " ".join(asked.scoring.metrics) or None}
    options = ("sentences", "beam_size", "tagger", "speed", "speed_lines", "rounds", "depths", "alignments")
    chosen = {name: getattr(asked, name) for name in (*options, "source_language", "target_language")}
    scoring = {name: value for name, value in asked.scoring.record().items() if name != "metrics"}
    switches = {True: "yes", False: "no"}
    plain = {name: switches[each] if isinstance(each, bool) else each for name, each in {**scoring, **chosen}.items()}
    return {**named, **plain, **asked.test.record()}


def _identity(data: ReportData) -> dict[str, Any]:
    """Return the hashes of everything that sections depend on: models, logs, files and the program."""
    files = {str(path): sha256_file(path) for path in data.request.inputs}
    suites = [each for suite in data.request.suites for each in ([suite] if suite.is_file() else suite.rglob("*"))]
    files |= {str(path): sha256_file(path) for path in sorted(suites) if path.is_file()}
    logs = [directory / METRICS_FILE for directory in data.labels.values()]
    files |= {str(path): sha256_file(path) for path in logs if path.is_file()}
    models = {label: model_identity(directory).digest for label, directory in data.labels.items()}
    recipes = {label: sha256_text(dump(recipe)) for label, recipe in data.recipes.items()}
    return {"models": models, "recipes": recipes, "files": files, "version": sparsenmt.__version__}


def section_makers(data: ReportData, folder: Path) -> list[SectionMaker]:
    """Return the sections in their order; ``folder``: for the translations of a depth table."""
    analyze = partial(_analysis, data)
    return [
        SectionMaker(ReportSection("models", "Models", "Models"), facts.describe_models, kept=False),
        SectionMaker(ReportSection("training", "Training", "Models"), facts.draw_training, kept=False),
        *_of_quality(data),
        analyze("pos", "Sparsity by part of speech", figures.rates_by_tag, "--tagger", data.request.tagger),
        analyze("position", "Sparsity by position in the word", figures.rates_by_position),
        analyze("layers", "Sparsity of each filter", figures.rates_of_filters),
        analyze("density", "Density of attention", figures.densities, group="Heads", target=True),
        analyze("alphas", "Alpha of entmax", figures.learned_alphas, group="Heads", text=False),
        analyze("spans", "Learned spans", figures.learned_spans, group="Heads", text=False),
        analyze("roles", "Roles of encoder heads", figures.head_roles, group="Heads"),
        _of_depths(data, folder / "depths"),
        SectionMaker(
            ReportSection("chosen-depths", "Depths that selectors choose", "Depth"), figures.chosen_depths, kept=False
        ),
        *_of_suites(data),
        analyze("annotate", "Kept and dropped words", sentences.mark_words, group="Sentences"),
        analyze("maps", "Attention", sentences.map_attention, group="Sentences", target=True),
        SectionMaker(ReportSection("alignments", "Word alignments", "Sentences"), sentences.align_sentences),
    ]


def _analysis(
    data: ReportData,
    name: str,
    title: str,
    fill: Fill,
    *options: str,
    group: str = "Sparsity",
    text: bool = True,
    target: bool = False,
) -> SectionMaker:
    """Return the section of a report of `sparsenmt analyze`.

    Args:
        options: of this report alone.
        text, target: as for `sparsenmt.commands.analyze.options`.
    """
    reads = ("input", "tags", *(["target"] if target else [])) if text else ()
    return SectionMaker(ReportSection(name, title, group, data.command(f"analyze {name}", *options, reads=reads)), fill)


def _of_quality(data: ReportData) -> list[SectionMaker]:
    """Return the sections that need a reference, but for that on depths."""
    known, tested = data.request.reference is not None, [*data.score_options, *data.test_options]
    texts = ("source", "reference", "tags")
    compare = data.command("compare", *tested, "--no-speed", reads=texts) if known else ""
    timed = data.command("compare", *tested, reads=texts) if known else ""
    lengths = data.command("analyze by-length", *tested, reads=("input", "reference", "tags")) if known else ""
    found: list[tuple[str, str, Fill, str]] = [
        ("scores", "Scores", quality.measure_scores, compare),
        ("lengths", "Quality by length", quality.measure_lengths, lengths),
        ("words-by-length", "Words by length", words.accuracy_by_length, ""),
        ("words-by-frequency", "Words by frequency", words.accuracy_by_frequency, ""),
        ("words-by-tag", "Words by part of speech", words.accuracy_by_tag, ""),
        ("ngrams", "N-grams", words.compare_ngrams, ""),
        ("differences", "Sentences that differ most", quality.compare_sentences, ""),
    ]
    made = [SectionMaker(ReportSection(name, title, "Quality", command), fill) for name, title, fill, command in found]
    return [
        *made,
        SectionMaker(ReportSection("sparsity", "Quality and sparsity", "Sparsity", compare), quality.relate_sparsity),
        SectionMaker(ReportSection("time", "Measured time", "Sparsity", timed), quality.measure_speed),
    ]


def _of_depths(data: ReportData, folder: Path) -> SectionMaker:
    """Return the section on depths; ``folder``: for translations."""
    models = [data.labels[label] for label in figures.models_of_depths(data)]
    known = models and data.request.reference is not None
    options = [*data.score_options, *(["--no-speed"] if not data.request.speed else [])]
    command = data.command("depth-table", *options, models=models, reads=("source", "reference")) if known else ""
    section = ReportSection("depths", "Quality and time at every depth", "Depth", command)
    return SectionMaker(section, partial(figures.depth_grids, folder=folder))


def _of_suites(data: ReportData) -> list[SectionMaker]:
    """Return the sections on contrastive test suites, or the one that says that there is none."""
    title, group = "Contrastive test suites", "Contrastive suites"
    if not data.request.suites:
        return [SectionMaker(ReportSection("contrast", title, group), figures.no_suite, kept=False)]
    found = []
    for number, suite in enumerate(data.request.suites, start=1):
        section = ReportSection(f"contrast-{number}", f"Suite {suite.name}", group, data.command("contrast", suite))
        found.append(SectionMaker(section, partial(figures.contrastive_suite, suite=suite)))
    return found
