"""The words and n-grams in a report that translations have in common with the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from sparsenmt.analysis.length_buckets import ALL, buckets, counter, usual_edges, usual_length
from sparsenmt.analysis.pos_rates import tag
from sparsenmt.data.prepare.chosen_lines import read_chosen_lines
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.errors import UserError
from sparsenmt.evaluation.matched_ngrams import matched_ngrams, most_different, ngrams
from sparsenmt.evaluation.sacrebleu_scorer import tokenizer
from sparsenmt.evaluation.word_accuracy import GroupedWords, word_matches
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.schema import Corpus
from sparsenmt.report.page.document import Diagram, ReportSection
from sparsenmt.report.page.table_views import bars
from sparsenmt.report.tables import Table, Value, columns
from sparsenmt.workflows.evaluation.report.report_data import ReportData

FREQUENCIES = (1, 2, 3, 4, 5, 10, 100, 1000)
"""The least count of each band but the first (compare-mt, Neubig et al. 2019)."""
_NGRAMS = 20  # that are listed of a pair of systems, in each direction
_DRAWN = 16  # groups of words
_COLUMNS = columns("text model group", "count reference_words output_words matched", "share precision recall f1")
_NOTE = (
    "f1: of words, each matched at most once in its sentence; a match counts in the group of the reference's word "
    "(as in compare-mt)"
)


def _split(data: ReportData) -> Callable[[str], list[str]]:
    """Return the function that splits a line into the tokens of BLEU."""
    split = tokenizer(data.scoring_settings)
    return lambda line: split(line).split()


def _accuracy(
    section: ReportSection,
    what: str,
    references: Sequence[GroupedWords],
    outputs: Mapping[str, Sequence[GroupedWords]],
    groups: Sequence[str],
) -> ReportSection:
    """Fill a section on the accuracy of words by group."""
    rows: list[tuple[Value, ...]] = []
    for label, translations in outputs.items():
        for group, found in word_matches(references, translations, groups).items():
            counts = (found.reference, found.output, found.matched)
            rows.append((label, group, *counts, found.precision, found.recall, found.f1))
    table = Table("words", f"accuracy of words by {what}", _COLUMNS, rows)
    drawn = replace(table, rows=[row for row in rows if row[1] in groups[:_DRAWN]])
    diagram = Diagram(table.title, (bars(drawn, "group", "f1", label="F1 of words", count="reference_words"),))
    return replace(section, tables=(table,), diagrams=(diagram,), notes=(_NOTE, *section.notes))


def accuracy_by_length(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the accuracy of words by the length of the reference."""
    split, references = _split(data), data.references
    length = usual_length(references)
    lengths = list(map(counter(length, data.scoring_settings), references))
    found = buckets(lengths, usual_edges(length))
    band = {i: name for name, lines in found.items() if name != ALL for i in lines}

    def grouped(lines: Sequence[str]) -> list[GroupedWords]:
        return [[(word, band[i]) for word in split(line)] for i, line in enumerate(lines)]

    outputs = {label: grouped(lines) for label, lines in data.outputs.items()}
    there = [name for name in found if name != ALL]
    return _accuracy(section, f"length of the reference in {length.split('-')[1]}", grouped(references), outputs, there)


def accuracy_by_frequency(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the accuracy of words by their count in the training text of the first model.

    Raises:
        UserError: there is no reference, or the training text is not there any more.
    """
    references, split = data.references, _split(data)
    label, recipe = next(iter(data.recipes.items()))
    counts = Counter[str]()
    with progress_bar("words of the training text", None, unit="line") as advance:
        for line in _training_lines(recipe.data.train):
            counts.update(split(line))
            advance(1)
    names = _bands(FREQUENCIES)

    def grouped(lines: Sequence[str]) -> list[GroupedWords]:
        return [[(word, names[sum(counts[word] >= n for n in FREQUENCIES)]) for word in split(line)] for line in lines]

    outputs = {label: grouped(lines) for label, lines in data.outputs.items()}
    noted = replace(section, notes=(f"frequency: in the training text of {label}, {sum(counts.values()):,} words",))
    return _accuracy(noted, "frequency in the training text", grouped(references), outputs, names)


def _training_lines(corpora: Sequence[Corpus]) -> Iterator[str]:
    """Yield the target lines that were chosen for training; UserError if a file of them cannot be read."""
    for corpus in corpora:
        path = str(corpus.files["target"])
        try:
            yield from read_chosen_lines(corpus, path)
        except UserError as error:
            raise UserError(
                f"the training text cannot be read: {error.message}",
                where=path,
                hint="Put it where the recipe of the first model names it.",
            ) from None


def _bands(starts: Sequence[int]) -> list[str]:
    """Return the names of bands of counts, below the first start, from each start on to the next, from the last on."""
    names = [f"up to {starts[0] - 1}" if starts[0] > 1 else "0"]
    for low, high in pairwise(starts):
        names.append(str(low) if high == low + 1 else f"{low} to {high - 1}")
    return [*names, f"{starts[-1]} and more"]


def accuracy_by_tag(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the accuracy of words by part of speech; UserError if no tagger covers the language."""
    references, tagger, language = data.references, data.request.tagger, data.target_language
    tagged = tag(references, tagger, language)
    outputs = {label: _by_tag(tag(lines, tagger, language)) for label, lines in data.outputs.items()}
    frequent = Counter(each for sentence in tagged for each in sentence.tags)
    names = sorted(frequent, key=lambda each: (-frequent[each], each))
    noted = replace(section, notes=(f"tags: {tagger}, of the reference and of the outputs",))
    return _accuracy(noted, "part of speech", _by_tag(tagged), outputs, names)


def _by_tag(sentences: Sequence[TaggedSentence]) -> list[GroupedWords]:
    return [list(zip(each.words, each.tags, strict=True)) for each in sentences]


def compare_ngrams(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on n-grams that one model gets right and another does not.

    Raises:
        UserError: there is no reference, or one model only.
    """
    split, outputs = _split(data), data.outputs
    if len(outputs) < 2:
        raise UserError("there is one model only", hint="Name a second one to compare with.")
    references = [split(line) for line in data.references]
    matched = {label: matched_ngrams(references, map(split, lines)) for label, lines in outputs.items()}
    possible = Counter(each for words in references for each in ngrams(words))
    baseline, rows = next(iter(outputs)), list[tuple[Value, ...]]()
    for label in list(outputs)[1:]:
        for better, other in ((label, baseline), (baseline, label)):
            for each in most_different(matched[better], matched[other], _NGRAMS):
                counts = (len(each), matched[better][each], matched[other][each], possible[each])
                rows.append((better, other, " ".join(each), *counts))
    heads = columns("text better other ngram", "count words matches_of_better matches_of_other in_reference")
    table = Table("ngrams", "n-grams that one model matches more often", heads, rows)
    note = f"the {_NGRAMS} most telling of each pair, by (a + 1) / (a + b + 2) of a and b matches, as compare-mt does"
    return replace(section, tables=(table,), notes=(note,))
