"""Options that commands share: those of messages everywhere, and those of the machine wherever a model runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.cli import cli
from sparsenmt.commands.lazy_group import LazyGroup
from sparsenmt.workflows.evaluation.evaluate import ModelRun
from tests.commands.support import Run

MACHINE = ("--threads", "--device", "--beam-size", "--batch-tokens")
NO_MODEL = "runs no model"
EXCEPTIONS = {
    "prepare": dict.fromkeys(MACHINE, NO_MODEL),
    "slice": dict.fromkeys(MACHINE, NO_MODEL),
    "export": dict.fromkeys(MACHINE, NO_MODEL),
    "import": dict.fromkeys(MACHINE, NO_MODEL),
    "plugins": dict.fromkeys(MACHINE, NO_MODEL),
    "completion": dict.fromkeys(MACHINE, NO_MODEL),
    "recipe-schema": dict.fromkeys(MACHINE, NO_MODEL),
    "doctor": dict.fromkeys(MACHINE[1:], NO_MODEL),
    "check-method": dict.fromkeys(MACHINE, "tries tiny models on one core"),
    "analyze alphas": dict.fromkeys(MACHINE, "reads parameters and runs no model"),
    "analyze spans": dict.fromkeys(MACHINE, "reads parameters and runs no model"),
    "train": dict.fromkeys(MACHINE[2:], "keys of its recipe, which a resumed run must keep"),
    "average": dict.fromkeys(MACHINE[2:], "validates as its recipe does"),
    "contrast": {"--beam-size": "scores given translations"},
    "shortlist": dict.fromkeys(MACHINE[2:], "translates its test as the recipe does"),
    "verify": dict.fromkeys(MACHINE[1:], "a few lines by every engine of the processor"),
    "plan": dict.fromkeys(MACHINE[2:], "tries several, beginning with the recipe's"),
    **{
        f"analyze {name}": {"--beam-size": "translates nothing"}
        for name in ("pos", "position", "entropy", "roles", "layers", "annotate")
    },
    "analyze-pos": {"--beam-size": "translates nothing"},
}
OTHER_HELP = {"benchmark", "depth-table"}  # several beam sizes; sizes of a measurement


def commands(group: LazyGroup, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, LazyGroup):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def options(command: click.Command) -> dict[str, click.Option]:
    return {name: each for each in command.params if isinstance(each, click.Option) for name in each.opts}


def test_every_command_has_the_options_of_messages_once() -> None:
    assert isinstance(cli, LazyGroup)
    for name, command in commands(cli):
        given = [option for each in command.params for option in each.opts]
        assert given.count("--quiet") == given.count("--log-file") == 1, name


def test_the_options_of_the_machine_stand_wherever_a_model_runs() -> None:
    assert isinstance(cli, LazyGroup)
    found = dict(commands(cli))
    assert found.keys() >= EXCEPTIONS.keys()
    lacking = {
        name: {option for option in MACHINE if option not in options(command)} for name, command in found.items()
    }
    assert {name: names for name, names in lacking.items() if names} == {
        name: set(reasons) for name, reasons in EXCEPTIONS.items()
    }


def test_alike_options_have_the_same_help_and_type() -> None:
    assert isinstance(cli, LazyGroup)
    assert {name for name, _ in commands(cli)} >= OTHER_HELP
    described: dict[str, set[tuple[str, str]]] = {}
    for name, command in commands(cli):
        for option in MACHINE if name not in OTHER_HELP else ():
            if (each := options(command).get(option)) is not None:
                text = re.sub(r"  \[default: .*", "", each.help or "")
                text = re.sub(
                    "sources in a batch.*", "source tokens in a batch, padding included, times the beam size.", text
                )
                described.setdefault(option, set()).add((text, type(each.type).__name__))
    assert {option: len(texts) for option, texts in described.items()} == dict.fromkeys(MACHINE, 1), described


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode", "model", "-i", "corpus/test.en"),
        ("score", "--model", "model", "--source", "corpus/test.en", "-r", "corpus/test.de"),
        ("compare", "model", "--source", "corpus/test.en", "--reference", "corpus/test.de"),
        (
            "contrast",
            "model",
            "--source",
            "corpus/test.en",
            "--correct",
            "corpus/test.de",
            "--incorrect",
            "corpus/dev.de",
        ),
        ("analyze", "density", "model", "-i", "corpus/test.en"),
        ("depth-table", "model", "--source", "corpus/test.en", "--reference", "corpus/test.de"),
        ("benchmark", "model"),
        ("train", "small.yaml", "directory=other"),
        ("finetune-l0", "model", "--weight", "0.1", "--updates", "1", "-o", "other"),
    ],
)
def test_a_device_that_is_absent_is_refused_in_one_way(arguments: tuple[str, ...], command: Run) -> None:
    result = command(*arguments, "--device", "cuda:77")
    assert result.code == 2 and result.out == b"", result.err
    assert re.fullmatch(
        r"error: (--device|training\.device): PyTorch finds no (CUDA device|cuda:77: there are .*)\n"
        r"  Set it to auto or cpu\.\n",
        result.err,
    ), result.err


def test_a_name_that_is_no_device_is_refused(refused: Run) -> None:
    message = str(refused("decode", "model", "--device", "gpu"))
    assert message.startswith("error: --device: must be one of auto, cpu, cuda, cuda:N; not 'gpu'\n")
    message = str(refused("train", "small.yaml", "--device", "gpu"))
    assert "--device" in message


def test_kept_evaluations_know_the_beam_and_not_the_machine(command: Run) -> None:
    def compare(*options: str) -> tuple[str, set[str]]:
        text = ("--source", "corpus/test.en", "--reference", "corpus/test.de", "--no-speed", "--no-attention")
        result = command("compare", "model", *text, *options)
        assert result.code == 0, result.err
        return result.out.decode(), {path.name for path in Path("model/evaluation").iterdir()}

    _, first = compare()
    (own,) = first
    content = Path("model/evaluation", own).read_bytes()
    _, again = compare("--threads", "1", "--device", "cpu", "--batch-tokens", "64", "--beam-size", "2")
    assert again == first and Path("model/evaluation", own).read_bytes() == content, "2 is the recipe's beam size"
    text, wider = compare("--beam-size", "1")
    assert "beam search: beam size 1 in place of the recipes'" in text
    assert wider == {own, own.replace(".json", "-beam1.json")}
    assert Path("model/evaluation", own).read_bytes() == content


def test_a_beam_size_changes_models_of_beam_search_only(workspace: Path) -> None:
    """Models of greedy search were translated again, and their results kept as those of a beam."""
    recipe = read_recipe(Path("model"))
    greedy = recipe.model_copy(update={"decoding": recipe.decoding.model_copy(update={"method": "greedy"})})
    assert ModelRun(beam_size=7).options(recipe).beam_size == 7
    assert ModelRun(beam_size=7).options(greedy) == greedy.decoding


def test_a_beam_is_as_large_as_in_a_recipe(refused: Run) -> None:
    """`compare` and `score` took any number, and computed for hours."""
    for arguments in (["score", "--model", "model"], ["compare", "model"], ["decode", "model"]):
        assert "10001 is not in the range 1<=x<=10000" in str(refused(*arguments, "--beam-size", "10001"))
