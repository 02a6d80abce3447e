"""``sparsenmt decode``: text in, translations out, line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import click

from sparsenmt.commands import depth as depth_option
from sparsenmt.commands import disabled as disabling
from sparsenmt.commands import documents as document_option
from sparsenmt.commands import selected as selection
from sparsenmt.commands.decode_bar import Bar
from sparsenmt.commands.decode_files import InputFile, check_files, read_input
from sparsenmt.commands.tags import HELP, GivenTags, open_tags, with_tags
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.decoding.translate import Translation
    from sparsenmt.depth_selector.translate import SelectedDepths
    from sparsenmt.recipe.schema import Decoding
    from sparsenmt.resumable import ResumableOutput
    from sparsenmt.store import Bundle


@click.command("decode", short_help="Translate text with a trained model.")
@click.argument("model", metavar="MODEL_DIR", type=click.Path(path_type=Path))
@click.option(
    "--input", "-i", "input_file", type=click.Path(path_type=Path), help="Text to translate.  [default: stdin]"
)
@click.option(
    "--output", "-o", "output_file", type=click.Path(path_type=Path), help="File to write.  [default: stdout]"
)
@click.option("--tags", "tags_file", type=click.Path(path_type=Path), help=HELP)
@click.option("--documents", "documents_file", type=click.Path(path_type=Path), help=document_option.HELP)
@click.option("--method", type=click.Choice(["beam", "greedy", "sample"]), help="Search method.")
@click.option("--beam-size", type=click.IntRange(1), help="Hypotheses kept for each sentence.")
@click.option(
    "--length-penalty", type=click.Choice(["gnmt", "average", "none"]), help="Score: log-probability over a length."
)
@click.option("--alpha", type=click.FloatRange(0), help="Exponent of the length penalty.")
@click.option("--max-length-factor", type=click.FloatRange(0), help="Longest output: factor x source pieces + offset.")
@click.option("--max-length-offset", type=click.IntRange(0), help="The offset of --max-length-factor.")
@click.option("--min-length", type=click.IntRange(0), help="Shortest output, in pieces.")
@click.option("--no-repeat-ngram", type=click.IntRange(0), help="Never repeat an n-gram of this length; 0: allowed.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sampling: divides the logits.")
@click.option("--top-k", type=click.IntRange(0), help="Sampling: only the k most probable pieces; 0: all.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sampling: smallest set with this mass.")
@click.option("--seed", type=click.IntRange(0), help="Sampling: the same seed gives the same outputs.")
@click.option("--batch-tokens", type=click.IntRange(1), help="Source tokens in a batch, padding included, times beam.")
@click.option("--n-best", type=click.IntRange(1), default=1, help="Hypotheses to write for each line, best first.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line: texts, scores, log-probabilities.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "fp32", "bf16", "int8"]),
    help="Of matrix products; auto: the fastest, by a measurement at the start.",
)
@depth_option.options
@selection.option
@disabling.option
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option(
    "--window",
    type=click.IntRange(1, 2**31),
    help="Lines read before the first is written; with --documents, blocks.  [default: 4096; 256; 1 at a terminal]",
)
def command(
    model: Path,
    input_file: Path | None,
    output_file: Path | None,
    tags_file: Path | None,
    documents_file: Path | None,
    n_best: int,
    as_json: bool,
    dtype: Literal["auto", "fp32", "bf16", "int8"] | None,
    encoder_layers: int | None,
    decoder_layers: int | None,
    depth: str | None,
    disabled: tuple[str, ...],
    threads: int | None,
    window: int | None,
    **settings: Any,
) -> None:
    """Translate text with the model in MODEL_DIR.

    The text is UTF-8, one sentence a line, plain or (from a file) gzipped. Every input line gives one output line, in
    the same order; an empty line gives an empty line, and a line that is too long for the model is cut, with a warning;
    of a recipe that cuts sources, the number of cut lines is told at the end.
    Search settings that are not given are those of the recipe that the model was trained with (its `decoding` section).

    With --documents, a model that was trained on blocks of sentences (`data.documents` of its recipe) gets the lines of
    each document in such blocks, and every line still gives one line. Where a translation has other sentences than its
    block, the missing ones are empty lines, and those that are too many are joined to the last; their number is told.

    With --depth auto every line is translated at the depth that the model's selector chooses for it, which `sparsenmt
    select-depth` has trained; at the end stands how many lines each depth got.

    An output file has its name when it is complete. If a command that reads a file and writes a file is interrupted,
    killed, or finds the disk full, the same command goes on after the windows that were finished, and gives the very
    bytes that an undisturbed run gives. It starts again, and says why, if the text, the model, an option, the number of
    threads, the device or the version is another one.

    \b
    --n-best N          up to N lines for an input line: number ||| text ||| score
                        (numbers from 0, best first)
    --json              a JSON object for an input line: line (from 1), source, and
                        hypotheses, best first, each with text, score,
                        log_probability (natural), pieces, ended (false: cut at the
                        maximum length)
    With --documents, scores are those of blocks, and --json writes an object for
    each: line (its first), lines, document, source, hypotheses; for text, texts.
    """
    from sparsenmt.assemble import without_gain
    from sparsenmt.decoding import documents as blocks
    from sparsenmt.decoding.translate import WINDOW
    from sparsenmt.devices import use_threads
    from sparsenmt.store import open_model

    check_files(input_file, output_file)
    selection.check_selected(depth, encoder_layers, decoder_layers, documents_file)
    documents = document_option.open_documents(documents_file, input_file or "stdin")
    if documents is not None and input_file is not None and input_file.is_file():
        documents.check(read_input(input_file))
    if threads is not None:
        use_threads(threads)
    heads = disabling.read_disabled(model, disabled)
    bundle = open_model(model, dtype=dtype or "recipe", disabled=heads)
    for note in without_gain(bundle.recipe.model, bundle.model):
        click.echo(f"warning: {note}", err=True)
    options = _options(bundle.recipe.decoding, settings, n_best)
    options = depth_option.at_depth(bundle.model.plan, options, encoder_layers, decoder_layers)
    selected = selection.open_selected(depth, model, bundle)
    document_option.check_use(bundle, documents)
    # A person at a terminal waits for each answer; a file or a pipe is better sorted into large batches.
    usual = WINDOW if documents is None else blocks.WINDOW
    window = window or (1 if input_file is None and sys.stdin.isatty() else usual)
    tags = open_tags(tags_file, bundle, input_file or "stdin")
    if tags is not None and input_file is not None and input_file.is_file():
        tags.check(read_input(input_file))
    job = _Job(model, bundle, options, window, n_best, as_json, tags, documents, selected)
    if output_file is None or (output_file.exists() and not output_file.is_file()):  # a pipe, a device
        _stream(job, input_file, output_file)
    else:
        _make(job, input_file, output_file)


@dataclass(frozen=True)
class _Job:
    """What decides about the output, beside the input."""

    directory: Path
    bundle: Bundle
    options: Decoding
    window: int
    n_best: int
    as_json: bool
    tags: GivenTags | None
    documents: document_option.GivenDocuments | None
    selected: SelectedDepths | None

    def translate(self, lines: Iterable[str], bar: Bar, first: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Of one input line, or block of lines, after the other: how many they are, and their output lines.

        Args:
            first: number of the first line.
        """
        from sparsenmt.decoding.translate import translate_lines

        bar.limit = self.bundle.max_source_length if self.bundle.cuts_by_choice else None
        ours, tags = with_tags(self.tags, lines, first)
        if self.documents is not None:
            blocks = document_option.translate(
                self.bundle,
                self.documents.beside(ours, first),
                self.options,
                bar=bar,
                window=self.window,
                first=first,
                tags=tags,
            )
            for each in blocks:
                yield len(each.block.sentences), document_option.render(each, self.n_best, self.as_json)
            return
        through = translate_lines if self.selected is None else self.selected.translate
        found = through(
            self.bundle, ours, self.options, advance=bar.advance, window=self.window, first=first, tags=tags
        )
        yield from ((1, _render(bar.warn(each), self.n_best, self.as_json)) for each in found)
        if self.selected is not None:
            selection.tell_depths(self.selected.counts)

    def work(self, source: InputFile) -> dict[str, Any]:
        """Everything that the bytes of the output depend on: a run goes on only with what the same work has made.

        The number of threads, the device and the version of PyTorch belong to it, since sums in fp32 are rounded in
        another order; and the window, since its lines share batches.
        """
        import torch

        from sparsenmt import __version__
        from sparsenmt.files import sha256_file, sha256_text
        from sparsenmt.store import read_manifest

        kind = self.bundle.device.type
        device = (
            torch.cuda.get_device_name(self.bundle.device)
            if kind == "cuda"
            else torch.backends.cpu.get_cpu_capability()
        )
        files = read_manifest(self.directory)["files"]
        shape = self.bundle.recipe.model.model_dump(mode="json")
        packing = None if self.documents is None else self.bundle.recipe.data.documents
        return {
            "input": source.sha256(),
            "tags": None if self.tags is None else sha256_file(self.tags.path),
            "documents": None if self.documents is None else sha256_file(self.documents.path),
            "packing": None if packing is None else packing.model_dump(mode="json"),
            "model": sha256_text(json.dumps([self.bundle.weights_digest, files, shape], sort_keys=True)),
            "max_source_length": self.bundle.max_source_length,
            "decoding": self.options.model_dump(mode="json"),
            "selector": None if self.selected is None else self.selected.digest,
            "dtype": self.bundle.dtype_name,
            "window": self.window,
            "n_best": self.n_best,
            "json": self.as_json,
            "threads": torch.get_num_threads(),
            "device": f"{kind} {device}",
            "sparsenmt": __version__,
            "torch": torch.__version__,
        }


def _stream(job: _Job, input_file: Path | None, output_file: Path | None) -> None:
    """To standard output, a pipe or a device, line by line: what is written there is gone."""
    from sparsenmt.data.text import write_lines

    total = InputFile(input_file).lines if input_file is not None and input_file.is_file() else None
    with Bar(total) as bar:
        lines = (line for _, each in job.translate(read_input(input_file), bar) for line in each)
        if output_file is not None:
            write_lines(output_file, lines)
            return
        stream: BinaryIO = sys.stdout.buffer
        for line in lines:
            stream.write(line.encode("utf-8") + b"\n")
            stream.flush()


def _make(job: _Job, input_file: Path | None, output_file: Path) -> None:
    """To a file, which is there when it is complete. If the input is a file too, an interrupted run goes on."""
    from sparsenmt.resumable import resumable_output

    source = InputFile(input_file) if input_file is not None and input_file.is_file() else None
    work, total = (None, 0) if source is None else (job.work(source), source.lines)
    with resumable_output(output_file, work, total) as file, _kept(file, output_file):
        if file.complete:
            click.echo(f"{output_file}: is complete; nothing is left to do", err=True)
            return
        if file.restart_reason is not None:
            click.echo(f"{output_file}: starts again: {file.restart_reason}", err=True)
        if file.lines:
            click.echo(f"{output_file}: goes on after line {file.lines:,}", err=True)
        done = file.lines
        with Bar(None if source is None else source.lines, done) as bar:
            found = job.translate(islice(read_input(input_file), done, None), bar, done)
            for number, (count, lines) in enumerate(found, start=1):
                file.write(lines)
                done += count
                if source is not None and number % job.window == 0:
                    source.check()
                    file.commit(done)
        if source is not None:
            source.check()
        file.finish(done)


@contextmanager
def _kept(file: ResumableOutput, output_file: Path) -> Iterator[None]:
    """When the work stops before its end, say what is kept."""
    from sparsenmt.interrupts import Interrupted

    try:
        yield
    except BaseException as stop:
        note = f"{output_file} is kept up to line {file.lines:,}"
        if file.lines and isinstance(stop, Interrupted):
            stop.note, stop.resumable = note, True
        elif file.lines:
            click.echo(f"{note}: the same command goes on after it", err=True)
        raise


def _options(base: Decoding, settings: dict[str, Any], n_best: int) -> Decoding:
    """The recipe's settings with those of the command line, checked as the recipe's are."""
    from pydantic import ValidationError

    changed = {name: value for name, value in settings.items() if value is not None}
    try:
        options = type(base).model_validate({**base.model_dump(), **changed})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = first["msg"].replace("Input should be", "must be")
        option = f"--{name.replace('_', '-')}"
        hint = "`sparsenmt decode --help` says what the option means."
        raise UserError(f"{message}, not {settings[name]}", where=option, hint=hint) from None
    width = options.beam_size if options.method == "beam" else 1
    if n_best > width:
        raise UserError(
            f"{n_best} hypotheses are more than the search has: {width}",
            where="--n-best",
            hint="Raise --beam-size, or use --method beam.",
        )
    return options


def _render(translation: Translation, n_best: int, as_json: bool) -> list[str]:
    if n_best == 1 and not as_json:
        return [translation.text]
    pairs = list(zip(translation.best_texts(n_best), translation.hypotheses[:n_best], strict=True))
    if as_json:
        hypotheses = [
            {
                "text": text,
                "score": h.score,
                "log_probability": h.log_probability,
                "pieces": len(h.tokens),
                "ended": h.ended,
            }
            for text, h in pairs
        ]
        line = {"line": translation.source.number + 1, "source": translation.source.text, "hypotheses": hypotheses}
        if translation.depth is not None:
            line["encoder_layers"], line["decoder_layers"] = translation.depth
        return [json.dumps(line, ensure_ascii=False, allow_nan=False)]
    return [f"{translation.source.number} ||| {text} ||| {h.score:.6f}" for text, h in pairs]
