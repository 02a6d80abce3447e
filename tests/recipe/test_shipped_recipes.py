"""The recipes that come with the package, and the reference of all keys."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparsenmt.recipe.load import dump, load
from tests.examples import examples
from tests.recipe.support import METHODS

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))  # sweeps: test_shipped_sweeps.py


SHIPPED = {
    "alignment-de-en",
    "books-language-model",
    "cnndm",
    "cnndm-l0drop",
    "demo",
    "dialogsum",
    "dialogsum-blind",
    "dialogsum-l0drop",
    "dialogsum-rule-freq",
    "dialogsum-rule-group",
    "dialogsum-rule-inv-freq",
    "dialogsum-rule-pos",
    "enwik8-adaptive-span",
    "enwik8-adaptive-span-topk",
    "enwik8-block",
    "enwik8-routing",
    "enwik8-routing-topk",
    "enwik8-transformer-xl",
    "enwik8-transformer-xl-topk",
    "europarl-doc",
    "europarl-sentences",
    "iwslt14-de-en",
    "iwslt15-en-vi",
    "iwslt15-en-vi-words",
    "iwslt15-vi-en",
    "iwslt17-de-en",
    "iwslt17-fr-en",
    "kftt-ja-en",
    "ko-en",
    "low-resource",
    "multi30k-10k",
    "multi30k-1l",
    "multi30k-8l",
    "multi30k-adaptive",
    "multi30k-bigbird",
    "multi30k-block",
    "multi30k-buckets",
    "multi30k-char",
    "multi30k-char-l0drop",
    "multi30k-de-en",
    "multi30k-dilated",
    "multi30k-en-de",
    "multi30k-entmax15",
    "multi30k-fixed-7f1l",
    "multi30k-fixed-8f",
    "multi30k-fixed-word-7f1l",
    "multi30k-global",
    "multi30k-l0drop",
    "multi30k-l0drop-early",
    "multi30k-l0drop-scratch",
    "multi30k-l0drop-sweep",
    "multi30k-oow",
    "multi30k-random",
    "multi30k-recurrent",
    "multi30k-recurrent-distilled",
    "multi30k-rule-freq",
    "multi30k-rule-group",
    "multi30k-rule-inv-freq",
    "multi30k-rule-pos",
    "multi30k-sparsemax",
    "multi30k-tied-multi",
    "multi30k-tied-multi-distilled",
    "multi30k-topk",
    "multi30k-window",
    "news-en-de-doc",
    "qmsum",
    "qmsum-l0drop",
    "student-multi30k-l0drop",
    "tanaka-en-ja",
    "tanaka-ja-en",
    "tanaka-ja-en-l0drop",
    "tatoeba-de-en",
    "ted-en-de-doc",
    "text8-adaptive-span",
    "text8-adaptive-span-topk",
    "text8-block",
    "wikisum",
    "wikisum-l0drop",
    "wmt14-en-de",
    "wmt14-en-de-8k",
    "wmt14-en-de-char",
    "wmt14-en-de-char-l0drop",
    "wmt14-en-de-l0drop",
    "wmt14-en-de-l0drop-early",
    "wmt16-en-ro",
    "wmt16-ro-en",
    "wmt18-en-de",
    "wmt18-en-de-recurrent",
    "wmt18-en-de-recurrent-distilled",
    "wmt18-en-de-tied-multi",
    "wmt18-en-de-tied-multi-distilled",
    "wmt18-zh-en",
    "wmt18-zh-en-l0drop",
    "wmt19-de-en",
    "wmt19-de-en-paracrawl",
    "wmt19-en-de",
    "wmt19-en-de-paracrawl",
}


def test_these_recipes_are_shipped() -> None:
    assert {path.stem for path in RECIPES} == SHIPPED


def header(path: Path) -> str:
    """The comment on top, without its marks; a command that goes on in the next line is one line."""
    lines = path.read_text(encoding="utf-8").split("\n")
    comment = "\n".join(
        line.removeprefix("#") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)
    )
    return re.sub(r" \\\n *", " ", comment)


def commands(path: Path) -> list[list[str]]:
    """The command lines of the header that name the recipe: what follows its file name are overrides."""
    lines = [line.strip() for line in header(path).split("\n")]
    return [shlex.split(line) for line in lines if line.startswith("sparsenmt ") and f"recipes/{path.name}" in line]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", str(tmp_path))
    known = methods()
    recipe = load(path, known)
    assert recipe.name == path.stem
    again = tmp_path / "again.yaml"
    again.write_text(dump(recipe), encoding="utf-8", newline="\n")
    assert load(again, known) == recipe


@examples("path", RECIPES, fast=RECIPES[::6], ids=lambda path: path.stem)
def test_of_a_shipped_recipe_a_model_can_be_built(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.assemble.checks import check_recipe
    from sparsenmt.assemble.model import build_model
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    recipe = load(path, methods(), [], check_recipe)
    model = build_model(recipe.model, source_size=8, target_size=8, seed=1)
    assert len(model.encoder.steps) == recipe.model.encoder_layers
    assert len(model.memory.output) == sum(choice.at == "output" for choice in recipe.model.memory)
    assert recipe.training.average_last * recipe.training.save_every <= recipe.training.max_updates


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_says_what_it_is_and_how_to_run_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    assert "\n Settings" in header(path)
    found = commands(path)
    assert {"train", "finetune-l0", "distill"} & {command[1] for command in found}
    known = methods()
    for command in found:  # the overrides that it tells of can be given
        overrides = [part for part in command[command.index(f"recipes/{path.name}") + 1 :] if "=" in part]
        if not any(part.endswith("=FILE") for part in overrides):
            load(path, known, overrides)


@dataclass(frozen=True)
class Published:
    """Settings of a task of Zhang et al. 2021: appendix A, section 6 and Table 1; None: the paper does not say."""

    updates: int
    further: int | None
    weight: float = 0.3
    dropout: tuple[float, float] = (0.1, 0.1)
    batch: int = 25_000
    alpha: float = 0.6
    longest_source: int | None = None


PUBLISHED = {
    "wmt14-en-de": Published(300_000, 50_000),
    "wmt14-en-de-char": Published(300_000, 50_000, weight=0.02, batch=85_000, alpha=1.0),
    "wmt18-zh-en": Published(500_000, 50_000),
    "cnndm": Published(80_000, 20_000, dropout=(0.3, 0.5), longest_source=400),
    "wikisum": Published(100_000, None, longest_source=2048),
}
CHOSEN = {
    "wmt14-en-de": (256, 50_000),
    "wmt14-en-de-char": (1000, 50_000),
    "wmt18-zh-en": (256, 50_000),
    "cnndm": (512, 20_000),
    "wikisum": (2048, 20_000),
}
"""This project's choices where the paper is silent: the longest pair, further updates with gates."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    dense, gated = (load(ROOT / "recipes" / f"{name}{end}.yaml", methods()) for end in ("", "-l0drop"))
    published, (longest, further) = PUBLISHED[name], CHOSEN[name]
    assert published.further in (None, further)
    for recipe in (dense, gated):
        model, training, decoding = recipe.model, recipe.training, recipe.decoding
        assert (model.dimension, model.feed_forward, model.heads) == (512, 2048, 8)
        assert (model.encoder_layers, model.decoder_layers) == (6, 6)
        dropped = (model.dropout.attention, model.dropout.residual)
        assert dropped == published.dropout
        assert (training.label_smoothing, training.warmup_updates, training.schedule) == (0.1, 4000, "inverse_sqrt")
        assert (training.optimizer.beta1, training.optimizer.beta2, training.average_last) == (0.9, 0.98, 5)
        assert (training.optimizer.epsilon, training.clip_norm) == (1e-8, None), "as in the authors' script"
        assert (model.tie_embeddings, training.loss_normalization) == ("target", "sentences"), "likewise"
        assert recipe.data.tokenizer.kind == ("char" if name.endswith("-char") else "bpe")
        assert (decoding.beam_size, decoding.length_penalty, decoding.alpha) == (4, "gnmt", published.alpha)
        characters = recipe.data.tokenizer.kind == "char"
        assert characters == name.endswith("-char") and (characters or recipe.data.tokenizer.vocabulary_size == 32_000)
        # Where targets are as long as sources, a batch has as many tokens of either.
        assert published.longest_source is not None or training.accumulate_tokens == published.batch
        assert recipe.data.filters.max_length == longest
        assert recipe.data.filters.max_source_length == published.longest_source
    assert (dense.model.memory, dense.losses, dense.training.max_updates) == ([], {}, published.updates)
    assert (gated.training.max_updates, gated.training.loss_normalization) == (further, "sentences")
    assert [(choice.name, choice.at) for choice in gated.model.memory] == [("l0drop", "output")]
    assert gated.model.memory[0].options == {"init_log_alpha": 0, "closed": "zero", "cumulative": False}
    assert gated.losses["l0"].weight == published.weight
    assert gated.data == dense.data, "the gates are trained on the data of the dense model"


def test_gates_and_blocks_of_all_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likelihoods beside a penalty are of sentences, as in Eq. 12 of Zhang et al. 2021; and targets have more tokens.

    In decoding the source alone limits a block of sentences, and German is longer than English
    (docs/guides/documents.md).
    """
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    recipes = {path.stem: load(path, methods()) for path in RECIPES}
    gated = {name: recipe for name, recipe in recipes.items() if "l0" in recipe.losses}
    penalised = {name: recipe for name, recipe in gated.items() if recipe.losses["l0"].weight != 0}
    by_tokens = [name for name, recipe in penalised.items() if recipe.training.loss_normalization != "sentences"]
    assert len(penalised) > 10 and by_tokens == []
    packed = {name: recipe.data.documents for name, recipe in recipes.items() if recipe.data.documents is not None}
    assert {"europarl-doc", "ted-en-de-doc", "news-en-de-doc"} <= packed.keys()
    assert all((each.source_length or each.max_length) < each.max_length for each in packed.values())


def test_the_cited_settings_of_iwslt17_fr_en(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zhao et al. cite the mini model of Wang et al. 2020: fairseq's example byte_level_bpe."""
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    recipe = load(ROOT / "recipes/iwslt17-fr-en.yaml", methods())
    model, training, optimizer = recipe.model, recipe.training, recipe.training.optimizer
    assert (model.dimension, model.feed_forward, model.heads, model.norm) == (512, 2048, 8, "post")
    assert (model.encoder_layers, model.decoder_layers, model.tie_embeddings) == (2, 2, "all")
    assert (model.dropout.residual, model.dropout.attention, model.dropout.activation) == (0.3, 0, 0)
    assert recipe.data.tokenizer.shared and 2048 <= recipe.data.tokenizer.vocabulary_size <= 16_384
    assert (training.max_updates, training.learning_rate, training.warmup_updates) == (100_000, 5e-4, 4000)
    assert (training.schedule, training.label_smoothing) == ("inverse_sqrt", 0.1)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.98, 1e-8, 0)
    assert training.accumulate_tokens == 2 * training.batch_tokens == 2 * 100 * 25, "100 sentences of 25 tokens, twice"


def test_gradients_are_bounded_where_the_sources_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key has a default of 1: recipes with published settings say what their source does."""
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    own = re.compile("multi30k|dialogsum|qmsum|tanaka|tatoeba|europarl|books|student|demo|alignment")
    found = {path.stem: load(path, methods()).training.clip_norm for path in RECIPES if not own.match(path.stem)}
    bounded = {name: norm for name, norm in found.items() if norm is not None}
    assert {name.partition("8-")[0] for name in bounded} == {"enwik", "text"} and len(found) > 40
    published = {"transformer-xl": 0.25, "block": 0.25, "adaptive-span": 0.03, "routing": 0.5}
    for name, norm in bounded.items():
        assert norm == published[name.partition("8-")[2].removesuffix("-topk")], name


@pytest.mark.parametrize(("learned", "millions"), [(8, 91.7), (1, 88.9), (0, 88.5)])
def test_the_parameters_of_fixed_heads_are_the_published_ones_with_smaller_vocabularies(
    learned: int, millions: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 5 of Raganato et al. 2020, and the vocabulary that the header of the recipe derives from it."""
    import torch

    from sparsenmt.assemble.model import build_model
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    path = ROOT / "recipes/wmt19-en-de.yaml"
    size = int(re.search(r"vocabulary_size=([\d_]+)", header(path))[1])  # type: ignore[index]
    patterns = ", ".join(["current", "previous", "next", "left", "right", "end", "start", "last"][: 8 - learned])
    given = f"{{name: fixed_token, patterns: [{patterns}], learned: {learned}}}"
    overrides = [] if learned == 8 else [f"model.attention.encoder_self.heads.given={given}"]
    with torch.device("meta"):
        built = build_model(load(path, methods(), overrides).model, source_size=size, target_size=size, seed=1)
    assert round(sum(parameter.numel() for parameter in built.parameters()) / 1e6, 1) == millions


def test_the_corpora_that_are_there_are_found(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", str(real_data))
    for name in ("multi30k-en-de", "multi30k-char", "tatoeba-de-en", "low-resource", "dialogsum", "qmsum"):
        data = load(ROOT / "recipes" / f"{name}.yaml", METHODS).data
        for corpus in (*data.train, data.dev, *([data.test] if data.test is not None else [])):
            assert Path(corpus.source).is_file() and Path(corpus.target).is_file()


def test_the_published_settings_of_language_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dai et al. 2019 and Sukhbaatar et al. 2019: enwik8, base and small; the example that Zhao et al. name for Roy."""
    from sparsenmt.assemble.model import build_model
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    names = ("transformer-xl", "transformer-xl-topk", "adaptive-span", "adaptive-span-topk", "routing", "routing-topk")
    found = {name: load(ROOT / f"recipes/enwik8-{name}.yaml", methods()) for name in names}
    text8 = {name: load(ROOT / f"recipes/text8-{name}.yaml", methods()) for name in ("adaptive-span", "block")}
    for name in names[:4]:
        model = found[name].model
        assert (model.decoder_layers, model.dimension, model.feed_forward, model.heads) == (12, 512, 2048, 8)
        assert found[name].training.segment_length == 512 and found[name].data.tokenizer.kind == "byte"
    sites = {name: recipe.model.attention.decoder_self for name, recipe in found.items()}
    k = {name: site.transform.options.get("k") for name, site in sites.items()}
    assert k == dict(zip(names, (None, 64, None, 8, None, 16), strict=True))

    xl, span, routing = found["transformer-xl"], found["adaptive-span"], found["routing"]
    assert (xl.training.streams, xl.training.max_updates, xl.training.learning_rate) == (22, 400_000, 2.5e-4)
    assert (xl.model.segment_memory, xl.model.dropout.residual, xl.model.dropout.attention) == (512, 0.1, 0)
    relative = sites["transformer-xl"].position
    assert relative is not None and relative.options["evaluation_clamp"] == 820
    assert sites["transformer-xl"].pattern.options["k"] == 2100
    reading = (xl.decoding.segment_length, xl.decoding.segment_memory)
    assert reading == (128, 512 + 512 - 128), "a validation sees as far as training"
    optimizer = span.training.optimizer
    assert (span.training.streams, span.training.max_updates, span.training.learning_rate) == (64, 600_000, 0.07)
    assert (optimizer.name, span.training.warmup_updates, span.training.clip_norm) == ("adagrad", 32_000, 0.03)
    assert (span.model.segment_memory, span.losses["span"].weight) == (8192, 5e-7)
    dropout = span.model.dropout
    assert (dropout.residual, dropout.attention, dropout.activation) == (0, 0.3, 0.3)
    chosen, vectors = sites["adaptive-span"].span, sites["adaptive-span"].position
    assert chosen is not None and vectors is not None and not chosen.options["own"]
    assert (chosen.options["maximum"], chosen.options["ramp"]) == (8192, 32)
    assert (vectors.options["maximum"], vectors.options["deviation"]) == (8193, 1), "distances 1 to 8,192"
    assert text8["adaptive-span"].training.max_updates == 900_000
    assert text8["block"].model == load(ROOT / "recipes/enwik8-block.yaml", methods()).model
    own = sites["routing"].pattern.options
    assert (own["local"], own["window"], own["local_pattern"]) == ([8, 8, 8, 4, 4, 4], 128, "blocks")
    assert own["decay"] == pytest.approx(0.999**4, abs=1e-4), "four batches an update"
    assert (routing.training.streams, routing.training.segment_length) == (16, 4096)
    assert (routing.training.batch_tokens, routing.training.max_updates) == (4 * 4096, 100_000)
    assert routing.training.clip_norm == 0.5

    for name, millions in (("transformer-xl", 41), ("adaptive-span", 38)):  # as the papers say
        built = build_model(found[name].model, source_size=204, target_size=204, seed=1)
        assert sum(parameter.numel() for parameter in built.parameters()) // 10**6 == millions
