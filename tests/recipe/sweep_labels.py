"""The meaning of the labels of the shipped sweeps, written apart from the sweeps: a recipe, and changes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparsenmt.recipe.schema import AuxiliaryLoss

ROOT = Path(__file__).resolve().parents[2]
SELF = ("encoder_self", "decoder_self")
SITES = (*SELF, "cross")
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Meaning:
    """One variant: the recipe, without `.yaml`, the values of the keys that differ from it, and its beginning."""

    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    updates: int | None = None


def at(sites: tuple[str, ...], socket: str, **method: Any) -> dict[str, Any]:
    """A method at several attention sites."""
    return {f"model.attention.{site}.{socket}": method for site in sites}


EIGHT = ["current", "previous", "next", "left", "right", "end", "start", "last"]


def heads(system: str) -> dict[str, Any]:
    """The encoder's heads of the systems of Raganato et al. 2020."""
    here = "model.attention.encoder_self.heads"
    token = {"name": "fixed_token", "patterns": EIGHT[:7], "learned": 1}
    return {
        "8L": {},
        "7F token + 1L": {f"{here}.given": token},
        "7F word + 1L": {f"{here}.given": {"name": "fixed_word", "patterns": EIGHT[:7], "learned": 1}},
        "8F token": {f"{here}.given": {"name": "fixed_token", "patterns": EIGHT, "learned": 0}},
        "1L": {f"{here}.count": 1},
        "7F token + 1L, head 8 disabled": {f"{here}.given": token, f"{here}.disabled": [8]},
    }[system]


def words(system: str, directory: str) -> dict[str, Any]:
    """The prepared data of word-based heads, which have the words' numbers."""
    return {"data.directory": f"runs/data/{directory}"} if system == "7F word + 1L" else {}


def layers(label: str) -> dict[str, int]:
    encoder, decoder = label.split("+")
    return {"model.encoder_layers": int(encoder), "model.decoder_layers": int(decoder)}


STATIC = {
    "Block Attention": "block",
    "Window Attention": "window",
    "Dilated Attention": "dilated",
    "Global Attention": "global",
    "Random Attention": "random",
    "Big Bird": "bigbird",
}
SELECTIVE = {
    "Top-k Selective Attention": "topk",
    "Top-k Selective Attention (OOW)": "topk_oow",
    "top-k": "topk",
    "top-k, out of window": "topk_oow",
}


def attended(method: str, k: str) -> dict[str, Any]:
    """k attended positions at both self-attention sites."""
    if method in ("full", "Full Attention"):
        return {}
    if method in SELECTIVE:
        return at(SELF, "transform", name=SELECTIVE[method], k=int(k))
    if method == "top-k, all sites":
        return at(SITES, "transform", name="topk", k=int(k))
    return at(SELF, "pattern", name=STATIC.get(method, method), k=int(k))


def transform(label: str, sites: tuple[str, ...] = SITES) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "softmax": {"name": "softmax"},
        "entmax 1.5": {"name": "entmax15"},
        "1.5-entmax": {"name": "entmax15"},
        "adaptive": {"name": "entmax", "alpha": "learned"},
        "α-entmax": {"name": "entmax", "alpha": "learned"},
        "sparsemax": {"name": "sparsemax"},
        **{f"top-{k}": {"name": "topk", "k": k} for k in (8, 16, 32, 64)},
    }
    return at(sites, "transform", **options[label])


def europarl_doc(labels: Labels) -> Meaning:
    changes = attended(labels["method"], labels["k"])
    if labels["start"] == "from sentences":
        return Meaning("europarl-doc", changes, "runs/europarl-sentences", 100)
    assert labels["start"] == "from scratch"
    training = {"max_updates": 200, "learning_rate": 1.5e-3, "warmup_updates": 50, "validation.max_sentences": 100}
    return Meaning("europarl-doc", changes | {f"training.{key}": value for key, value in training.items()})


def multi30k_scratch(labels: Labels) -> Meaning:
    system, depth = labels["system"], layers(labels["layers"])
    if system.startswith("8L, "):
        return Meaning("multi30k-8l", transform(system.removeprefix("8L, ")) | depth)
    changes = heads(system) | words(system, "multi30k-words") | depth
    if "disabled" not in system:
        return Meaning("multi30k-8l", changes)
    return Meaning("multi30k-8l", changes, f"runs/multi30k-scratch/7F-token+1L-{labels['layers']}", 0)


def multi30k_heads_full(labels: Labels) -> Meaning:
    meaning = multi30k_scratch(labels)
    start = meaning.start and meaning.start.replace("multi30k-scratch", "multi30k-heads-full")
    return replace(meaning, start=start)


def gates(loss: dict[str, Any], *places: str) -> dict[str, Any]:
    """L0Drop gates at these places, and their loss."""
    keys = AuxiliaryLoss.model_validate(loss).model_dump(by_alias=True)
    schedule = keys.pop("weight") if isinstance(keys.get("weight"), dict) else {}
    return {
        "model.memory": [{"name": "l0drop", "at": place} for place in places],
        **{f"losses.l0.{key}": value for key, value in keys.items()},
        **{f"losses.l0.weight.{key}": value for key, value in schedule.items()},
    }


def l0drop_targets(labels: Labels) -> Meaning:
    recipe = {"En-De": "multi30k-en-de", "De-En": "multi30k-de-en"}[labels["direction"]]
    shares = {"30%": 0.3, "40%": 0.4, "50%": 0.5}
    changes = {} if labels["gates"] == "none" else gates({"target": shares[labels["gates"]]}, "output")
    return Meaning(recipe, changes, f"runs/{recipe}", 2500)


def l0drop_from_scratch(labels: Labels) -> Meaning:
    changes = {
        "dense": {},
        "rising lambda": gates({"weight": {"from": 0, "to": 0.2, "steps": 3000}}, "output"),
        "target": gates({"target": 0.42}, "output"),
        "fine-tuned": gates({"target": 0.42}, "output") | {"training.save_every": 125},
    }[labels["training"]]
    if labels["training"] != "fine-tuned":
        return Meaning("multi30k-en-de", changes)
    return Meaning("multi30k-en-de", changes, "runs/multi30k-l0drop-from-scratch/dense", 2500)


def l0drop_places(labels: Labels) -> Meaning:
    places = {"none": (), "output": ("output",), "every layer": ("between", "output")}[labels["place"]]
    changes = gates({"target": 0.3}, *places) if places else {}
    return Meaning("multi30k-en-de", changes, "runs/multi30k-en-de", 2500)


def l0drop_rules(recipe: str, dense: str, updates: int, target: dict[str, Any]) -> Callable[[Labels], Meaning]:
    own = {
        "none": dense,
        "gates": f"{recipe}-l0drop",
        "POS": f"{recipe}-rule-pos",
        "Freq": f"{recipe}-rule-freq",
        "Group": f"{recipe}-rule-group",
        "Inv Freq": f"{recipe}-rule-inv-freq",
    }

    def meaning(labels: Labels) -> Meaning:
        changes = target if labels["pattern"] == "gates" else {}
        return Meaning(own[labels["pattern"]], changes, f"runs/{dense}", updates)

    return meaning


def depths_full(labels: Labels) -> Meaning:
    system = labels["system"]
    if system == "plain":
        return Meaning("multi30k-en-de", layers(labels["layers"]))
    text = "distilled" if system.endswith("distilled") else "as it is"
    return multi30k_depth_systems({"system": system.removesuffix(" distilled"), "text": text})


def multi30k_10k(labels: Labels) -> Meaning:
    system = labels["system"]
    changes = heads(system) | words(system, "multi30k-10k-words")
    if "disabled" not in system:
        return Meaning("multi30k-10k", changes)
    return Meaning("multi30k-10k", changes, "runs/multi30k-10k-systems/7F-token+1L", 0)


def multi30k_bpe_dropout(labels: Labels) -> Meaning:
    sides = {"BPE": (), "BPE-dropout": ("source", "target"), "BPE-dropout, source": ("source",)}[labels["system"]]
    return Meaning("multi30k-en-de", {f"data.subword_regularization.{side}.dropout": 0.1 for side in sides})


def tatoeba_word_senses(labels: Labels) -> Meaning:
    system, depth = labels["system"], labels["layers"]
    changes = heads(system) | layers(depth)
    if "disabled" not in system:
        return Meaning("tatoeba-de-en", changes)
    return Meaning("tatoeba-de-en", changes, f"runs/tatoeba-word-senses/7F-token+1L-{depth}", 0)


def multi30k_depth_systems(labels: Labels) -> Meaning:
    text = ROOT / "runs/data/multi30k-en-de-distilled-text/train-0"
    distilled = {
        "data.directory": "runs/data/multi30k-distilled",
        "data.train": [("multi30k", f"{text}.source", f"{text}.target")],
    }
    changes = {"as it is": {}, "distilled": distilled}[labels["text"]]
    return Meaning({"tied-multi": "multi30k-tied-multi", "recurrent": "multi30k-recurrent"}[labels["system"]], changes)


CORPORA = {
    "entmax-table1": {
        "DE-EN": "iwslt17-de-en",
        "JA-EN": "kftt-ja-en",
        "RO-EN": "wmt16-ro-en",
        "EN-DE": "wmt14-en-de-8k",
    },
    "fixed-heads-table1": {"EN-DE": "wmt19-en-de", "DE-EN": "wmt19-de-en"},
    "fixed-heads-table2": {
        "DE-EN": "iwslt14-de-en",
        "KO-EN": "ko-en",
        "EN-VI": "iwslt15-en-vi",
        "VI-EN": "iwslt15-vi-en",
    },
    "fixed-heads-table3": {"EN-DE": "wmt19-en-de-paracrawl", "DE-EN": "wmt19-de-en-paracrawl"},
    "l0drop": {
        "WMT14 En-De": "wmt14-en-de",
        "WMT14 En-De (Char)": "wmt14-en-de-char",
        "WMT18 Zh-En": "wmt18-zh-en",
        "CNN/Daily Mail": "cnndm",
        "WikiSum": "wikisum",
    },
    "topk-table1": {"Fr-En": "iwslt17-fr-en", "En-Ro": "wmt16-en-ro"},
    "topk-table2": {"TED": "ted-en-de-doc", "News-Commentary": "news-en-de-doc"},
}
"""Sweep -> label of a corpus -> its recipe."""


def fixed_heads(sweep: str, labels: Labels, corpus: str, depth: str = "6+6") -> Meaning:
    recipe, system = CORPORA[sweep][corpus], labels["system"]
    changes = heads(system) | words(system, f"{recipe}-words") | layers(depth)
    if "disabled" not in system:
        return Meaning(recipe, changes)
    return Meaning(recipe, changes, f"runs/{sweep}/{corpus}-7F-token+1L-{depth}", 0)


def fixed_heads_table5(labels: Labels) -> Meaning:
    corpus, system = labels["data"], labels["system"]
    earlier = "fixed-heads-table2" if "VI" in corpus else "fixed-heads-table1"
    meaning = fixed_heads(earlier, labels, corpus)
    if system == "8F token":
        return meaning
    return replace(
        meaning, start=f"runs/{earlier}/{corpus}-{system.replace(' + ', '+').replace(' ', '-')}-6+6", updates=0
    )


def l0drop_table1(labels: Labels) -> Meaning:
    recipe = CORPORA["l0drop"][labels["data"]]
    if labels["model"] == "dense":
        return Meaning(recipe)
    assert labels["model"] == "L0Drop"
    return Meaning(f"{recipe}-l0drop", start=f"runs/l0drop-table1/{recipe}")


def l0drop_table2(labels: Labels) -> Meaning:
    recipe, pattern = CORPORA["l0drop"][labels["data"]], labels["pattern"]
    start = f"runs/l0drop-table1/{recipe}"
    if pattern == "Baseline":
        return Meaning(recipe, {}, start, 0)
    if pattern == "L0Drop":
        return Meaning(f"{recipe}-l0drop", {}, f"{start}-l0drop", 0)
    rule, features = {
        "POS Pattern": ({"name": "pos"}, "pos"),
        "Freq Pattern": ({"name": "freq", "top": 100}, "frequency"),
        "Group Pattern": ({"name": "group"}, "words"),
        "Inv Freq Pattern": ({"name": "inv_freq", "above": 452}, "frequency"),
    }[pattern]
    changes = {
        "model.memory": [rule],
        "data.directory": f"runs/data/{recipe}-{features}",
        "training.max_updates": {"wmt14-en-de": 50_000, "cnndm": 20_000}[recipe],
        "training.save_every": 1000,
    }
    return Meaning(recipe, changes, start)


def depths(recipe: str) -> Callable[[Labels], Meaning]:
    return lambda labels: Meaning(recipe, layers(f"{labels['encoder']}+{labels['decoder']}"))


def books_language_models(labels: Labels) -> Meaning:
    """Four language models, and the transform of the decoder's self-attention."""
    here = "model.attention.decoder_self"
    changes: dict[str, Any] = {
        "block": {
            "model.positions": "sinusoidal",
            "model.segment_memory": 0,
            f"{here}.position": None,
            "training.streams": 4,
            "training.segment_length": 256,
        },
        "Transformer-XL": {},
        "adaptive span": {
            "model.segment_memory": 256,
            f"{here}.position": {"name": "distance_vectors", "maximum": 256, "tie": "site"},
            f"{here}.span": {"name": "adaptive_span", "maximum": 256, "ramp": 32},
            **{f"losses.span.{key}": value for key, value in AuxiliaryLoss(weight=3e-6).model_dump().items()},
        },
        "routing": {f"{here}.pattern": {"name": "routing", "clusters": 8, "local": 2, "window": 64}},
    }[labels["model"]]
    return Meaning("books-language-model", changes | transform(labels["transform"], ("decoder_self",)))


def alignment(labels: Labels) -> Meaning:
    guided = {"layer": 2, "head": 1, "weight": 0.05} if labels["guided"] == "one head" else {}
    changes = {f"training.guided_alignment.{key}": value for key, value in guided.items()}
    return Meaning("alignment-de-en", transform(labels["transform"], ("cross",)) | changes)


MEANINGS: dict[str, Callable[[Labels], Meaning]] = {
    "alignment-de-en": alignment,
    "books-language-models": books_language_models,
    "books-language-models-seeds": books_language_models,
    "dialogsum-l0drop-rules": l0drop_rules("dialogsum", "dialogsum", 1500, {"losses.l0.target": 0.47}),
    "entmax-table1": lambda labels: Meaning(CORPORA["entmax-table1"][labels["data"]], transform(labels["activation"])),
    "europarl-doc": europarl_doc,
    "fixed-heads-low-resource": lambda labels: Meaning(
        "low-resource", heads(labels["system"]) | words(labels["system"], "low-resource-words")
    ),
    "fixed-heads-table1": lambda labels: fixed_heads(
        "fixed-heads-table1", labels, labels["direction"], labels["layers"]
    ),
    "fixed-heads-table2": lambda labels: fixed_heads("fixed-heads-table2", labels, labels["data"], labels["layers"]),
    "fixed-heads-table3": lambda labels: fixed_heads("fixed-heads-table3", labels, labels["data"]),
    "fixed-heads-table5": fixed_heads_table5,
    "l0drop-table1": l0drop_table1,
    "l0drop-table2": l0drop_table2,
    "multi30k-10k": multi30k_10k,
    "multi30k-bpe-dropout": multi30k_bpe_dropout,
    "multi30k-depth-systems": multi30k_depth_systems,
    "multi30k-depths-full": depths_full,
    "multi30k-heads-full": multi30k_heads_full,
    "multi30k-l0drop-from-scratch": l0drop_from_scratch,
    "multi30k-l0drop-places": l0drop_places,
    "multi30k-l0drop-rules": l0drop_rules("multi30k", "multi30k-en-de", 2500, {}),
    "multi30k-l0drop-targets": l0drop_targets,
    "multi30k-depths": depths("multi30k-en-de"),
    "multi30k-patterns": lambda labels: Meaning(
        "multi30k-en-de", attended(labels["method"], labels["k"]), "runs/multi30k-en-de", 200
    ),
    "multi30k-scratch": multi30k_scratch,
    "multi30k-transforms-full": lambda labels: Meaning("multi30k-en-de", transform(labels["transform"])),
    "multi30k-transforms": lambda labels: Meaning(
        "multi30k-en-de", transform(labels["transform"]), "runs/multi30k-en-de", 750
    ),
    "tatoeba-word-senses": tatoeba_word_senses,
    "topk-figure5": lambda labels: Meaning(
        "iwslt15-en-vi-words", {} if labels["attention"] == "full" else transform(labels["attention"])
    ),
    "topk-table1": lambda labels: Meaning(
        CORPORA["topk-table1"][labels["data"]], attended(labels["method"], labels["k"])
    ),
    "topk-table2": lambda labels: Meaning(
        CORPORA["topk-table2"][labels["data"]], attended(labels["method"], labels["k"])
    ),
    "wmt18-depths": depths("wmt18-en-de"),
    "wmt18-depths-recurrent": depths("wmt18-en-de"),
    "wmt18-teachers": lambda labels: Meaning("wmt18-en-de", layers(labels["model"])),
}
"""Sweep -> the meaning of the labels of a variant."""
