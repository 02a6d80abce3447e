"""Batches of Multi30k that both sides of a training benchmark read."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from protocol import EOS
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.text import read_lines
from sparsenmt.data.tokenizers.tokenizer import train_tokenizer
from sparsenmt.recipe import schema

ROOT = Path(__file__).resolve().parent.parent
PAIRS = 12_000  # sentence pairs for the batches: enough for many repeats


def corpus() -> Path:
    """Return the directory of Multi30k."""
    folder = Path(os.environ.get("SPARSENMT_DATA", ROOT / "data")) / "multi30k"
    if not (folder / "train.en.gz").is_file():
        raise SystemExit(f"{folder}: Multi30k is not there; name the folder that holds multi30k/ with SPARSENMT_DATA")
    return folder


def write_batches(work: dict[str, Any]) -> dict[str, Any]:
    """Write ``steps`` batches of at most ``batch_tokens`` tokens to a file; returns the work with its path."""
    texts = [list(read_lines(corpus() / f"train.{language}.gz")) for language in ("en", "de")]
    options = schema.TokenizerSection(kind="bpe", vocabulary_size=work["vocabulary"], shared=True)
    tokenizer = train_tokenizer(options, itertools.chain(*texts))
    sources, targets = (tokenizer.encode_batch(text[:PAIRS]) for text in texts)
    longest = np.array([max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)])
    batches = length_batches(longest, work["batch_tokens"])
    random.Random(0).shuffle(batches)
    if len(batches) < work["steps"]:
        raise SystemExit(f"there are only {len(batches)} batches of {work['batch_tokens']} tokens")
    path = ROOT / "runs" / "benchmarks" / "multi30k.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for i, batch in enumerate(batches[: work["steps"]]):
        arrays[f"source_{i}"] = pad([[*sources[row], EOS] for row in batch])[0].numpy()
        arrays[f"target_{i}"] = pad([[*targets[row], EOS] for row in batch])[0].numpy()
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy types the keywords as its own options
    return work | {"batches": str(path)}
