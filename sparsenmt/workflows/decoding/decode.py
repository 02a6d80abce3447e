"""Translate a text with a trained model: streams, files that can be resumed, n-best lists, JSON, documents."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsenmt import __version__
from sparsenmt.arguments import from_fields
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.assemble.estimates import without_gain
from sparsenmt.assemble.model_directory import read_manifest, read_recipe, used_plugins
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import text_windows, write_lines
from sparsenmt.decoding import documents as document_decoding
from sparsenmt.decoding.alternatives import LineAlternatives, find_alternatives
from sparsenmt.decoding.continuations import Continuation, continue_lines
from sparsenmt.decoding.disabled_heads import read_disabled_heads
from sparsenmt.decoding.documents import (
    BlockTranslation,
    Mismatches,
    block_windows,
    translate_blocks,
    translate_documents,
)
from sparsenmt.decoding.inputs import cut_summary, cut_warning, parts_summary
from sparsenmt.decoding.term_counts import TermCounts
from sparsenmt.decoding.translate import WINDOW, TranslatedLine, translate_lines
from sparsenmt.decoding.unusual_text import FoundLines, LostSpaces, UnusualText
from sparsenmt.depth_selector.selector import open_selector
from sparsenmt.engine.build import dtype_name
from sparsenmt.engine.numerics import numerics, numerics_changes
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import Depth, fastest_first
from sparsenmt.process.devices import use_threads
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.storage.files import partial_path, sha256_file
from sparsenmt.storage.resumable_output import ResumableOutput, resumable_output
from sparsenmt.workflows.decoding.aligned_output import OutputAligner
from sparsenmt.workflows.decoding.decode_request import DecodeRequest
from sparsenmt.workflows.decoding.ensemble import with_members
from sparsenmt.workflows.decoding.input_text import UnchangedFile, attach, open_tag_file, packing_of, read_text
from sparsenmt.workflows.decoding.marked_input import MarkedInput
from sparsenmt.workflows.decoding.minimum_risk import MinimumRisk
from sparsenmt.workflows.decoding.output_lines import OutputFormat, render_block, render_line
from sparsenmt.workflows.decoding.search_options import search_options
from sparsenmt.workflows.decoding.shared_windows import CPU, SharedWindows, check_shared_input, join_workers
from sparsenmt.workflows.decoding.target_constraints import TargetConstraints


@from_fields(DecodeRequest, DecodeRequest.of)
def decode(request: DecodeRequest, write: Callable[[str], object] = print) -> None:
    """Translate a text: ``decode("runs/de-en", input="text.de", output="text.en", beam_size=8)``.

    Processes that torchrun started share the windows of the text; the first one writes.

    Args:
        request: or the model directory and, as keyword arguments, fields of `DecodeRequest` and keys of `decoding` in
            a recipe.
        write: takes the output lines where `DecodeRequest.output` is None.

    Raises:
        UserError: an option, a file or the model is not what it must be.
    """
    workers, device = join_workers(request)
    with workers.checked_together(CPU):
        request.check()
        check_shared_input(workers, request.input)
        disabled = read_disabled_heads(request.model, request.disabled_heads)
        if request.threads is None:  # otherwise they are set
            read_manifest(request.model)  # what is no model directory is told first
            use_threads(read_recipe(request.model).decoding.threads)
        dtype, languages = request.dtype or "recipe", request.languages
        opened = partial(open_model, device=device, dtype=dtype, languages=languages, any_task=True)
        first = opened(request.model, disabled=disabled)
        bundle = with_members(first, request.model, request, opened)
        for note in without_gain(bundle.recipe.model, bundle.model):
            notify(f"warning: {note}")
        translator = _Translator(request, bundle, SharedWindows(workers))
    if not workers.is_main_process:
        translator.assist()
        return
    output = request.output
    with translator.shared.leading():
        if output is None or (output.exists() and not output.is_file()):  # a pipe, a device
            _stream(translator, write)
        else:
            _write_file(translator, output)


class _Tally:
    """Counts of a translation, and the lines that deserve a warning.

    Args:
        typed: the input is typed at a terminal: the first line that is mostly unknown is reported at once.
        at_once: lines that are too long are reported at once, not collected.
    """

    def __init__(self, bundle: Bundle, *, typed: bool = False, at_once: bool = True) -> None:
        self.mismatches, self.depths = Mismatches(), Counter[Depth]()
        self._layers = np.zeros(2)  # decoder layers that ran for tokens, and these tokens
        self._unusual, self._typed, self._told, self._at_once = UnusualText(bundle), typed, False, at_once
        self._lost = LostSpaces()
        self._limit = bundle.max_source_length if bundle.cuts_by_choice else None
        self._cut = 0
        self._divided, self._short, self._terms = FoundLines(), FoundLines(), TermCounts()
        self._bundle = bundle
        self._warnings: list[str] = []

    def add(self, translation: TranslatedLine) -> None:
        """Count a line or a block."""
        source = translation.source
        if self._unusual.add(*source.as_read) and self._typed and not self._told:
            notify(self._unusual.warnings()[0])
            self._told = True
        if isinstance(translation, Continuation) and not source.cut:
            self._lost.add(source.number, source.text, translation.read)
        if source.cut and self._limit is None:
            done = "read" if isinstance(translation, Continuation) else "translated"
            warning = cut_warning(f"line {source.number + 1}", source.kept, source.cut, done)
            (notify if self._at_once else self._warnings.append)(warning)
        self._cut += bool(source.cut)
        for each in translation.hypotheses:
            if each.layers is not None:
                count = len(each.tokens) + each.ended
                self._layers += (each.layers * count, count)
        if source.parts > 1:
            self._divided.add(1, [source.number + 1])
        self._terms.add(translation)

    def add_alternatives(self, found: LineAlternatives) -> None:
        """Count a line with its alternatives."""
        self.add(found.translation)
        if not found.reached and not found.translation.source.empty:
            self._short.add(1, [found.translation.source.number + 1])

    def as_json(self) -> dict[str, Any]:
        """Return the counts and the collected warnings, for `merge`."""
        return {
            "warnings": self._warnings,
            "cut": self._cut,
            "divided": asdict(self._divided),
            "short": asdict(self._short),
            "terms": asdict(self._terms),
            "unusual": self._unusual.as_json(),
            "lost": self._lost.found,
            "mismatches": asdict(self.mismatches),
            "depths": [[*depth, count] for depth, count in self.depths.items()],
            "layers": self._layers.tolist(),
        }

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the tally of lines that come after these, and report its warnings."""
        for warning in other["warnings"]:
            notify(warning)
        self._cut += other["cut"]
        self._divided.add(**other["divided"])
        self._short.add(**other["short"])
        self._terms.merge(**other["terms"])
        self._unusual.merge(other["unusual"])
        self._lost.merge(None if other["lost"] is None else (*other["lost"],))
        self.mismatches.merge(other["mismatches"])
        self._layers += other["layers"]
        self.depths.update({(n, m): count for n, m, count in other["depths"]})

    def report_all(self) -> None:
        """Report what is known when all lines are translated."""
        if self.depths:
            parts = [f"({n}, {m}) {self.depths[n, m]:,}" for n, m in fastest_first(self.depths)]
            notify(f"lines at (encoder, decoder) layers: {', '.join(parts)}")
        if self._layers[1]:
            notify(f"decoder layers of a token: {self._layers[0] / self._layers[1]:.2f} on average")
        report_mismatches(self.mismatches)

    def report_lines(self) -> None:
        """Report how many lines the recipe cut, what is unusual in the text, and how many prompts lost spaces."""
        if self._cut and self._limit is not None:
            notify(cut_summary(self._cut, self._limit))
        if self._divided.count:
            notify(parts_summary(self._divided, self._bundle))
        if self._short.count:
            outputs = "1 translation has" if self._short.count == 1 else f"{self._short.count:,} translations have"
            notify(f"warning: {outputs} no word at the position of --alternatives: {self._short.numbers}")
        if (terms := self._terms.summary()) is not None:
            notify(terms)
        for warning in self._unusual.warnings(unknown=not self._told):
            notify(warning)
        if (lost := self._lost.warning()) is not None:
            notify(lost)


class _Translator:
    """A model with everything that decides about its output, beside the input.

    Making one raises UserError for options without meaning for the model, and files beside the input that do not fit.
    """

    def __init__(self, request: DecodeRequest, bundle: Bundle, shared: SharedWindows) -> None:
        self.request, self.bundle, self.shared = request, bundle, shared
        refused: dict[str, object] = {"--tags": request.tags, "--documents": request.documents}
        refused |= {f"--{name}": value for name, value in request.aligned.items()}
        refused |= {"--depth": request.select_depth, "--mbr": request.mbr, **request.given}
        self.options = search_options(
            bundle,
            request.model,
            request.settings,
            n_best=1 if request.alternatives is not None or request.mbr is not None else request.n_best,
            encoder_layers=request.encoder_layers,
            decoder_layers=request.decoder_layers,
            without_meaning=refused,
        )
        self.selector = open_selector(request.model, bundle) if request.select_depth else None
        risk = request.mbr and MinimumRisk(bundle, self.options, request.mbr, request.mbr_samples, request.n_best)
        self.risk = risk or None
        self.packing = packing_of(bundle, request.documents)
        # A person at a terminal waits for each answer; a file or a pipe is better sorted into large batches.
        usual = WINDOW if self.packing is None else document_decoding.WINDOW
        self.window = request.window or (1 if request.input is None and sys.stdin.isatty() else usual)
        several = self.options.max_lines != 1
        self.form = OutputFormat(request.n_best, request.as_json, request.alignments, several_lines=several)
        self.aligner = self.marked = None
        if request.aligned:
            self.options = self.options.undivided
            depths = () if self.selector is None else self.selector.depths
            self.aligner = OutputAligner.of(bundle, self.options, request.alignment_head, self.window, depths)
        if request.markup is not None or request.keep:
            self.marked = MarkedInput(request.markup is not None, request.keep, str(request.input or "stdin"))
            if request.input is not None and request.input.is_file():  # a mistake shows before anything is written
                for line in attach(read_text(request.input), request.input):
                    self.marked.read(line)
        self.tags = open_tag_file(request.tags, bundle)
        self.constraints = TargetConstraints(request, bundle, self.options)
        beside = self.tags is not None or request.target_prefix is not None
        if beside and request.input is not None and request.input.is_file():
            for _ in self._lines(0):
                pass

    def translate(self, first: int, total: int | None) -> Iterator[tuple[int, list[str]]]:
        """Translate the input from line ``first`` (from 0) on, with progress and warnings on stderr.

        Args:
            total: lines of the input; None where it is unknown.

        Yields:
            for each input line, or block of lines, in their order, the number of its lines and its output lines.
        """
        with progress_bar("decode", total, done=first) as advance:
            tally = _Tally(self.bundle, typed=self.request.input is None and sys.stdin.isatty())
            try:
                if self.shared.workers.size > 1:
                    yield from self._share(first, advance, tally)
                elif self.packing is None:
                    yield from self._translate_lines(self._lines(first), advance, tally)
                else:
                    lines = self._lines(first)
                    blocks = translate_documents(self.bundle, lines, self.options, self.packing, window=self.window)
                    yield from self._render_blocks(blocks, advance, tally)
                tally.report_all()
            finally:
                tally.report_lines()

    def assist(self) -> None:
        """Translate the windows of this process, which is not the main one."""
        self.shared.assist(self._windows, self._translate_window)

    def _lines(self, first: int) -> Iterator[InputLine]:
        """Yield the lines of the input from line ``first`` (from 0) on, with tags and documents."""
        texts = islice(read_text(self.request.input), first, None)
        name = self.request.input or "stdin"
        lines = attach(texts, name, self.tags, self.request.documents, first=first)
        return self.constraints.attach(lines, name, first)

    def _translate_lines(
        self, lines: Iterable[InputLine], advance: Callable[[int], object], tally: _Tally
    ) -> Iterator[tuple[int, list[str]]]:
        """Translate lines one by one; yields as `translate` does."""
        if (position := self.request.alternatives) is not None:
            find = partial(find_alternatives, position=position, count=self.request.n_best, window=self.window)
            for other in find(self.bundle, lines, self.options, advance=advance):
                tally.add_alternatives(other)
                yield 1, [json.dumps(other.as_json(), ensure_ascii=False, allow_nan=False)]
            return
        translate = translate_lines if self.selector is None else self.selector.translate
        if self.bundle.recipe.data.is_language_model:
            translate = continue_lines
        if self.risk is not None:
            translate = self.risk.translate
        if self.marked is not None:
            lines = self.marked.texts(lines)
        translations = translate(self.bundle, lines, self.options, advance=advance, window=self.window)
        if self.aligner is not None:
            yield from self._aligned(self.aligner, translations, tally)
        else:
            for found in translations:
                tally.add(found)
                yield 1, render_line(found, self.form)
        if self.selector is not None:
            tally.depths += self.selector.counts
            self.selector.counts.clear()

    def _aligned(
        self, aligner: OutputAligner, translations: Iterable[TranslatedLine], tally: _Tally
    ) -> Iterator[tuple[int, list[str]]]:
        """Write translations with their alignments, or with the tags of their sources; yields as `translate` does."""
        for each in aligner.lines(translations, self.request.n_best):
            tally.add(each.translation)
            source = None
            if self.marked is not None:
                marked = self.marked.take(each.translation.source.number)
                each, source = replace(each, texts=each.with_markup(marked, self.bundle.tokenizers)), marked.line
            yield 1, render_line(each.translation, self.form, each, source)

    def _render_blocks(
        self, blocks: Iterable[BlockTranslation], advance: Callable[[int], object], tally: _Tally
    ) -> Iterator[tuple[int, list[str]]]:
        """Write blocks of lines as text; yields as `translate` does."""
        for found in blocks:
            tally.mismatches.add(found)
            tally.add(found.translation)
            count = len(found.block.sentences)
            advance(count)
            yield count, render_block(found, self.request.n_best, self.request.as_json)

    # --- several processes ---------------------------------------------------------------------------------------

    def _windows(self, first: int) -> Iterator[list[Any]]:
        """Return the windows of the input from line ``first`` (from 0) on: of lines, or of blocks of documents."""
        lines = self._lines(first)
        if self.packing is not None:
            return block_windows(self.bundle, lines, self.packing, window=self.window)
        return text_windows(lines, self.window, lambda line: len(line.text))

    def _translate_window(self, window: list[Any]) -> dict[str, Any]:
        """Translate a window; returns, as JSON, what `translate` yields and the tally."""
        tally = _Tally(self.bundle, at_once=False)
        if self.packing is None:
            outputs = list(self._translate_lines(window, lambda lines: None, tally))
        else:
            blocks = translate_blocks(self.bundle, window, self.options, self.packing)
            outputs = list(self._render_blocks(blocks, lambda lines: None, tally))
        return {"outputs": outputs, "tally": tally.as_json()}

    def _share(self, first: int, advance: Callable[[int], object], tally: _Tally) -> Iterator[tuple[int, list[str]]]:
        """Translate the windows with the other processes; yields as `translate` does."""
        for found in self.shared.lead(first, self._windows(first), self._translate_window):
            tally.merge(found["tally"])
            yield from found["outputs"]
            advance(sum(count for count, _ in found["outputs"]))

    def _plugins(self) -> dict[str, str | None]:
        """Return what the record says of plugins: the hash of the source of each, and its package and version."""
        found: dict[str, str | None] = {}
        recipe = self.bundle.recipe.model_copy(update={"decoding": self.options})
        for each in chain(used_plugins(recipe), *(used_plugins(other.recipe) for other in self.bundle.others)):
            found[f"plugin {each.module}"] = each.sha256
            found[f"version of the plugin {each.module}"] = each.release
        return found

    def record(self, source: UnchangedFile) -> dict[str, Any]:
        """Return what the output's bytes depend on beside the numerics: only a run with the same record is resumed.

        The window belongs to it, since its lines share batches.
        """
        documents = self.request.documents
        return {
            "input": sha256_file(source.path),
            "tags": None if self.request.tags is None else sha256_file(self.request.tags),
            "documents": None if documents is None else sha256_file(documents),
            "packing": None if self.packing is None else self.packing.model_dump(mode="json"),
            "model": self.bundle.identity().stored_digest,
            **self._plugins(),
            **self.request.ensemble_record(self.bundle),
            "max_source_length": self.bundle.max_source_length,
            "decoding": self.options.recorded(),
            "selector": None if self.selector is None else self.selector.digest,
            "dtype": dtype_name(self.bundle.dtype),
            "window": self.window,
            "n_best": self.request.n_best,
            **({} if self.risk is None else {"mbr": self.risk.record}),
            "json": self.request.as_json,
            **({} if self.aligner is None else {**self.request.aligned, "heads": asdict(self.aligner.heads)}),
            **self.constraints.record(),
            "sparsenmt": __version__,
        }


def _stream(translator: _Translator, write: Callable[[str], object]) -> None:
    """Write line by line to the caller, a pipe or a device, which cannot be resumed."""
    request = translator.request
    total = UnchangedFile(request.input).lines if request.input is not None and request.input.is_file() else None
    lines = (line for _, each in translator.translate(0, total) for line in each)
    if request.output is not None:
        write_lines(request.output, lines)
        return
    for line in lines:
        write(line)


def _write_file(translator: _Translator, output: Path) -> None:
    """Write to a file, which gets its name when it is complete; resume an interrupted run if the input is a file."""
    request = translator.request
    source = UnchangedFile(request.input) if request.input is not None and request.input.is_file() else None
    record, total = (None, None) if source is None else (translator.record(source), source.lines)
    own = numerics(translator.bundle.device)
    with resumable_output(output, record, total or 0, own) as file:
        other_numerics = "" if file.begun_with is None else numerics_changes(file.begun_with, own)
        if other_numerics and not request.mix_numerics:
            raise UserError(
                f"it was begun with other numerics, which change last digits: {other_numerics}",
                where=str(output),
                hint="Continue it as it was begun, allow both in one file with --mix-numerics, or remove "
                f"{partial_path(output.resolve()).name} to begin again.",
            )
        if file.complete:
            notify(f"{output}: is complete; nothing is left to do")
            return
        if file.restart_reason is not None:
            notify(f"{output}: starts again: {file.restart_reason}")
        if file.lines:
            notify(f"{output}: resumes after line {file.lines:,}")
        if other_numerics:
            notify(f"warning: {output}: its last digits are of different numerics now: {other_numerics}")
        with _partial_output_noted(file, output):
            _write_rest(translator, file, source, total)


def _write_rest(
    translator: _Translator, file: ResumableOutput, source: UnchangedFile | None, total: int | None
) -> None:
    """Write the output of the lines that are not done, and commit it after every window."""
    done = file.lines
    for number, (count, lines) in enumerate(translator.translate(done, total), start=1):
        file.write(lines)
        done += count
        if source is not None and number % translator.window == 0:
            source.check()
            file.commit(done)
    if source is not None:
        source.check()
    file.finish(done)


@contextmanager
def _partial_output_noted(file: ResumableOutput, output: Path) -> Iterator[None]:
    """Report what is kept of the output if the block is interrupted or fails."""
    try:
        yield
    except BaseException as stop:
        note = f"{output} is kept up to line {file.lines:,}"
        if file.lines and isinstance(stop, Interrupted):
            stop.note, stop.resumable = note, True
        elif file.lines:
            notify(f"{note}: the same command resumes after it", needed=True)
        raise


def report_mismatches(mismatches: Mismatches) -> None:
    """Report the blocks that came back with another number of sentences, if any did."""
    warning = mismatches.warning()
    if warning is not None:
        notify(warning)
