"""An analysis session: trained models, the text that they read, and the results of a report.

Every report is one module of this package, and the modules are built alike. Its public function, `measure_density` in
`density`, takes an `AnalysisSession` and the report's own settings, and returns an `AnalysisResult`. Below it stand:

- the observers and functions that measure one model, and a dataclass ``...Result`` for what they find;
- ``report``: the tables, out of the results of all models, of which each table has a row a model, head or sentence;
- ``panels`` or ``grid``: the diagrams of the plot; ``text``: what the terminal shows in place of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparsenmt.analysis.gates import NO_FILTER, GatedLine, LineBatches, gated_lines
from sparsenmt.analysis.observe import ATTENTION_TOKENS, Observer, TargetLine, observe, observe_text
from sparsenmt.analysis.text_words import TextWords, find_words
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.data.documents import check_id_count, read_document_ids
from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.data.tagging.tagged_text import TagFile, TaggedSentence, read_tagged
from sparsenmt.data.text import check_readable, read_lines
from sparsenmt.data.tokenizers.tokenizer import unknown_texts
from sparsenmt.decoding.documents import translate_aligned
from sparsenmt.decoding.inputs import SourceLine, cut_warning, read_sources, warn_of_sources
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.decoding.text_scores import TextReading, encode_text
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.decoding.unusual_text import warn_of_unusual_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_scoring
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.evaluation.tokenizer_choice import fit_to_text
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import Transform
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.model_use import with_given
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report.model_labels import check_models, model_labels
from sparsenmt.report.plot_labels import shortened
from sparsenmt.report.plots import describe
from sparsenmt.report.tables import Report, render

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure

AnyObserver = TypeVar("AnyObserver", bound=Observer)
R = TypeVar("R")
_CONLLU = (".conllu", ".conllu.gz")
_LONG_NAME = 40  # columns of a name in the title of a plot
_ONE = "Leave one of the two out."
_NO_LINE_PAIRS = "Line n of one must belong to line n of the other."
MOST_DRAWN = 20
"""Sentences that one picture can hold."""


@dataclass(frozen=True)
class AnalysisResult:
    """A finished report.

    Args:
        draw: makes the figure of the plot.
        text: shown on the terminal; None: the report's tables are.
    """

    report: Report
    draw: Callable[[], Figure]
    text: str | None = None

    @property
    def shown(self) -> str:
        """The report as text for a terminal."""
        return render(self.report) if self.text is None else self.text


@dataclass(frozen=True)
class AnalysisSession(ModelOptions):
    """The models of a report, and the text that they read.

    Args:
        models: model directories; for `measure_by_length` also files of translations.
        input: source text, one sentence a line, plain or gzipped; or CoNLL-U, whose tags are used.
        tags: part-of-speech tags beside the text, CoNLL-U or word_TAG.
        sentences: source sentences in place of ``input``.
        limit: lines to read; None: all.
        batch_tokens: source tokens in a batch, padding included, times the beam size; None: the recipe's.
        beam_size: beam size of translation; None: the recipe's.
        target: translations that the decoders read; None: each model's own.
        for_plot: True: refuse what does not fit one picture.
        text: the text that language models read, in place of sentences.
        tokens: tokens of it to read; None: `ATTENTION_TOKENS`.
        segmenter: a tagger that splits the text into words; None: see `find_words`.
        language: of the text, for segmenter and tagger; None: the first model's source language.
    """

    models: Sequence[Path]
    input: Path | None = None
    tags: Path | None = None
    sentences: Sequence[str] = ()
    limit: int | None = None
    batch_tokens: int | None = None
    beam_size: int | None = None
    target: Path | None = None
    for_plot: bool = False
    text: Path | None = None
    tokens: int | None = None
    segmenter: str | None = None
    language: str | None = None

    @cached_property
    def labels(self) -> dict[str, Path]:
        """Short name -> path of every model."""
        return model_labels(self.models)

    @cached_property
    def translations(self) -> dict[str, Path]:
        """Short name -> file of translations that stands among the models."""
        return {label: path for label, path in self.labels.items() if path.is_file()}

    @property
    def files(self) -> list[Path]:
        """The files that are read, apart from models."""
        named = [self.input, self.text, self.tags, self.target, *self.translations.values()]
        return [path for path in named if path is not None]

    def check(self) -> None:
        """Raise UserError for models, files and settings that cannot be used, before a model is opened."""
        check_models([path for path in self.models if not path.is_file()])
        if len(self.labels) < len(self.models):
            twice = [path for path in self.models if path.is_file()][-1]
            raise UserError("the file is named twice", where=str(twice), hint="Name every system once.")
        self._check_task()
        if self.input is not None and self.sentences:
            raise UserError("is given beside --input", where="--sentence", hint=_ONE)
        if self.target is not None and self.beam_size is not None:
            raise UserError("is given beside --target, and nothing is translated", where="--beam-size", hint=_ONE)
        if self.tags is not None and self.has_tags:
            raise UserError("is given, but the text has tags of its own", where="--tags", hint="Leave it out.")
        for path in self.files:
            check_readable(path)

    def _check_task(self) -> None:
        """Raise UserError for models that cannot read what is given, and options without meaning for it."""
        if self.text is None and self.tokens is not None:
            raise UserError("needs --text", where="--tokens", hint="--limit bounds the lines of --input.")
        given: dict[str, object] = {"--input": self.input, "--sentence": self.sentences or None, "--limit": self.limit}
        given |= {"--tags": self.tags, "--target": self.target}
        given |= {"--beam-size": self.beam_size, "--batch-tokens": self.batch_tokens}
        for option, value in given.items() if self.text is not None else ():
            if value is not None:
                raise UserError(
                    "has no meaning with --text, which a language model reads as one text",
                    where=option,
                    hint="Leave it out; --tokens says how much is read.",
                )
        for directory in self.labels.values() if self.text or self.input or self.sentences else ():
            if directory.is_file():
                continue
            reads_text = read_recipe(directory).data.is_language_model
            if reads_text and self.text is None:
                raise UserError(
                    "this is a language model: it reads no source sentences",
                    where=str(directory),
                    hint="`density` and `diversity` read a text with --text; `alphas` and `spans` read none.",
                )
            if not reads_text and self.text is not None:
                raise UserError(
                    "the model translates: it reads source sentences, not a text",
                    where=str(directory),
                    hint="Give --input in place of --text.",
                )

    @property
    def text_name(self) -> str:
        """The name of the text in messages."""
        named = self.text or self.input
        return "--sentence" if named is None else str(named)

    @property
    def target_name(self) -> str:
        """The name of the given translations in messages."""
        return str(self.target)

    @cached_property
    def given_targets(self) -> list[str] | None:
        """The given translation of every line; None: each model's own is read."""
        return None if self.target is None else self.read_beside(self.target, len(self.lines), self.text_name)

    @property
    def has_tags(self) -> bool:
        """True if the text is CoNLL-U."""
        return self.input is not None and self.input.name.endswith(_CONLLU)

    @cached_property
    def lines(self) -> list[InputLine]:
        """The lines of the text, with their tags if any are given.

        Raises:
            UserError: there is no text, or none with words; or the tags do not fit it.
        """
        if self.input is None and not self.sentences:
            raise UserError("there is no text", where="--input", hint="Name a file of source sentences.")
        tags: list[TaggedSentence] | None = None
        if self.input is not None and self.has_tags:
            tagset = TagFile(self.input).tagset
            tags = [replace(each, tagset=tagset) for each in read_tagged(self.input)]
            texts = [each.text or " ".join(each.words) for each in tags]
        elif self.input is not None:
            stop = self.limit if self.tags is None else None  # the tags must fit all lines
            texts = list(islice(read_lines(self.input), stop))
        else:
            texts = list(self.sentences)
        if self.tags is not None:
            tags = list(TagFile(self.tags).sentences(self.text_name, texts))
        lines = input_lines(texts, tags=tags)[: self.limit]
        if not any(line.text.strip(" ") for line in lines):
            raise UserError("there is no text in it", where=self.text_name, hint="Name a file with source sentences.")
        return lines

    @cached_property
    def words(self) -> TextWords:
        """The words of the text; UserError if the segmenter is not available, or does not cover the language."""
        return find_words(self.lines, self.segmenter, self.text_language)

    @property
    def text_language(self) -> str:
        """The language of the text: as named, or the first model's source language."""
        return self.language or read_recipe(self.models[0]).data.source_language

    def read_beside(self, path: Path, count: int, other: str) -> list[str]:
        """Read the lines of a file that belong to the lines of another text.

        Args:
            count: number of lines of the other text.
            other: its name in messages.

        Raises:
            UserError: the file has another number of lines.
        """
        lines = list(islice(read_lines(path), self.limit))
        if len(lines) != count:
            found = f"it has {len(lines):,} lines, but {other} has {count:,}"
            raise UserError(found, where=str(path), hint=_NO_LINE_PAIRS)
        return lines

    def check_drawable(
        self, count: int, what: str = "sentences", *, most: int = MOST_DRAWN, hint: str = "with --limit or --sentence"
    ) -> None:
        """Refuse to draw more than a picture can hold.

        Args:
            what: the noun for what is drawn.
            hint: how to choose fewer.

        Raises:
            UserError: a plot is wanted, and there are more.
        """
        if self.for_plot and count > most:
            found = f"{count:,} {what} are too many for one picture: it holds {most}"
            raise UserError(found, where="--plot", hint=f"Name fewer, {hint}.")

    def notes_on_filters(self, *, needed: bool) -> list[str]:
        """Return a note for every model without a filter.

        Args:
            needed: True if the report would be empty without any filter.

        Raises:
            UserError: a filter is needed, and no model has one.
        """
        dense = [label for label, directory in self.labels.items() if not read_recipe(directory).model.memory]
        if needed and len(dense) == len(self.models):
            raise UserError(
                "no filter decides in this model: nothing is ever dropped",
                where=", ".join(map(str, self.models)),
                hint="Name a model whose recipe has a filter under `model.memory`.",
            )
        return [f"{label}: {NO_FILTER}" for label in dense]

    def notes_on_weights(self, measured: str = "measured are shares of every query's sum") -> list[str]:
        """Return a note for every model opened so far whose weights need not sum to 1; ``measured``: what is done."""
        return [f"{label}: attention weights of a query need not sum to 1; {measured}" for label in self._unnormalised]

    @cached_property
    def _unnormalised(self) -> list[str]:
        """Models with a transform whose weights need not sum to 1; `open` adds to it."""
        return []

    def learned(self, what: str, measure: Callable[[str, Path], R | None], hint: str) -> tuple[list[R], list[str]]:
        """Measure what models have learned; return the results, and a note for every model without any.

        Args:
            what: the noun for it.
            measure: gets the short name and the directory of a model; returns None if it has learned none.

        Raises:
            UserError: no model has learned it.
        """
        results = {label: measure(label, directory) for label, directory in self.labels.items()}
        found = [each for each in results.values() if each is not None]
        if not found:
            raise UserError(f"no {what} is learned in this model", where=", ".join(map(str, self.models)), hint=hint)
        return found, [f"{label}: no {what} is learned" for label, each in results.items() if each is None]

    def opened(self, *, any_task: bool = False) -> Iterator[AnalyzedModel]:
        """Open the models in their order; ``any_task``: language models, too, which are refused otherwise."""
        for label, directory in self.labels.items():
            yield self.open(label, directory, any_task=any_task)

    def open(
        self,
        label: str,
        directory: Path,
        disabled: Mapping[SiteName, Collection[int]] | None = None,
        *,
        any_task: bool = False,
    ) -> AnalyzedModel:
        """Open a model, of the session or another one; ``disabled``: site -> heads, from 1, whose output is 0."""
        device, languages = self.device, self.languages
        bundle = open_model(directory, device=device, disabled=disabled, any_task=any_task, languages=languages)
        sums = all(each.normalised for each in bundle.model.modules() if isinstance(each, Transform))
        if not sums and label not in self._unnormalised:
            self._unnormalised.append(label)
        return AnalyzedModel(self, label, bundle)

    def scoring_settings(
        self, scoring: ScoringOptions, documents: Path | None, references: Sequence[str], *, tokenizes: bool = False
    ) -> tuple[ScoringOptions, ScoringSettings]:
        """Complete the settings of scoring by the language of the models, the text and its documents.

        Args:
            documents: file with the document id of every line; with a limit, only those of the first lines are read.
            references: the lines of the reference.
            tokenizes: as for `check_scoring`.

        Returns:
            the options with the tokenizer of the text, and the settings.

        Raises:
            UserError: they do not fit the text or the models; see `check_scoring` and `ScoringOptions.language_of`.
        """
        models = {label: path for label, path in self.labels.items() if label not in self.translations}
        check_scoring(scoring, documents=documents is not None, reads_documents=bool(models), tokenizes=tokenizes)
        recipes, count = {label: read_recipe(path) for label, path in models.items()}, len(references)
        language = scoring.language_of({label: recipe.data.target_language for label, recipe in recipes.items()})
        scoring = fit_to_text(scoring, references, recipes, tokenizes=tokenizes)
        if documents is None:
            return scoring, scoring.settings(language=language)
        ids = list(islice(read_document_ids(documents), None if self.limit is None else count))
        check_id_count(documents, self.text_name if models else "the reference", len(ids), count)
        return scoring, scoring.settings(language=language, documents=ids)

    def result(
        self,
        report: Report,
        draw: Callable[[], Figure],
        *,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        text: str | None = None,
        caption: str = "",
    ) -> AnalysisResult:
        """Make the result of a report on the text: add the session's settings, and these settings and notes.

        Args:
            draw: makes the figure, without its title.
            text: shown on the terminal in place of the tables.
            caption: a line below the plot.
        """
        named = self.input is not None or bool(self.sentences)
        common: dict[str, Any] = {"models": list(self.labels)}
        if self.text is None:
            common |= {"input": self.text_name if named else None, "limit": self.limit}
        else:
            common |= {"text": self.text_name, "tokens": self.tokens or ATTENTION_TOKENS}
        whole = replace(
            report, notes=(*report.notes, *notes), settings={**common, **report.settings, **(settings or {})}
        )
        return AnalysisResult(whole, lambda: describe(draw(), self.plot_title(whole), caption=caption), text)

    def plot_title(self, report: Report) -> str:
        """Return the title of a plot: that of the report's first table; then its models, and the text."""
        lines = "" if self.limit is None else f", first {self.limit:,} lines" if self.limit > 1 else ", first line"
        named = self.text or self.input
        text = "" if named is None else f"; text: {shortened(named.name, _LONG_NAME)}{lines}"
        models = ", ".join(shortened(label, _LONG_NAME) for label in self.labels)
        return f"{report.tables[0].title}\n{models}{text}"

    def attention_settings(self, sites: Sequence[SiteName]) -> dict[str, object]:
        """Return the settings of a report on sites, for JSON; a text has none beside its name."""
        if self.text is not None:
            return {}
        return {"sites": list(sites), "target": str(self.target) if self.target else None}


@dataclass(frozen=True)
class AnalyzedModel:
    """An opened model of a session, and the text as this model reads it."""

    session: AnalysisSession
    label: str
    bundle: Bundle

    @contextmanager
    def batches(self, task: str) -> Iterator[LineBatches]:
        """Yield the sources in batches, with a progress bar that ``task`` names."""
        with progress_bar(f"{self.label}: {task}", len(self.sources)) as advance:
            yield LineBatches(self.bundle, self.sources, self.decoding.batch_tokens, advance)

    @cached_property
    def sources(self) -> list[SourceLine]:
        """The lines that have words, as tokens; long ones are cut, with a warning. UserError if none has words."""
        name = self.session.text_name
        found = [line for line in read_sources(self.bundle, self.session.lines) if not line.empty]
        if not found:
            raise UserError("the tokenizer finds nothing in it", where=name, hint="Name a file with source sentences.")
        warn_of_sources(self.bundle, found, name, "read")
        return found

    def check_heads(self, site: SiteName, heads: Sequence[int]) -> dict[int, str]:
        """Return the number and name of every head of a site; raise UserError if one of ``heads`` does not exist."""
        self.present([site])
        names = dict(enumerate(self.bundle.model.head_names(site), start=1))
        if heads and max(heads) > len(names):
            raise UserError(
                f"{self.label} has {len(names)} heads at {site}, not {max(heads)}",
                where="--head",
                hint="Heads are numbered from 1; fixed heads come first, then learned ones.",
            )
        return names

    def present(self, sites: Collection[SiteName]) -> list[SiteName]:
        """Return the sites that the model has, and report the others; UserError if it has none of them."""
        found = [site for site in sites if self.bundle.model.head_names(site)]
        for site in sites:
            reason = f"{self.label} has no attention at {site}: a recurrent layer is in its place"
            if not found:
                raise UserError(reason, where="--site", hint="Name another site.")
            if site not in found:
                notify(reason)
        return found

    @cached_property
    def gates(self) -> list[GatedLine]:
        """The gates of the sources, in their order; computed once, if several reports read them."""
        with self.batches("gates") as text:
            return gated_lines(text)

    def texts(self, documents: Sequence[Hashable] | None = None, variant: str = "") -> list[str]:
        """Translate all lines, in blocks if their documents are known and the model reads blocks.

        Args:
            documents: the document id of every line; None: not known.
            variant: the end of the label of the progress bar.

        Returns:
            a text for every line.
        """
        lines, packing = self.session.lines, None if documents is None else self.bundle.recipe.data.documents
        if packing is not None and documents is not None:
            lines = [replace(line, document=str(own)) for line, own in zip(lines, documents, strict=True)]
        with progress_bar(f"{self.label}{variant}: translate", len(lines)) as advance:
            return translate_aligned(self.bundle, lines, self.decoding, packing, advance)[0]

    @property
    def decoding(self) -> Decoding:
        """The recipe's decoding options, with the session's changes."""
        changes = {"batch_tokens": self.session.batch_tokens, "beam_size": self.session.beam_size}
        return with_given(self.bundle.recipe.decoding, **changes)

    @cached_property
    def targets(self) -> list[TargetLine]:
        """The target of every line of `sources`: the given translations, or the model's own."""
        session, most, frame = self.session, self.bundle.max_target_length, self.bundle.frames.target
        lines = session.given_targets
        if lines is None:
            with progress_bar(f"{self.label}: translate", len(session.lines)) as advance:
                options = self.decoding.undivided  # as `sources` are read
                found = list(translate_lines(self.bundle, session.lines, options, advance=advance))
            best = [each.hypotheses[0] for each in found if not each.source.empty]
            return [TargetLine(each.tokens, each.ended, each.copied, frame) for each in best]
        given, rows, tokenizer = [], [], self.bundle.tokenizers.target
        for source in self.sources:
            ids = tokenizer.encode(lines[source.number])
            rows.append((source.number, ids, lines[source.number], 0 if len(ids) > most else len(ids)))
            if len(ids) > most:
                name = f"{session.target_name}, line {source.number + 1},"
                notify(cut_warning(name, most, len(ids) - most, "read"))
            unknown = unknown_texts(tokenizer, lines[source.number])
            given.append(TargetLine(ids[:most], unknown=unknown, frame=frame))
        warn_of_unusual_lines(self.bundle, rows, session.target_name, "target")
        return given

    def attend(
        self, observer: AnyObserver, sites: Collection[SiteName], targets: Sequence[TargetLine] | None = None
    ) -> AnyObserver:
        """Read the sources, and the targets along them, while an observer gets the attention at these sites.

        A language model reads the session's text, and has no other site than the decoder's self-attention.

        Args:
            targets: one for each source; None: those of the model, if a site of the decoder is among the sites.

        Returns:
            the observer.
        """
        if self.bundle.recipe.data.is_language_model:
            return self._attend_to_text(observer, sites)
        sites = self.present(sites)
        if targets is None and any(site != "encoder_self" for site in sites):
            targets = self.targets
        with self.batches("attention") as text:
            observe(text, targets, [observer], sites=sites)
        return observer

    def _attend_to_text(self, observer: AnyObserver, sites: Collection[SiteName]) -> AnyObserver:
        """Read the text of a language model while an observer gets the attention; returns the observer."""
        session, most = self.session, self.session.tokens or ATTENTION_TOKENS
        if "decoder_self" not in sites:
            raise UserError("a language model has decoder_self only", where="--site", hint="Leave it out.")
        if session.text is None:
            raise UserError("there is no text", where="--text", hint="Name the text that the language model reads.")
        ids = encode_text(self.bundle.tokenizers.target, session.text, most=most).ids
        with progress_bar(f"{self.label}: attention", len(ids), unit="token") as advance:
            observe_text(self.bundle, ids, TextReading.of(self.bundle.recipe), [observer], advance)
        return observer
