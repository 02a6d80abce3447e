"""The time that decoding saves with dropped encoder outputs, relative to the same model with all of them.

    python benchmarks/l0drop_decode.py [CASE ...] [--repeats N] [--without-peer]

Base size, random weights, beam search with a forced length. Each source position is dropped at random with the
published rate (a fixed seed), so that sentences keep different numbers of positions. They are encoded, regrouped and
searched by the functions of `sparsenmt decode`. Dense and dropped take turns in one process, with the same weights.

realised_*       seconds saved in cross-attention and its key and value projection (masks included), over (dense seconds
                 of both x share dropped): 1 if all of the nominal saving is real; from separate searches, whose decoder
                 runs layer by layer, because a compiled step cannot be timed in parts
after_encoder_*  seconds of the search of `sparsenmt decode`, dense over dropped
keys_read_*      keys in cross-attention per sentence, over (kept + 1), counted from its arguments

``--set device=cuda`` decodes on a GPU.
Without bars: the same including the encoder, and relative to CTranslate2 (dense, float32).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from common import PAUSE_SECONDS, Worker, command_line, parse, verdict
from decode_vs_ctranslate2 import BASE, CTRANSLATE2
from protocol import EOS, decoding_sources
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.beam import beam_search
from sparsenmt.engine.build import build
from sparsenmt.engine.native_decoder import NativeDecoder
from sparsenmt.engine.packing import PackedAttention
from sparsenmt.model import attention
from sparsenmt.model.attend import attend_fused, memory_mask
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.sockets import Transform
from sparsenmt.model.stacks import Decoder
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device
from sparsenmt.recipe import schema
from sparsenmt.workflows.evaluation.benchmark.flops import synchronize
from workers.coins import Coins, coins
from workers.model import random_model

# source_length: without </s>; batches: number of batches that are regrouped together; published: end to end, on a GPU.
CASES: dict[str, dict[str, Any]] = {
    "2048": BASE
    | {"source_length": 2047, "target_length": 120, "batch_sentences": 10, "batches": 1}
    | {"dropped": 0.715, "after_encoder_bar": 1.5, "published": 1.65},
    "400": BASE
    | {"source_length": 399, "target_length": 60, "batch_sentences": 10, "batches": 4}
    | {"dropped": 0.476, "after_encoder_bar": 1.0, "published": 1.21},
    "char": BASE
    | {"source_length": 149, "target_length": 150, "batch_sentences": 32, "batches": 4}
    | {"dropped": 0.461, "after_encoder_bar": 1.0, "published": 1.20},
}
REALISED_BAR = 0.8
KEYS_READ = 1.1  # of kept positions, and the stand-in


@dataclass
class Parts:
    """The seconds of one repeat by part, and the counts of cross-attention keys."""

    total: float = 0.0  # with the encoder
    search: float = 0.0
    attention: float = 0.0  # to the memory, masks included
    projection: float = 0.0  # of the memory
    projections: int = 0
    keys: int = 0  # summed over sentences, layers and steps

    @property
    def memory(self) -> float:
        return self.attention + self.projection


@dataclass
class Variant:
    """A variant: dense or dropped."""

    name: str
    filters: nn.ModuleList
    repeats: list[Parts] = field(default_factory=list)

    def best(self, name: str) -> float:
        return float(min(getattr(parts, name) for parts in self.repeats))

    def spread(self, name: str) -> float:
        return float(max(getattr(parts, name) for parts in self.repeats)) / self.best(name) - 1


def clock(device: torch.device) -> float:
    """Return the time in seconds when the device has done all that it was given."""
    synchronize(device)
    return time.perf_counter()


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Disable the kernel that computes a step of all layers in one call: it reads no cache of this kind."""
    with mock.patch.object(NativeDecoder, "new_cache", Decoder.new_cache):
        yield


@contextmanager
def measuring(model: Transformer, parts: Parts) -> Iterator[None]:
    """Time the decoder's work with the encoder output, and count its keys."""
    steps = [model.decoder.steps.at(t, "cross") for t in range(len(model.decoder.plan))]
    transforms = {id(step.transform) for step in steps}
    modules = {id(block.cross) for block in model.decoder.layers}
    project = PackedAttention.project_keys_values
    device = next(model.parameters()).device

    def attend(q: Tensor, k: Tensor, v: Tensor, keys: Any, transform: Transform, *rest: Any, **named: Any) -> Tensor:
        start = clock(device)
        result = attend_fused(q, k, v, keys, transform, *rest, **named)
        if id(transform) in transforms:
            parts.attention += clock(device) - start
            parts.keys += k.shape[0] * k.shape[2]
        return result

    def make_mask(*arguments: Any) -> Any:
        start = clock(device)
        result = memory_mask(*arguments)
        parts.attention += clock(device) - start
        return result

    def project_memory(self: PackedAttention, x: Tensor, **layout: bool) -> Any:
        start = clock(device)
        result = project(self, x, **layout)
        if id(self) in modules:
            parts.projection += clock(device) - start
            parts.projections += 1
        return result

    with (
        mock.patch.object(attention, "attend_fused", attend),
        mock.patch.object(attention, "memory_mask", make_mask),
        mock.patch.object(PackedAttention, "project_keys_values", project_memory),
    ):
        yield


class Bench:
    """The model and the sources of a case."""

    def __init__(self, work: dict[str, Any]) -> None:
        sentences, longest = (
            work["batches"] * work["batch_sentences"],
            max(work["source_length"], work["target_length"]),
        )
        self.work = work = work | {"sentences": sentences, "max_positions": longest + 1}
        torch.set_num_threads(work["threads"])
        self.device = pick_device(work.get("device", "cpu"))
        self.model = random_model(work).to(self.device)
        self.engine = build(self.model)
        self.rows = [[*row, EOS] for row in decoding_sources(work)]
        self.kept = coins(len(self.rows), len(self.rows[0]), work["dropped"])
        length = work["target_length"]
        # EOS is forbidden for `min_length` steps, and the search ends after `length` steps, so that none ends earlier.
        self.options = schema.Decoding(
            beam_size=work["beam_size"], length_penalty="gnmt", alpha=work["length_penalty"], min_length=length
        )

    def read(self, chosen: list[int]) -> Source:
        tokens, valid = (each.to(self.device) for each in pad([self.rows[i] for i in chosen]))
        return Source(tokens, valid, {"kept": self.kept[chosen].to(self.device)})

    @torch.inference_mode()
    def run(self, side: Variant) -> Parts:
        """Encode, then search; then search again, and measure the parts."""
        self.model.memory.output = side.filters
        parts, start = Parts(), clock(self.device)
        lengths = [len(row) for row in self.rows]
        limit = self.work["batch_sentences"] * lengths[0]
        batches = list(
            encode_ahead(
                self.engine,
                length_batches(lengths, limit),
                lengths,
                limit,
                read=self.read,
                naming=lambda chosen: nullcontext(),
                compact=self.model.compacts,
            )
        )
        encoded = clock(self.device)
        self.search(batches)
        ended = clock(self.device)
        parts.total, parts.search = ended - start, ended - encoded
        with layer_by_layer(), measuring(self.model, parts):
            self.search(batches)
        assert parts.projections == len(batches) * self.work["decoder_layers"], "the memory is projected once a layer"
        return parts

    def search(self, batches: Sequence[tuple[Sequence[int], Memory]]) -> None:
        """Search over encoded batches of numbered sources."""
        for chosen, memory in batches:
            limits = torch.full((len(chosen),), self.work["target_length"], device=self.device)
            found = beam_search(self.engine, memory, limits, self.options)
            assert all(len(hypotheses[0].tokens) == self.work["target_length"] for hypotheses in found)

    def keys_read(self, parts: Parts) -> float:
        """Return the mean number of keys in cross-attention per sentence."""
        return parts.keys / float(len(self.rows) * self.work["target_length"] * self.work["decoder_layers"])


def take_turns(bench: Bench, variants: Sequence[Variant], repeats: int, peer: Worker | None) -> list[float]:
    """Run every variant ``repeats`` times after a warm-up; returns the peer's seconds."""
    for variant in variants:
        bench.run(variant)
    seconds = []
    for _ in range(repeats):
        for variant in variants:
            time.sleep(PAUSE_SECONDS)
            variant.repeats.append(bench.run(variant))
        if peer is not None:
            time.sleep(PAUSE_SECONDS)
            seconds.append(peer.repeat())
    return seconds


def start_peer(work: dict[str, Any]) -> Worker | None:
    """Start CTranslate2 with the same sizes; returns None, with a message on standard error, if it is not available."""
    try:
        return Worker(CTRANSLATE2, work)
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        print(f"CTranslate2: {error}", file=sys.stderr)
        return None


def measure(name: str, work: dict[str, Any], repeats: int, *, with_peer: bool) -> tuple[dict[str, float], float]:
    """Run a case, print it, and return its ratios and the allowed number of keys."""
    bench = Bench(work)
    dense, dropped = Variant("dense", nn.ModuleList()), Variant("dropped", nn.ModuleList([Coins()]))
    with ExitStack() as stack:
        peer = start_peer(bench.work) if with_peer else None
        if peer is not None:
            stack.enter_context(peer)
        seconds = take_turns(bench, (dense, dropped), repeats, peer)
    share, kept = 1 - float(bench.kept.double().mean()), float(bench.kept.sum(1).double().mean())
    report(name, bench, dense, dropped, seconds)
    ratios = {
        f"realised_{name}": (dense.best("memory") - dropped.best("memory")) / (dense.best("memory") * share),
        f"after_encoder_{name}": dense.best("search") / dropped.best("search"),
        f"keys_read_{name}": bench.keys_read(dropped.repeats[0]) / (kept + 1),
    }
    return ratios, (KEYS_READ * kept + 1) / (kept + 1)


def report(name: str, bench: Bench, dense: Variant, dropped: Variant, peer: Sequence[float]) -> None:
    """Print a case; ``peer``: seconds of CTranslate2's repeats."""
    work, both = bench.work, (dense, dropped)
    rows, width = bench.kept.shape
    print(
        f"\n{name}: {rows} sources of {width} positions, {1 - float(bench.kept.double().mean()):.1%} dropped, to "
        f"{work['target_length']}, beam {work['beam_size']}, batches of {work['batch_sentences']}; fastest of "
        f"{len(dense.repeats)}, taking turns"
    )
    print(f"  {'seconds (spread)':<20}{'dense':>18}{'dropped':>18}{'dense/dropped':>15}")
    names = {"attention": "memory attention", "projection": "memory projection", "search": "after the encoder"}
    for key, what in (names | {"total": "with the encoder"}).items():
        cells = "".join(f"{variant.best(key):>10.3f} ({variant.spread(key):5.1%})" for variant in both)
        print(f"  {what:<20}{cells}{dense.best(key) / dropped.best(key):>15.3f}")
    read = "".join(f"{bench.keys_read(variant.repeats[0]):>18.1f}" for variant in both)
    print(f"  {'keys read':<20}{read}   (kept: {float(bench.kept.sum(1).double().mean()):.1f})")
    ours, theirs = dense.best("total") / dropped.best("total"), "not measured"
    if peer:
        theirs = f"{min(peer) / dropped.best('total'):.3f} ({min(peer):.3f} s, spread {max(peer) / min(peer) - 1:.1%})"
    print(f"  end to end, over dropped: own dense {ours:.3f} (published: {work['published']}), CTranslate2 {theirs}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__, repeats=7)
    parser.add_argument("--without-peer", action="store_true", help="do not run CTranslate2")
    given, changes = parse(parser, list(CASES), arguments)
    ratios: dict[str, float] = {}
    bars: dict[str, float] = {}
    for name in given.cases or CASES:
        work = CASES[name] | changes
        found, most_keys = measure(name, work, given.repeats, with_peer=not given.without_peer)
        ratios |= found
        if not changes:
            bars |= {f"realised_{name}": REALISED_BAR, f"after_encoder_{name}": work["after_encoder_bar"]}
            bars[f"keys_read_{name}"] = round(most_keys, 4)
    result = verdict("l0drop_decode", ratios, bars, most=[key for key in bars if key.startswith("keys_read")])
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
