"""One hypothesis a sentence, piece by piece: greedy, or sampled.

Shapes: B sentences still going, V vocabulary, T pieces so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.scores import Hypothesis, forbid, length_divisor, log_normalizer
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.recipe.schema import Decoding

Pick = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (B, V), numbers (B) of the sentences in the batch, step) -> pieces (B)."""


def pick_best(logits: Tensor, numbers: Tensor, step: int) -> Tensor:
    """The most probable piece."""
    return logits.argmax(-1)


def make_sampler(options: Decoding, sentences: Sequence[int], length: int, device: torch.device) -> Pick:
    """Draw from the distribution after temperature, top-k and top-p (Holtzman et al. 2020).

    Every sentence has random numbers of its own, from the seed and its place in the input (``sentences``): what is
    drawn does not depend on the batch.
    """
    draws = torch.empty(len(sentences), length, dtype=torch.float64)
    for row, sentence in enumerate(sentences):
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + sentence)
        draws[row] = torch.rand(length, generator=generator, dtype=torch.float64)
    draws = draws.to(device)

    def pick(logits: Tensor, numbers: Tensor, step: int) -> Tensor:
        width = min(options.top_k, logits.shape[-1]) if options.top_k else logits.shape[-1]
        values, pieces = logits.topk(width, -1)
        # From the best one down, so that no temperature, however low, makes the difference of two infinities.
        probabilities = ((values - values[:, :1]).double() / options.temperature).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        kept = probabilities.masked_fill(before >= options.top_p, 0.0)
        cumulative = kept.cumsum(-1)
        point = draws[numbers, step][:, None] * cumulative[:, -1:]
        index = (cumulative <= point).sum(-1, keepdim=True)
        index = torch.minimum(index, (kept > 0).sum(-1, keepdim=True) - 1)  # rounding may carry the point to the end
        return pieces.gather(1, index).squeeze(1)

    return pick


@torch.inference_mode()
def ancestral_search(
    model: TranslationModel, memory: Memory, limits: Tensor, options: Decoding, pick: Pick
) -> list[list[Hypothesis]]:
    """Translate a batch; sentences leave it when they end.

    Args:
        memory: of B sentences, possibly compacted.
        limits: (B) maximum lengths, EOS included.

    Returns:
        one hypothesis a sentence, in a list of its own; empty lists if the model's scores are not numbers.
    """
    count, device = memory.valid.shape[0], memory.states.device
    cache = model.new_cache(memory)
    numbers = torch.arange(count, device=device)
    tokens = torch.empty(count, 0, dtype=torch.long, device=device)
    wide = torch.float64 if memory.states.dtype == torch.float64 else torch.float32
    totals = torch.zeros(count, dtype=wide, device=device)
    last = torch.full((count, 1), BOS, device=device)
    found: dict[int, list[Hypothesis]] = {}
    while len(numbers):
        (states,) = model.decode(last, cache.memory, cache=cache, exits=options.decoder_exits).values()
        logits = model.project(states[:, -1])
        logits = logits if logits.dtype == torch.float64 else logits.float()
        normalizer = log_normalizer(logits)
        if not bool(normalizer.isfinite().all()):
            return [[] for _ in range(count)]  # the model's scores are not numbers
        logits = forbid(logits, tokens, options)
        pieces = pick(logits, numbers, tokens.shape[1])
        totals = totals + (logits.gather(1, pieces[:, None]) - normalizer).squeeze(1)
        tokens = torch.cat([tokens, pieces[:, None]], 1)
        done = (pieces == EOS) | (limits <= tokens.shape[1])
        last = pieces[:, None]
        if bool(done.any()):
            chosen = done.nonzero().squeeze(1)
            for number, row, total in zip(
                numbers[chosen].tolist(), tokens[chosen].tolist(), totals[chosen].tolist(), strict=True
            ):
                found[number] = [_hypothesis(row, total, options)]
            going = (~done).nonzero().squeeze(1)
            numbers, tokens, totals, last, limits = (x[going] for x in (numbers, tokens, totals, last, limits))
            cache.reorder(going)
            cache.keep_sentences(going)
    return [found[number] for number in range(count)]


def _hypothesis(tokens: list[int], total: float, options: Decoding) -> Hypothesis:
    ended = tokens[-1] == EOS
    score = total / length_divisor(len(tokens), options)
    return Hypothesis(tokens[:-1] if ended else tokens, total, score, ended)
