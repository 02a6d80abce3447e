"""The quality in a report: scores with tests, by length, sparsity and time, and the sentences that differ most."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace

from sparsenmt.analysis.length_buckets import DEFAULT, counter, measure, panels, report, usual_edges, usual_length
from sparsenmt.errors import UserError
from sparsenmt.evaluation.depth_oracle import sentence_chrf
from sparsenmt.evaluation.observation import Observation
from sparsenmt.metric import metric_label
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.page.document import ComparedOutput, ComparedSentence, Diagram, ReportSection
from sparsenmt.report.plots import Panel, Points
from sparsenmt.report.tables import Table, Value, columns
from sparsenmt.workflows.evaluation.compare import decoding_speeds
from sparsenmt.workflows.evaluation.reference_texts import TestText
from sparsenmt.workflows.evaluation.report.facts import kernels_of, sparsity_methods
from sparsenmt.workflows.evaluation.report.report_data import ReportData

_WORD = re.compile(r"\S+")
_MOST_WORDS = 1_000  # of an output whose differences are found
_SIZES = ("encoder_layers", "decoder_layers", "dimension", "feed_forward", "heads")


def measure_scores(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on scores: those of `sparsenmt compare`, and their intervals."""
    found = data.comparison
    made = found.report()
    names = list(found.found)
    diagrams = []
    for metric in found.experiment.scoring.metrics:
        tests = {each.variant: test for each, test in found.tested if each.labels["metric"] == metric}
        if tests:
            drawn = [(float(names.index(name)), test["difference"]) for name, test in tests.items()]
            ends = [(test["low"], test["high"]) if "low" in test else None for test in tests.values()]
            ticks = [(float(i), name) for i, name in enumerate(names)]
            label = f"difference in {metric_label(metric)}"
            points, level = {metric_label(metric): drawn}, (found.baseline, 0.0)
            intervals = {metric_label(metric): ends}
            diagrams.append(
                Panel("model", label, points, style="points", ticks=ticks, intervals=intervals, level=level)
            )
    caption = "vertical lines: 95% intervals; dashed: the first model"
    shown = (Diagram(f"differences from {found.baseline}", tuple(diagrams), caption),) if diagrams else ()
    return replace(section, tables=tuple(made.filed), notes=made.notes, diagrams=shown)


def measure_lengths(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on quality by length, as `sparsenmt analyze by-length`."""
    references, scoring = data.references, data.request.scoring.with_default(DEFAULT.metrics)
    _, settings = data.session.scoring_settings(scoring, None, references)
    length = usual_length(references)
    count, edges, test = counter(length, settings), usual_edges(length), data.request.test
    cells = measure(data.outputs, references, settings, count=count, edges=edges, test=test)
    made = report(cells, length, test=test)
    diagram = Diagram(made.tables[0].title, tuple(panels(cells, length)))
    return replace(section, tables=tuple(made.filed), notes=made.notes, diagrams=(diagram,))


def relate_sparsity(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on quality against sparsity and density; a model without filters drops nothing."""
    found = data.comparison
    metrics = found.experiment.scoring.metrics
    rows: list[tuple[Value, ...]] = []
    for each in found.observations:
        values, test = each.values, each.test or {}
        tested = map(test.get, ("difference", "low", "high", "p_value"))
        measured = map(values.get, ("quality", "sparsity", "density", "attended", "parameters"))
        rows.append((each.variant, metric_label(each.labels["metric"]), *measured, *tested))
    heads = columns(
        *("text model metric", "score quality", "share sparsity density", "number attended", "count parameters"),
        *("score difference low high", "number p_value"),
    )
    table = Table("sparsity", "quality and sparsity", heads, rows)
    first = [each for each in found.observations if each.labels["metric"] == metrics[0]]
    drawn = (_against(first, "sparsity", found.baseline), _against(first, "density", found.baseline))
    caption = f"vertical lines: 95% interval of the difference from {found.baseline}, added to its value"
    diagram = Diagram(f"{metric_label(metrics[0])} against sparsity", drawn, caption * (len(first) > 1))
    notes = ["sparsity: share of source positions whose gate is 0; a model without filters drops none, and is at 0"]
    return replace(section, tables=(table,), diagrams=(diagram,), notes=tuple(notes))


def _against(observed: list[Observation], name: str, baseline: str) -> Panel:
    """Draw quality against the sparsity or density of each model, with its interval."""
    quality = {each.variant: each.values["quality"] for each in observed}
    base = quality[baseline] or 0.0
    series: dict[str, Points] = {}
    intervals: dict[str, list[tuple[float, float] | None]] = {}
    for each in observed:
        x = each.values[name]
        x = 0.0 if x is None and name == "sparsity" else x
        if x is not None:
            series[each.variant] = [(x, quality[each.variant])]
            ends = each.test if each.test and "low" in each.test else None
            intervals[each.variant] = [None if ends is None else (base + ends["low"], base + ends["high"])]
    words = {"sparsity": "sparsity rate", "density": "density of attention"}[name]
    label, level = metric_label(observed[0].labels["metric"]), (baseline, base)
    return Panel(words, label, series, percent="x", style="points", intervals=intervals, level=level)


def measure_speed(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on measured time beside sparsity; the time of a model pays if its dense twin takes longer.

    Raises:
        UserError: there is no reference, or it is not to be measured.
    """
    comparison = data.comparison
    if not data.request.speed:
        raise UserError("not measured", hint="Leave --no-speed out.")
    assert isinstance(comparison.text, TestText)
    speeds = decoding_speeds(data.labels, comparison.text, data.compare_request)
    observed = {each.variant: each.values for each in comparison.observations}
    rows: list[tuple[Value, ...]] = []
    for label, own in speeds.items():
        twin = dense_twin(data.recipes, label)
        ratio = None if twin is None else speeds[twin].seconds / own.seconds
        compared = None if twin is None else own.against(speeds[twin])
        pays = {"faster": "yes", "slower": "no, it is slower", "equal": "no, the turns overlap", None: "not measured"}
        kernels = kernels_of(data.session.open(label, data.labels[label]).bundle)
        verdict = pays[compared] if sparsity_methods(data.recipes[label]) else "dense"
        nominal = (observed[label]["sparsity"], observed[label]["density"], observed[label]["attended"])
        measured = (1 / own.seconds, 1 / own.median, own.spread)
        rows.append((label, *nominal, kernels, *measured, twin, ratio, verdict))
    heads = columns(
        *("text model", "share sparsity density", "number attended", "text kernels", "rate decoding decoding_median"),
        *("share spread", "text dense_twin", "score ratio", "text pays"),
    )
    table = Table("speed", "measured time beside sparsity", heads, rows)
    lines = min(data.request.speed_lines, len(data.session.lines))
    notes = (
        f"decoding: target tokens a second of the first {lines:,} lines, the models taking turns, fastest turn; "
        "spread: excess time of the slowest turn over the fastest",
        "dense twin: a model of the same sizes without sparsity methods; ratio: speed over that of the dense twin",
        "pays: yes if every turn was faster than every turn of the dense twin; without a twin it is not measured: "
        "name a dense model beside the others",
    )
    points: Points = [(float(i), row[5] if isinstance(row[5], float) else None) for i, row in enumerate(rows)]
    ticks = [(float(i), str(row[0])) for i, row in enumerate(rows)]
    panel = Panel("model", "target tokens a second", {"decoding": points}, style="bars", ticks=ticks)
    return replace(section, tables=(table,), notes=notes, diagrams=(Diagram("speed", (panel,)),))


def dense_twin(recipes: Mapping[str, Recipe], label: str) -> str | None:
    """Return the model without sparsity methods that has the sizes of another one; None: there is none."""
    sizes = {name: [getattr(each.model, size) for size in _SIZES] for name, each in recipes.items()}
    if not sparsity_methods(recipes[label]):
        return None
    dense = [name for name, each in recipes.items() if sizes[name] == sizes[label] and not sparsity_methods(each)]
    return dense[0] if dense else None


def compare_sentences(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the sentences whose chrF differs most between models; of one model, those with the least."""
    outputs, references, sources = data.outputs, data.references, data.session.lines
    lowercase = data.request.scoring.lowercase
    with progress_bar("sentence scores", len(references)) as advance:
        scores = sentence_chrf(list(outputs.values()), references, lowercase=lowercase, advance=advance)
    several = len(outputs) > 1
    differences = scores.max(1) - scores.min(1) if several else 100 - scores[:, 0]
    order = sorted(range(len(references)), key=lambda i: (-differences[i], i))[: data.request.sentences]
    found = []
    for i in order:
        texts = [lines[i] for lines in outputs.values()]
        made = [
            ComparedOutput(
                label,
                texts[k],
                {"chrF2": float(scores[i, k])},
                different_spans(texts[k], texts[(k == 0) * 1 if several else 0]),
            )
            for k, label in enumerate(outputs)
        ]
        found.append(ComparedSentence(i + 1, sources[i].text, references[i], float(differences[i]), tuple(made)))
    what = "the largest less the smallest chrF of a sentence" if several else "100 less the chrF of a sentence"
    marked = f"; marked: words that differ from {next(iter(outputs))}, and in its output from the second model"
    first = f"difference: {what} (sentence-level chrF2); the {len(order):,} sentences with the largest one"
    return replace(section, comparisons=tuple(found), notes=(first + marked * several,))


def different_spans(text: str, other: str) -> tuple[tuple[int, int], ...]:
    """Return [first, end) of the stretches of words that another text does not have, by the longest common blocks."""
    words, others = ([match.group() for match in _WORD.finditer(each)] for each in (text, other))
    places = [match.span() for match in _WORD.finditer(text)]
    if max(len(words), len(others)) > _MOST_WORDS:
        return () if words == others else ((places[0][0], places[-1][1]),) if places else ()
    blocks = difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    return tuple((places[i][0], places[j - 1][1]) for kind, i, j, _, _ in blocks if kind != "equal" and j > i)
