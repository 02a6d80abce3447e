"""The decoding options of a model as keyword arguments."""

from __future__ import annotations

from typing import TypedDict

from sparsenmt.recipe.choices import LengthPenalty, LongLines, UnknownTokens


class DecodingOptions(TypedDict, total=False):
    """Keys of the `decoding` section of a recipe; one that is left out is as the model's recipe has it.

    Args:
        method: the search: ``beam``, ``greedy``, ``sample``, ``speculative``, ``early_exit``, or that of a plugin.
        beam_size: hypotheses for each text.
        length_penalty: ``gnmt``, ``average`` or ``none``.
        alpha: exponent of the length penalty.
        max_length_factor, max_length_offset: the longest output: factor times source tokens, and offset.
        min_length: the shortest output in tokens.
        max_lines: of a language model, lines of an output; 0: as many as fit.
        no_repeat_ngram: length of the n-grams that are not repeated; 0: all may be.
        unknown: ``allow`` unknown tokens, ``forbid`` them, or ``copy`` the source text in their place.
        long: ``split`` lines that are longer than the training text's, ``cut`` or ``refuse`` them.
        shortlist: ``model``, or a file of `sparsenmt shortlist`; ``none``: all tokens may come out.
        temperature, top_k, top_p, seed: of sampling.
        draft_tokens, draft_layers: of speculative search.
        exit_confidence: of early exits.
        batch_tokens: most source tokens in a batch, padding included, times the beam size.
        encoder_layers, decoder_layers: layers that run.
    """

    method: str
    beam_size: int
    length_penalty: LengthPenalty
    alpha: float
    max_length_factor: float
    max_length_offset: int
    min_length: int
    max_lines: int
    no_repeat_ngram: int
    unknown: UnknownTokens
    long: LongLines
    shortlist: str
    temperature: float
    top_k: int
    top_p: float
    seed: int
    draft_tokens: int
    draft_layers: int
    exit_confidence: float
    batch_tokens: int
    encoder_layers: int
    decoder_layers: int
