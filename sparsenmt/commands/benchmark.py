"""``sparsenmt benchmark``: the speed of decoding, scoring and training on this machine, and the machine's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from sparsenmt.commands.options import PATH, count_option, processor_options, report_options
from sparsenmt.errors import UserError
from sparsenmt.recipe.choices import LARGEST_BEAM, PRESETS, DecodingDtype

if TYPE_CHECKING:
    from sparsenmt.report.output_files import ReportFiles


@click.command("benchmark")
@click.argument("model", metavar="[MODEL_DIR|RECIPE]", type=PATH, required=False)
@click.argument("overrides", nargs=-1)
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Time a plain model of these sizes.  [default: base]")
@click.option(
    "--vocabulary",
    type=click.IntRange(8),
    help="Vocabulary size of a preset or recipe.  [default: 32000; the recipe's]",
)
@click.option(
    "--decoding/--no-decoding",
    default=True,
    help="Time beam search; of a language model the continuation of prompts.  [default: --decoding]",
)
@click.option(
    "--scoring/--no-scoring",
    default=None,
    help="Language models: time the reading of a text, segment by segment, in fp32.  [default: --scoring]",
)
@click.option("--training/--no-training", default=True, help="Time updates.  [default: --training]")
@click.option(
    "--lengths",
    multiple=True,
    metavar="S:T",
    help="Source and target tokens of a sentence, without </s>; of a language model, of a prompt and its continuation; "
    "repeatable.  [default: 15:16; 64:64]",
)
@click.option("--sentences", type=click.IntRange(1), help="Decoding: sentences of a batch, or prompts.  [default: 32]")
@click.option(
    "--beam-size",
    type=click.IntRange(1, LARGEST_BEAM),
    help="Decoding: beam size.  [default: 4; of a language model 1, greedy search]",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    help="Training: sentences of a batch times its longer side, or tokens of its segments.  [default: 4096; a language "
    "model's: the recipe's]",
)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice([name for name in get_args(DecodingDtype) if name != "auto"]),
    multiple=True,
    help="Data type; repeatable; fp16 and int8: decoding only.  [default: fp32, and bf16 where it is native]",
)
@count_option("--repeats", 5, "Timed repeats; the fastest counts.")
@processor_options
@report_options(plot=None)
def command(files: ReportFiles, lengths: tuple[str, ...], **settings: Any) -> None:
    """Time a model on this machine: one in MODEL_DIR, one of a RECIPE or of a preset with random weights.

    OVERRIDES change keys of a RECIPE, as for `train`. Tokens are random and lengths forced: every hypothesis has the
    maximum length, and no batch has padding. The filters of a trained model drop another share of random tokens than of
    text: `compare` times real text. Nothing else should run on the machine.

    A language model continues prompts (generation), reads a text as `score --text` does (scoring), and is trained on
    segments of its recipe, both with a full segment memory.

    \b
    tokens per second   target tokens with </s>, in the fastest repeat
    spread              excess time of the slowest repeat over the fastest
    gflop per token     matrix products that were executed: without those that
                        sparsity saved, with those of discarded hypotheses
    gflops              executed matrix products per second
    limit gflops        rate of the same matrix products with nothing between them
    share               gflops / limit gflops
    share of square     gflops / rate of a large square product
    kept mb             language models: keys and values that the next tokens
                        attend to; in training the memory of the streams
    """
    from sparsenmt.process.progress import notify
    from sparsenmt.workflows.evaluation.benchmark.measurement import BenchmarkRequest, benchmark

    files.check([settings["model"]])
    report = benchmark(BenchmarkRequest(lengths=[_two_lengths(text) for text in lengths], **settings))
    click.echo(report)
    for path in files.write(report):
        notify(f"{path}: written")


def _two_lengths(text: str) -> tuple[int, int]:
    source, _, target = text.partition(":")
    if not (source.isdecimal() and target.isdecimal() and int(source) and int(target)):
        raise UserError(
            f"'{text}' is not two lengths",
            where="--lengths",
            hint="Write the numbers of source and target tokens, as 15:16.",
        )
    return int(source), int(target)
