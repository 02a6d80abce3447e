"""The quality of several systems by the length of sentences (Raganato, Scherrer and Tiedemann 2020, 5.1, Fig. 2).

Every bucket is scored as a corpus of its own, and each system compared with the first by a paired test. Metrics of
documents have documents in place of sentences: the length is that of the document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from sparsenmt.analysis.compared_scores import SCORE_COLUMNS, ComparedScore, compared_scores, signature_notes, test_note
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.data.text import character_count, read_lines
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.disabled_heads import heads_by_model
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import by_document
from sparsenmt.evaluation.rouge import without_markers
from sparsenmt.evaluation.sacrebleu_scorer import tokenizer
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.evaluation.significance import BOOTSTRAP, PairedTest
from sparsenmt.evaluation.tokenizer_choice import fitting_tokenizer
from sparsenmt.metric import METRICS
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns

EDGES = (10, 20, 30, 40, 50)
"""The greatest length of each bucket; the bucket after them has no limit."""
CHARACTER_EDGES = (20, 40, 60, 80, 100)
"""The greatest length of each bucket in characters: a word of Chinese or Japanese has about two."""
COMPARE_MT_EDGES = (9, 19, 29, 39, 49, 59)
"""The bins of compare-mt (Neubig et al. 2019) for lengths: below 10, 10 to 19, ... 50 to 59, 60 and more."""
Length = Literal[
    "reference-words", "reference-tokens", "reference-characters", "source-words", "source-tokens", "source-characters"
]
"""The text whose length counts; words stand between spaces, tokens are those of BLEU's tokenizer, and white space is no
character."""
DEFAULT = ScoringOptions(("bleu",))
LEAST = 10
"""The fewest sentences of a bucket that is drawn."""
ALL = "all"


def measure_by_length(
    session: AnalysisSession,
    reference: Path,
    *,
    edges: Sequence[int] | None = None,
    length: Length | None = None,
    scoring: ScoringOptions = DEFAULT,
    documents: Path | None = None,
    disabled_heads: Sequence[str] = (),
    test: PairedTest = BOOTSTRAP,
) -> AnalysisResult:
    """Make the report ``by-length``, of models and of files of translations.

    Args:
        reference: reference translation.
        edges: the greatest length of every bucket but the last, rising; None: `EDGES` or `CHARACTER_EDGES`.
        length: None: words of the reference; its characters if it has no spaces between words.
        scoring: without metrics: BLEU.
        documents: document ids of the text, for d-BLEU; a model of blocks then translates blocks.
        disabled_heads: ``[MODEL=]SITE:N,N`` values: heads that give zeros.

    Raises:
        UserError: a file has another number of lines than the reference, or the systems cannot be scored like this.
    """
    scoring = scoring.with_default(DEFAULT.metrics)
    references = list(islice(read_lines(reference), session.limit))
    if not references:
        raise UserError("the file has no lines", where=str(reference), hint="Name a file of reference translations.")
    length = length or usual_length(references)
    edges = edges or usual_edges(length)
    tokenizes = length.endswith("tokens")
    asked = scoring.tokenize
    scoring, settings = session.scoring_settings(scoring, documents, references, tokenizes=tokenizes)
    count = counter(length, settings)
    # Everything is read and checked before a model translates.
    models = {label: path for label, path in session.labels.items() if label not in session.translations}
    disabled = heads_by_model(models, disabled_heads)
    systems = {
        label: session.read_beside(path, len(references), str(reference))
        for label, path in session.translations.items()
    }
    texts = _measured_texts(session, reference, references, source=length.startswith("source"), needed=bool(models))
    if length == "source-tokens" and asked is None:  # the tokenizer of the scores fits the reference
        count = counter(length, replace(settings, tokenize=fitting_tokenizer(None, texts)))
    for label, path in models.items():
        systems[label] = session.open(label, path, disabled[label]).texts(settings.documents)
    ordered = {label: systems[label] for label in session.labels}
    cells = measure(ordered, references, settings, texts=texts, count=count, edges=edges, test=test)
    common = {"beam_size": session.beam_size, "disabled_heads": list(disabled_heads), **test.record()}
    return session.result(
        report(cells, length, disabled_heads, test),
        lambda: curves(panels(cells, length)),
        caption=_left_out(cells),
        settings={"reference": str(reference), "edges": list(edges), "length": length, **common, **scoring.record()},
        notes=_notes_on_words(length, texts),
    )


def usual_length(references: Sequence[str]) -> Length:
    """Return the length that counts unless another one is asked for."""
    return "reference-characters" if is_unspaced(references) else "reference-words"


def usual_edges(length: Length) -> Sequence[int]:
    """Return the greatest length of each bucket but the last, unless others are asked for."""
    return CHARACTER_EDGES if length.endswith("characters") else EDGES


def _notes_on_words(length: Length, texts: Sequence[str]) -> list[str]:
    """Return the note on a text without spaces whose words are counted; empty for other texts."""
    if not length.endswith("words") or not is_unspaced(texts):
        return []
    text = length.split("-")[0]
    return [
        f"the {text} has no spaces between words: what stands between spaces is mostly a whole sentence; --length "
        f"{text}-characters counts characters"
    ]


def _measured_texts(
    session: AnalysisSession, reference: Path, references: Sequence[str], *, source: bool, needed: bool
) -> Sequence[str]:
    """Return the lines whose length counts, of the source or the reference.

    Args:
        needed: True if models translate the source: then, too, it must have as many lines as the reference.
    """
    if (source or needed) and len(session.lines) != len(references):
        raise UserError(
            f"it has {len(session.lines):,} lines, but {reference} has {len(references):,}",
            where=session.text_name,
            hint="Line n of one must belong to line n of the other.",
        )
    return [line.text for line in session.lines] if source else references


def word_count(line: str) -> int:
    """Count the words between spaces; a marker such as ``<n>`` is none, and may stand without spaces."""
    return len(without_markers(line).split())


def counter(length: Length, settings: ScoringSettings) -> Callable[[str], int]:
    """Return the function that counts the words, characters or tokens of a line."""
    if length.endswith("words"):
        return word_count
    if length.endswith("characters"):
        return character_count
    split = tokenizer(settings)
    return lambda line: word_count(split(line))


def buckets(lengths: Sequence[int], edges: Sequence[int]) -> dict[str, list[int]]:
    """Return the sentences of each bucket, from 0: of all lengths, then of every range of lengths that has any.

    Args:
        lengths: of every sentence.
        edges: the greatest length of every bucket but the last, rising.
    """
    found = {ALL: list(range(len(lengths)))}
    for low, high in zip([-1, *edges], [*edges, None], strict=True):
        lines = [i for i, n in enumerate(lengths) if n > low and (high is None or n <= high)]
        if lines:
            first = max(low, 0) + 1
            name = f"over {low}" if high is None else f"up to {high}" if first == 1 else f"{first} to {high}"
            found[name] = lines
    return found


@dataclass(frozen=True)
class BucketScore:
    """One system on one bucket by one metric; the first system has no comparison."""

    system: str
    bucket: str
    sentences: int
    score: ComparedScore


def measure(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    settings: ScoringSettings,
    *,
    texts: Sequence[str] | None = None,
    count: Callable[[str], int] = word_count,
    edges: Sequence[int] = EDGES,
    test: PairedTest = BOOTSTRAP,
) -> dict[str, list[BucketScore]]:
    """Score every system on every bucket, by each metric.

    Args:
        systems: name -> translations, one for each reference; the first system is the baseline of the others.
        texts: the lines whose length counts; None: the references.
        count: returns the length of a line.

    Raises:
        UserError: as for `compared_scores`.
    """
    first = next(iter(systems))
    cells: dict[str, list[BucketScore]] = {name: [] for name in settings.metrics}
    for whole in (False, True):
        names = [name for name in settings.metrics if METRICS[name].needs_documents is whole]
        if not names:
            continue
        join = partial(by_document, documents=settings.documents or ()) if whole else list
        wanted, lengths = join(references), list(map(count, join(texts or references)))
        outputs = {name: join(lines) for name, lines in systems.items()}
        for bucket, segments in buckets(lengths, edges).items():
            own = replace(settings, metrics=names, documents=range(len(segments)) if whole else None)
            chosen = {name: [lines[i] for i in segments] for name, lines in outputs.items()}
            targets = [wanted[i] for i in segments]
            for name, lines in chosen.items():
                baseline = chosen[first] if name != first else None
                for score in compared_scores(lines, targets, baseline, own, test):
                    cells[score.metric].append(BucketScore(name, bucket, len(lines), score))
    return cells


def report(
    cells: Mapping[str, Sequence[BucketScore]],
    length: Length = "reference-words",
    disabled_heads: Sequence[str] = (),
    test: PairedTest = BOOTSTRAP,
) -> Report:
    """Make the table: one row for each metric, bucket and system."""
    rows = [
        (METRICS[metric].label, each.bucket, each.system, each.sentences, *each.score.cells)
        for metric, group in cells.items()
        for each in group
    ]
    heads = (*columns("text metric length system", "count sentences"), *SCORE_COLUMNS)
    scores = [each.score for group in cells.values() for each in group]
    documents = any(METRICS[metric].needs_documents for metric in cells)
    notes = (
        f"length: {describe(length)}; difference: from the first system, with its 95% interval and p-value",
        f"by {test_note(scores, test)}",
        *(["d-BLEU: of documents in place of sentences, by the length of the document"] if documents else []),
        *([f"disabled heads: {', '.join(disabled_heads)}"] if disabled_heads else []),
        *signature_notes(each.score for group in cells.values() for each in group if each.bucket == ALL),
    )
    title = f"quality by length of the {length.split('-')[0]}"
    return Report("by-length", (Table("by-length", title, heads, rows),), notes)


def describe(length: Length) -> str:
    """Return the length in words: "words of the reference"."""
    text, unit = length.split("-")
    return f"{unit} of the {text}"


def panels(cells: Mapping[str, Sequence[BucketScore]], length: Length = "reference-words") -> list[Panel]:
    """Draw one diagram for each metric: bars for each bucket, one colour for each system; all sentences last."""
    result = []
    for metric, group in cells.items():
        counts = {each.bucket: each.sentences for each in group}
        names = [*(name for name in counts if name != ALL and _is_drawn(counts[name], counts[ALL])), ALL]
        places = {name: float(i) for i, name in enumerate(names)}
        series: dict[str, list[tuple[float, float | None]]] = {}
        for each in group:
            if each.bucket in places:
                series.setdefault(each.system, []).append((places[each.bucket], each.score.score))
        unit = "documents" if METRICS[metric].needs_documents else "sentences"
        ticks = [(place, f"{name}\n{counts[name]:,}") for name, place in places.items()]
        label = f"{describe(length)}, and number of {unit}"
        result.append(Panel(label, METRICS[metric].label, series, style="bars", ticks=ticks))
    return result


def _is_drawn(sentences: int, whole: int) -> bool:
    """Return True if a bucket has enough sentences for a plot, or no bucket can have them."""
    return sentences >= LEAST or whole < LEAST


def _left_out(cells: Mapping[str, Sequence[BucketScore]]) -> str:
    """Return the plot's caption, which names the buckets that are left out; empty if there are none."""
    few: dict[str, None] = {}
    for group in cells.values():
        counts = {each.bucket: each.sentences for each in group}
        few |= {f"{name} ({n:,})": None for name, n in counts.items() if not _is_drawn(n, counts[ALL])}
    return f"left out, with fewer than {LEAST} sentences: {', '.join(few)}" if few else ""
