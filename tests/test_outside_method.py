"""A newcomer's method: one class, one registration and one recipe, outside the package; no file of the engine changes.

It is trained, decoded with and scored through the command line, as its author would do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sparsenmt.data.demo_corpus import write_demo_corpus

METHOD = '''\
"""Softmax whose weights are mixed with uniform ones, by a share that each head learns."""

import torch
from pydantic import Field

from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.sparsity.registry import Options, register


class MixedOptions(Options):
    share: float = Field(0.1, gt=0, lt=1, description="Uniform share at the start.")


@register("transform", "mixed", options=MixedOptions)
class Mixed(Transform):
    def __init__(self, options: MixedOptions, *, site: str, heads: int) -> None:
        super().__init__()
        self.logit = torch.nn.Parameter(torch.full((heads,), options.share).logit())

    def forward(self, scores: torch.Tensor, keys: Keys) -> torch.Tensor:
        seen = keys.visible().expand_as(scores)
        counts = seen.to(scores.dtype) if keys.counts is None else seen * keys.counts[:, None, None, :]
        peaked = (scores - scores.masked_fill(~seen, -1e30).amax(-1, keepdim=True)).clamp_max(0).exp() * counts
        share = self.logit.sigmoid()[:, None, None]
        return (1 - share) * normalized(peaked) + share * normalized(counts)


def normalized(mass: torch.Tensor) -> torch.Tensor:
    return mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
'''

RECIPE = """\
name: newcomer
directory: {folder}/model
model:
  dimension: 16
  feed_forward: 24
  heads: 2
  encoder_layers: 1
  decoder_layers: 1
  attention:
    encoder_self: {{transform: {{name: mixed, share: 0.2}}}}
    cross: {{transform: {{name: mixed}}}}
data:
  directory: {folder}/data
  train: [{{source: corpus/train.en, target: corpus/train.de}}]
  dev: {{source: corpus/dev.en, target: corpus/dev.de}}
  tokenizer: {{kind: word, vocabulary_size: 300}}
training:
  max_updates: 6
  seed: 2
  threads: 1
  device: cpu
  batch_tokens: 256
  learning_rate: 0.02
  warmup_updates: 2
  validation: {{every: 6, metric: bleu, beam_size: 2}}
  save_every: 6
decoding: {{beam_size: 2, max_length_factor: 0, max_length_offset: 12}}
"""

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs `sparsenmt` with the newcomer's module named in the environment."""
    (tmp_path / "newcomer.py").write_text(METHOD, encoding="utf-8", newline="\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path), encoding="utf-8", newline="\n")
    write_demo_corpus(tmp_path / "corpus", train=200, dev=20, test=20)
    paths = [str(tmp_path), str(Path(__file__).resolve().parents[1])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARSENMT_PLUGINS": "newcomer",
        "OMP_NUM_THREADS": "1",
    }

    def run(*arguments: str | Path, status: int = 0, **changes: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sparsenmt", *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            cwd=tmp_path,
            env={**environment, **changes},
            timeout=240,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.mark.thorough
def test_a_method_from_outside_trains_decodes_and_scores(program: Program, tmp_path: Path) -> None:
    program("prepare", "recipe.yaml")
    program("train", "recipe.yaml")
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    learned = {name: value for name, value in weights.items() if name.endswith(".transform.logit")}
    assert learned.keys() == {"encoder.steps.0.self.transform.logit", "decoder.steps.0.cross.transform.logit"}
    start = {"encoder.steps.0.self.transform.logit": -1.3863, "decoder.steps.0.cross.transform.logit": -2.1972}
    assert all(bool(((value - start[name]).abs() > 1e-4).all()) for name, value in learned.items()), "it did not learn"

    source, reference = tmp_path / "corpus" / "test.en", tmp_path / "corpus" / "test.de"
    output = tmp_path / "test.out"
    program("decode", "model", "--input", source, "--output", output)
    assert output.read_bytes().count(b"\n") == 20

    scores = json.loads(program("score", output, "--reference", reference, "--json").stdout)
    assert [each["name"] for each in scores["scores"]] == ["bleu", "chrf", "ter"]
    assert all(0.0 <= each["value"] < float("inf") for each in scores["scores"])
    lines = program("score", "--model", "model", "--source", source, "--target", reference).stdout.split("\n")
    assert len([line for line in lines if line]) >= 20


def test_without_its_module_the_recipe_names_nothing(program: Program) -> None:
    done = program("prepare", "recipe.yaml", status=2, SPARSENMT_PLUGINS="")
    assert "mixed" in done.stderr and "Traceback" not in done.stderr


def test_its_options_are_checked_like_all_others(program: Program) -> None:
    done = program("prepare", "recipe.yaml", "model.attention.cross.transform.share=2", status=2)
    assert "share" in done.stderr and "less than 1" in done.stderr and "Traceback" not in done.stderr
