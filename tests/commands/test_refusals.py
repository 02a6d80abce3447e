"""What no model can be built of is refused by the first command that sees the recipe, before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import Field

from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Options, register
from tests.commands.support import Run
from tests.toys.faint_filter import FaintFilter, FaintOptions

COMMANDS = (["prepare"], ["prepare", "--dump-config"], ["train"], ["train", "--dump-config"])
PATTERN = "model.attention.cross.pattern"


@pytest.fixture(autouse=True)
def stern_methods() -> Iterator[None]:
    """A pattern that takes even sizes only, and not at cross-attention; a filter with a loss."""

    class SternOptions(Options):
        size: int = Field(4, description="Keys seen.")

    with registry.scope():

        @register("pattern", "toy_stern", options=SternOptions)
        def build(options: SternOptions, *, site: str) -> None:
            if options.size % 2:
                raise ValueError(f"size must be even, not {options.size}.")
            if site == "cross":
                raise ValueError("source and target positions cannot be compared")

        @register("memory", "toy_faint", options=FaintOptions)
        def build_filter(options: FaintOptions, *, dimension: int) -> FaintFilter:
            return FaintFilter(options, dimension)

        yield


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_method_that_refuses(refused: Callable[..., str], words: list[str]) -> None:
    message = refused(words[0], "small.yaml", f"{PATTERN}.name=toy_stern", *words[1:], "data.directory=new")
    assert message == (
        f"error: override '{PATTERN}.name=toy_stern': {PATTERN}: toy_stern: source and target positions cannot be "
        "compared\n  Change the method's options, or choose another method.\n"
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_mistake_in_the_file_has_its_line(refused: Callable[..., str], workspace: Path, words: list[str]) -> None:
    text = (workspace / "small.yaml").read_bytes().decode()
    lines = text.replace(
        "}\ndata:", ",\n  attention: {encoder_self: {pattern:\n    {name: toy_stern, size: 3}}}}\ndata:"
    )
    (workspace / "stern.yaml").write_text(lines, encoding="utf-8", newline="\n")
    message = refused(words[0], "stern.yaml", *words[1:])
    assert message.startswith(
        "error: stern.yaml:4: model.attention.encoder_self.pattern: toy_stern: size must be even, not 3\n"
    )
    (workspace / "above.yaml").write_text("base: stern.yaml\nname: above\n", encoding="utf-8", newline="\n")
    assert refused(words[0], "above.yaml", *words[1:]) == message


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_losses_without_weights_and_weights_without_losses(refused: Callable[..., str], words: list[str]) -> None:
    faint = "model.memory.0.name=toy_faint"
    message = refused(words[0], "small.yaml", faint, *words[1:], "data.directory=new")
    assert message.startswith(
        "error: small.yaml: losses: the loss 'toy_strength' has no weight\n  Add toy_strength: {w"
    )
    message = refused(words[0], "small.yaml", "losses.faint.weight=2", *words[1:], "data.directory=new")
    assert "override 'losses.faint.weight=2': losses.faint: no method of the recipe has a loss 'faint'" in message


def test_what_is_allowed_is_dumped(command: Run) -> None:
    overrides = ["model.attention.encoder_self.pattern.name=toy_stern", "model.memory.0.name=toy_faint"]
    for name in ("prepare", "train"):
        result = command(name, "small.yaml", *overrides, "losses.toy_strength.weight=0.5", "--dump-config")
        assert result.code == 0 and "      pattern:\n        name: toy_stern\n        size: 4" in result.out.decode()
