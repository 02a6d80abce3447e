"""`sparsenmt plan`: what is tried, chosen, written and kept."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.commands.plan import AXES as NAMED
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.schema import Decoding
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.plan import trials as measured
from sparsenmt.workflows.plan.candidate import AXES
from tests.commands.support import Run
from tests.commands.test_verify_command import SECTIONS, made

PLAN = ["plan", "model", "-o", "out", "--threads", "1", "--rounds", "2"]
DEV = ["--source", "corpus/dev.en", "--reference", "corpus/dev.de"]
CORPUS = ["--corpus", "corpus/train.en", "corpus/train.de"]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Decoding, int]]:
    """A clock by which beam, fp32 and threads take time; all that was translated: options and number of lines."""
    real, found = measured.Trials._seconds, []

    def seconds(self: Any, bundle: Any, options: Decoding, lines: Any, outputs: Any = None) -> float:
        if outputs is not None:
            found.append((options, len(lines)))
            real(self, bundle, options, lines, outputs)
        return len(lines) * (0.1 * torch.get_num_threads() + options.beam_size + (options.dtype == "fp32"))

    monkeypatch.setattr(measured.Trials, "_seconds", seconds)
    return found


@pytest.fixture
def few(command: Run) -> list[str]:
    """A corpus of two lines, which lacks most tokens of the vocabulary."""
    for side in ("en", "de"):
        text = Path(f"corpus/train.{side}").read_text(encoding="utf-8").split("\n")[:2]
        Path(f"few.{side}").write_text("\n".join([*text, ""]), encoding="utf-8", newline="\n")
    return ["--corpus", "few.en", "few.de"]


@pytest.fixture
def table() -> Callable[[], dict[str, Any]]:
    """Read the report of the plan."""
    return lambda: json.loads(Path("out/plan.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_the_fastest_is_chosen_and_decodes_with_its_choices(command: Run, timed: list[Any], table: Any) -> None:
    result = command(*PLAN, "--axis", "beam", "--axis", "dtype", "--within", "chrf -100")
    assert result.code == 0, result.err
    report = table()
    dtypes = [each for each in ("bf16", "int8") if any(options.dtype == each for options, _ in timed)]
    assert report["settings"]["meets"] is True
    assert report["settings"]["chosen"].endswith("beam 1")
    options = read_recipe(Path("out/model")).decoding
    assert (options.method, options.beam_size) == ("greedy", 1)
    assert not dtypes or options.dtype in dtypes
    by_hand = ["--method", "greedy", "--beam-size", "1", "--dtype", options.dtype]
    named = command("decode", "model", "-i", "corpus/test.en", *by_hand).lines
    assert command("decode", "out/model", "-i", "corpus/test.en").lines == named
    rows = {row["candidate"]: row for row in report["tables"]["pareto"]}
    assert rows["model"]["speed"] == 1 and "chosen" in rows[report["settings"]["chosen"]]["mark"]
    scored = json.loads(command("score", "--model", "model", *DEV, "--json", "-m", "chrf").out)
    assert rows["model"]["chrf"] == pytest.approx(scored["scores"][0]["value"])
    assert {path.name for path in Path("out").iterdir()} >= {"plan.txt", "plan.json", "plan.csv", "model", "trials"}


def test_candidates_of_several_opened_models_share_a_turn_of_the_reference(
    command: Run, timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found = measured.Trials._seconds, []

    def seconds(self: Any, bundle: Any, options: Decoding, lines: Any, outputs: Any = None) -> float:
        if outputs is None and len(lines) > 1:
            found.append(len(lines))
        return float(real(self, bundle, options, lines, outputs))

    monkeypatch.setattr(measured.Trials, "_seconds", seconds)
    assert command(*PLAN, "--exhaustive", "--axis", "dtype", "--within", "chrf -100").code == 0
    assert len(timed) in (2 * 2, 3 * 2) and len(found) == 2  # dtypes of this machine, and turns


def test_nothing_is_measured_twice(command: Run, timed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*PLAN, "--axis", "beam", "--within", "chrf -100"]
    real, left = measured.KeptWork.write, iter([None, None, None])

    def stopping(self: Any, **results: Any) -> None:
        real(self, **results)
        if next(left, "stop") == "stop":
            raise Interrupted(2)

    with monkeypatch.context() as patch:
        patch.setattr(measured.KeptWork, "write", stopping)
        stopped = command(*arguments)
    assert stopped.code == 130 and "Resume with: sparsenmt plan" in stopped.err
    assert "the trials that were measured are kept" in stopped.err
    before = len(timed)
    assert command(*arguments).code == 0
    assert before == 4 and len(timed) == 2 * 2  # two candidates, two turns
    timed.clear()
    assert command(*arguments, "--size", "1GB").code == 0
    assert not timed


def test_before_the_first_trial_an_interrupt_does_not_speak_of_kept_ones(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted(2)

    monkeypatch.setattr(measured.Trials, "_seconds", stop)
    stopped = command(*PLAN, "--axis", "beam")
    assert stopped.code == 130 and "Resume with: sparsenmt plan" in stopped.err and "kept" not in stopped.err


def test_a_budget_that_nothing_meets(command: Run, timed: list[Any], table: Any) -> None:
    result = command(*PLAN, "--axis", "beam", "--within", "chrf -100", "--size", "1kB")
    assert result.code == 1
    (line,) = [line for line in result.lines if line.startswith("nothing meets the budget; nearest: model")]
    assert "size " in line and ", allowed 1.0 kB" in line
    assert table()["settings"]["meets"] is False and not Path("out/model").exists()


@pytest.mark.thorough
def test_the_model_of_an_earlier_budget_is_removed(command: Run, timed: list[Any]) -> None:
    arguments = [*PLAN, "--axis", "beam", "--within", "chrf -100"]
    assert command(*arguments).code == 0 and Path("out/model").is_dir() and Path("out/chosen.json").is_file()
    assert command(*arguments, "--size", "1kB").code == 1
    assert not {"model", "chosen.json"} & {path.name for path in Path("out").iterdir()}
    assert command(*arguments).code == 0 and Path("out/model").is_dir()


def test_a_plan_of_its_own_choice_would_replace_it(command: Run, timed: list[Any]) -> None:
    assert command(*PLAN, "--axis", "beam", "--within", "chrf -100").code == 0
    before = Path("out/model/manifest.json").read_bytes()
    for named in ("out/model", "out"):
        refused = command("plan", named, "-o", "out", "--axis", "beam")
        assert refused.code == 2 and "Name another folder as --output" in refused.err, refused.err
    assert Path("out/model/manifest.json").read_bytes() == before


@pytest.mark.thorough
def test_a_choice_that_differs_in_files_alone_is_written(
    command: Run, timed: list[Any], table: Any, few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*PLAN, *few, "--axis", "vocabulary", "--within", "chrf -100"]
    real, faster = measured.Trials._seconds, [150]  # tokens of the vocabulary that takes less time

    def seconds(self: Any, bundle: Any, *rest: Any) -> float:
        return float(real(self, bundle, *rest)) / (1 + ((bundle.tokenizers.source.size == 150) == (faster[0] == 150)))

    monkeypatch.setattr(measured.Trials, "_seconds", seconds)
    for wanted, chosen in ((150, "model"), (0, "model, cut vocabulary")):
        faster[0] = wanted
        for path in Path("out/trials").glob("*"):
            path.unlink()
        assert command(*arguments).code == 0
        assert table()["settings"]["chosen"] == chosen
        cut = json.loads(Path("out/model/manifest.json").read_bytes())["data_fingerprint"] == "cut vocabularies"
        assert cut == (wanted == 0)


@pytest.mark.thorough
def test_a_shortlist_of_the_recipe_is_cut_with_the_vocabulary(command: Run, timed: list[Any]) -> None:
    assert command("shortlist", "model", *CORPUS[1:], "-o", "all.shortlist").code == 0
    bundle = open_model("model", device="cpu", dtype=None)
    decoding = bundle.recipe.decoding.model_copy(update={"shortlist": str(Path("all.shortlist").resolve())})
    recipe = bundle.recipe.model_copy(update={"decoding": decoding})
    model_directory.initialise(Path("listed"), recipe, bundle.tokenizers, bundle.features, "of a test")
    model_directory.write_weights(Path("listed"), bundle.model.state_dict(), after=0, made_of=[])
    listed = ["listed" if each == "model" else each for each in PLAN]
    result = command(*listed, *CORPUS, "--axis", "vocabulary", "--within", "chrf -100")
    assert result.code == 0, result.err
    used = [options.shortlist for options, _ in timed]
    assert set(used) == {decoding.shortlist, "model"}


@pytest.mark.thorough
def test_a_vocabulary_that_cannot_be_cut_stays_whole(
    command: Run, timed: list[Any], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def required(self: Any, ids: Any) -> set[int]:
        raise ValueError("its tokens are the bytes, all of which are needed")

    monkeypatch.setattr(type(open_model("model", device="cpu", dtype=None).tokenizers.source), "required", required)
    result = command(*PLAN, *CORPUS, "--axis", "vocabulary", "--axis", "dtype")
    assert result.code == 0, result.err
    assert "model: its vocabulary is not cut: its tokens are the bytes, all of which are needed" in result.err
    assert "--axis vocabulary: there is nothing to try" in result.err
    assert not any("cut" in row["candidate"] for row in table()["tables"]["pareto"])


@pytest.mark.thorough
def test_a_cut_vocabulary_at_a_depth_is_that_of_its_layers(
    command: Run, timed: list[Any], table: Any, few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(Path("model"), Path("tied"), SECTIONS["tied"])
    real = measured.Trials._seconds

    def seconds(self: Any, bundle: Any, options: Decoding, *rest: Any) -> float:
        layers = (options.encoder_layers or 2) + (options.decoder_layers or 2)
        return float(real(self, bundle, options, *rest)) * layers * bundle.tokenizers.source.size

    monkeypatch.setattr(measured.Trials, "_seconds", seconds)
    tied = ["tied" if each == "model" else each for each in PLAN]
    result = command(*tied, *few, "--axis", "depth", "--axis", "vocabulary", "--within", "chrf -100")
    assert result.code == 0 and "was not trained" not in result.err, result.err
    assert table()["settings"]["chosen"] == "tied, 1+1 layers, cut vocabulary"
    recipe = read_recipe(Path("out/model"))
    assert (recipe.model.encoder_layers, recipe.model.decoder_layers) == (1, 1)


@pytest.mark.thorough
def test_with_a_limit_on_memory_a_depth_is_that_of_a_cut_model(command: Run, timed: list[Any], table: Any) -> None:
    made(Path("model"), Path("tied"), {**SECTIONS["tied"], "output_bias": True})
    tied = ["tied" if each == "model" else each for each in PLAN]
    arguments = [*tied, "--axis", "depth", "--within", "chrf -100"]
    assert command(*arguments).code == 0 and not Path("out/tried").exists()
    whole, before = table()["tables"]["pareto"], len(timed)
    result = command(*arguments, "--memory", "100GB")
    assert result.code == 0, result.err
    assert {path.name[:8] for path in Path("out/tried").iterdir()} == {"tied-1-1", "tied-1-2", "tied-2-1"}
    assert len(timed) == before + 3 * 2  # the cut ones, in two turns
    cut = {row["candidate"]: row["chrf"] for row in table()["tables"]["pareto"]}
    assert len(cut) == 4 and cut == {row["candidate"]: row["chrf"] for row in whole}


def test_a_metric_that_needs_documents_is_refused(command: Run) -> None:
    bundle = open_model("model", device="cpu", dtype=None)
    validation = bundle.recipe.training.validation.model_copy(update={"metric": "dbleu"})
    training = bundle.recipe.training.model_copy(update={"validation": validation})
    dev = bundle.recipe.data.dev
    assert dev is not None
    data = bundle.recipe.data.model_copy(update={"dev": dev.model_copy(update={"documents": "corpus/dev.ids"})})
    recipe = bundle.recipe.model_copy(update={"training": training, "data": data})
    model_directory.initialise(Path("of_documents"), recipe, bundle.tokenizers, bundle.features, "of a test")
    model_directory.write_weights(Path("of_documents"), bundle.model.state_dict(), after=0, made_of=[])
    refused = command("plan", "of_documents", *DEV, "-o", "out", "--axis", "beam")
    assert refused.code == 2 and "--within: 'dbleu' is no metric of lines" in refused.err, refused.err


def test_a_shortlist_and_a_cut_vocabulary_lie_in_the_chosen_directory(
    command: Run, timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        measured.Trials,
        "_seconds",
        lambda self, bundle, options, lines, outputs=None, real=measured.Trials._seconds: (
            real(self, bundle, options, lines, outputs) / (2 if options.shortlist else 1)
        ),
    )
    axes = ["--axis", "shortlist", "--axis", "vocabulary"]
    result = command(*PLAN, *CORPUS, *axes, "--within", "chrf -100")
    assert result.code == 0, result.err
    assert read_recipe(Path("out/model")).decoding.shortlist == "model"
    assert Path("out/model/tokenizers/shortlist.safetensors").is_file()
    shortlist = min(Path("out/tried").glob("model-*.shortlist"), key=lambda path: len(path.name))
    named = command("decode", "model", "-i", "corpus/test.en", "--shortlist", shortlist).lines
    Path("out/tried").rename("elsewhere")
    assert command("decode", "out/model", "-i", "corpus/test.en").lines == named


@pytest.mark.thorough
def test_the_number_of_threads_is_chosen_last_and_decode_takes_it(command: Run, timed: list[Any]) -> None:
    two = ["2" if each == "1" else each for each in PLAN]
    result = command(*two, "--axis", "threads", "--within", "chrf -100")
    assert result.code == 0, result.err
    assert read_recipe(Path("out/model")).decoding.threads == 1
    torch.set_num_threads(2)
    assert command("decode", "out/model", "-i", "corpus/test.en").code == 0
    assert torch.get_num_threads() == 1
    assert command("decode", "out/model", "-i", "corpus/test.en", "--threads", "2").code == 0
    assert torch.get_num_threads() == 2


@pytest.mark.thorough
def test_threads_are_those_of_the_option_or_the_recipe(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = read_recipe(Path("model")).decoding
    slice_model("model", "one", decoding=usual.model_copy(update={"threads": 1}))
    seen = set()

    def seconds(self: Any, bundle: Any, options: Decoding, lines: Any, outputs: Any = None) -> float:
        seen.add(torch.get_num_threads())
        if outputs is not None:
            outputs += [("ein Haus", 3)] * len(lines)
        return 1.0

    monkeypatch.setattr(measured.Trials, "_seconds", seconds)
    options = ["--axis", "batch", "--within", "chrf -100", "-o"]
    torch.set_num_threads(2)
    assert command("plan", "one", *options, "out").code == 0
    assert seen == {1} and read_recipe(Path("out/model")).decoding.threads == 1
    seen.clear()
    assert command("plan", "one", "--threads", "2", *options, "two").code == 0
    assert seen == {2} and read_recipe(Path("two/model")).decoding.threads == 2


def test_a_dry_run_names_axes_and_rounds_and_writes_nothing(command: Run) -> None:
    result = command(*PLAN, *CORPUS, "--dry-run")
    assert result.code == 0 and not Path("out").exists(), result.err
    shown = "\n".join(result.lines)
    assert "cut vocabulary" in shown and "beam 1" in shown and "batches of 1,024" in shown
    assert "about " in shown and "20" in shown
    assert "warning" not in result.err


def test_an_axis_with_nothing_to_try_is_warned_of(command: Run) -> None:
    result = command(*PLAN, "--axis", "depth", "--axis", "vocabulary", "--axis", "beam", "--dry-run")
    assert result.code == 0, result.err
    warned = [line for line in result.err.splitlines() if line.startswith("warning: --axis")]
    nothing = "there is nothing to try beside the choice of the recipe"
    assert warned == [
        f"warning: --axis depth: {nothing}",
        f"warning: --axis vocabulary: {nothing}; --corpus makes one",
    ]


def test_steps_that_need_training(command: Run, timed: list[Any]) -> None:
    asked = [*DEV, *CORPUS, "--axis", "beam", "--within", "chrf -100", "--latency", "20s"]
    result = command(*PLAN, *asked, "--with-training")
    assert result.code == 0, result.err
    steps = [line.removeprefix("training: sparsenmt ") for line in result.lines if line.startswith("training: ")]
    assert [each.split()[0] for each in steps] == ["distill", "sweep", "plan"]
    again = f"plan model out/training/models {shlex.join([*DEV, *CORPUS])} --within 'chrf -100' --latency 20000ms"
    assert steps[2] == f"{again} --axis beam --rounds 2 --threads 1 -o out"
    assert command(*steps[0].replace("--until data", "--until corpus").split()).code == 0
    listed = command(*steps[1].split(), "--list")
    assert listed.code == 0, listed.err
    assert "l0drop-0.3" in "\n".join(listed.lines) and "student" in "\n".join(listed.lines)


@pytest.fixture
def short_reference() -> Iterator[str]:
    Path("short.de").write_text("eins\n", encoding="utf-8", newline="\n")
    yield "short.de"


def test_what_is_refused(command: Run, short_reference: str) -> None:
    def refused(*arguments: str) -> str:
        result = command(*arguments)
        assert result.code == 2 and "Traceback" not in result.err and not Path("out").exists(), result.err
        return result.err

    other = refused(*PLAN, "--source", "corpus/dev.en", "--reference", short_reference)
    assert "short.de" in other and "line" in other
    assert "is no model directory" in refused("plan", "corpus", "-o", "out")
    assert "there is no such model directory" in refused("plan", "none", "-o", "out")
    assert "named twice" in refused("plan", "model", "model", "-o", "out")
    assert "allows no loss" in refused(*PLAN, "--within", "bleu 0.5")
    assert "no plan wrote it" in refused("plan", "model", "-o", ".")
    assert "written into this model" in refused("plan", "model", "-o", "model")
    assert "written into this model" in refused("plan", "model", "-o", "model/plans/new")
    assert not Path("model/trials").exists() and not Path("model/plans").exists()
    corpus = ["--corpus", "corpus/train.en", short_reference]
    assert "different numbers of lines" in refused(*PLAN, *corpus, "--axis", "vocabulary")
    assert "different numbers of lines" in refused(*PLAN, *corpus, "--dry-run")
    Path("blank").write_bytes(b" \n")
    assert "there is no text in it" in refused(*PLAN, "--source", "blank", "--reference", "blank")


def test_every_axis_can_be_named() -> None:

    assert list(AXES) == list(NAMED)
