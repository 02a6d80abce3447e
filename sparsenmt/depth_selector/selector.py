"""A trained depth selector: its files in the model directory, and its choices.

``selector/weights.safetensors``   the classifier
``selector/selector.json``         sealed: the model that it belongs to, its depths, hyperparameters and training
``selector/report.json``, ``.csv`` its evaluation on held-out text

Shapes: S sentences, K depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.training import Hyperparameters, choose
from sparsenmt.errors import UserError
from sparsenmt.files import read_sealed, write_sealed
from sparsenmt.model.depth_plan import Depth
from sparsenmt.store import Bundle, ModelIdentity
from sparsenmt.tensors import load_tensors, read_header, save_tensors

FOLDER, WEIGHTS, RECORD = "selector", "weights.safetensors", "selector.json"
_FORMAT = 1
_MISSING_HINT = "`sparsenmt select-depth` trains one."
_INVALID_HINT = "Train it for this model with `sparsenmt select-depth`."


@dataclass(frozen=True)
class Selector:
    """A classifier that chooses a depth for every sentence.

    Args:
        classifier: in evaluation mode.
        depths: K pairs of exits, in the order of the logits; the last is the full depth.
        digest: hash of the classifier's weights.
    """

    classifier: DepthClassifier
    depths: Sequence[Depth]
    digest: str = ""

    @torch.inference_mode()
    def logits(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return logits (S, K) of sentences of source tokens, each ended by ``</s>``.

        Each sentence is a batch by itself: in fp32, rounding depends on the shape of the batch, and the depth of a
        sentence must not.
        """
        rows = [self.classifier.read([tokens]) for tokens in sentences]
        return torch.cat(rows) if rows else torch.zeros(0, len(self.depths))

    def choose(self, sentences: Sequence[Sequence[int]]) -> list[Depth]:
        """Return the chosen depth of every sentence."""
        return [self.depths[number] for number in choose(self.logits(sentences)).tolist()]


def identity_record(identity: ModelIdentity) -> dict[str, Any]:
    """Return the part of a model's identity that its selector depends on, as JSON: weights and vocabularies."""
    return {"weights": identity.weights, "vocabularies": identity.vocabularies}


def source_embeddings(bundle: Bundle) -> Tensor:
    """Return the model's source embeddings (V, D) in fp32."""
    tables = bundle.model.embeddings
    table: Tensor = tables["shared"] if "shared" in tables else tables["source"]
    return table.detach().float()


def save_selector(
    directory: Path,
    weights: Mapping[str, Tensor],
    *,
    model: ModelIdentity,
    depths: Sequence[Depth],
    cell: Hyperparameters,
    notes: Mapping[str, Any],
) -> None:
    """Write a selector into a directory that becomes a model's ``selector/``.

    Args:
        model: the model that it belongs to.
        cell: the hyperparameters of the classifier.
        notes: further entries of the record, as JSON.
    """
    digest = save_tensors(directory / WEIGHTS, weights)
    record = {
        "format": _FORMAT,
        "model": identity_record(model),
        "depths": depths,
        "cell": asdict(cell),
        "weights": digest,
        **notes,
    }
    write_sealed(directory / RECORD, record)


def open_selector(directory: Path, bundle: Bundle, *, folder: Path | None = None) -> Selector:
    """Open the selector of a model directory.

    Args:
        bundle: the model.
        folder: of the selector; None: ``selector/`` in the model directory.

    Raises:
        UserError: there is none, it is damaged, or it was trained for another model.
    """
    folder = folder or directory / FOLDER
    path = folder / RECORD
    if not folder.exists():
        raise UserError("the model has no depth selector", where=str(folder), hint=_MISSING_HINT)
    record = read_sealed(path, hint=_INVALID_HINT)
    if record.get("format") != _FORMAT:
        raise UserError("written by another version of this program", where=str(path), hint=_INVALID_HINT)
    depths = [(int(n), int(m)) for n, m in record["depths"]]
    if record["model"] != identity_record(bundle.identity()) or depths != bundle.model.plan.depths():
        raise UserError("the selector was trained for another model", where=str(folder), hint=_INVALID_HINT)
    if read_header(folder / WEIGHTS, hint=_INVALID_HINT)[0] != record["weights"]:
        raise UserError("the weights do not match selector.json", where=str(folder), hint=_INVALID_HINT)
    embeddings = source_embeddings(bundle)
    cell = Hyperparameters(**record["cell"])
    classifier = DepthClassifier(
        vocabulary=embeddings.shape[0],
        dimension=embeddings.shape[1],
        depths=len(depths),
        layers=cell.layers,
        heads=cell.heads,
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in classifier.state_dict().items()}
    try:
        classifier.load_state_dict(load_tensors(folder / WEIGHTS, hint=_INVALID_HINT, shapes=shapes))
    except ValueError:
        raise UserError("the selector was trained for another model", where=str(folder), hint=_INVALID_HINT) from None
    classifier.to(bundle.device).pack()
    return Selector(classifier, depths, record["weights"])
