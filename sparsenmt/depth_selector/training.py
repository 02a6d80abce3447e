"""Training one depth classifier: Nesterov SGD, the epoch with the least validation loss counts.

Shapes: S sentences, B of a batch, K depths.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.batching import length_batches
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.labels import Labelled
from sparsenmt.depth_selector.loss import selection_loss

THRESHOLD = 0.5
_POOL = 20  # batches whose sentences are sorted by length together
_CLIP = 1.0  # largest norm of an update's gradient
_VALIDATION_TOKENS = 8192


@dataclass(frozen=True)
class Hyperparameters:
    """What the search varies."""

    layers: int
    heads: int
    alpha: float
    beta: float
    weight: float
    """lambda, the share of the cross-entropy in the loss."""

    @property
    def key(self) -> str:
        """A name, the same in every search."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Settings:
    """What all cells of a search have in common."""

    epochs: int = 10
    patience: int = 2
    """Epochs without a lower validation loss after which a cell ends."""
    batch_size: int = 32
    """Sentences of an update."""
    learning_rate: float = 0.05
    momentum: float = 0.9
    seed: int = 1


@dataclass(frozen=True)
class Trial:
    """What came of a cell, all on the validation part."""

    cell: Hyperparameters
    epoch: int
    """The best one, from 1."""
    own_loss: float
    """The loss that the cell was trained with."""
    loss: float
    """The same with alpha 0, beta 1 and lambda 1/2 for all cells: what they are compared by."""
    chrf: float
    """Mean sentence-level chrF of the translations at the chosen depths."""


def choose(logits: Tensor) -> Tensor:
    """(S, K) logits -> (S) numbers of depths: the most probable; the deepest, the last, if none reaches 0.5."""
    return torch.where(is_decided(logits), logits.argmax(1), logits.shape[1] - 1)


def is_decided(logits: Tensor) -> Tensor:
    """(S, K) logits -> (S) bool: whether a probability reaches 0.5."""
    decided: Tensor = logits.amax(1).sigmoid() >= THRESHOLD
    return decided


def train_cell(
    cell: Hyperparameters,
    settings: Settings,
    training: Labelled,
    validation: Labelled,
    table: Tensor,
    *,
    advance: Callable[[int], object] | None = None,
) -> tuple[Trial, dict[str, Tensor]]:
    """Train a cell, which depends on nothing but the arguments and the machine.

    Args:
        table: (V, D) the model's embeddings of source pieces; the classifier stands where they are.
        advance: told the number of epochs that are done, or not needed.

    Returns:
        what came of it, and the weights of its best epoch.
    """
    digest = hashlib.sha256(f"{settings.seed} {cell.key}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    devices = [table.device] if table.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        classifier = DepthClassifier(
            vocabulary=table.shape[0],
            dimension=table.shape[1],
            depths=training.scores.shape[1],
            layers=cell.layers,
            heads=cell.heads,
        )
        classifier.take_embeddings(table)
        classifier.to(table.device)
        return _run(classifier, cell, settings, training, validation, seed, advance)


def _run(
    classifier: DepthClassifier,
    cell: Hyperparameters,
    settings: Settings,
    training: Labelled,
    validation: Labelled,
    seed: int,
    advance: Callable[[int], object] | None,
) -> tuple[Trial, dict[str, Tensor]]:
    device = classifier.embeddings.device
    prior = torch.from_numpy(training.prior).float().to(device)
    labels = torch.from_numpy(training.labels).float().to(device)
    parameters = list(classifier.parameters())
    optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=settings.momentum, nesterov=True)
    lengths = np.array([len(row) for row in training.pieces], dtype=np.int64)
    best: tuple[Trial, dict[str, Tensor]] | None = None
    for epoch in range(1, settings.epochs + 1):
        classifier.train()
        for batch in batches(lengths, settings.batch_size, np.random.default_rng([seed, epoch])):
            logits = classifier.read([training.pieces[i] for i in batch])
            loss = selection_loss(logits, labels[batch], prior, alpha=cell.alpha, beta=cell.beta, weight=cell.weight)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
            optimizer.step()
        trial = _validate(classifier, cell, epoch, prior, validation)
        if best is None or trial.own_loss < best[0].own_loss:
            best = trial, {name: value.detach().cpu().clone() for name, value in classifier.state_dict().items()}
        ended = epoch - best[0].epoch >= settings.patience
        if advance is not None:
            advance(settings.epochs - epoch + 1 if ended else 1)
        if ended:
            break
    assert best is not None
    return best


@torch.inference_mode()
def _validate(
    classifier: DepthClassifier, cell: Hyperparameters, epoch: int, prior: Tensor, validation: Labelled
) -> Trial:
    classifier.eval()
    logits = torch.zeros(len(validation), len(prior), device=prior.device)
    for batch in length_batches([len(row) for row in validation.pieces], _VALIDATION_TOKENS):
        logits[batch] = classifier.read([validation.pieces[i] for i in batch])
    labels = torch.from_numpy(validation.labels).float().to(prior.device)
    own = selection_loss(logits, labels, prior, alpha=cell.alpha, beta=cell.beta, weight=cell.weight)
    common = selection_loss(logits, labels, prior, alpha=0, beta=1, weight=0.5)
    chosen = choose(logits).cpu().numpy()
    quality = float(validation.scores[np.arange(len(validation)), chosen].mean())
    own_loss, loss = (float(each) if each.isfinite() else math.inf for each in (own, common))
    return Trial(cell, epoch, own_loss, loss, quality)


def batches(lengths: NDArray[np.int64], size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """The sentences of an epoch in batches of about equal length, in random order.

    Args:
        lengths: (S) of each sentence.
        size: sentences of a batch; the last of a pool may have fewer.
    """
    order = generator.permutation(len(lengths))
    found: list[list[int]] = []
    for first in range(0, len(order), size * _POOL):
        pool = order[first : first + size * _POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        found += [pool[start : start + size].tolist() for start in range(0, len(pool), size)]
    for number in generator.permutation(len(found)):
        yield found[number]


def grid(
    layers: Sequence[int],
    heads: Sequence[int],
    alphas: Sequence[float],
    betas: Sequence[float],
    weights: Sequence[float],
) -> list[Hyperparameters]:
    """Every combination. Without the term of F_beta (lambda 1) beta has no meaning: then only the first counts."""
    return [
        Hyperparameters(count, head, alpha, beta, weight)
        for count in layers
        for head in heads
        for weight in weights
        for alpha in alphas
        for beta in (betas if weight < 1 else betas[:1])
    ]
