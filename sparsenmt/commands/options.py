"""Options that several commands share, and the parser of lists of numbers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sparsenmt.errors import UserError
from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.model.sites import SITES
from sparsenmt.plugins.record import explain_missing
from sparsenmt.plugins.table import EntryTable
from sparsenmt.recipe.choices import (
    LARGEST_BEAM,
    OWN_SHORTLIST,
    DecodingDtype,
    LongLines,
    SignificanceMethod,
    UnknownTokens,
    is_device_name,
)
from sparsenmt.strategy import STRATEGIES

if TYPE_CHECKING:
    from sparsenmt.workflows.evaluation.evaluate import ModelRun

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class FilePath(click.Path):
    """A path that a command reads or writes.

    Args:
        pipes: True if it is read, or written, once, so that it may be a pipe, as in ``<(command)``.
        directories: True if it may be a directory.
    """

    def __init__(self, *, pipes: bool = False, directories: bool = True) -> None:
        super().__init__(path_type=Path)
        self.pipes, self.directories = pipes, directories

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        name = None
        if param is not None:
            name = param.opts[0] if param.param_type_name == "option" else param.human_readable_name.strip("[]. ")
        if value == "-":
            streams = "/dev/stdin for standard input, /dev/stdout for standard output, or " if self.pipes else ""
            hint = f"Write {streams}./- for a file of this name."
            raise UserError("'-' stands for no file, nor for standard input or output", where=name, hint=hint)
        if not self.pipes and path.is_fifo():
            message = f"{path} is a pipe, which cannot be read twice, nor replaced"
            raise UserError(message, where=name, hint="Write it to a file, and name that.")
        if not self.directories and path.is_dir():
            of_model = isinstance(param, click.Argument) and ctx is not None
            takes_model = of_model and ctx and any("--model" in each.opts for each in ctx.command.params)
            hint = "Name a model directory with --model, and its text with --source." if takes_model else "Name a file."
            raise UserError(f"{path} is a directory, not a file", where=name, hint=hint)
        return path


class TableChoice(click.Choice):  # type: ignore[type-arg]  # generic in newer versions of click alone
    """A name in a table, which is read when a value is given, or all are listed; that imports no installed plugin.

    Args:
        table: of entries.
        more: further names.
        offered: True for the entries that may be named.
    """

    def __init__(
        self, table: EntryTable[Any], more: Iterable[str] = (), offered: Callable[[Any], bool] = lambda entry: True
    ) -> None:
        self.table, self.more, self.offered, self.case_sensitive = table, tuple(more), offered, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        entries = {name: self.table.known(name) for name in self.table.names()}
        return (*(name for name, entry in entries.items() if entry is None or self.offered(entry)), *self.more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        entry = self.table.get(value)
        if entry is not None and self.offered(entry):
            return value
        if value not in self.more and entry is None and (missing := explain_missing(self.table.kind, value)):
            self.fail(f"There is none of the name '{value}'. {missing.strip()}", param, ctx)
        return super().convert(value, param, ctx)


PATH = FilePath()
TEXT = FilePath(directories=False)
PIPE = FilePath(pipes=True, directories=False)
DTYPES = get_args(DecodingDtype)

dump_config_option = click.option("--dump-config", is_flag=True, help="Print the resolved recipe and exit.")
threads_option = click.option("--threads", type=click.IntRange(1), help="Number of CPU threads.  [default: all cores]")
beam_size_option = click.option(
    "--beam-size", type=click.IntRange(1, LARGEST_BEAM), help="Beam size.  [default: the recipe's]"
)
disabled_heads_option = click.option(
    "--disable-heads",
    "disabled_heads",
    multiple=True,
    metavar="SITE:N,N",
    help="Attention heads that give zeros, in every layer: SITE:NUMBERS from 1, as encoder_self:2,4; repeatable.",
)
tags_option = click.option(
    "--tags",
    type=TEXT,
    help="Part-of-speech tags of the source: CoNLL-U or word_TAG.  [default: made by the model's tagger, if needed]",
)
documents_option = click.option(
    "--documents", type=TEXT, help="File with the document id of every line; a document ends where the id changes."
)
sites_option = click.option(
    "--site", "sites", multiple=True, type=click.Choice(SITES), help="Only this attention site; repeatable."
)


def count_option(name: str, default: int, text: str) -> Decorator:
    """An option that is a number from 1 on."""
    return click.option(name, type=click.IntRange(1), default=default, show_default=True, help=text)


def tagger_option(text: str) -> Decorator:
    """``--tagger``, described by ``text``."""
    names = click.Choice(["hanta", "spacy", "stanza"])
    return click.option("--tagger", type=names, default="hanta", show_default=True, help=text)


def batch_tokens_option(note: str = "source tokens in a batch, padding included, times the beam size") -> Decorator:
    """``--batch-tokens``, described by ``note``."""
    text = f"Most {note}.  [default: the recipe's]"
    return click.option("--batch-tokens", type=click.IntRange(1), help=text)


def _device(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_device_name(value):
        hint = "Name a device of this machine, or leave it out."
        raise UserError(f"must be one of auto, cpu, cuda, cuda:N; not '{value}'", where="--device", hint=hint)
    return value


def device_option(default: str | None = "auto") -> Decorator:
    """``--device``.

    Args:
        default: None where it is the recipe's.
    """
    usual = "the recipe's" if default is None else "auto, which is CUDA if available"
    text = f"Device: auto, cpu, cuda, or cuda:N, the one of that number from 0.  [default: {usual}]"
    return click.option("--device", metavar="NAME", default=default, callback=_device, help=text)


def stacked(*options: Decorator) -> Decorator:
    """One decorator for several options, in the order of their help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


language_options = stacked(
    *(
        click.option(
            f"--{side}-language",
            metavar="CODE",
            help=f"Code of the {side} language, for a model of several languages.  [default: the recipe's]",
        )
        for side in ("source", "target")
    )
)
"""``--source-language`` and ``--target-language``, for commands with which a multilingual model reads text."""

processor_options = stacked(threads_option, device_option())
"""``--threads`` and ``--device``, for commands that open models."""

training_processor_options = stacked(
    click.option("--threads", type=click.IntRange(1), help="Number of CPU threads.  [default: the recipe's]"),
    device_option(None),
)
"""``--threads`` and ``--device`` for commands that train; see `training_overrides`."""

evaluation_options = stacked(beam_size_option, batch_tokens_option())
"""``--beam-size`` and ``--batch-tokens``, for commands that translate as recipes say."""


def training_overrides(threads: int | None, device: str | None) -> list[str]:
    """Return `training_processor_options` as overrides of a recipe."""
    given = {"threads": threads, "device": device}
    return [f"training.{key}={value}" for key, value in given.items() if value is not None]


def trained_and_run(options: dict[str, Any]) -> tuple[list[str], ModelRun]:
    """Take `training_processor_options` and `evaluation_options` out of the options of a command.

    Returns:
        the former as overrides of a recipe; how models run that are evaluated.
    """
    from sparsenmt.workflows.evaluation.evaluate import ModelRun

    device = options.pop("device")
    beam_size, batch_tokens = options.pop("beam_size"), options.pop("batch_tokens")
    run = ModelRun(device=device or "auto", beam_size=beam_size, batch_tokens=batch_tokens)
    return training_overrides(options.pop("threads"), device), run


depth_options = stacked(
    *(
        click.option(
            f"--{side}-layers",
            type=int,
            metavar="N",
            help=f"Run only the first N layers of the {side}.  [default: the recipe's, or all]",
        )
        for side in ("encoder", "decoder")
    )
)
alignment_head_option = click.option(
    "--alignment-head",
    metavar="LAYER[.HEAD]",
    help="Cross-attention that aligns, numbered from 1; the mean over the heads of a layer, or one head.  "
    "[default: the head that training guided, or the last layer]",
)
alignment_options = stacked(
    click.option(
        "--alignments",
        type=click.Choice(["hard", "soft"]),
        help="Write the word alignment of every output: links, or the weights of attention (JSON).",
    ),
    alignment_head_option,
    click.option(
        "--markup",
        type=click.Choice(["xml"]),
        help="Lines have inline tags of XML or HTML: translate their text, and move the tags by alignment.",
    ),
    click.option(
        "--keep",
        metavar="REGEX",
        multiple=True,
        help="Keep what matches as it is, such as '\\{[^{}]*\\}' or 'https?://\\S+'. May be repeated.",
    ),
)
source_options = stacked(
    click.option("--source", type=TEXT, help="Text to translate.  [default: `data.test` of the models' recipes]"),
    click.option("--reference", type=TEXT, help="Reference translation of --source, line by line."),
)
set_option = click.option(
    "--set",
    "kind",
    type=click.Choice(["test", "dev"]),
    default="test",
    show_default=True,
    help="Text of the recipes to translate.",
)
speed_options = stacked(
    click.option("--speed/--no-speed", default=True, show_default=True, help="Time decoding, all systems in turns."),
    count_option("--speed-lines", 200, "Number of lines to time."),
    count_option("--rounds", 3, "Turns of each system; the fastest counts."),
)
decoding_options = stacked(
    click.option("--method", type=TableChoice(STRATEGIES), help="Decoding strategy."),
    beam_size_option,
    click.option(
        "--length-penalty",
        type=click.Choice(["gnmt", "average", "none"]),
        help="Length penalty: gnmt (Wu et al. 2016), the average log-probability, or none.",
    ),
    click.option("--alpha", type=click.FloatRange(0), help="Exponent of the length penalty."),
    click.option(
        "--max-length-factor",
        type=click.FloatRange(0),
        help="Longest output in tokens: factor x source tokens + offset.",
    ),
    click.option("--max-length-offset", type=click.IntRange(0), help="Offset of --max-length-factor."),
    click.option("--min-length", type=click.IntRange(0), help="Shortest output in tokens."),
    click.option(
        "--no-repeat-ngram", type=click.IntRange(0), help="Forbid repeated n-grams of this length; 0: allow all."
    ),
    click.option(
        "--unknown",
        type=click.Choice(get_args(UnknownTokens)),
        help="Unknown tokens of the output: allow (written as U+2047), forbid, or copy the source text that the model "
        "attends to.",
    ),
    click.option(
        "--shortlist",
        metavar="[FILE]",
        is_flag=False,
        flag_value=OWN_SHORTLIST,
        help="Use only the tokens that each sentence's shortlist has: that of the model, or a file of `sparsenmt "
        "shortlist`. none: use all.",
    ),
    click.option(
        "--long",
        type=click.Choice(get_args(LongLines)),
        help="Lines that are longer than those of the training text: split them into sentences, cut what the model "
        "cannot read, or refuse them.  [default: the recipe's, or split; cut if the recipe cuts sources]",
    ),
    click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sampling temperature."),
    click.option("--top-k", type=click.IntRange(0), help="Sample from the k most probable tokens; 0: from all."),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        help="Sample from the smallest set with this probability.",
    ),
    click.option("--seed", type=click.IntRange(0), help="Seed of sampling."),
    click.option(
        "--draft-tokens",
        type=click.IntRange(1, 64),
        help="speculative: tokens that the first decoder layers draft before all layers check them.",
    ),
    click.option("--draft-layers", type=click.IntRange(1), help="speculative: decoder layers that draft."),
    click.option(
        "--exit-confidence",
        type=click.FloatRange(0, 1),
        help="early_exit: a token takes the first decoder exit where its probability exceeds the next best one's by "
        "more than this.",
    ),
    batch_tokens_option(),
    click.option("--dtype", type=click.Choice(DTYPES), help="Data type of matrix products; auto takes the fastest."),
    depth_options,
    click.option(
        "--depth",
        "select_depth",
        type=click.Choice(["auto"]),
        callback=lambda _context, _parameter, value: value is not None,
        help="auto: let the model's selector choose the layers for every line; see `sparsenmt select-depth`.",
    ),
    disabled_heads_option,
    language_options,
    processor_options,
    click.option(
        "--window",
        type=click.IntRange(1, 2**31),
        help="Lines, or blocks of documents, read before the first is written.  "
        "[default: 4096 lines, or 256 blocks; 1 at a terminal]",
    ),
    click.option(
        "--mix-numerics",
        is_flag=True,
        help="Resume an output that was begun with other kernels, another number of threads, PyTorch or processor.",
    ),
)
"""The decoding options of `decode` and `distill`; see `DecodeRequest.of`."""


def _weights(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
    return () if value is None else tuple(numbers(value, "--ensemble-weights", repeated=True, example="2,1"))


ensemble_options = stacked(
    click.option(
        "--ensemble",
        multiple=True,
        type=PATH,
        metavar="DIR",
        help="Further model with the same target vocabulary, whose predictions are averaged; repeatable.",
    ),
    click.option(
        "--ensemble-depth",
        "ensemble_depths",
        multiple=True,
        metavar="N,M",
        help="The same model with N encoder and M decoder layers as a member of the ensemble; repeatable.",
    ),
    click.option(
        "--ensemble-weights",
        callback=_weights,
        metavar="W,W,...",
        help="Weights of MODEL_DIR, then of each --ensemble and --ensemble-depth.  [default: equal]",
    ),
    click.option(
        "--ensemble-average",
        type=click.Choice(["log", "linear"]),
        default="log",
        show_default=True,
        help="Average of log-probabilities, or of probabilities.",
    ),
)
"""The members of an ensemble, for `decode`."""
risk_options = stacked(
    click.option(
        "--mbr",
        type=TableChoice(METRICS, offered=lambda metric: metric.is_utility),
        help="Minimum Bayes risk: of the hypotheses of the beam, or of samples with --method sample, write the one "
        "that is most like all of them by this metric.",
    ),
    click.option(
        "--mbr-samples",
        type=click.IntRange(1, 10_000),
        help="With --method sample: samples of each line for --mbr.  [default: 16]",
    ),
)
"""Minimum Bayes risk, for `decode`."""


def scoring_options(default: str, *, texts: bool = False) -> Decorator:
    """``--metric``, ``--lowercase``, ``--tokenize`` and ``--language``, passed on as ``scoring``, a `ScoringOptions`.

    Args:
        default: the metrics that are taken if none is named, for the help.
        texts: True if the command takes language models, too.
    """
    options = [
        click.option(
            *("--metric", "-m", "metrics"),
            multiple=True,
            type=TableChoice(METRICS, TEXT_METRICS if texts else ()),
            help=f"Metric, the most important first; repeatable.  [default: {default}]",
        ),
        click.option("--lowercase", "-l", is_flag=True, help="Ignore case in BLEU and chrF (TER and ROUGE always do)."),
        click.option("--tokenize", help="sacrebleu's tokenizer, for BLEU and length.  [default: fits the text]"),
        click.option("--language", help="Language of the text.  [default: the models' target]"),
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(
            *, metrics: tuple[str, ...], lowercase: bool, tokenize: str | None, language: str | None, **given: Any
        ) -> None:
            from sparsenmt.evaluation.scorer import ScoringOptions

            command(scoring=ScoringOptions(metrics, lowercase, tokenize, language), **given)

        return stacked(*options)(call)

    return decorate


def significance_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--significance``, ``--resamples`` and ``--seed``, passed on as ``test``, a `PairedTest`."""

    @functools.wraps(command)
    def call(*, significance: SignificanceMethod, resamples: int, test_seed: int, **given: Any) -> None:
        from sparsenmt.evaluation.significance import PairedTest

        command(test=PairedTest(significance, resamples, test_seed), **given)

    return stacked(
        click.option(
            "--significance",
            type=click.Choice(get_args(SignificanceMethod)),
            default="bootstrap",
            show_default=True,
            help="Two-sided test of a difference: paired bootstrap, or paired approximate randomization.",
        ),
        click.option(
            "--resamples",
            type=click.IntRange(1, 1_000_000),
            default=1000,
            show_default=True,
            help="Number of samples of this test, and of the intervals.",
        ),
        click.option(
            "--seed",
            "test_seed",
            type=click.IntRange(0),
            default=12345,
            show_default=True,
            help="Seed of these samples.",
        ),
    )(call)


sacrebleu_p_option = click.option(
    "--sacrebleu-p", is_flag=True, help="Show the p-value that sacrebleu prints for the same samples, too."
)


def report_options(plot: str | None = "Draw the report to this file, .png or .svg.") -> Decorator:
    """``--json``, ``--csv`` and ``--plot``, passed on as ``files``, a `ReportFiles`.

    Args:
        plot: help of ``--plot``; None: there is none.
    """
    options = [
        click.option("--json", "json_file", type=PATH, help="Write the report as JSON to this file."),
        click.option(
            "--csv", "csv_file", type=PATH, help="Write the main table as CSV to this file; further tables beside it."
        ),
    ]
    if plot is not None:
        options.append(click.option("--plot", "plot_file", type=PATH, help=plot))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(*, json_file: Path | None, csv_file: Path | None, plot_file: Path | None = None, **given: Any) -> None:
            from sparsenmt.report.output_files import ReportFiles

            command(files=ReportFiles(json_file, csv_file, plot_file), **given)

        return stacked(*options)(call)

    return decorate


def parsed(parse: Callable[..., Sequence[float]], **limits: Any) -> Callable[..., Any]:
    """The callback of an option whose value, or whose values together, `numbers` or `whole_numbers` parses."""

    def callback(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        text = ",".join(value) if isinstance(value, tuple) else value
        return tuple(parse(text, parameter.opts[0], **limits)) if text is not None and value != () else value

    return callback


def numbers(
    text: str,
    option: str,
    *,
    least: float = 0,
    most: float = 1e6,
    above: bool = False,
    example: str = "0.5,1",
    repeated: bool = False,
) -> list[float]:
    """Parse a list of numbers with commas between them.

    Args:
        most: infinity if there is no upper bound.
        above: True if ``least`` itself is not allowed, and neither is ``most``.
        repeated: True if a number may be there twice.

    Raises:
        UserError: a part is no number, or lies outside of the range; or a number is there twice.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    inside = (least < value < most if above else least <= value <= most for value in found)
    if not found or not all(inside) or any(math.isinf(value) for value in found):
        bounds = f"between {least:g} and {most:g}" if above else f"from {least:g} to {most:g}"
        bounds = bounds if math.isfinite(most) else f"of at least {least:g}"
        hint = f"Write them with commas between them, as {example}."
        raise UserError(f"'{text}' is not a list of numbers {bounds}", where=option, hint=hint)
    _check_different([] if repeated else found, option)
    return found


def whole_numbers(
    text: str, option: str, *, most: int = 1000, ranges: bool = False, rising: bool = False, example: str = "2,4"
) -> list[int]:
    """Parse a list of whole numbers from 1 on, with commas between them.

    Args:
        ranges: True if ``1-3`` stands for 1, 2, 3; the result is sorted then.
        rising: True if every number must be larger than the one before it.

    Raises:
        UserError: the text is no such list, or a number is in it twice.
    """
    found: list[int] = []
    sound = True
    for part in text.replace(" ", "").split(","):
        ends = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (0, 0) if ends is None else (int(ends[1]), int(ends[2] or ends[1]))
        sound &= 1 <= first <= last <= most and (ranges or first == last)
        found += range(first, last + 1) if sound else []
    if rising and sound:
        sound = all(a < b for a, b in pairwise(found))
    if not sound:
        kind = "rising whole numbers" if rising else "whole numbers"
        raise UserError(
            f"'{text}' is not a list of {kind} from 1 to {most:,}",
            where=option,
            hint=f"Write them with commas between them, as {example}.",
        )
    if ranges:
        return sorted(set(found))
    _check_different(found, option)
    return found


def _check_different(found: Sequence[float], option: str) -> None:
    for i, number in enumerate(found):
        if number in found[:i]:
            raise UserError(f"{number:g} is in the list twice", where=option, hint="Write every number once.")
