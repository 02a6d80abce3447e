"""A Python program prepares, trains, translates and scores without the command line."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path

import pytest

import sparsenmt
from sparsenmt.cli import COMMANDS
from sparsenmt.recipe.schema import Data, Decoding, Recipe, Training, Validation

PROGRAM = """\
import os
import sys
from pathlib import Path

import sparsenmt
from sparsenmt.data.demo_corpus import write_demo_corpus

write_demo_corpus(Path("corpus"), train=200, dev=10, test=10)
recipe = sparsenmt.load_recipe("small.yaml", ["training.seed=3"])
report = sparsenmt.prepare(recipe)
assert not report.up_to_date
sparsenmt.train(recipe)

assert sparsenmt.load("model", checkpoint=2).bundle.weights_digest  # the run's only one
try:
    sparsenmt.load("model", checkpoint=[1, 2])
except sparsenmt.UserError as error:
    assert "there is no checkpoint of update 1" in str(error) and "There are: 2." in str(error)
bundle = sparsenmt.open_model("model")
lines = Path("corpus/test.en").read_text().splitlines()
outputs = sparsenmt.translate_texts(bundle, lines, bundle.recipe.decoding)
written = []
sparsenmt.decode(sparsenmt.DecodeRequest(Path("model"), Path("corpus/test.en")), written.append)
assert written == outputs == sparsenmt.load("model").translate(lines).texts and len(outputs) == 10
sparsenmt.decode("model", input="corpus/test.en", output="output", beam_size=2)
assert Path("output").read_text().splitlines() == outputs

use, options = sparsenmt.ModelUse(Path("model")), sparsenmt.ScoreOptions(("bleu", "chrf"))
source, reference = Path("corpus/test.en"), Path("corpus/test.de")
result = sparsenmt.score_model(use, source, [reference], None, options)
assert [score.name for score in result.scores] == ["bleu", "chrf"] and result.sentences == 10
text = sparsenmt.TestText("test", source, reference)
evaluation = sparsenmt.evaluate(Path("model"), text, sparsenmt.ScoringOptions(("bleu", "chrf")))
assert [evaluation.scores[score.name] for score in result.scores] == [score.value for score in result.scores]
assert sparsenmt.score_model("model", "corpus/test.en", ["corpus/test.de"], options=options) == result
assert sparsenmt.evaluate("model", text).scores == evaluation.scores
assert sparsenmt.compare_models(["model"], speed=False, source="corpus/test.en", reference="corpus/test.de").tables
sparsenmt.average("model", last=1, output="last")
sliced = sparsenmt.slice_model(Path("last"), Path("sliced"))
assert sliced.depth == (1, 1) and sliced.parameters == sliced.parameters_before

finetuned = sparsenmt.finetune("model", weights=(0.1, 0.3), updates=1, output="gated")
assert finetuned.models == {"weight-0.1": Path("gated/weight-0.1"), "weight-0.3": Path("gated/weight-0.3")}
assert [row["model"] for row in finetuned.report.tables[0].records()] == list(finetuned.models)

try:
    sparsenmt.train(sparsenmt.load_recipe("small.yaml", ["directory=corpus"]))
except sparsenmt.UserError as error:
    assert error.where == "corpus" and error.hint
else:
    raise AssertionError("a directory that is in use was written to")
assert "click" not in sys.modules and "sparsenmt.cli" not in sys.modules
assert {os.environ[name] for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")} == {"64"}, "fp32"
"""

RECIPE = """\
name: small
directory: model
model: {preset: tiny, dimension: 32, feed_forward: 64, heads: 2, encoder_layers: 1, decoder_layers: 1}
data:
  directory: prepared
  source_language: en
  target_language: de
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de}]
  dev: {source: corpus/dev.en, target: corpus/dev.de}
  tokenizer: {vocabulary_size: 150}
training:
  {device: cpu, compute_dtype: fp32, threads: 1, max_updates: 2, batch_tokens: 512, warmup_updates: 1,
   validation: {every: 2, metric: bleu, beam_size: 2, max_sentences: 4}}
decoding: {beam_size: 2, max_length_factor: 0.5, max_length_offset: 5}
"""


@pytest.mark.thorough
def test_a_program_needs_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE, encoding="utf-8")
    root = str(Path(sparsenmt.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r})\n{PROGRAM}"
    kept = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=kept, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "", "notes go to standard error"


def documented() -> list[tuple[str, object]]:
    """Every public name with what it is, and the public members of public classes."""
    found = [(name, getattr(sparsenmt, name)) for name in sparsenmt.__all__[1:]]
    members = [
        (f"{name}.{member}", getattr(value, member))
        for name, value in found
        if isinstance(value, type)
        for member in vars(value)
        if not member.startswith("_")
        and (callable(getattr(value, member)) or isinstance(vars(value)[member], property))
    ]
    return found + members


def test_help_names_public_things_only() -> None:
    """Names in backquotes of a docstring are public: names, members, arguments, commands or keys of a recipe."""
    everything = documented()
    known = {name for name, _ in everything} | {name.split(".")[-1] for name, _ in everything}
    for _, value in everything:
        if isinstance(value, property):
            continue
        known |= set(getattr(value, "__annotations__", {}))
        if callable(value) and value is not sparsenmt.DecodingOptions:
            known |= set(signature(value).parameters)
    known |= {key for section in (Recipe, Data, Decoding, Training, Validation) for key in section.model_fields}
    private = {
        (name, word)
        for name, value in everything
        for word in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", getattr(value, "__doc__", "") or "")
        if not set(word.removeprefix("sparsenmt.").split(".")) <= known | COMMANDS.keys()
    }
    assert not private, "\n".join(sorted(map(str, private)))


@pytest.mark.parametrize("name", sparsenmt.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(sparsenmt, name)
    assert name in dir(sparsenmt)
    assert isinstance(value, str) or value.__doc__


def test_the_stub_declares_every_public_name() -> None:
    stub = ast.parse(Path(sparsenmt.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert found.keys() | {"__version__"} == set(sparsenmt.__all__)
    for name, origin in found.items():
        value = getattr(sparsenmt, name)
        assert origin == f"{value.__module__}.{name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = sparsenmt.trian


def lists() -> list[tuple[str, str]]:
    """The arguments of public functions and requests that are lists of texts, names, paths or numbers."""
    found = []
    for name in sparsenmt.__all__[1:]:
        public = getattr(sparsenmt, name)
        if isinstance(public, type) and not name.endswith(("Request", "Options", "Use", "Run", "Text", "Texts")):
            continue  # a result
        if public is sparsenmt.DecodingOptions:
            continue  # a dictionary
        found += [
            (name, one.name)
            for one in signature(public).parameters.values()
            if re.match(r"(Sequence|Iterable|tuple)\[", str(one.annotation))
        ]
    return found


@pytest.mark.parametrize(("name", "argument"), lists())
def test_one_string_is_no_list_of_texts(name: str, argument: str) -> None:
    public = getattr(sparsenmt, name)
    needed = {each.name: None for each in signature(public).parameters.values() if each.default is Parameter.empty}
    with pytest.raises(TypeError, match=rf"^{argument} is one str, not a list of them: write \['A man walks.'\]$"):
        public(**{**needed, argument: "A man walks."})
