"""docs/guides/python.md: its examples run as they are printed, one after the other, and it names what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparsenmt

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/python.md").read_text(encoding="utf-8")

TINY = """\
name: tiny
directory: runs/demo/model
model:
  {dimension: 16, feed_forward: 24, heads: 2, encoder_layers: 2, decoder_layers: 2, memory: [{name: l0drop}],
   attention: {cross: {transform: {name: entmax15}}}}
losses: {l0: {weight: 0.1}}
data:
  directory: runs/demo/data
  train: [{source: ../runs/demo/corpus/train.en, target: ../runs/demo/corpus/train.de}]
  dev: {source: ../runs/demo/corpus/dev.en, target: ../runs/demo/corpus/dev.de}
  test: {source: ../runs/demo/corpus/test.en, target: ../runs/demo/corpus/test.de}
  tokenizer: {kind: word, vocabulary_size: 300}
training: {max_updates: 2, threads: 1, device: cpu, batch_tokens: 256, learning_rate: 0.02, warmup_updates: 1}
decoding: {beam_size: 2, max_length_factor: 0, max_length_offset: 12}
"""
BEFORE = """\
from pathlib import Path
import sparsenmt
from sparsenmt.data.demo_corpus import write_demo_corpus

write_demo_corpus(Path("runs/demo/corpus"), train=100, dev=10, test=10)
sparsenmt.prepare("recipes/demo.yaml")
sparsenmt.train("recipes/demo.yaml")
"""
AFTER = """\
assert len(found) == 1 and len(found[0].n_best) == 2 and found[0].kept.words[-1].text == "</s>"
assert heat_map.shape == (len(heat_map.queries), len(heat_map.keys))
assert trial.recipe.training.max_updates == 4 and len(open("runs/trial.de").readlines()) == 10
"""


@pytest.mark.thorough
def test_the_examples_run(tmp_path: Path) -> None:
    program = "\n".join([BEFORE, *re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL), AFTER])
    (tmp_path / "program.py").write_text(program, encoding="utf-8", newline="\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/demo.yaml").write_text(TINY, encoding="utf-8", newline="\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env=environment,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_names_is_public() -> None:
    functions = re.search(r"lists the functions: (.*?)\. Those", PAGE, re.DOTALL)
    assert functions is not None
    named = set(re.findall(r"`(\w+)`", functions[1]))
    assert named <= set(sparsenmt.__all__) and len(named) == 17
    methods = {found for found in re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)}
    public = {name for name in vars(sparsenmt.Model) if not name.startswith("_")}
    assert methods | {"perplexity", "generate", "recipe", "layers", "heads"} == public
