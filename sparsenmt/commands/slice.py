"""``sparsenmt slice``: the layers of a model that run at a depth, as a model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("slice", short_help="Cut a model to fewer layers, as a model directory of its own.")
@click.argument("model", metavar="MODEL_DIR", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--encoder-layers", "-n", type=int, metavar="N", help="Encoder layers to keep.  [default: all]")
@click.option("--decoder-layers", "-m", type=int, metavar="M", help="Decoder layers to keep.  [default: all]")
@click.option("--unroll", is_flag=True, help="Write a layer that is applied several times out as several layers.")
def command(model: Path, output: Path, encoder_layers: int | None, decoder_layers: int | None, unroll: bool) -> None:
    """Cut the model in MODEL_DIR to its first N encoder and M decoder layers, and write it to OUT.

    OUT is a model directory of its own: it translates as MODEL_DIR does with --encoder-layers N --decoder-layers M, and
    needs no option for it. A model that is not trained for that depth (see `model.depth`) is cut all the same, with a
    warning.
    """
    from sparsenmt import store
    from sparsenmt.workflows.depth_choice import check_layers, warn_untrained
    from sparsenmt.workflows.slice import cut_model, cut_recipe

    store.check_absent(output)
    bundle = store.open_model(model, dtype=None)
    plan = bundle.model.plan
    check_layers(plan, "encoder", encoder_layers, f"--encoder-layers {encoder_layers}")
    check_layers(plan, "decoder", decoder_layers, f"--decoder-layers {decoder_layers}")
    depth = plan.depth(encoder_layers, decoder_layers)
    warn_untrained(plan, depth)
    recipe = cut_recipe(bundle.recipe, plan, depth, unroll=unroll)
    changed = {"name": f"{recipe.name}-{depth[0]}-{depth[1]}", "directory": str(output)}
    recipe = recipe.model_copy(update=changed)
    sizes = (bundle.tokenizers.source.size, bundle.tokenizers.target.size)
    cut = cut_model(recipe.model, bundle.model.state_dict(), plan, depth, sizes)
    store.copy_slice(model, output, recipe, cut.state_dict(), depth)
    count = sum(parameter.numel() for parameter in cut.parameters())
    whole = sum(parameter.numel() for parameter in bundle.model.parameters())
    click.echo(
        f"{output}: {depth[0]} encoder and {depth[1]} decoder layers of {model}, {count:,} of {whole:,} parameters",
        err=True,
    )
