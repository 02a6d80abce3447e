"""Every shipped recipe is run once, small: invented text of the form that it names, prepared, trained, measured.

Sizes are overridden, methods are not. Recipes that translate are marked as slow: there are many.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.recipe.load import load
from sparsenmt.recipe.schema import Recipe
from tests.recipe.test_shipped_recipes import RECIPES, ROOT

TRAINING, MEASURED = 120, 20
"""Lines of a training corpus, of the others."""
LETTERS = {"ja": "かなのにをはが語文", "zh": "的一是不了在人有我", "ko": "가나다라마바사아자", "vi": "ăâđêôơưẹọ"}
MARGINS = ("<page>", '  <text xml:space="preserve">', "&quot;", "[[Übersetzung|言葉]]", "</page>")


def invented_words(count: int, language: str, seed: str) -> list[str]:
    draw = random.Random(seed)
    letters = LETTERS.get(language, "") + "etaoinshr"[: 9 if language not in ("ja", "zh") else 0]
    words = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(40)]
    return draw.choices(words, k=count)


def invented_lines(path: Path, language: str, count: int) -> list[str]:
    """Lines of 2 to 9 words, with or without spaces between them."""
    seed, joint = "/".join(path.parts[-2:]), "" if language in ("ja", "zh") else " "
    draw = random.Random(seed)
    return [joint.join(invented_words(draw.randint(2, 9), language, f"{seed} {n // 2}")) for n in range(count)]


def text_of(path: Path, count: int) -> bytes:
    """The contents of a text of a language model: one line of text8, XML of enwik8, lines of books."""
    if path.parent.name == "text8":
        return " ".join(invented_words(6 * count, "en", path.name)).encode()
    lines = invented_lines(path, "en", count)
    if path.parent.name == "enwik8":
        lines = [f"{MARGINS[number % len(MARGINS)]} {line}" for number, line in enumerate(lines)]
    return "\n".join([*lines, ""]).encode()


def write(path: str, content: bytes) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)


def write_corpora(recipe: Recipe) -> None:
    data = recipe.data
    languages = {"source": data.source_language, "target": data.target_language, "text": data.target_language}
    for corpus in (*data.train, data.dev, *([] if data.test is None else [data.test])):
        count = TRAINING if corpus in data.train else MEASURED
        for side, path in corpus.files.items():
            lines = invented_lines(Path(path), languages[side], count)
            write(path, text_of(Path(path), count) if side == "text" else "\n".join([*lines, ""]).encode())
        if corpus.documents is not None:
            write(corpus.documents, b"".join(b"talk%d\n" % (number // 6) for number in range(count)))


def small(recipe: Recipe) -> list[str]:
    """The overrides that make a recipe small, and leave its methods."""
    model, data = recipe.model, recipe.data
    changes: dict[str, Any] = {
        **{"model.dimension": 8 * model.heads, "model.feed_forward": 32},
        **{"training.max_updates": 2, "training.warmup_updates": 1, "training.validation.every": 2},
        **{"training.save_every": 1, "training.keep_last": 1, "training.average_last": 1, "training.log_every": 1},
        **{"training.device": "cpu", "training.threads": 1, "training.compute_dtype": "fp32"},
    }
    if model.preset is not None:
        changes["model.preset"] = "null"
    if data.tokenizer.from_model is not None:
        changes |= {"data.tokenizer.from_model": "null", "data.tokenizer.kind": "bpe", "decoding.shortlist": "none"}
    if data.tokenizer.kind not in ("byte", "char"):
        changes["data.tokenizer.vocabulary_size"] = 90
    if data.is_language_model:
        site, length = model.attention.decoder_self, 32
        changes |= {"training.streams": 2, "training.segment_length": length, "training.batch_tokens": 2 * length}
        changes |= {"model.segment_memory": 48 if model.segment_memory else 0}
        if site.span is not None:
            changes["model.attention.decoder_self.span.maximum"] = 48
        if site.position is not None and "maximum" in site.position.options:
            changes["model.attention.decoder_self.position.maximum"] = 48
        if site.pattern.name == "routing":
            changes |= {"model.attention.decoder_self.pattern.clusters": 4}
            changes |= {"model.attention.decoder_self.pattern.window": 8}
    else:
        changes |= {"training.batch_tokens": 256, "training.accumulate_tokens": "null"}
    return [f"{name}={value}" for name, value in changes.items()]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Recipe, list[str]]]:
    """A folder with recipes/ and the text of a recipe; returns the recipe, and the arguments that run it small."""
    from sparsenmt.sparsity.registry import methods

    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.setenv("SPARSENMT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def prepared(name: str) -> tuple[Recipe, list[str]]:
        path = f"recipes/{name}.yaml"
        recipe = load(Path(path), methods())
        write_corpora(recipe)
        return recipe, [path, *small(recipe)]

    return prepared


def is_language_model(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    base = next((line.removeprefix("base: ") for line in text.split("\n") if line.startswith("base: ")), None)
    return "task: language_model" in text or (base is not None and is_language_model(path.parent / base))


def marks(path: Path) -> tuple[pytest.MarkDecorator, ...]:
    if not is_language_model(path):
        return (pytest.mark.slow,)
    return () if path in [each for each in RECIPES if is_language_model(each)][::4] else (pytest.mark.thorough,)


@pytest.mark.parametrize("name", [pytest.param(path.stem, marks=marks(path)) for path in RECIPES])
def test_a_shipped_recipe_runs(
    name: str, shipped: Callable[[str], tuple[Recipe, list[str]]], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    recipe, arguments = shipped(name)
    for command in ("prepare", "train"):
        assert run([command, *arguments]) == 0, capfdbinary.readouterr().err.decode()
    log = [json.loads(line) for line in (Path(recipe.directory) / "metrics.jsonl").read_bytes().splitlines()]
    validated = next(each for each in log if each["kind"] == "validation")
    assert validated["update"] == 2 and recipe.training.validation.metric in validated
    capfdbinary.readouterr()
    if recipe.data.test is None:
        return
    if recipe.data.is_language_model:
        command = ["score", "--model", recipe.directory, "--text", recipe.data.test.text, "--json"]
    else:
        command = ["decode", recipe.directory, "-i", recipe.data.test.source]
    assert run(command) == 0, capfdbinary.readouterr().err.decode()
    out = capfdbinary.readouterr().out
    if not recipe.data.is_language_model:
        assert out.count(b"\n") == MEASURED
        return
    found, text = json.loads(out), Path(recipe.data.test.text).read_bytes()
    text = gzip.decompress(text) if text.startswith(b"\x1f\x8b") else text
    size = len(text) + (not text.endswith(b"\n"))
    assert found["bytes"] == found["tokens"] == size and 0 < found["bpb"] < 20
