"""A trained depth selector: its files in the model directory, its choices, and translation at chosen depths.

``selector/weights.safetensors``   the classifier
``selector/selector.json``         sealed: the model that it belongs to, its depths, hyperparameters and training
``selector/report.json``, ``.csv`` its evaluation on held-out text

Shapes: S sentences, K depths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import text_windows
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import WINDOW, TranslatedLine, translate_lines
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.training import Hyperparameters, choose
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.storage.records import typed
from sparsenmt.storage.tensors import load_tensors, read_header, save_tensors

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
        counts: number of lines that `translate` translated at each depth; lines without words are not counted.
    """

    classifier: DepthClassifier
    depths: Sequence[Depth]
    digest: str = ""
    counts: Counter[Depth] = field(default_factory=Counter)

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

    def translate(
        self,
        bundle: Bundle,
        lines: Iterable[InputLine],
        options: Decoding,
        *,
        advance: Callable[[int], object] | None = None,
        window: int = WINDOW,
    ) -> Iterator[TranslatedLine]:
        """Translate lines at their chosen depths, in order; arguments and errors are those of `translate_lines`."""
        for batch in text_windows(lines, window, lambda line: len(line.text)):
            sources = read_sources(bundle, batch)
            chosen = self.choose([source.ids for source in sources if not source.empty])
            self.counts.update(chosen)
            rest = iter(chosen)
            depths = [self.depths[-1] if source.empty else next(rest) for source in sources]  # empty: not translated
            yield from translate_at_depths(bundle, batch, depths, options, advance=advance)


def translate_at_depths(
    bundle: Bundle,
    lines: Sequence[InputLine],
    depths: Sequence[Depth],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TranslatedLine]:
    """Translate every line at its depth, in order; each depth translates its lines independently of the others.

    Args:
        depths: one for each line.
        advance: as for `translate_lines`.

    Raises:
        UserError: as `translate_lines`.
    """
    found: dict[int, TranslatedLine] = {}
    for depth in sorted(set(depths)):
        members = [i for i, each in enumerate(depths) if each == depth]
        own = [lines[i] for i in members]
        for each in translate_lines(bundle, own, options.at(depth), advance=advance, window=len(own)):
            found[each.source.number] = replace(each, depth=None if each.source.empty else depth)
    return [found[line.number] for line in lines]


def identity_record(identity: ModelIdentity) -> dict[str, Any]:
    """Return the part of a model's identity that its selector depends on, as JSON: weights and vocabularies."""
    return {"weights": identity.weights, "vocabularies": identity.vocabularies}


def source_embeddings(bundle: Bundle) -> Tensor:
    """Return the model's source embeddings (V, D) in fp32."""
    tables, size = bundle.model.embeddings, bundle.tokenizers.source.size
    key = bundle.model.table_keys[0]
    return tables.rows(key, torch.arange(size, device=bundle.device)).detach().float()


@dataclass(frozen=True)
class _SelectorRecord:
    """The types of values in a selector's record."""

    model: dict[str, Any]
    depths: list[Depth]
    cell: Hyperparameters
    weights: str


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
    found = typed(record, _SelectorRecord, path, hint=_INVALID_HINT)
    depths, cell = found.depths, found.cell
    if found.model != identity_record(bundle.identity()) or depths != bundle.model.plan.depths():
        raise UserError("the selector was trained for another model", where=str(folder), hint=_INVALID_HINT)
    if read_header(folder / WEIGHTS, hint=_INVALID_HINT)[0] != found.weights:
        raise UserError("the weights do not match selector.json", where=str(folder), hint=_INVALID_HINT)
    if bundle.recipe.model.dimension % cell.heads:
        raise UserError("the selector was trained for another model", where=str(folder), hint=_INVALID_HINT)
    classifier = _new_classifier(cell, bundle)
    shapes = {name: tuple(tensor.shape) for name, tensor in classifier.state_dict().items()}
    try:
        classifier.load_state_dict(load_tensors(folder / WEIGHTS, hint=_INVALID_HINT, shapes=shapes))
    except ValueError:
        raise UserError("the selector was trained for another model", where=str(folder), hint=_INVALID_HINT) from None
    classifier.to(bundle.device).pack()
    return Selector(classifier, depths, found.weights)


def make_selector(weights: Mapping[str, Tensor], cell: Hyperparameters, bundle: Bundle) -> Selector:
    """Make a selector out of weights that were trained with the hyperparameters of a cell."""
    classifier = _new_classifier(cell, bundle)
    classifier.load_state_dict(weights)
    classifier.to(bundle.device).pack()
    return Selector(classifier, bundle.model.plan.depths())


def _new_classifier(cell: Hyperparameters, bundle: Bundle) -> DepthClassifier:
    depths = len(bundle.model.plan.depths())
    return DepthClassifier(source_embeddings(bundle), depths=depths, layers=cell.layers, heads=cell.heads)
