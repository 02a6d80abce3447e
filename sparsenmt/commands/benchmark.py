"""``sparsenmt benchmark``: how fast a model translates and trains on this machine, and how fast it could."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from sparsenmt.errors import UserError
from sparsenmt.recipe.choices import PRESETS, DecodingDtype, Device

if TYPE_CHECKING:
    from sparsenmt.workflows.benchmark.measure import Case
    from sparsenmt.workflows.benchmark.workloads import Subject

_PATH = click.Path(path_type=Path)


@click.command("benchmark", short_help="Measure decoding and training speed, and the share of the limit.")
@click.argument("model", metavar="[MODEL_DIR|RECIPE]", type=_PATH, required=False)
@click.argument("overrides", nargs=-1)
@click.option("--preset", type=click.Choice(list(PRESETS)), help="A plain model of these sizes instead.")
@click.option("--vocabulary", type=click.IntRange(8), help="Its pieces; of a recipe, instead of its own number.")
@click.option("--decoding/--no-decoding", default=True, help="Time beam search.  [default: do]")
@click.option("--training/--no-training", default=True, help="Time updates.  [default: do]")
@click.option(
    "--lengths",
    multiple=True,
    metavar="S:T",
    help="Source and target pieces a sentence, without </s>; repeatable.  [default: 15:16]",
)
@click.option("--sentences", type=click.IntRange(1), default=32, show_default=True, help="Decoding: of a batch.")
@click.option("--beam-size", type=click.IntRange(1), default=4, show_default=True, help="Decoding: of a sentence.")
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Training: rows of a batch times the longer side.",
)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice([name for name in get_args(DecodingDtype) if name != "auto"]),
    multiple=True,
    help="Precision; repeatable; int8: of decoding only.  [default: fp32, and bf16 where it is native]",
)
@click.option("--device", type=click.Choice(get_args(Device)), default="auto", help="[default: CUDA, if any]")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="The fastest counts.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--json", "json_file", type=_PATH, help="Write the report as JSON.")
@click.option("--csv", "csv_file", type=_PATH, help="Write the table as CSV.")
def command(
    model: Path | None,
    overrides: tuple[str, ...],
    preset: str | None,
    vocabulary: int | None,
    decoding: bool,
    training: bool,
    lengths: tuple[str, ...],
    sentences: int,
    beam_size: int,
    batch_tokens: int,
    dtypes: tuple[str, ...],
    device: str,
    repeats: int,
    threads: int | None,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Time a model on this machine: one in MODEL_DIR, one of a RECIPE or of a preset with random weights.

    OVERRIDES change keys of a RECIPE, as for `train`. Pieces are random and lengths forced: every hypothesis lives to
    the last step, and no batch has padding. Of a trained model with filters, what they drop of random pieces is not
    what they drop of text: `compare` times that. Nothing else should run on the machine.

    \b
    tokens per second   target pieces with </s>, of the fastest repeat
    spread              how far the slowest repeat lies above it
    gflop per token     matrix products that were executed: without what was dropped,
                        with hypotheses that were given up
    gflops              of them a second
    limit gflops        what the work's own products reach with nothing between them
    share               gflops / limit gflops
    share of square     gflops / what a large square product reaches
    """
    from sparsenmt.devices import pick_device, use_threads
    from sparsenmt.progress import Bars
    from sparsenmt.report.output_files import check_outputs
    from sparsenmt.report.tables import render, write_report
    from sparsenmt.workflows.benchmark.measure import check_lengths, measure, report, steps_of

    check_outputs({"--json": json_file, "--csv": csv_file}, [])
    if threads is not None:
        use_threads(threads)
    place = pick_device(device)  # type: ignore[arg-type]  # click has checked it
    subject = _subject(model, overrides, preset, vocabulary)
    parts = [name for name, wanted in (("decoding", decoding), ("training", training)) if wanted]
    cases = _cases(parts, lengths or ("15:16",), dtypes or _native(device), sentences, beam_size, batch_tokens)
    check_lengths(subject, cases)
    with Bars().counting(subject.name, total=steps_of(cases, repeats), unit="step") as bar:
        found = measure(subject, cases, place, repeats, bar.update)
    settings: dict[str, object] = {
        "model": str(model or preset or "base"),
        "overrides": list(overrides),
        "batch_tokens": batch_tokens,
        "repeats": repeats,
        **_versions(place.type),
    }
    result = report(subject, found, settings, place)
    click.echo(render(result))
    for path in write_report(result, json=json_file, csv=csv_file):
        click.echo(f"{path}: written", err=True)


def _subject(model: Path | None, overrides: Sequence[str], preset: str | None, vocabulary: int | None) -> Subject:
    from sparsenmt.workflows.benchmark.measure import subject_of_model, subject_of_preset, subject_of_recipe

    if model is None:
        return subject_of_preset(preset or "base", vocabulary or 32_000)
    if preset is not None:
        raise UserError("is given beside a model", where="--preset", hint="Leave one of the two out.")
    if model.suffix in (".yaml", ".yml") and not model.is_dir():
        from sparsenmt.assemble import load_recipe

        return subject_of_recipe(load_recipe(model, overrides), str(model), vocabulary)
    for given, option in ((overrides, "OVERRIDES"), (vocabulary, "--vocabulary")):
        if given:
            raise UserError("a trained model is as it is", where=option, hint="Name a recipe, or leave it out.")
    return subject_of_model(model)


def _cases(
    parts: Sequence[str], lengths: Sequence[str], dtypes: Sequence[str], sentences: int, beams: int, batch_tokens: int
) -> list[Case]:
    """Every part at every length in every precision."""
    from sparsenmt.workflows.benchmark.measure import Case
    from sparsenmt.workflows.benchmark.workloads import Sizes

    cases = []
    for source, target in map(_two_lengths, lengths):
        longer = max(source, target) + 1
        sizes = {
            "decoding": Sizes(source + 1, target + 1, sentences, beams),
            "training": Sizes(source + 1, target + 1, max(batch_tokens // longer, 1)),
        }
        for part in parts:
            chosen = [dtype for dtype in dtypes if part == "decoding" or dtype != "int8"]
            cases += [Case(part, dtype, sizes[part]) for dtype in chosen]  # type: ignore[arg-type]
    if not cases:
        raise UserError("nothing is left to time", where="--dtype", hint="Time decoding too: int8 is of decoding only.")
    return cases


def _two_lengths(text: str) -> tuple[int, int]:
    source, _, target = text.partition(":")
    if not (source.isdecimal() and target.isdecimal() and int(source) and int(target)):
        raise UserError(
            f"'{text}' is not two lengths",
            where="--lengths",
            hint="Write the source's and the target's number of pieces, as 15:16.",
        )
    return int(source), int(target)


def _native(device: str) -> tuple[str, ...]:
    """The precisions that the device computes itself."""
    import torch

    from sparsenmt.devices import pick_device
    from sparsenmt.training.precision import pick_dtype

    native = pick_dtype("auto", pick_device(device))  # type: ignore[arg-type]
    return ("fp32", "bf16") if native == torch.bfloat16 else ("fp32",)


def _versions(kind: str) -> dict[str, object]:
    import torch

    from sparsenmt import __version__

    return {
        "device": kind,
        "threads": torch.get_num_threads(),
        "sparsenmt": __version__,
        "torch": torch.__version__,
    }
