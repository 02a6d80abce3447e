"""What a trained model does on a text: translations, scores, attention; kept beside the model, and not measured twice.

Below ``evaluation/`` of a model directory there is a sealed file for each text. It counts as long as the weights, the
text and the decoding options are those that it was made with.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError
from sparsenmt.workflows.input_text import attach, open_tag_file

if TYPE_CHECKING:
    from sparsenmt.analysis.observe import TargetLine
    from sparsenmt.data.input_line import InputLine
    from sparsenmt.decoding.inputs import SourceLine
    from sparsenmt.decoding.translate import Translation
    from sparsenmt.recipe.schema import Recipe
    from sparsenmt.store import Bundle

FOLDER = "evaluation"
_FORMAT = 1
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_EMPTY = "Name a text with sentences."


@dataclass(frozen=True)
class TestText:
    """A source text with its reference, as line-aligned files.

    Args:
        name: what files and tables call it.
        documents: ids of the lines' documents, for d-BLEU and for models that read documents.
    """

    __test__ = False  # no test class of pytest's

    name: str
    source: Path
    reference: Path
    tags: Path | None = None
    documents: Path | None = None

    def digests(self) -> dict[str, str | None]:
        """Hashes of the files, by role.

        Raises:
            UserError: one cannot be read.
        """
        from sparsenmt.data.text import check_readable
        from sparsenmt.files import sha256_file

        found: dict[str, str | None] = {}
        for role in ("source", "reference", "tags", "documents"):
            path: Path | None = getattr(self, role)
            if path is not None:
                check_readable(path)
            found[role] = None if path is None else sha256_file(path)
        return found

    def read(self) -> tuple[list[str], list[str]]:
        """Sources and references.

        Raises:
            UserError: they are not line-aligned, or there are none.
        """
        from sparsenmt.data.text import read_parallel

        rows = list(read_parallel([self.source, self.reference]))
        if not rows:
            raise UserError("the file has no lines", where=str(self.source), hint=_EMPTY)
        return [row[0] for row in rows], [row[1] for row in rows]

    def ids(self, lines: Sequence[str]) -> list[str] | None:
        """The documents of the first lines; None where no documents are named."""
        from sparsenmt.data.documents import read_ids

        return None if self.documents is None else list(islice(read_ids(self.documents), len(lines)))


@dataclass(frozen=True)
class SiteAttention:
    """Means over the heads of one attention site; None: no query saw anything."""

    attended: float | None
    """Positions with weight, a query."""
    visible: float | None
    density: float | None
    """Share of the visible positions that have weight."""
    queries: int
    """Of all heads together."""


@dataclass
class Evaluation:
    """One model on one text, and the file that keeps it."""

    path: Path
    key: Mapping[str, Any]
    lines: list[str]
    """The translations."""
    parameters: int
    sparsity: float | None
    """Share of source positions that filters drop; None where there is no filter."""
    scores: dict[str, float] = field(default_factory=dict)
    """Values by metric."""
    signatures: dict[str, str] = field(default_factory=dict)
    attention: dict[str, SiteAttention] | None = None
    """By site; None: not measured."""
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    """Differences to other translations, by metric and the hash of those."""

    @property
    def sentences(self) -> int:
        return len(self.lines)

    def overall(self, name: str) -> float | None:
        """A mean of `SiteAttention` over all heads of the model, by their queries."""
        sites = [] if self.attention is None else list(self.attention.values())
        pairs = [(getattr(each, name), each.queries) for each in sites]
        total = sum(queries for value, queries in pairs if value is not None)
        return sum(value * queries for value, queries in pairs if value is not None) / total if total else None

    def against(self, other: Evaluation, metric: str, text: TestText, language: str) -> dict[str, float]:
        """The difference to another model: ``difference``, ``low``, ``high`` (95%), ``p_value`` (paired bootstrap)."""
        from sparsenmt.evaluation.significance import compare
        from sparsenmt.files import sha256_text

        key = f"{metric} {sha256_text(chr(10).join(other.lines))[:16]}"
        if key not in self.tests:
            sources, references = text.read()
            (found,) = compare(
                self.lines,
                other.lines,
                [references],
                metrics=[metric],
                language=language,
                documents=text.ids(sources),
            )
            difference = found.difference
            bounds = {"low": difference.low, "high": difference.high}
            self.tests[key] = {"difference": difference.value, **bounds, "p_value": found.p_value}
            self.keep()
        return self.tests[key]

    def keep(self) -> None:
        """Write it beside the model; where nothing may be written, say so."""
        from sparsenmt.files import make_directories, write_sealed

        content = asdict(self)
        del content["path"]
        try:
            make_directories(self.path.parent)
            write_sealed(self.path, content)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            click.echo(f"warning: {self.path}: what was measured cannot be kept ({error.strerror})", err=True)


def text_of(recipe: Recipe, kind: str) -> TestText | None:
    """The recipe's ``dev`` or ``test`` text, if it has one."""
    corpus = recipe.data.dev if kind == "dev" else recipe.data.test
    if corpus is None:
        return None
    tags, documents = (None if path is None else Path(path) for path in (corpus.tags, corpus.documents))
    return TestText(kind, Path(corpus.source), Path(corpus.target), tags, documents)


def metric_of(recipe: Recipe) -> str:
    """What a recipe's models are judged by: the metric of its validation, BLEU if that is the loss."""
    metric = recipe.training.validation.metric
    return "bleu" if metric == "loss" else metric


def evaluate(directory: Path, text: TestText, metrics: Sequence[str], *, attention: bool = True) -> Evaluation:
    """Translate a text with a model as its recipe says, and measure what was not measured before.

    Args:
        metrics: names out of `evaluation.names.METRICS`.
        attention: whether to look at the attention along the reference, too.

    Raises:
        UserError: a file or the model is not what it must be.
    """
    from sparsenmt import store

    _check_metrics(text, metrics)
    found = _kept(directory, text)
    missing = [name for name in metrics if found is None or name not in found.scores]
    unseen = attention and (found is None or found.attention is None)
    if found is not None and not missing and not unseen:
        return found
    bundle = store.open_model(directory) if found is None or unseen else None
    if found is None:
        assert bundle is not None
        found = _translated(bundle, directory, text)
        found.keep()  # what takes longest is not lost with what comes after it
    if missing:
        _score(found, text, store.read_recipe(directory).data.target_language, missing)
    if unseen:
        assert bundle is not None
        found.attention = _look(bundle, directory.name, text)
    found.keep()
    return found


def _check_metrics(text: TestText, metrics: Sequence[str]) -> None:
    """Before anything is translated."""
    from sparsenmt.evaluation.names import LABELS, OF_DOCUMENTS

    for name in metrics:
        if name in OF_DOCUMENTS and text.documents is None:
            raise UserError(
                f"{LABELS[name]} needs to know where documents end",
                where=str(text.source),
                hint="Name its document ids: in the recipe as `documents` beside the text, or with --documents.",
            )


def kept_evaluation(directory: Path, text: TestText, metrics: Sequence[str]) -> Evaluation | None:
    """What `evaluate` has measured before, if it has measured all of it: no work is done."""
    found = _kept(directory, text)
    return found if found is not None and set(metrics) <= found.scores.keys() else None


def _place(directory: Path, text: TestText) -> tuple[Path, dict[str, Any]]:
    """Where a measurement is kept, and what it depends on."""
    import json

    from sparsenmt import store
    from sparsenmt.files import sha256_text

    recipe, digests = store.read_recipe(directory), text.digests()
    key = {
        "format": _FORMAT,
        "weights": store.weights_digest(directory),
        "model": recipe.model.model_dump(mode="json", by_alias=True),
        "decoding": recipe.decoding.model_dump(mode="json"),
        "text": digests,
    }
    name = f"{text.name}-{sha256_text(json.dumps(digests, sort_keys=True))[:8]}.json"
    return directory / FOLDER / name, key


def _kept(directory: Path, text: TestText) -> Evaluation | None:
    """A measurement of the same; anything else is measured again."""
    from sparsenmt.files import read_sealed

    path, key = _place(directory, text)
    try:
        content = read_sealed(path, hint="It is measured again.") if path.exists() else {}
    except UserError:
        return None
    if content.pop("key", None) != key:
        return None
    sites = content.pop("attention")
    seen = None if sites is None else {site: SiteAttention(**values) for site, values in sites.items()}
    return Evaluation(path, key, **content, attention=seen)


def translations(
    bundle: Bundle, text: TestText, sources: Sequence[str], advance: Any = None
) -> tuple[list[str], list[Translation]]:
    """The first lines of a text, translated as the recipe says: a line each, and what the model was really given."""
    from sparsenmt.decoding.documents import translate_documents
    from sparsenmt.decoding.translate import translate_lines

    options, documents = bundle.recipe.decoding, bundle.recipe.data.documents
    given = _input_lines(bundle, text, sources)
    if documents is None or text.documents is None:
        found = list(translate_lines(bundle, given, options, advance=advance))
        return [each.text for each in found], found
    lines: list[str] = []
    blocks: list[Translation] = []
    for each in translate_documents(bundle, given, options, documents):
        lines += each.lines
        blocks.append(each.translation)
        if advance is not None:
            advance(len(each.lines))
    return lines, blocks


def _input_lines(bundle: Bundle, text: TestText, sources: Sequence[str]) -> list[InputLine]:
    """The first lines of a text with their documents, and with the recipe's tags where a method reads tags."""
    tags = open_tag_file(text.tags, bundle) if bundle.features.tagging is not None and text.tags is not None else None
    return list(islice(attach(text.read()[0], str(text.source), tags, text.documents), len(sources)))


def _translated(bundle: Bundle, directory: Path, text: TestText) -> Evaluation:
    """The model's translations, and what comes with them."""
    from sparsenmt.decoding.translate import sparsity_rate
    from sparsenmt.progress import progress_bar

    path, key = _place(directory, text)
    sources, _ = text.read()
    with progress_bar(f"{directory.name}: {text.name}", len(sources)) as advance:
        lines, found = translations(bundle, text, sources, advance)
    return Evaluation(path, key, lines, _parameters(directory), sparsity_rate(found))


def _parameters(directory: Path) -> int:
    """Numbers in the model's weights; tables that are tied count once."""
    from sparsenmt import store
    from sparsenmt.tensors import load_tensors

    hint = "Take the model directory from a copy, or train it again."
    return sum(each.numel() for each in load_tensors(directory / store.WEIGHTS, hint=hint).values())


def _score(found: Evaluation, text: TestText, language: str, metrics: Sequence[str]) -> None:
    from sparsenmt.evaluation.metrics import corpus_scores

    sources, references = text.read()
    documents = text.ids(sources)
    for score in corpus_scores(found.lines, [references], metrics=metrics, language=language, documents=documents):
        found.scores[score.name], found.signatures[score.name] = score.value, score.signature


def _look(bundle: Bundle, label: str, text: TestText) -> dict[str, SiteAttention]:
    """The attention along the reference."""
    from sparsenmt.analysis.density import DensityCounter
    from sparsenmt.analysis.observe import observe
    from sparsenmt.model.sites import SITES
    from sparsenmt.progress import progress_bar

    pairs = [pair for pair in _read_along(bundle, text) if not pair[0].empty]
    counter = DensityCounter()
    with progress_bar(f"{label}: attention", len(pairs)) as advance:
        observe(
            bundle,
            [source for source, _ in pairs],
            [output for _, output in pairs],
            [counter],
            batch_tokens=bundle.recipe.decoding.batch_tokens,
            advance=advance,
        )
    measured = counter.result(label)
    return {
        site: SiteAttention(
            attended=measured.site_mean(site, "attended"),
            visible=measured.site_mean(site, "visible"),
            density=measured.site_mean(site, "density"),
            queries=sum(head.queries for head in heads.values()),
        )
        for site in SITES
        if (heads := measured.at(site))
    }


def _read_along(bundle: Bundle, text: TestText) -> list[tuple[SourceLine, TargetLine]]:
    """Sources and references as the model reads them: lines, or blocks of documents; cut where they are too long."""
    from sparsenmt.analysis.observe import TargetLine
    from sparsenmt.decoding.documents import pack_pairs, source_lines
    from sparsenmt.decoding.inputs import read_sources

    sources, references = text.read()
    given, documents = _input_lines(bundle, text, sources), bundle.recipe.data.documents
    if documents is not None and text.documents is not None:
        blocks = pack_pairs(bundle, given, references, documents)
        given, references = source_lines(blocks), [block.texts[1] for block in blocks]
    targets = bundle.tokenizers.target.encode_batch(references)
    most = bundle.max_positions - 1
    return [(line, TargetLine(ids[:most])) for line, ids in zip(read_sources(bundle, given), targets, strict=True)]
