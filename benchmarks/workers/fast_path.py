"""This project with one fast path switched off: decoding, training or a language model, all with random weights.

A worker of ``benchmarks/fast_paths.py``, whose tables say what the keys of the work mean. The process begins as that
of the command line does: with few kept kernels, one heap, and threads that sleep early. What is switched off is
replaced in this process alone: ``replaced`` has ``module:attribute`` -> value, ``answers`` functions, methods and
properties that return a value at once, ``slower`` kinds of kernels that count as slower than PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from protocol import EOS, serve, work_from_arguments
from sparsenmt.process import runtime

BEGIN = ("limit_thread_spinning", "limit_kernel_caches", "share_heap")


def place_of(name: str) -> tuple[Any, str, Any]:
    """Return the owner, the name and the value of ``module:attribute``; LookupError if this revision has none."""
    module, _, path = name.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        *outer, last = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        return owner, last, getattr(owner, last)
    except (ImportError, AttributeError) as error:
        raise LookupError(name) from error


def switch_off(work: dict[str, Any]) -> None:
    """Switch off what the work names."""
    for name, value in work.get("replaced", {}).items():
        owner, last, _ = place_of(name)
        setattr(owner, last, value)
    for name, value in work.get("answers", {}).items():
        owner, last, found = place_of(name)

        def answer(*_given: Any, _value: Any = value, **_named: Any) -> Any:
            return _value

        setattr(owner, last, property(answer) if isinstance(found, property) else answer)
    if slower := work.get("slower"):
        owner, last, usual = place_of("sparsenmt.native.choice:Choices.prefers")

        def prefers(self: Any, kind: str, *sizes: Any) -> bool:
            return kind not in slower and bool(usual(self, kind, *sizes))

        setattr(owner, last, prefers)


def model_of(work: dict[str, Any]) -> Any:
    """The Transformer of the work, with random weights and one table for source, target and output."""
    import torch

    from sparsenmt.assemble.model import build_model
    from sparsenmt.recipe import schema

    sizes = ("dimension", "feed_forward", "heads", "encoder_layers", "decoder_layers", "max_positions")
    own = {key: work[key] for key in (*sizes, "attention", "recurrence", "segment_memory") if key in work}
    dropout = {"residual": work.get("dropout", 0.0), "attention": work.get("attention_dropout", 0.0)}
    tied = {"tie_embeddings": "all"} if work["encoder_layers"] else {}
    section = schema.ModelSection.model_validate({**own, **tied, "dropout": dropout})
    torch.manual_seed(0)
    return build_model(section, source_size=work["vocabulary"], target_size=work["vocabulary"], seed=0)


def decoding(work: dict[str, Any]) -> tuple[int, Callable[[], None]]:
    """Translation of random sentences of several lengths, as `decode` does it; every output has a length of its own.

    Returns the number of target tokens, and a function that translates.
    """
    import torch
    from torch import nn

    from sparsenmt.data.batching import length_batches, pad
    from sparsenmt.decoding.ahead import encode_ahead
    from sparsenmt.decoding.side_by_side import run_side_by_side
    from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
    from sparsenmt.engine.build import build, named_dtype
    from sparsenmt.model.protocol import Source
    from sparsenmt.recipe import schema
    from workers.coins import Coins

    model = model_of(work).eval()
    if "dropped" in work:
        model.memory.output = nn.ModuleList([Coins()])
    engine = build(model, named_dtype(model, work["our_dtype"]) or torch.float32, final=True)
    rng, count, vocabulary = np.random.default_rng(0), work["sentences"], work["vocabulary"]
    lengths = rng.integers(work["source_length"] // 2, work["source_length"] + 1, count)
    sources = [[*rng.integers(EOS + 1, vocabulary, length).tolist(), EOS] for length in lengths]
    # A few outputs are much longer than most, as in text.
    ends = np.minimum(1 + rng.gamma(4.0, work["target_length"] / 6, count), 2 * work["target_length"])
    limits = torch.from_numpy(np.maximum(ends.astype(np.int64), 2))
    kept = [torch.from_numpy(rng.random(len(each)) >= work.get("dropped", 0.0)) for each in sources]
    allowed = None
    if "shortlist" in work:
        allowed = torch.zeros(count, vocabulary, dtype=torch.bool)
        for row in allowed:
            row[torch.from_numpy(rng.integers(EOS + 1, vocabulary, work["shortlist"]))] = True
            row[: EOS + 1] = True
    chosen = {key: work[key] for key in ("method", "beam_size", "batch_tokens", "no_repeat_ngram") if key in work}
    options = schema.Decoding(**chosen)
    strategy = strategy_of(options)
    sizes, limit = [len(each) for each in sources], max(options.batch_tokens // strategy.width, 1)

    def read(chosen: list[int]) -> Source:
        tokens, valid = pad([sources[i] for i in chosen])
        features = {"kept": pad([kept[i].long().tolist() for i in chosen])[0] > 0} if "dropped" in work else {}
        return Source(tokens, valid, features)

    def batches(members: Any) -> Iterator[EncodedBatch]:
        how: dict[str, Any] = {"read": read, "naming": lambda chosen: nullcontext(), "compact": "dropped" in work}
        for chosen, memory in encode_ahead(engine, members, sizes, limit, **how):
            own = None if allowed is None else allowed[chosen]
            yield EncodedBatch(memory, limits[chosen], chosen, chosen, allowed=own)

    def search(members: Any) -> Iterator[Results]:
        return strategy.search(engine, batches(members), lambda chosen: nullcontext())

    at_once = work.get("at_once", engine.searches.at_once)

    def repeat() -> None:
        found: Results = {}
        for results in run_side_by_side(length_batches(sizes, limit), at_once, search):
            found |= results
        assert len(found) == count

    return int(limits.sum()), repeat


def training(work: dict[str, Any]) -> tuple[int, Callable[[], None]]:
    """Updates on random sentence pairs of several lengths; returns the target tokens, and a function."""
    from sparsenmt.data.batching import pad
    from sparsenmt.engine.training_operators import use_training_operators
    from sparsenmt.process.devices import pick_device
    from sparsenmt.process.runtime import keep_freed_memory
    from sparsenmt.recipe.schema import Optimizer
    from sparsenmt.training.gradients import Objective
    from sparsenmt.training.precision import MasterWeights, pick_dtype
    from sparsenmt.training.state import make_optimizer
    from workers.train import as_batch, update

    keep_freed_memory()
    model = model_of(work).train()
    use_training_operators(model, pick_device("cpu"))
    weights = MasterWeights(model, pick_dtype(work["our_dtype"], pick_device("cpu")))
    optimizer = make_optimizer(weights, Optimizer())
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    rng, batches, longest = np.random.default_rng(0), [], work["length"]
    for _ in range(work["steps"]):
        lengths = np.sort(rng.integers(max(longest // 2, 2), longest + 1, max(work["batch_tokens"] // longest, 1)))
        rows = [rng.integers(EOS + 1, work["vocabulary"], length).tolist() for length in lengths]
        ids, starts = (pad(each)[0].numpy() for each in ([[*row, EOS] for row in rows], [[2, *row] for row in rows]))
        batches.append(as_batch(ids, starts, ids))
    objective = Objective(0.1, "tokens", {})

    def repeat() -> None:
        for batch in batches:
            update(model, weights, optimizer, batch, objective)

    return sum(batch.target_tokens for batch in batches), repeat


def language_model(work: dict[str, Any]) -> tuple[int, Callable[[], None]]:
    """Updates of a language model on random segments; returns the tokens, and a function."""
    import torch

    from protocol import language_batches
    from sparsenmt.engine.training_operators import use_training_operators
    from sparsenmt.process.devices import pick_device
    from sparsenmt.process.runtime import keep_freed_memory
    from sparsenmt.recipe.schema import Optimizer
    from sparsenmt.training.gradients import Objective, UpdateTotals
    from sparsenmt.training.precision import MasterWeights, pick_dtype
    from sparsenmt.training.segments import accumulate_segment_gradients
    from sparsenmt.training.state import make_optimizer

    keep_freed_memory()
    model = model_of(work).train()
    use_training_operators(model, pick_device("cpu"))
    weights = MasterWeights(model, pick_dtype(work["our_dtype"], pick_device("cpu")))
    optimizer, batches = make_optimizer(weights, Optimizer()), language_batches(work)

    def repeat() -> None:
        for inputs, targets in batches:
            totals = UpdateTotals(targets.size, 0, len(targets))
            ids = torch.from_numpy(inputs), torch.from_numpy(targets)
            accumulate_segment_gradients(model, *ids, None, Objective(0.0, "tokens", {}), totals)
            weights.collect()
            optimizer.step()
            optimizer.zero_grad()
            weights.publish()

    return sum(targets.size for _, targets in batches), repeat


def main() -> None:
    work = work_from_arguments()
    for name in BEGIN:
        if name not in work.get("without", ()):
            getattr(runtime, name)()
    import torch

    torch.set_num_threads(work["threads"])
    switch_off(work)
    units, repeat = {"decode": decoding, "train": training, "language_model": language_model}[work["task"]](work)
    serve(what=work["named"], units=units, repeat=repeat)


if __name__ == "__main__":
    main()
