"""Self-speculative search against greedy search at full depth: the same tokens, and the ratio of their times.

    python benchmarks/speculative.py [CASE ...] [--repeats N] [--model MODEL_DIR --source TEXT] [--set KEY=VALUE]

Without a model, one of base size is made whose layers above the first change few of its predictions, as training all
exits does; ``calm`` sets how few. The share of drafted tokens that all layers take is printed: the ratio depends on it.
Both searches take turns in this process.

speculative           seconds of greedy search at full depth over those of speculative search, one sentence at a time
speculative_of_batch  the same with 16 sentences in a batch, where a step of greedy search costs less for each

The outputs must be the same. Ends with one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common import command_line, parse, show, take_turns, verdict
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_parallel
from sparsenmt.decoding.inputs import make_source, read_sources
from sparsenmt.decoding.speculative import SpeculativeRun
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.translate import encoded_batch
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.model.protocol import Source
from sparsenmt.recipe.schema import Decoding, ModelSection

WORK: dict[str, Any] = {
    "preset": "base",
    "decoder_layers": 6,
    "vocabulary": 8000,
    "sentences": 16,
    "source_length": 24,
    "target_length": 32,
    "draft_tokens": 4,
    "draft_layers": 1,
    "calm": 0.12,
    "threads": 2,
    "dtype": "fp32",
}
CASES = {"speculative": 1, "speculative_of_batch": 16}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
Batches = Callable[[int], Iterator[EncodedBatch]]


def random_model(work: dict[str, Any]) -> tuple[Engine, Batches]:
    """Return the engine of a random model, and its sentences in batches of a size; no output ends early."""
    keys = {"preset": work["preset"], "decoder_layers": work["decoder_layers"], "depth": {"name": "tied_multi"}}
    size = work["vocabulary"]
    section = ModelSection.model_validate({**keys, "tie_embeddings": "all", "norm": "pre"})
    model = build_model(section, source_size=size, target_size=size, seed=1).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            above = re.match(r"decoder\.layers\.(\d+)\.(self\.o|cross\.o|feed_forward\.outer)\.weight", name)
            if above is not None and int(above[1]) >= work["draft_layers"]:
                parameter.mul_(work["calm"])
    engine = build(model, DTYPES[work["dtype"]])
    shape = (work["sentences"], work["source_length"])
    tokens = torch.randint(4, size, shape, generator=torch.Generator().manual_seed(1))

    def batches(count: int) -> Iterator[EncodedBatch]:
        for first in range(0, len(tokens), count):
            rows = tokens[first : first + count]
            with torch.inference_mode():
                memory = engine.encode(Source(rows, torch.ones_like(rows, dtype=torch.bool)), compact=True).memory
            numbers = list(range(first, first + len(rows)))
            yield EncodedBatch(memory, torch.full((len(rows),), work["target_length"]), numbers, numbers)

    return engine, batches


def trained_model(directory: Path, text: str, work: dict[str, Any]) -> tuple[Engine, Batches]:
    """Return the engine of a model directory, and the first lines of a text in batches of a size."""
    bundle = open_model(directory, device="cpu", dtype=work["dtype"])
    lines = [line for (line,) in read_parallel([text])][: work["sentences"]]
    sources = [line for line in read_sources(bundle, input_lines(lines)) if not line.empty]
    options = bundle.recipe.decoding

    def batches(count: int) -> Iterator[EncodedBatch]:
        for first in range(0, len(sources), count):
            chosen = sources[first : first + count]
            with torch.inference_mode():
                memory = bundle.engine.encode(make_source(bundle, chosen), compact=True).memory
            yield encoded_batch(bundle, memory, list(range(first, first + len(chosen))), chosen, options)

    return bundle.engine, batches


def tokens_of(engine: Engine, batches: Iterator[EncodedBatch], options: Decoding) -> dict[int, list[int]]:
    """Return the outputs of a search by number."""
    found = strategy_of(options).search(engine, batches, lambda numbers: contextlib.nullcontext())
    return {number: best[0].tokens for results in found for number, best in results.items()}


def seconds(engine: Engine, batches: Batches, size: int, options: Decoding) -> float:
    """Return the seconds of a search, encoding included."""
    began = time.perf_counter()
    tokens_of(engine, batches(size), options)
    return time.perf_counter() - began


def measure(name: str, engine: Engine, batches: Batches, work: dict[str, Any], repeats: int) -> float:
    """Compare both searches in batches of the case's size; returns the ratio of their times."""
    size = CASES[name]
    greedy = Decoding.model_validate({"method": "greedy"})
    drafts = {"draft_tokens": work["draft_tokens"], "draft_layers": work["draft_layers"]}
    drafting = Decoding.model_validate({"method": "speculative", **drafts})
    expected, found = tokens_of(engine, batches(size), greedy), tokens_of(engine, batches(size), drafting)
    different = [number for number in expected if expected[number] != found[number]]
    runs = [SpeculativeRun(engine, batch, drafting) for batch in batches(size)]
    for run in runs:
        run.run()
    drafted, accepted = sum(run.drafted for run in runs), sum(run.accepted for run in runs)
    sides = {options.method: partial(seconds, engine, batches, size, options) for options in (greedy, drafting)}
    timings = take_turns(sides, repeats, units=sum(map(len, expected.values())))
    print(f"\n{name}: {size} at a time, {accepted} of {drafted} drafted tokens taken, {len(different)} outputs differ")
    show(list(timings.values()), "tokens")
    if different:
        print(f"  sentences that differ: {different}")
    return float("nan") if different else timings["greedy"].best / timings["speculative"].best


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__, repeats=5)
    parser.add_argument("--model", type=Path, help="default: random weights")
    parser.add_argument("--source", help="text for --model")
    given, changes = parse(parser, list(CASES), arguments)
    work = WORK | changes
    torch.set_num_threads(work["threads"])
    made = random_model(work) if given.model is None else trained_model(given.model, given.source, work)
    ratios = {name: measure(name, *made, work, given.repeats) for name in given.cases or CASES}
    result = verdict("speculative", ratios, {})
    result["ok"] = all(ratio == ratio for ratio in ratios.values())
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
