"""Language models from the command line: prepare, train and resume, score, decode, average; and what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.cli import run
from sparsenmt.data import line_parts
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.data.line_parts import read_line_parts
from sparsenmt.data.text import LONGEST_LINE
from sparsenmt.data.text_dataset import encode_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.storage.records import file_entry
from sparsenmt.workflows.evaluation import evaluate_text, score_text
from sparsenmt.workflows.evaluation.reference_texts import PlainText
from tests.commands.support import Run
from tests.no_source import no_source

PAIR = ("--source", "texts/dev.en", "--reference", "texts/dev.de")
RECIPE = """\
name: text
directory: lm
model:
  preset: tiny
  dimension: 32
  feed_forward: 64
  heads: 2
  decoder_layers: 2
  positions: none
  segment_memory: 32
  attention:
    decoder_self:
      position: {name: distance_vectors, maximum: 32}
      span: {name: adaptive_span, maximum: 32, ramp: 8}
losses: {span: {weight: 1.0e-4}}
data:
  task: language_model
  directory: prepared-text
  target_language: en
  train: [{name: demo, text: texts/train.en}]
  dev: {text: texts/dev.en}
  tokenizer: {kind: byte}
training:
  device: cpu
  compute_dtype: fp32
  threads: 1
  max_updates: 12
  streams: 4
  segment_length: 16
  batch_tokens: 32
  learning_rate: 3e-3
  warmup_updates: 4
  validation: {every: 6}
  log_every: 6
  save_every: 4
  keep_last: 3
decoding: {method: greedy, max_length_factor: 0, max_length_offset: 12}
"""


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts/, prepared-text/, lm/ and text.yaml. To be left as it is."""
    folder = tmp_path_factory.mktemp("text-model")
    write_demo_corpus(folder / "texts", train=120, dev=12, test=12)
    (folder / "text.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["prepare", "text.yaml"]) == 0
        assert run(["train", "text.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def texts(text_model: Path, command: Run) -> Run:
    """`command`, with the language model beside the small translation model in its folder."""
    for name in ("texts", "prepared-text", "lm"):
        shutil.copytree(text_model / name, name)
    shutil.copy(text_model / "text.yaml", "text.yaml")
    return command


@torch.no_grad()
def bits(directory: str, text: Path) -> float:
    """Bits per character of a text, by one pass over it."""
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None, any_task=True)
    ids, counts = encode_lines(bundle.tokenizers.target, list(read_line_parts(text)))
    tokens = torch.from_numpy(ids.astype("int64"))
    cache = bundle.model.new_cache(no_source(bundle.model, 1), segment_memory=10_000)
    inputs = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
    (hidden,) = bundle.model.decode(inputs, cache.memory, cache=cache).values()
    values = bundle.model.project(hidden[0]).log_softmax(-1).gather(1, tokens[:, None])
    return -float(values.double().sum()) / counts.characters / torch.tensor(2.0).log().item()


def test_score_reads_the_whole_text_with_memory(texts: Run) -> None:
    expected = bits("lm", Path("texts/test.en"))  # spans end within the segment memory, so that one pass is the same
    for length in ("1", "16", "1000"):
        found = json.loads(
            texts(
                "score", "--model", "lm", "--text", "texts/test.en", "--segment-length", length, "--json"
            ).out.decode()
        )
        assert found["bpc"] == pytest.approx(expected, rel=1e-4)
        assert found["tokens"] == found["characters"] == len(Path("texts/test.en").read_bytes())
        assert found["perplexity"] == pytest.approx(2 ** found["bpc"], rel=1e-6)
    table = texts("score", "--model", "lm", "--text", "texts/test.en").out.decode()
    assert "BPC" in table and "segments of 16 tokens with a memory of 32 positions" in table
    of_bytes = texts("score", "--model", "lm", "--text", "texts/test.en", "-m", "bpb").out.decode()
    assert "BPB" in of_bytes and "BPC" not in of_bytes


def test_validation_is_the_score_of_the_validation_text(texts: Run) -> None:
    lines = [json.loads(line) for line in Path("lm/metrics.jsonl").read_bytes().decode().splitlines()]
    last = [line for line in lines if line["kind"] == "validation"][-1]
    found = json.loads(texts("score", "--model", "lm", "--text", "texts/dev.en", "--json").out)
    assert last["update"] == 12 and last["bpc"] == pytest.approx(found["bpc"], rel=1e-5)
    train = [line for line in lines if line["kind"] == "train"][-1]
    assert len(train["heads"]["span"]["decoder_self"]) == 2 and train["span"] > 0
    assert last["heads"] == train["heads"]  # of the same update
    first, second = (line["bpc"] for line in lines if line["kind"] == "validation")
    assert second < first


def test_a_text_in_one_line(texts: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text8 is: prepared, trained, validated, scored, compared and analysed in parts; and its bytes are counted."""
    monkeypatch.setattr(line_parts, "PART", 500)
    for name in ("train", "dev", "test"):
        path = Path(f"texts/{name}.en")
        path.write_bytes(path.read_bytes().rstrip().replace(b"\n", b" ").replace(b"a", "ä".encode()))
    changes = ("directory=one", "data.directory=prepared-one", "data.tokenizer.kind=char", "training.max_updates=6")
    assert "demo: 1 line, " in texts("prepare", "text.yaml", *changes).out.decode()
    assert texts("train", "text.yaml", *changes, "training.validation.metric=bpb").code == 0
    found = json.loads(texts("score", "--model", "one", "--text", "texts/test.en", "--json").out)
    text = Path("texts/test.en").read_bytes()
    assert (found["characters"], found["bytes"]) == (len(text.decode()) + 1, len(text) + 1)
    assert found["words"] == len(text.split()) + 1
    assert found["bpc"] == pytest.approx(bits("one", Path("texts/test.en")), rel=1e-4)
    assert found["bpb"] == pytest.approx(found["bpc"] * found["characters"] / found["bytes"], rel=1e-12)
    validated = json.loads(Path("one/metrics.jsonl").read_bytes().splitlines()[-1])
    dev = json.loads(texts("score", "--model", "one", "--text", "texts/dev.en", "--json").out)
    assert validated["bpb"] == pytest.approx(dev["bpb"], rel=1e-5)
    compare = ("compare", "one", "lm", "--text", "texts/test.en", "-m", "bpb", "-m", "bpc", "--json", "compared.json")
    assert texts(*compare).code == 0
    model = json.loads(Path("compared.json").read_text(encoding="utf-8"))["tables"]["models"][0]
    assert (model["bpb"], model["bpc"]) == pytest.approx((found["bpb"], found["bpc"]), rel=1e-5)
    density = texts("analyze", "density", "one", "--text", "texts/test.en", "--tokens", "400", "--json", "density.json")
    assert density.code == 0, density.err


@pytest.mark.thorough
def test_no_line_of_a_text_is_too_long(texts: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("long").write_bytes(b"word " * (LONGEST_LINE // 5 + 1))
    for module in (score_text, evaluate_text):  # to read all of it with a model would take minutes
        monkeypatch.setattr(module, "token_nats", lambda model, ids, *_, **__: iter([np.ones(len(ids))]))
    found = json.loads(texts("score", "--model", "lm", "--text", "long", "--json").out)
    assert found["tokens"] == found["bytes"] == LONGEST_LINE + 6
    evaluation = evaluate_text.evaluate_text(Path("lm"), PlainText("long", Path("long")), attention=False)
    assert evaluation.scores["bpb"] == pytest.approx(found["bpb"]) == pytest.approx(1 / math.log(2))
    assert texts("analyze", "density", "lm", "--text", "long", "--tokens", "400").code == 0


def test_bytes_that_were_not_counted_are_no_metric(texts: Run) -> None:
    """In data that an earlier version prepared."""
    path = Path("prepared-text/dev/meta.json")
    meta = json.loads(path.read_text(encoding="utf-8"))
    del meta["counts"]["bytes"]
    path.write_text(json.dumps(meta), encoding="utf-8")
    manifest = read_sealed(Path("prepared-text/manifest.json"))
    manifest["files"]["dev/meta.json"] = file_entry(path)
    write_sealed(Path("prepared-text/manifest.json"), manifest)
    assert texts("train", "text.yaml", "directory=old", "training.max_updates=6").code == 0
    found = texts("train", "text.yaml", "directory=new", "training.validation.metric=bpb")
    assert found.code == 2 and "of a version that did not count bytes" in found.err


def test_an_interrupted_run_is_the_same_in_the_end(texts: Run) -> None:
    texts("train", "text.yaml", "directory=again", "training.max_updates=7")
    found = texts("train", "text.yaml", "directory=again")
    assert "resumes after update 7" in found.err
    assert model_directory.weights_digest(Path("again")) == model_directory.weights_digest(Path("lm"))


def test_lines_are_continued(texts: Run) -> None:
    prompts = b"a dog\n\nthe small cat \n"
    for options in ((), ("--method", "beam", "--beam-size", "3"), ("--method", "sample", "--seed", "3")):
        outputs = texts("decode", "lm", *options, stdin=prompts).lines
        assert len(outputs) == 3
        assert outputs[0].startswith("a dog") and outputs[2].startswith("the small cat ")
        assert len(outputs[1]) <= 12
    found = texts("decode", "lm", "--method", "beam", "--n-best", "2", "--json", stdin=b"a dog\n").out.decode()
    line = json.loads(found)
    assert line["source"] == "a dog" and len(line["hypotheses"]) == 2
    assert all(each["text"].startswith("a dog") for each in line["hypotheses"])


def test_prompts_come_out_as_they_were_given(texts: Run) -> None:
    """A vocabulary that removes spaces: the one at the end is read as a token, and what is lost is told once."""
    changes = ("directory=pieces", "data.directory=prepared-pieces", "training.max_updates=6")
    tokenizer = ("data.tokenizer.kind=bpe", "data.tokenizer.vocabulary_size=90")
    for command in ("prepare", "train"):
        assert texts(command, "text.yaml", *changes, *tokenizer).code == 0
    prompts = ["the dog ", "the dog", "  the  dog", " "]
    found = texts("decode", "pieces", "--method", "sample", stdin="\n".join([*prompts, ""]).encode())
    assert [line.startswith(prompt) for line, prompt in zip(found.lines, prompts, strict=True)] == [True] * 4
    assert found.err.count("spaces that the model's tokenizer does not keep: line 3 is read as 'the dog'") == 1
    letters = [json.loads(line) for line in texts("decode", "pieces", "--json", stdin=b"the dog \nthe dog\n").lines]
    scores = [each["hypotheses"][0]["log_probability"] for each in letters]
    assert scores[0] != scores[1], "the model does not read the same"
    again = texts("decode", "lm", stdin=b" a dog \n  \n")
    assert again.lines[0].startswith(" a dog ") and again.lines[1].startswith("  ") and "keep" not in again.err


def test_several_lines_are_one_escaped_line_of_the_output(texts: Run) -> None:
    Path("prompts").write_text(8 * "a dog\n\na \\n b\n", encoding="utf-8")  # some of 24 samples have a line end
    sampling = ("-i", "prompts", "--method", "sample", "--max-length-offset", "120")
    found = texts("decode", "lm", *sampling, "--max-lines", "2", "--json").lines
    texts_of = [json.loads(line)["hypotheses"][0]["text"] for line in found]
    assert len(found) == 24 and max(text.count("\n") for text in texts_of) == 1
    escaped = [text.replace("\\", "\\\\").replace("\n", "\\n") for text in texts_of]
    assert texts("decode", "lm", *sampling, "--max-lines", "2", "-o", "out").code == 0
    assert Path("out").read_bytes().decode().split("\n") == [*escaped, ""]
    one = texts("decode", "lm", *sampling)
    assert one.out == texts("decode", "lm", *sampling, "--max-lines", "1").out
    assert one.out.decode().split("\n") == [*(text.split("\n")[0] for text in texts_of), ""]  # the same draws
    beam = ("decode", "lm", "-i", "prompts", "--max-lines", "0", "--n-best", "2", "--method", "beam")
    assert texts(*beam).out.count(b"\n") == 48


def test_checkpoints_are_averaged_by_bits_per_character(texts: Run) -> None:
    found = texts("average", "lm", "--last", "1,2", "-o", "mean")
    assert found.code == 0 and "bpc" in found.out.decode()
    assert texts("score", "--model", "mean", "--text", "texts/test.en").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode", "lm", "--tags", "texts/dev.en", "-i", "texts/dev.en"), "--tags: has no meaning"),
        (("decode", "lm", "--documents", "texts/dev.en", "-i", "texts/dev.en"), "--documents: has no meaning"),
        (("decode", "lm", "--encoder-layers", "1"), "--encoder-layers: has no meaning"),
        (("decode", "lm", "--unknown", "copy"), "--unknown copy: has no meaning"),
        (("decode", "model", "--max-lines", "3"), "--max-lines: the model translates"),
        (("score", "--model", "lm", *PAIR), "a language model"),
        (("score", "--model", "model", "--text", "texts/dev.en"), "model: the model translates"),
        (("score", "--text", "texts/dev.en"), "--text: needs --model"),
        (("score", "--model", "lm", "--text", "texts/dev.en", "--metric", "bleu"), "--metric: bleu compares"),
        (("score", "--model", "lm", "--text", "texts/dev.en", "--tokenize", "zh"), "--tokenize: has no meaning"),
        (("score", "texts/dev.en", "-r", "texts/dev.en", "-m", "bpb"), "--metric: bpb is a metric of language models"),
        (("score", "--model", "lm", "--segment-length", "4"), "--segment-length: needs --text"),
        (("compare", "lm", "model"), "different tasks"),
        (("compare", "lm", *PAIR), "--source: has no meaning"),
        (("compare", "lm", "--text", "texts/dev.en", "-m", "bleu"), "--metric: bleu compares translations"),
        (("compare", "lm", "--text", "texts/dev.en", "--lowercase"), "--lowercase: has no meaning"),
        (("compare", "lm", "--text", "texts/dev.en", "--language", "de"), "--language: has no meaning"),
        (("compare", "lm", "--text", "texts/dev.en", "--batch-tokens", "64"), "--batch-tokens: has no meaning"),
        (("compare", "lm", "--text", "texts/dev.en", "--rounds", "1"), "--rounds: has no meaning"),
        (("compare", "lm", "--text", "texts/dev.en", "--sacrebleu-p"), "--sacrebleu-p: has no meaning"),
        (("compare", "model", *PAIR, "-m", "bpc"), "--metric: bpc is a metric of language models"),
        (("sweep", "text-sweep.yaml", "--lowercase"), "--lowercase: has no meaning"),
        (("sweep", "judged.yaml"), "judged.yaml: metrics: bleu compares translations"),
        (("compare", "lm"), "no `data.test`"),
        (("compare", "model", "--text", "texts/dev.en"), "--text: the models translate"),
        (("analyze", "spans", "model"), "no span is learned"),
        (("analyze", "density", "lm", "--text", "texts/dev.en", "--beam-size", "2"), "--beam-size: has no meaning"),
        (("analyze", "density", "lm", "--input", "texts/dev.en"), "it reads no source sentences"),
        (("analyze", "density", "lm"), "--text: there is no text"),
        (("analyze", "density", "lm", "--text", "texts/dev.en", "--site", "cross"), "--site: a language model has"),
        (("analyze", "density", "model", "--text", "texts/dev.en"), "the model translates"),
        (("analyze", "diversity", "model", "--input", "texts/dev.en", "--tokens", "9"), "--tokens: needs --text"),
        (("analyze", "attention-mass", "lm", "--input", "texts/dev.en"), "a language model"),
        (("sweep", "mixed.yaml"), "different tasks"),
        (("sweep", "text-sweep.yaml", "--beam-size", "2"), "--beam-size: language models are not searched"),
        (("sweep", "text-sweep.yaml", "-m", "bleu"), "--metric: bleu compares translations"),
        (("export", "lm", "out", "--to", "safetensors-hf"), "a language model"),
        (("depth-table", "lm"), "a language model"),
        (("slice", "lm", "out", "-n", "1", "-m", "1"), "a language model"),
        (("train", "text.yaml", "directory=other", "training.streams=1000"), "shorter than one segment"),
        (("train", "text.yaml", "directory=other", "losses.span.target=0.5"), "losses.span"),
    ],
)
def test_what_has_no_meaning_is_refused(texts: Run, arguments: tuple[str, ...], message: str) -> None:
    variants = "[{name: a}, {name: b, recipe: model/recipe.yaml}]"
    mixed = f"name: mixed\ndirectory: other\nrecipe: text.yaml\nsets: [dev]\nvariants: {variants}\n"
    Path("mixed.yaml").write_bytes(mixed.encode())
    Path("text-sweep.yaml").write_bytes(mixed.replace(variants, "[{name: a}]").encode())
    Path("judged.yaml").write_bytes(mixed.replace(variants, "[{name: a}]\nmetrics: [bleu]").encode())
    found = texts(*arguments)
    assert found.code == 2 and message in found.err and "Traceback" not in found.err
    assert not Path("other").exists() and not Path("out").exists()


def test_a_pattern_that_sees_later_positions_trains_and_does_not_decode(texts: Run) -> None:
    kept = [line for line in RECIPE.split("\n") if "span" not in line and "position: " not in line]
    pattern = "      pattern: {name: routing, clusters: 2, local: 1, assignment: balanced}"
    kept.insert(kept.index("    decoder_self:") + 1, pattern)
    Path("leak.yaml").write_bytes("\n".join(kept).encode())
    trained = texts("train", "leak.yaml", "directory=leak", "training.max_updates=2")
    assert trained.code == 0, trained.err
    found = texts("decode", "leak", stdin=b"a dog\n")
    assert found.code == 2 and "later positions decide" in found.err


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the usual size: the texts of these tests are short."""
    monkeypatch.setattr("sparsenmt.evaluation.text_quality.BLOCK_CHARACTERS", 100)


@pytest.mark.thorough
def test_models_are_compared_on_blocks_of_lines(texts: Run, small_blocks: None) -> None:
    assert texts("average", "lm", "--last", "2", "-o", "mean").code == 0
    command = ("compare", "lm", "mean", "--text", "texts/train.en")
    found = texts(*command, "--json", "compared.json", "--plot", "compared.png")
    assert found.code == 0, found.err
    tables = json.loads(Path("compared.json").read_text(encoding="utf-8"))["tables"]
    models = {row["model"]: row for row in tables["models"]}
    for name, row in models.items():
        assert row["bpc"] == pytest.approx(bits(name, Path("texts/train.en")), rel=1e-4)
        assert row["longest_span"] >= row["mean_span"] >= row["attended"] - 1
    (test,) = tables["significance"]
    assert test["difference"] == pytest.approx(models["mean"]["bpc"] - models["lm"]["bpc"], abs=1e-12)
    assert test["low"] <= test["difference"] <= test["high"]
    kept = Path("lm/evaluation").stat().st_mtime_ns
    again = texts(*command)
    assert again.out == found.out and Path("lm/evaluation").stat().st_mtime_ns == kept


def test_a_text_in_one_line_is_compared_on_its_parts(texts: Run, small_blocks: None) -> None:
    assert texts("average", "lm", "--last", "2", "-o", "mean").code == 0
    one = b" ".join(Path("texts/train.en").read_bytes().split(b"\n"))
    Path("one").write_bytes(one)
    found = texts("compare", "lm", "mean", "--text", "one", "--json", "compared.json", "--no-attention")
    assert found.code == 0, found.err
    (test,) = json.loads(Path("compared.json").read_text(encoding="utf-8"))["tables"]["significance"]
    assert f"one: {len(one) + 1:,} characters in " in found.lines[0]
    assert test["low"] <= test["difference"] <= test["high"] and 0 < test["p_value"] <= 1
    Path("one").write_bytes(one[:90])
    found = texts("compare", "lm", "mean", "--text", "one", "--json", "compared.json", "--no-attention")
    (test,) = json.loads(Path("compared.json").read_text(encoding="utf-8"))["tables"]["significance"]
    assert test["low"] is test["p_value"] is None and test["difference"] is not None
    assert "with fewer than 30 segments (1): one segment has no p-value; no interval" in found.out.decode()


def test_a_text_may_be_a_pipe(texts: Run) -> None:
    reader, writer = os.pipe()
    os.write(writer, Path("texts/dev.en").read_bytes())
    os.close(writer)
    found = texts("score", "--model", "lm", "--text", f"/dev/fd/{reader}", "--json")
    os.close(reader)
    assert found.code == 0 and found.out == texts("score", "--model", "lm", "--text", "texts/dev.en", "--json").out


def test_tokens_of_different_vocabularies_are_not_compared(texts: Run) -> None:
    changes = ("directory=chars", "data.directory=prepared-chars", "data.tokenizer.kind=char", "training.max_updates=6")
    for command in ("prepare", "train"):
        assert texts(command, "text.yaml", *changes, "model.segment_memory=0").code == 0
    metrics = [option for name in ("bpc", "perplexity", "word_perplexity") for option in ("-m", name)]
    found = texts("compare", "lm", "chars", "--text", "texts/dev.en", *metrics, "--json", "compared.json")
    assert found.code == 0, found.err
    tables = json.loads(Path("compared.json").read_text(encoding="utf-8"))["tables"]
    assert [row["metric"] for row in tables["significance"]] == ["BPC", "word perplexity"]
    assert all(row["perplexity"] > 1 for row in tables["models"])
    out = found.out.decode()
    assert "BPC of lm: segments of 16 tokens with a memory of 32 positions" in out, "models that read differently"
    assert "BPC of chars: segments of 16 tokens\n" in out and "not tested between models with different" in out


def test_a_sweep_tabulates_language_models(texts: Run) -> None:
    changed = RECIPE.replace("  dev: {", "  test: {text: texts/test.en}\n  dev: {")
    Path("tested.yaml").write_bytes(changed.encode())
    Path("sweep.yaml").write_text(
        """\
name: spans
directory: swept
recipe: tested.yaml
set: {training.max_updates: 6, training.validation.every: 6, data.directory: prepared-tested}
variants:
  - at: {transform: softmax}
  - at: {transform: top-3}
    set: {model.attention.decoder_self.transform: {name: topk, k: 3}}
table: {rows: transform, baseline: {transform: softmax}, cell: [quality, attended, fewer_attended, mean_span]}
""",
        encoding="utf-8",
    )
    assert texts("prepare", "tested.yaml", "data.directory=prepared-tested").code == 0
    found = texts("sweep", "sweep.yaml")
    assert found.code == 0, found.err
    rows = {row["transform"]: row for row in json.loads(Path("swept/table.json").read_text())["tables"]["variants"]}
    for name, row in rows.items():
        assert row["quality"] == pytest.approx(bits(f"swept/{name}", Path("texts/test.en")), rel=1e-4)
    dense, sparse = rows["softmax"], rows["top-3"]
    assert 2.9 < sparse["attended"] <= 3 < dense["attended"]
    assert sparse["fewer_attended"] == pytest.approx(dense["attended"] / sparse["attended"])
    assert sparse["difference"] == pytest.approx(sparse["quality"] - dense["quality"])
    assert sparse["low"] is sparse["p_value"] is None, "one block"
    assert "with fewer than 30 segments (1): one segment has no p-value" in found.out.decode()
    assert dense["low"] is None and dense["updates"] == sparse["updates"] == 6
    assert "segments of 16 tokens with a memory of 32 positions" in found.out.decode()
    again = texts("sweep", "sweep.yaml")
    assert again.code == 0 and again.err.count("finished") == 2 and again.out == found.out


def test_spans_are_reported_with_the_quality_that_they_were_reached_at(texts: Run) -> None:
    found = texts(
        "analyze", "spans", "lm", "--level", "100", "--level", "0", "--json", "spans.json", "--plot", "spans.png"
    )
    assert found.code == 0, found.err
    tables = json.loads(Path("spans.json").read_text(encoding="utf-8"))["tables"]
    log = [json.loads(line) for line in Path("lm/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    logged = [line["heads"]["span"]["decoder_self"] for line in log if line["kind"] == "train"]
    qualities = [line["bpc"] for line in log if line["kind"] == "validation"]
    assert [row["span"] for row in tables["heads"]] == pytest.approx(
        [v for layer in logged[-1] for v in layer], abs=1e-4
    )
    reached, never = tables["levels"]
    assert f"lm: not reached: 0; the best BPC is {min(qualities):.3f}" in found.out.decode()
    assert reached["span"] == pytest.approx(sum(map(sum, logged[0])) / 4, abs=1e-4)
    assert reached["quality"] == qualities[0] and reached["update"] == 6 and never["span"] is None


def test_spans_at_a_validation_are_those_of_its_line_or_in_older_logs_of_the_line_before(texts: Run) -> None:
    log = [json.loads(line) for line in Path("lm/metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def report(lines: list[dict[str, Any]]) -> tuple[list[tuple[int, float]], str]:
        Path("lm/metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        found = texts("analyze", "spans", "lm", "--json", "spans.json")
        assert found.code == 0, found.err
        rows = json.loads(Path("spans.json").read_text(encoding="utf-8"))["tables"]["course"]
        return [(row["update"], row["span"]) for row in rows], found.out.decode()

    whole, shown = report(log)
    assert [update for update, _ in whole] == [6, 12] and "older log" not in shown
    assert report([line for line in log if line["kind"] == "validation"])[0] == whole
    older = [{key: value for key, value in line.items() if key != "heads" or line["update"] == 6} for line in log]
    before, shown = report(older)
    assert before == [whole[0], (12, whole[0][1])] and "an older log" in shown
    broken = [line if line["kind"] == "train" or line["update"] == 6 else {**line, "bpc": None} for line in log]
    assert report(broken)[0] == whole[:1]
    Path("lm/weights.safetensors").unlink()
    assert "without final weights, spans of update 12" in report(log)[1]


def test_attention_is_reported_over_the_beginning_of_a_text(texts: Run) -> None:
    command = ("analyze", "density", "lm", "--text", "texts/train.en", "--json", "density.json")
    found = texts(*command, "--tokens", "400", "--plot", "density.png")
    assert found.code == 0, found.err
    report = json.loads(Path("density.json").read_text(encoding="utf-8"))
    assert report["settings"]["tokens"] == 400
    tables = report["tables"]
    (site,) = tables["sites"]
    assert site["sentences"] == 400 / 16 and len(tables["heads"]) == 4 and len(tables["layers"]) == 2
    for row in tables["layers"]:
        own = [head["attended"] for head in tables["heads"] if str(head["layer"]) == row["layer"]]
        assert row["attended"] == pytest.approx(sum(own) / len(own))
    assert site["attended"] == pytest.approx(sum(row["attended"] for row in tables["layers"]) / 2)
    assert texts("analyze", "diversity", "lm", "--text", "texts/dev.en", "--tokens", "100").code == 0


def test_a_prompt_beyond_the_segments_of_training_is_told_unless_positions_have_no_end(texts: Run) -> None:
    absolute = ["directory=absolute", "model.positions=sinusoidal", "model.segment_memory=0"]
    Path("plain.yaml").write_text(RECIPE.replace("losses: {span: {weight: 1.0e-4}}\n", ""), encoding="utf-8")
    sites = "model.attention={decoder_self: {position: null, span: null}}"
    assert texts("train", "plain.yaml", *absolute, sites, "training.max_updates=1").code == 0
    prompts = b"A cat\nA cat sees a dog and a bird and a house .\n"
    warning = "warning: 1 of 2 lines are longer than every segment of the training text, 16 tokens (line 2)"
    assert warning in texts("decode", "absolute", stdin=prompts).err
    assert texts("decode", "lm", stdin=prompts).err == ""
    longest = texts("decode", "lm", "--max-length-factor", "0", "--max-length-offset", "1", stdin=b"a" * 1500 + b"\n")
    assert "line 1 is too long: 1023 of 1500 tokens are read" in longest.err
