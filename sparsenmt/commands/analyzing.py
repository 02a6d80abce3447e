"""What the subcommands of ``sparsenmt analyze`` share: options, models, text, translations, and files to write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.analysis.gates import GatedLine
    from sparsenmt.analysis.observe import Output
    from sparsenmt.data.tagging.tagged_text import TaggedSentence
    from sparsenmt.decoding.inputs import SourceLine
    from sparsenmt.decoding.translate import Translation
    from sparsenmt.report.tables import Report
    from sparsenmt.store import Bundle

_MOST_DRAWN = 20
_COLUMNS = (".conllu", ".conllu.gz")
_PATH = click.Path(path_type=Path)
_MODELS = click.argument("models", metavar="MODEL_DIR...", type=_PATH, nargs=-1, required=True)
_SYSTEMS = click.argument("models", metavar="MODEL_DIR|FILE...", type=_PATH, nargs=-1, required=True)
_ONE = "Leave one of the two out."
_TAGS = "Part-of-speech tags beside the text, CoNLL-U or word_TAG.  [default: a tagger's, where tags are needed]"
_INPUTS = (
    click.option(
        "--input",
        "-i",
        "input_file",
        type=_PATH,
        help="Source text, a sentence a line, plain or gzipped; or CoNLL-U, which brings its tags.",
    ),
    click.option("--tags", "tags_file", type=_PATH, help=_TAGS),
    click.option("--limit", type=click.IntRange(1), help="Only so many lines of it, from the first."),
)
_READING = (
    click.option(
        "--batch-tokens",
        type=click.IntRange(1),
        help="Source tokens in a batch, padding included, times the beam.  [default: the recipe's]",
    ),
    click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]"),
)
_OUTPUTS = (
    click.option("--json", "json_file", type=_PATH, help="Write the report as JSON."),
    click.option("--csv", "csv_file", type=_PATH, help="Write the table as CSV; further tables beside it."),
    click.option("--plot", "plot_file", type=_PATH, help="Draw it: a name in .png or .svg; needs matplotlib."),
)
_SENTENCES = click.option("--sentence", "sentences", multiple=True, help="A sentence instead of --input; repeatable.")
_BEAM = click.option("--beam-size", type=click.IntRange(1), help="Of the translation.  [default: the recipe's]")
_TARGET = click.option(
    "--target",
    "target_file",
    type=_PATH,
    help="Translations to be read along the text, line by line.  [default: the model's own]",
)


def analysis_options(
    *, sentences: bool = False, translates: bool = False, targets: bool = False, reads: bool = True, files: bool = False
) -> Callable[[Callable[..., None]], Any]:
    """Options of a subcommand, which gets them as one `AnalysisRequest`, and its own options by name.

    Args:
        sentences: whether sentences may stand on the command line.
        translates: whether the models translate.
        targets: whether given translations may stand in for the models' own.
        reads: whether the models read a text at all.
        files: whether files of translations may stand beside models.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(
            models: tuple[Path, ...],
            json_file: Path | None,
            csv_file: Path | None,
            plot_file: Path | None,
            threads: int | None = None,
            **given: Any,
        ) -> None:
            shared = {name: given.pop(name) for name in _JOB_OPTIONS & given.keys()}
            outputs = {"--json": json_file, "--csv": csv_file, "--plot": plot_file}
            job = AnalysisRequest(models, outputs, reads=reads, takes_files=files, **shared)
            job.check()
            if threads is not None:
                from sparsenmt.devices import use_threads

                use_threads(threads)
            function(job, **given)

        options = [_SYSTEMS if files else _MODELS]
        options += [*_INPUTS] * reads + [_SENTENCES] * sentences + [_BEAM] * translates + [_TARGET] * targets
        options += [*_READING] * reads + [*_OUTPUTS]
        for option in reversed(options):
            call = option(call)
        return call

    return decorate


@dataclass(frozen=True)
class Text:
    """The lines of a text, and the tags that are given for them, if any."""

    lines: list[str]
    tags: list[TaggedSentence] | None


_JOB_OPTIONS = {"input_file", "tags_file", "sentences", "limit", "batch_tokens", "beam_size", "target_file"}


@dataclass(frozen=True)
class AnalysisRequest:
    """What a subcommand was asked for."""

    models: tuple[Path, ...]
    files: dict[str, Path | None]
    input_file: Path | None = None
    tags_file: Path | None = None
    sentences: tuple[str, ...] = ()
    limit: int | None = None
    batch_tokens: int | None = None
    beam_size: int | None = None
    target_file: Path | None = None
    reads: bool = True
    takes_files: bool = False

    def check(self) -> None:
        """Find out what is wrong before a model is loaded.

        Raises:
            UserError: a file or a model directory is not what it must be.
        """
        from sparsenmt.data.text import check_readable
        from sparsenmt.report.output_files import check_outputs
        from sparsenmt.workflows.model_list import check_models

        hypotheses = [path for path in self.models if self.is_hypotheses(path)]
        check_models([path for path in self.models if path not in hypotheses])
        if len(self.labels()) < len(self.models):
            raise UserError("the file is named twice", where=str(hypotheses[-1]), hint="Name every system once.")
        if self.reads and len(hypotheses) < len(self.models):
            self._check_text()
        if self.target_file is not None and self.beam_size is not None:
            raise UserError("is given beside --target, and nothing is translated", where="--beam-size", hint=_ONE)
        if self.tags_file is not None and self.brings_tags:
            raise UserError("is given, but the text has tags of its own", where="--tags", hint="Leave it out.")
        inputs = [self.input_file, self.tags_file, self.target_file, *hypotheses]
        for path in inputs:
            if path is not None:
                check_readable(path)
        check_outputs(self.files, inputs)
        if self.files["--plot"] is not None:
            from sparsenmt.report.plots import check_plot

            check_plot(self.files["--plot"])

    def _check_text(self) -> None:
        if self.input_file is None and not self.sentences:
            raise UserError("there is no text", where="--input", hint="Name a file of source sentences.")
        if self.input_file is not None and self.sentences:
            raise UserError("is given beside --input", where="--sentence", hint=_ONE)

    def is_hypotheses(self, path: Path) -> bool:
        """Whether what stands where a model may stand is a file of translations."""
        return self.takes_files and path.is_file()

    @property
    def text_name(self) -> str:
        """What messages call the text."""
        return "--sentence" if self.input_file is None else str(self.input_file)

    @property
    def brings_tags(self) -> bool:
        """Whether the text is CoNLL-U."""
        return self.input_file is not None and self.input_file.name.endswith(_COLUMNS)

    def read(self) -> Text:
        """The text.

        Raises:
            UserError: there is none, or none with words; or tags do not fit it.
        """
        from sparsenmt.data.tagging.tagged_text import TagFile, read_tagged
        from sparsenmt.data.text import read_lines

        tags = None
        if self.input_file is not None and self.brings_tags:
            tagset = TagFile(self.input_file).tagset
            tags = [replace(each, tagset=tagset) for each in read_tagged(self.input_file)]
            lines = [each.text or " ".join(each.words) for each in tags]
        elif self.input_file is not None:
            stop = self.limit if self.tags_file is None else None  # tags stand beside all lines
            lines = list(islice(read_lines(self.input_file), stop))
        else:
            lines = list(self.sentences)
        if self.tags_file is not None:
            tags = list(TagFile(self.tags_file).sentences(self.text_name, lines))
        text = Text(lines[: self.limit], tags if tags is None else tags[: self.limit])
        if not any(line.strip(" ") for line in text.lines):
            raise UserError("there is no text in it", where=self.text_name, hint="Name a file with source sentences.")
        return text

    def check_few(self, text: Text) -> None:
        """Refuse to draw more sentences than a picture can hold.

        Raises:
            UserError: there are more.
        """
        if self.files["--plot"] is not None and len(text.lines) > _MOST_DRAWN:
            raise UserError(
                f"{len(text.lines):,} sentences are too many for one picture: it holds {_MOST_DRAWN}",
                where="--plot",
                hint="Name fewer, with --limit or --sentence.",
            )

    def labels(self) -> dict[str, Path]:
        """A short name for every model: the last part of its path, or the path where that is not enough."""
        from sparsenmt.workflows.model_list import model_labels

        return model_labels(self.models)

    def notes_on_gates(self, *, needed: bool) -> list[str]:
        """Which models have no filter.

        Args:
            needed: whether the report has no meaning if none of them has one.

        Raises:
            UserError: none has, and it has no meaning.
        """
        from sparsenmt.store import read_recipe

        dense = [label for label, directory in self.labels().items() if not read_recipe(directory).model.memory]
        if needed and len(dense) == len(self.models):
            raise UserError(
                "no filter decides in this model: nothing is ever dropped",
                where=", ".join(str(directory) for directory in self.models),
                hint="Name a model whose recipe has a filter under `model.memory`.",
            )
        return [f"{label}: no filter decides, nothing is dropped" for label in dense]

    def opened(self) -> Iterator[tuple[str, Bundle]]:
        """The models with their names, one after the other."""
        from sparsenmt.store import open_model

        for label, directory in self.labels().items():
            yield label, open_model(directory)

    def batch_limit(self, bundle: Bundle) -> int:
        """Source tokens in a batch."""
        return self.batch_tokens or bundle.recipe.decoding.batch_tokens

    def sources(self, bundle: Bundle, text: Text) -> list[SourceLine]:
        """The lines that have words, as pieces; warns of those that are too long.

        Raises:
            UserError: to the tokenizer, none has.
        """
        from sparsenmt.data.input_line import input_lines
        from sparsenmt.decoding.inputs import read_sources
        from sparsenmt.workflows.input_text import warn_of_cut_lines

        found = [line for line in read_sources(bundle, input_lines(text.lines, tags=text.tags)) if not line.empty]
        if not found:
            raise UserError(
                "the tokenizer finds nothing in it", where=self.text_name, hint="Name a file with source sentences."
            )
        warn_of_cut_lines(bundle, found, self.text_name, "read")
        return found

    def gates(self, label: str, bundle: Bundle, text: Text) -> list[GatedLine]:
        """The gates of all lines that have words."""
        from sparsenmt.analysis.gates import gated_lines

        sources = self.sources(bundle, text)
        with progress_bar(f"{label}: gates", len(sources)) as advance:
            return gated_lines(bundle, sources, batch_tokens=self.batch_limit(bundle), advance=advance)

    def translate(self, label: str, bundle: Bundle, text: Text) -> list[Translation]:
        """The model's own translations of all lines, by its recipe's decoding options."""
        from sparsenmt.data.input_line import input_lines
        from sparsenmt.decoding.translate import translate_lines

        changes = {"batch_tokens": self.batch_limit(bundle), "beam_size": self.beam_size}
        given = {name: value for name, value in changes.items() if value is not None}
        options = bundle.recipe.decoding.model_copy(update=given)
        with progress_bar(f"{label}: translate", len(text.lines)) as advance:
            return list(translate_lines(bundle, input_lines(text.lines, tags=text.tags), options, advance=advance))

    def outputs(self, label: str, bundle: Bundle, text: Text, sources: Sequence[SourceLine]) -> list[Output]:
        """What is read along the sources: the translations that are given, or the model's own."""
        from sparsenmt.analysis.observe import Output
        from sparsenmt.decoding.inputs import cut_warning

        if self.target_file is None:
            best = [each.hypotheses[0] for each in self.translate(label, bundle, text) if not each.source.empty]
            return [Output(each.tokens, each.ended) for each in best]
        lines = self.read_beside(self.target_file, len(text.lines), self.text_name)
        most = bundle.max_positions - 1
        found = []
        for source in sources:
            ids = bundle.tokenizers.target.encode(lines[source.number])
            if len(ids) > most:
                name = f"{self.target_file}, line {source.number + 1},"
                click.echo(cut_warning(name, most, len(ids) - most, "read"), err=True)
            found.append(Output(ids[:most]))
        return found

    def read_beside(self, path: Path, count: int, other: str) -> list[str]:
        """The lines of a file that belong to those of another one.

        Args:
            count: lines of the other one.
            other: what messages call it.

        Raises:
            UserError: there are not as many.
        """
        from sparsenmt.data.text import read_lines

        lines = list(islice(read_lines(path), self.limit))
        if len(lines) != count:
            raise UserError(
                f"it has {len(lines):,} lines, but {other} has {count:,}",
                where=str(path),
                hint="Line n of one must belong to line n of the other.",
            )
        return lines

    def finish(
        self, report: Report, *, draw: Callable[[], Any], text: str | None = None, color: bool | None = None
    ) -> None:
        """Write what was asked for, and print the tables, or the text instead of them.

        Args:
            draw: makes the figure.
            color: whether the text keeps its colours; None: at a terminal.
        """
        from sparsenmt.report.tables import render, write_report

        given: dict[str, object] = {"models": list(self.labels())}
        if self.reads:
            named = self.input_file is not None or bool(self.sentences)
            given |= {"input": self.text_name if named else None, "limit": self.limit}
        report = replace(report, settings={**given, **report.settings})
        write_report(report, json=self.files["--json"], csv=self.files["--csv"])
        if self.files["--plot"] is not None:
            from sparsenmt.report.plots import save

            save(draw(), self.files["--plot"])
        click.echo(render(report) if text is None else text, color=color)
