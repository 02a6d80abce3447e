"""``sparsenmt slice``: the layers of a model that run at a depth, or the tokens of a text, as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, TEXT

_TEXT = "Text; the tokens that it has stay, on {}; several times."


@click.command("slice")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--encoder-layers", "-n", type=int, metavar="N", help="Encoder layers to keep.  [default: all]")
@click.option("--decoder-layers", "-m", type=int, metavar="M", help="Decoder layers to keep.  [default: all]")
@click.option("--unroll", is_flag=True, help="Write a layer that is applied several times as several layers.")
@click.option("--vocabulary", type=TEXT, multiple=True, metavar="FILE", help=_TEXT.format("both sides"))
@click.option("--source-vocabulary", type=TEXT, multiple=True, metavar="FILE", help=_TEXT.format("the source side"))
@click.option("--target-vocabulary", type=TEXT, multiple=True, metavar="FILE", help=_TEXT.format("the target side"))
@click.option(
    "--keep-language",
    multiple=True,
    metavar="CODE",
    help="Language of a multilingual model that stays, with --vocabulary; several times.  [default: all]",
)
def command(
    model: Path,
    output: Path,
    vocabulary: tuple[Path, ...],
    source_vocabulary: tuple[Path, ...],
    target_vocabulary: tuple[Path, ...],
    keep_language: tuple[str, ...],
    **options: Any,
) -> None:
    """Cut the model in MODEL_DIR to fewer layers, or to the tokens of a text, and write it to OUT.

    OUT is a model directory of its own. With its first N encoder and M decoder layers it translates as MODEL_DIR does
    with --encoder-layers N --decoder-layers M. A model that was not trained for that depth (see `model.depth`) is cut
    with a warning.

    With --vocabulary, only the tokens stay that the model's tokenizers make of the text, those of languages, and those
    that these need, such as single characters; and their rows of the embeddings and of the output:

    \b
    sparsenmt slice runs/m2m en-de --vocabulary train.en --vocabulary train.de --keep-language en --keep-language de
    """
    from sparsenmt.process.progress import notify
    from sparsenmt.workflows.conversion.slice import slice_model
    from sparsenmt.workflows.conversion.vocabulary_slice import VocabularyTexts

    texts = VocabularyTexts(vocabulary, source_vocabulary, target_vocabulary, keep_language)
    found = slice_model(model, output, vocabulary=texts, **options)
    kept = f"{found.depth[0]} encoder and {found.depth[1]} decoder layers of {model}"
    notify(f"{output}: {kept}, {found.parameters:,} of {found.parameters_before:,} parameters")
    if texts:
        sides = zip(("source", "target"), found.vocabularies, found.vocabularies_before, strict=True)
        tokens = " and ".join(f"{after:,} of {before:,} {side} tokens" for side, after, before in sides)
        sizes = f"{found.size / 1e6:.1f} of {found.size_before / 1e6:.1f} MB"
        notify(f"{tokens}; weights: {sizes}")
