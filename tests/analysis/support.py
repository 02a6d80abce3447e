"""Small models with gates, with random weights and tokenizers of the invented language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import copy_model, model_version, write_recipe, write_weights
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from sparsenmt.decoding.inputs import SourceLine, make_source, read_sources
from sparsenmt.model.memory import Memory
from sparsenmt.recipe import schema
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from sparsenmt.report.tables import Report, as_object, csv_text
from sparsenmt.sparsity.registry import methods
from tests.decoding.support import TinyBundle, invented_lines
from tests.toys import registered

OUTPUT = [{"name": "toy_faint", "at": "output"}]
MASKED = [{"name": "toy_faint", "at": "output", "closed": "mask"}]
BETWEEN = [{"name": "toy_faint", "at": "between"}]
EVERYWHERE = [*BETWEEN, *OUTPUT]
L0DROP = [{"name": "l0drop", "at": "output", "init_log_alpha": -6.0}]


def tokenizer(kind: str = "char") -> Tokenizer:
    options = TokenizerOptions.model_validate({"kind": kind, "vocabulary_size": 48 if kind == "bpe" else 60})
    return train_tokenizer(options, invented_lines(200, 1))


def gated_bundle(
    memory: list[dict[str, Any]],
    *,
    attention: dict[str, Any] | None = None,
    seed: int = 1,
    kind: str = "char",
    layers: int = 3,
) -> TinyBundle:
    """A model in float64 whose gates close a part of every text; an empty list: none close."""
    pieces = tokenizer(kind)
    sizes = {"dimension": 16, "feed_forward": 24, "heads": 4, "encoder_layers": layers, "decoder_layers": 2}
    rest = {"tie_embeddings": "all", "max_positions": 96, "dropout": {"residual": 0.0}}
    with registered():
        section = schema.ModelSection.model_validate({**sizes, **rest, "memory": memory, "attention": attention or {}})
        model = build_model(section, source_size=pieces.size, target_size=pieces.size, seed=seed).eval()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
        for name, parameter in model.named_parameters():
            if name.startswith("memory.") and parameter.ndim == 1:
                parameter *= 3  # gates apart from each other
    model.to(torch.float64)
    return TinyBundle(model, Tokenizers(pieces, pieces, True), FeatureSet({}), 96, torch.device("cpu"))


def sources(bundle: TinyBundle, count: int = 9, seed: int = 3) -> list[SourceLine]:
    return read_sources(bundle, input_lines(invented_lines(count, seed)))


@torch.inference_mode()
def encoded_alone(bundle: TinyBundle, line: SourceLine, *, compact: bool = False) -> Memory:
    """The memory of one sentence without company."""
    (memory,) = bundle.model.encode(make_source(bundle, [line]), compact=compact).memories.values()
    return memory


def naive_gates(bundle: TinyBundle, line: SourceLine) -> list[float]:
    gates = encoded_alone(bundle, line).gates
    assert gates is not None
    values: list[float] = gates[0].tolist()
    return values


def check_files(report: Report, json_file: Path, csv_file: Path) -> None:
    """What JSON and CSV hold is what the report holds."""
    assert json.loads(json_file.read_bytes())["tables"] == as_object(report)["tables"]
    assert csv_file.read_bytes().decode() == csv_text(report.tables[0])


@torch.inference_mode()
def add_gates(dense: Path, target: Path, text: list[str], share: float) -> None:
    """Make a model directory out of a dense one: the same weights, and gates in a random direction.

    Args:
        share: of the positions of ``text``, those to be closed, about.
    """
    bundle = open_model(dense, device=torch.device("cpu"), dtype=None)
    batch = make_source(bundle, read_sources(bundle, input_lines(text)))
    (memory,) = bundle.model.encode(batch).memories.values()
    direction = torch.randn(memory.states.shape[-1], generator=torch.Generator().manual_seed(1))
    values = (memory.states @ direction)[batch.valid]
    direction = direction * 3 / values.std()
    bias = -2.4 - (values * 3 / values.std()).quantile(share)
    weights = bundle.model.state_dict() | {"memory.output.0.weight": direction, "memory.output.0.bias": bias}
    copy_model(dense, target, bundle.model.state_dict(), after=1, made_of=[1], version=model_version(dense))
    recipe = bundle.recipe.model_dump(mode="json")
    recipe["model"]["memory"], recipe["losses"] = [{"name": "l0drop", "at": "output"}], {"l0": {"weight": 0.3}}
    write_recipe(target, load_resolved(recipe, methods(), origin="test"))
    write_weights(target, weights, after=1, made_of=[1])
