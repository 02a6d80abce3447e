"""Model sizes by name, filled in under the keys that the user wrote."""

from __future__ import annotations

from sparsenmt.recipe.origins import Node, find, tree

# base and big: Vaswani et al. 2017, Table 3; tiny and small are this project's, for tests and small corpora.
_SIZES = {
    "tiny": (64, 256, 4, 2),
    "small": (256, 1024, 4, 3),
    "base": (512, 2048, 8, 6),
    "big": (1024, 4096, 16, 6),
}

PRESETS: dict[str, dict[str, int]] = {
    name: {
        "dimension": dimension,
        "feed_forward": feed_forward,
        "heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    for name, (dimension, feed_forward, heads, layers) in _SIZES.items()
}


def expand_preset(recipe: Node) -> Node:
    """The recipe with the sizes of ``model.preset`` filled in; the origin of a filled-in size is the preset's line.

    An unknown preset is left for the validation to report.
    """
    preset = find(recipe, ("model", "preset"))
    if preset is None or not isinstance(preset.value, str) or preset.value not in PRESETS:
        return recipe
    assert isinstance(recipe.value, dict)
    model = recipe.value["model"]
    assert isinstance(model.value, dict)
    sizes = {key: tree(size, preset.origin) for key, size in PRESETS[preset.value].items()}
    # The preset's name stays first, for the reader of a dumped recipe.
    merged = {"preset": preset, **sizes, **model.value}
    return Node({**recipe.value, "model": Node(merged, model.origin)}, recipe.origin)
