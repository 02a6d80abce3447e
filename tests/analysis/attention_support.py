"""Models with all kinds of attention, and what they attend to, one sentence at a time, for naive twins."""

from __future__ import annotations

import functools
from typing import Any

import torch

from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import TargetLine, observe
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sites import SITES, SiteName
from tests.analysis.support import TinyBundle, encoded_alone, gated_bundle, sources

SPARSE = {site: {"transform": {"name": "sparsemax"}} for site in SITES}
ADAPTIVE = {site: {"transform": {"name": "entmax", "alpha": "learned"}} for site in SITES}
GIVEN = {"encoder_self": {"heads": {"given": {"name": "toy_left"}}, "transform": {"name": "sparsemax"}}}
ALL_GIVEN = {"encoder_self": {"heads": {"given": {"name": "toy_left"}, "count": 2}}}
WINDOW = {
    "encoder_self": {"pattern": {"name": "window", "k": 3}},
    "decoder_self": {"pattern": {"name": "window", "k": 3}, "transform": {"name": "topk", "k": 2}},
}
KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "dense": ([], {}),
    "sparse": ([], SPARSE),
    "adaptive": ([], ADAPTIVE),
    "given": ([], GIVEN),
    "all given": ([], ALL_GIVEN),
    "window": ([], WINDOW),
    "l0drop": ([{"name": "l0drop", "at": "output", "init_log_alpha": -6.0}], SPARSE),
    "masked": ([{"name": "toy_faint", "at": "output", "closed": "mask"}], SPARSE),
    "between": ([{"name": "toy_faint", "at": "between"}], SPARSE),
    "masked between": ([{"name": "toy_faint", "at": "between", "closed": "mask"}], SPARSE),
}


@functools.cache
def attention_bundle(kind: str, *, tokenizer: str = "word") -> TinyBundle:
    """A model that tests share and leave as it is."""
    memory, attention = KINDS[kind]
    return gated_bundle(memory, attention=attention, kind=tokenizer)


def texts(bundle: TinyBundle) -> list[SourceLine]:
    """Nine sentences, the last of one piece and </s>."""
    lines = sources(bundle)[:8]
    return [*lines, SourceLine(8, "x", [lines[0].ids[0], EOS])]


OUTPUTS = [TargetLine([7, 5, 9, 4][: 1 + i % 4] * (1 + i // 3), ended=i % 3 > 0) for i in range(9)]


Seen = dict[tuple[SiteName, int], AttentionSeen]
"""What a listener hears of one sentence, by site and layer."""


@torch.inference_mode()
def seen_alone(bundle: TinyBundle, line: SourceLine, output: TargetLine) -> Seen:
    """One sentence without company."""
    heard: list[AttentionSeen] = []
    with bundle.model.listen(heard.append):
        memory = encoded_alone(bundle, line)
        bundle.model.decode(torch.tensor([output.inputs]), memory)
    return {(each.site, each.step + 1): each for each in heard}


@functools.cache
def all_seen(kind: str, *, tokenizer: str = "word") -> list[Seen]:
    """Of every sentence."""
    bundle = attention_bundle(kind, tokenizer=tokenizer)
    return [seen_alone(bundle, line, output) for line, output in zip(texts(bundle), OUTPUTS, strict=True)]


Row = tuple[list[float], list[bool]]
"""The weights of a query, and the keys that it may see."""


@functools.cache
def rows_alone(kind: str, site: SiteName, layer: int) -> list[list[list[Row]]]:
    """Of every head, sentence and query."""
    found: list[list[list[Row]]] = []
    for sentence in all_seen(kind):
        seen = sentence[site, layer]
        _, heads, queries, keys = seen.weights.shape
        visible = seen.keys.visible().expand(1, heads, queries, keys)[0].tolist()
        weights = seen.weights[0].tolist()
        real = (
            seen.keys.valid[0].tolist() if site == "encoder_self" else [True] * queries
        )  # a filter may mask positions
        found.append([[] for _ in range(heads)])
        for q in range(queries):
            used = [any(weights[h][q][k] != 0 for h in range(heads)) for k in range(keys)]
            for h in range(heads):
                if real[q]:
                    shown = [a or b for a, b in zip(visible[h][q], used, strict=True)]
                    found[-1][h].append((weights[h][q], shown))
    return [list(sentences) for sentences in zip(*found, strict=True)]


def places(kind: str) -> list[tuple[SiteName, int]]:
    """Every site and layer."""
    return list(all_seen(kind)[0])


def listen(bundle: TinyBundle, *observers: Any, batch_tokens: int = 90, sites: Any = SITES) -> None:
    observe(LineBatches(bundle, texts(bundle), batch_tokens), OUTPUTS, observers, sites=sites)
