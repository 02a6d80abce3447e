"""A trained depth selector in its model's directory: files, checks, and what it chooses.

``selector/weights.safetensors``   the classifier
``selector/selector.json``         sealed: the model it is for, its depths and shape, how it was found
``selector/report.json``, ``.csv`` what it is worth on held-out text

Shapes: S sentences, K depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt import store
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.training import Hyperparameters, choose
from sparsenmt.errors import UserError
from sparsenmt.files import read_sealed, write_sealed
from sparsenmt.model.depth_plan import Depth
from sparsenmt.tensors import load_tensors, recorded_digest, save_tensors

FOLDER, WEIGHTS, RECORD = "selector", "weights.safetensors", "selector.json"
_FORMAT = 1
_TRAIN = "`sparsenmt select-depth` trains one."
_ANEW = "Train it for this model with `sparsenmt select-depth`."


@dataclass(frozen=True)
class Selector:
    """What chooses a depth for every sentence.

    Args:
        classifier: in evaluation mode.
        depths: K pairs of exits, in the order of its logits; the last is the full depth.
        digest: hash of its weights.
    """

    classifier: DepthClassifier
    depths: Sequence[Depth]
    digest: str = ""

    @torch.inference_mode()
    def logits(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Source pieces, each ended by ``</s>`` -> (S, K).

        Each sentence is read by itself: sums in fp32 are rounded otherwise in other company, and a sentence's depth
        must not depend on that.
        """
        rows = [self.classifier.read([pieces]) for pieces in sentences]
        return torch.cat(rows) if rows else torch.zeros(0, len(self.depths))

    def choose(self, sentences: Sequence[Sequence[int]]) -> list[Depth]:
        """Of every sentence the depth that is chosen."""
        return [self.depths[number] for number in choose(self.logits(sentences)).tolist()]


def identity(directory: Path) -> dict[str, Any]:
    """What a selector is tied to: the model's weights, and the files of its vocabularies."""
    files = store.read_manifest(directory)["files"]
    vocabularies = {name: entry["sha256"] for name, entry in files.items() if name.startswith("tokenizers/")}
    return {"weights": store.weights_digest(directory), "vocabularies": vocabularies}


def source_table(bundle: store.Bundle) -> Tensor:
    """(V, D) the model's embeddings of source pieces, in fp32."""
    tables = bundle.model.embeddings
    table: Tensor = tables["shared"] if "shared" in tables else tables["source"]
    return table.detach().float()


def save(
    directory: Path,
    weights: Mapping[str, Tensor],
    *,
    model: Mapping[str, Any],
    depths: Sequence[Depth],
    cell: Hyperparameters,
    found: Mapping[str, Any],
) -> None:
    """Write a selector into a directory that becomes a model's ``selector/``.

    Args:
        model: its `identity`.
        found: how it was found, as JSON.
    """
    digest = save_tensors(directory / WEIGHTS, weights)
    record = {"format": _FORMAT, "model": model, "depths": depths, "cell": asdict(cell), "weights": digest, **found}
    write_sealed(directory / RECORD, record)


def open_selector(directory: Path, bundle: store.Bundle, *, folder: Path | None = None) -> Selector:
    """The selector of a model directory.

    Args:
        folder: where the selector stands, if not in its place there.

    Raises:
        UserError: there is none, it is damaged, or it was trained for another model.
    """
    folder = folder or directory / FOLDER
    path = folder / RECORD
    if not folder.exists():
        raise UserError("the model has no depth selector", where=str(folder), hint=_TRAIN)
    record = read_sealed(path, hint=_ANEW)
    if record.get("format") != _FORMAT:
        raise UserError("written by another version of this program", where=str(path), hint=_ANEW)
    depths = [(int(n), int(m)) for n, m in record["depths"]]
    if record["model"] != identity(directory) or depths != bundle.model.plan.depths():
        raise UserError("the selector was trained for another model", where=str(folder), hint=_ANEW)
    if recorded_digest(folder / WEIGHTS, hint=_ANEW) != record["weights"]:
        raise UserError("the weights are not those of the record beside them", where=str(folder), hint=_ANEW)
    table = source_table(bundle)
    cell = Hyperparameters(**record["cell"])
    classifier = DepthClassifier(
        vocabulary=table.shape[0],
        dimension=table.shape[1],
        depths=len(depths),
        layers=cell.layers,
        heads=cell.heads,
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in classifier.state_dict().items()}
    try:
        classifier.load_state_dict(load_tensors(folder / WEIGHTS, hint=_ANEW, shapes=shapes))
    except ValueError:
        raise UserError("the selector was trained for another model", where=str(folder), hint=_ANEW) from None
    classifier.to(bundle.device).pack()
    return Selector(classifier, depths, record["weights"])
