"""The training of a depth classifier, with the loss of Dabre, Rubino and Fujita (2020, Section 4.2).

Nesterov SGD; the epoch with the least validation loss is kept.

Shapes: S sentences, B of a batch, K depths, V vocabulary, D dimension.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sparsenmt.data.batching import length_batches
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.labels import LabelledSentences
from sparsenmt.engine.training_operators import use_training_operators

THRESHOLD = 0.5
MAX_LAYERS, MAX_HEADS = 16, 65_536  # of a classifier: records of strangers may claim more
_SORTED_BATCHES = 20  # batches whose sentences are sorted by length together
_CLIP = 1.0  # largest gradient norm
_VALIDATION_TOKENS = 8192


@dataclass(frozen=True)
class Hyperparameters:
    """A cell of the search grid: hyperparameters of a classifier.

    Args:
        layers: number of encoder layers.
        heads: number of attention heads.
        alpha: selector alpha; see `selector_loss`.
        beta: of F_beta.
        weight: lambda, the share of the cross-entropy in the loss.
    """

    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    heads: Annotated[int, Field(ge=1, le=MAX_HEADS)]
    alpha: float
    beta: float
    weight: float

    @property
    def size(self) -> tuple[int, int]:
        """Layers and heads."""
        return self.layers, self.heads

    @property
    def key(self) -> str:
        """A short hash: the cell's name in every search."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SelectorTrainingSettings:
    """The settings that all trials of a search share.

    Args:
        epochs: most epochs of a trial.
        patience: epochs without a lower validation loss after which a trial ends.
        batch_size: sentences of an update.
    """

    epochs: int = 10
    patience: int = 2
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.9
    seed: int = 1


@dataclass(frozen=True)
class Trial:
    """The result of training a classifier with the hyperparameters of a cell, on the validation set.

    Args:
        epoch: the best epoch, from 1; 0: the weights that fine-tuning began with.
        own_loss: the loss that the classifier was trained with.
        loss: the loss with alpha 0, beta 1 and lambda 1/2, by which the trials are compared.
        chrf: mean sentence-level chrF of the translations at the chosen depths.
    """

    cell: Hyperparameters
    epoch: int
    own_loss: float
    loss: float
    chrf: float


TrainedWeights = tuple[Trial, dict[str, Tensor]]
"""A trial, and the weights of its best epoch."""


def choose(logits: Tensor) -> Tensor:
    """Return the numbers (S) of the most probable depths of logits (S, K); the last depth if none reaches 0.5."""
    return torch.where(is_decided(logits), logits.argmax(1), logits.shape[1] - 1)


def is_decided(logits: Tensor) -> Tensor:
    """Return (S) True where a probability of the logits (S, K) reaches 0.5."""
    decided: Tensor = logits.amax(1).sigmoid() >= THRESHOLD
    return decided


def selector_loss(logits: Tensor, labels: Tensor, prior: Tensor, *, alpha: float, beta: float, weight: float) -> Tensor:
    """Return ``weight`` x cross-entropy + (1 - ``weight``) x (1 - soft F_beta), the mean over the batch.

    Args:
        logits: (B, K).
        labels: (B, K) 1 for every depth whose translation is the best, else 0; at least one 1 per sentence.
        prior: (K) share of the training sentences with the label: the paper's p(y_k).
        alpha: selector alpha, the exponent of the weight (1 - p(y_k))^alpha of positive labels.
        beta: of F_beta; above 1 favours recall, below 1 precision.
        weight: the paper's lambda, from 0 to 1.

    Returns:
        a scalar.
    """
    entropy = weighted_entropy(logits, labels, prior, alpha).mean(1)
    return (weight * entropy + (1 - weight) * (1 - soft_f(logits, labels, beta))).mean()


def weighted_entropy(logits: Tensor, labels: Tensor, prior: Tensor, alpha: float) -> Tensor:
    """Return binary cross-entropies (B, K): Equation 3 with w_k = 1, as the paper does not define w_k."""
    return -((1 - prior) ** alpha * labels * F.logsigmoid(logits) + (1 - labels) * F.logsigmoid(-logits))


def soft_f(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return F_beta (B) of each sentence's labels with probabilities in place of decisions, Equation 4.

    With P = mu / sum of probabilities and R = mu / sum of labels it is (1 + beta^2) mu / (beta^2 sum of labels + sum of
    probabilities), which is defined for mu = 0, too.
    """
    probabilities = logits.sigmoid()
    hit = (probabilities * labels).sum(1)
    return (1 + beta**2) * hit / (beta**2 * labels.sum(1) + probabilities.sum(1))


def train_classifier(
    cell: Hyperparameters,
    settings: SelectorTrainingSettings,
    training: LabelledSentences,
    validation: LabelledSentences,
    embeddings: Tensor,
    *,
    start: Mapping[str, Tensor] | None = None,
    advance: Callable[[int], object] | None = None,
) -> TrainedWeights:
    """Train a classifier. The result depends on nothing but the arguments and the machine.

    Args:
        embeddings: (V, D) the model's source embeddings; the classifier is on their device.
        start: weights to fine-tune; they are kept, as epoch 0, if no epoch has a lower validation loss.
        advance: is told the number of epochs that are done or not needed.

    Returns:
        the trial, and the weights of its best epoch.
    """
    digest = hashlib.sha256(f"{settings.seed} {cell.key}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    device, depths = embeddings.device, training.scores.shape[1]
    prior = torch.from_numpy(training.prior).float().to(device)
    labels = torch.from_numpy(training.labels).float().to(device)
    lengths = np.array([len(row) for row in training.tokens], dtype=np.int64)
    best: TrainedWeights | None = None

    def keep_best(epoch: int) -> int:
        """Validate, and return the best epoch so far."""
        nonlocal best
        trial = _validate(classifier, cell, epoch, prior, validation)
        if best is None or trial.own_loss < best[0].own_loss:
            best = trial, {name: value.detach().cpu().clone() for name, value in classifier.state_dict().items()}
        return best[0].epoch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        classifier = DepthClassifier(embeddings, depths=depths, layers=cell.layers, heads=cell.heads)
        use_training_operators(classifier, device)
        classifier.to(device)
        if start is not None:
            classifier.load_state_dict(start)
            keep_best(0)
        parameters = list(classifier.parameters())
        optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=settings.momentum, nesterov=True)
        for epoch in range(1, settings.epochs + 1):
            classifier.train()
            for batch in batches(lengths, settings.batch_size, np.random.default_rng([seed, epoch])):
                logits = classifier.read([training.tokens[i] for i in batch])
                loss = selector_loss(logits, labels[batch], prior, alpha=cell.alpha, beta=cell.beta, weight=cell.weight)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
                optimizer.step()
            ended = epoch - keep_best(epoch) >= settings.patience
            if advance is not None:
                advance(settings.epochs - epoch + 1 if ended else 1)
            if ended:
                break
    assert best is not None
    return best


@torch.inference_mode()
def _validate(
    classifier: DepthClassifier, cell: Hyperparameters, epoch: int, prior: Tensor, validation: LabelledSentences
) -> Trial:
    classifier.eval()
    logits = torch.zeros(len(validation), len(prior), device=prior.device)
    for batch in length_batches([len(row) for row in validation.tokens], _VALIDATION_TOKENS):
        logits[batch] = classifier.read([validation.tokens[i] for i in batch])
    labels = torch.from_numpy(validation.labels).float().to(prior.device)
    own = selector_loss(logits, labels, prior, alpha=cell.alpha, beta=cell.beta, weight=cell.weight)
    common = selector_loss(logits, labels, prior, alpha=0, beta=1, weight=0.5)
    chosen = choose(logits).cpu().numpy()
    quality = float(validation.scores[np.arange(len(validation)), chosen].mean())
    own_loss, loss = (float(each) if each.isfinite() else math.inf for each in (own, common))
    return Trial(cell, epoch, own_loss, loss, quality)


def batches(lengths: NDArray[np.int64], size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Yield the sentences of an epoch in batches of similar lengths, in random order.

    Args:
        lengths: (S) of each sentence.
        size: sentences of a batch; the last batch that was sorted together may have fewer.
    """
    order = generator.permutation(len(lengths))
    found: list[list[int]] = []
    for first in range(0, len(order), size * _SORTED_BATCHES):
        pool = order[first : first + size * _SORTED_BATCHES]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        found += [pool[start : start + size].tolist() for start in range(0, len(pool), size)]
    for number in generator.permutation(len(found)):
        yield found[number]


def hyperparameter_grid(
    layers: Sequence[int],
    heads: Sequence[int],
    alphas: Sequence[float],
    betas: Sequence[float],
    weights: Sequence[float],
) -> list[Hyperparameters]:
    """Return every combination; with lambda 1 the loss has no F_beta, and only the first beta is used."""
    return [
        Hyperparameters(count, head, alpha, beta, weight)
        for count, head, weight, alpha in product(layers, heads, weights, alphas)
        for beta in (betas if weight < 1 else betas[:1])
    ]
