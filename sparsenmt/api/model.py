"""A trained model for Python programs and notebooks: translation, scores, attention, kept words, alignments, states.

Everything is computed by the parts that serve the command line, and errors are theirs: `UserError` for what a user can
fix, with the names of arguments in place of options.
Shapes: Q queries, K keys, S source positions, N tokens of a text, D model dimension.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from sparsenmt.analysis.attention_maps import ChosenAttention, MapChoice, check_choice, sentence_maps
from sparsenmt.analysis.gates import NO_FILTER, LineBatches
from sparsenmt.analysis.kept_words import KeptWords, kept_words, source_words
from sparsenmt.analysis.labels import shown_tokens
from sparsenmt.analysis.observe import observe_text
from sparsenmt.analysis.session import AnalysisSession, AnalyzedModel
from sparsenmt.api.attention import AttentionMap, attention_map, heads_in_words
from sparsenmt.api.decoding_options import DecodingOptions
from sparsenmt.api.likelihood import Likelihood
from sparsenmt.api.states import SourceStates
from sparsenmt.api.translation import Translation, Translations, translation_of
from sparsenmt.arguments import arguments_in_errors, check_names
from sparsenmt.assemble.bundle import Bundle, open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.line_parts import PART, divide_lines
from sparsenmt.data.text_dataset import encode_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.alignment import LAST_LAYER, Alignment, AttentionHeads, ReadTarget, align_targets, guided_heads
from sparsenmt.decoding.continuations import continue_lines
from sparsenmt.decoding.disabled_heads import read_disabled_heads
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.inputs import SourceLine, read_sources, warn_of_sources
from sparsenmt.decoding.text_scores import TextReading
from sparsenmt.decoding.translate import TranslatedLine, translate_lines
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.choices import DecodingDtype, is_device_name
from sparsenmt.recipe.model_use import check_language_model, check_translates
from sparsenmt.recipe.schema import Decoding, Recipe
from sparsenmt.training.checkpoints import average_weights, find_checkpoints
from sparsenmt.workflows.decoding.input_text import warn_of_single_lines
from sparsenmt.workflows.decoding.search_options import search_options
from sparsenmt.workflows.evaluation.score import ScoreResult, score_texts
from sparsenmt.workflows.evaluation.score_text import token_nats
from sparsenmt.workflows.training.average import choose_checkpoints


@dataclass(frozen=True)
class _TextSession(AnalysisSession):
    """Source texts and, beside each, its translation; texts are named as arguments in messages.

    Args:
        targets: translations that the decoder reads; None: the model's own.
    """

    targets: Sequence[str] | None = None

    @property
    def text_name(self) -> str:
        return "the source"

    @property
    def target_name(self) -> str:
        return "the target"

    @cached_property
    def given_targets(self) -> list[str] | None:
        return None if self.targets is None else list(self.targets)


class Model:
    """A trained model that is ready for use; `load` makes one.

    Its methods take lists of texts, or one text where they say so, and return results that a notebook shows.
    """

    def __init__(self, directory: Path, bundle: Bundle) -> None:
        self.directory = directory
        self.bundle = bundle

    def __repr__(self) -> str:
        return f"Model({self.bundle.description})"

    @property
    def recipe(self) -> Recipe:
        """The recipe that the model was trained with."""
        return self.bundle.recipe

    @property
    def layers(self) -> tuple[int, int]:
        """The numbers of encoder and decoder layers that run."""
        return self.bundle.depth

    def heads(self, site: SiteName) -> list[str]:
        """Return the names of the heads of a site, in each layer; their numbers count from 1."""
        _check_site(site)
        return list(self.bundle.model.head_names(site))

    def translate(
        self, texts: Iterable[str], *, n_best: int = 1, alignment: bool = False, **options: Unpack[DecodingOptions]
    ) -> Translations:
        """Translate texts, in order: ``model.translate(["Ein Haus."], beam_size=8)``.

        A text is one line; tags and blocks of documents are read by `sparsenmt.decode`.

        Args:
            n_best: outputs to return for each text, at most the beam size.
            alignment: align the words of every text with those of its translation, as `alignments` does.
            options: keys of `decoding` in a recipe, such as ``beam_size``, ``alpha``, ``method``, ``unknown``; those
                that are not given are the model's own, as in `sparsenmt decode`.

        Raises:
            TypeError: ``texts`` is a single string, or has an item that is none; there is no such option.
            UserError: an option does not fit the model, a batch does not fit into memory, or this is a language model.
        """
        lines = _lines(texts=texts)
        with arguments_in_errors():
            check_translates(self.recipe, self.directory, "Give its prompts to `generate`.")
            chosen = self._search_options(options, n_best)
            chosen = chosen.undivided if alignment else chosen
            warn_of_single_lines(self.bundle)
            with progress_bar("translate", len(lines)) as advance:
                found = list(translate_lines(self.bundle, input_lines(lines), chosen, advance=advance))
            warn_of_sources(self.bundle, [each.source for each in found], "texts", "translated")
        result = self._translations(lines, found, n_best)
        if not alignment:
            return result
        with arguments_in_errors():
            links = self._aligned(lines, result.texts, MapChoice("cross"), chosen)
        pairs = zip(result, links, strict=True)
        return Translations(tuple(replace(each, alignment=own) for each, own in pairs))

    def generate(self, prompts: Iterable[str], *, n_best: int = 1, **options: Unpack[DecodingOptions]) -> Translations:
        """Continue prompts with a language model; the outputs begin with them. Arguments and errors as of `translate`.

        Raises:
            UserError: the model translates.
        """
        lines = _lines(prompts=prompts)
        with arguments_in_errors():
            check_language_model(self.recipe, self.directory)
            chosen = self._search_options(options, n_best)
            with progress_bar("generate", len(lines)) as advance:
                found = list(continue_lines(self.bundle, input_lines(lines), chosen, advance=advance))
            warn_of_sources(self.bundle, [each.source for each in found], "prompts", "read")
        return self._translations(lines, found, n_best)

    def score(
        self,
        hypotheses: Iterable[str | Translation],
        references: Sequence[str] | Sequence[Sequence[str]],
        *,
        metrics: Sequence[str] = (),
        baseline: Iterable[str | Translation] | None = None,
        lowercase: bool = False,
        tokenize: str | None = None,
        language: str | None = None,
    ) -> ScoreResult:
        """Score translations against references, as `sparsenmt score` does: ``model.score(outputs, references)``.

        Args:
            hypotheses: texts, or what `translate` returned.
            references: one for each hypothesis; or several such lists.
            metrics: their names; none: BLEU, chrF and TER.
            baseline: other translations, for a significance test of the difference.
            lowercase: ignore case in BLEU and chrF.
            tokenize: sacrebleu's tokenizer, for BLEU; None: what fits the language and the text.
            language: of the text; None: the model's target language.

        Raises:
            TypeError: an argument is a single string.
            UserError: there is no such metric, or the lists have different lengths.
        """
        ours = _lines(hypotheses=_texts_of(hypotheses=hypotheses))
        check_lists(references=references, metrics=metrics)
        several = references and not isinstance(references[0], str)
        theirs: Any = references if several else [references]
        given = [_lines(references=each) for each in theirs]
        other = None if baseline is None else _lines(baseline=_texts_of(baseline=baseline))
        with arguments_in_errors():
            options = ScoringOptions(tuple(metrics), lowercase, tokenize, language)
            return score_texts(ours, given, options, baseline=other, recipes={str(self.directory): self.recipe})

    def log_likelihood(self, texts: Iterable[str], targets: Iterable[str] | None = None) -> list[Likelihood]:
        """Return the log-probabilities that the model gives to targets, by forced decoding.

        A language model reads the texts as the lines of one text, in order, and gives each the probability after those
        before it.

        Args:
            texts: the sources; of a language model, the lines.
            targets: a translation of each source; a language model has none.

        Raises:
            TypeError: an argument is a single string, or targets are given to a language model, or to no other.
            UserError: a batch does not fit into memory, or the numbers of texts and targets differ.
        """
        lines = _lines(texts=texts)
        with arguments_in_errors():
            if self.recipe.data.is_language_model:
                if targets is not None:
                    raise TypeError("a language model reads texts alone: leave targets out")
                return self._text_likelihoods(lines)
            if targets is None:
                raise TypeError("targets are missing: the model gives probabilities to translations of texts")
            beside = self._beside(lines, _lines(targets=targets))
            most, depth = self.recipe.decoding.batch_tokens, self.recipe.decoding.depth
            score = partial(score_pairs, self.bundle, input_lines(lines), beside, batch_tokens=most, depth=depth)
            with progress_bar("score", len(lines)) as advance:
                found = list(score(advance=advance))
            warn_of_sources(self.bundle, [each.source for each in found], "texts", "read")
        pairs = zip(beside, found, strict=True)
        return [Likelihood(text, tuple(each.tokens), tuple(each.token_log_probabilities)) for text, each in pairs]

    def perplexity(self, texts: Iterable[str], targets: Iterable[str] | None = None) -> float:
        """Return the perplexity of a token, ``</s>`` included; arguments and errors are those of `log_likelihood`."""
        found = self.log_likelihood(texts, targets)
        if not found:
            raise UserError("there is no text", where="texts", hint="Give one text or more.")
        count = sum(len(each.tokens) for each in found)
        return math.exp(-math.fsum(each.log_probability for each in found) / count)

    def attention(
        self,
        source: str,
        target: str | None = None,
        *,
        site: SiteName | None = None,
        layer: int | Sequence[int] | None = None,
        head: int | Sequence[int] | None = None,
    ) -> AttentionMap:
        """Return the attention of one text as an array with the names of its tokens; it shows as a heat map.

        Args:
            source: the source; of a language model, the text.
            target: the translation that the decoder reads; None: the model's own.
            site: ``cross``, ``encoder_self`` or ``decoder_self``; None: ``cross``, of a language model
                ``decoder_self``.
            layer, head: numbers from 1, or lists of them: the mean over these; None: over all. Fixed heads come
                before learned ones.

        Raises:
            TypeError: ``source`` is no string.
            UserError: the model has no such site, layer or head, or the text is empty.
        """
        _check_text(source=source, **({} if target is None else {"target": target}))
        is_language_model = self.recipe.data.is_language_model
        own: SiteName = site or ("decoder_self" if is_language_model else "cross")
        _check_site(own)
        choice = MapChoice(own, _numbers(layer, "layer"), _numbers(head, "head"))
        with arguments_in_errors():
            if is_language_model:
                return self._text_attention(source, target, choice)
            if own == "encoder_self" and target is not None:
                raise UserError("has no meaning at encoder_self", where="target", hint="Leave it out.")
            model = self._analyzed([source], None if target is None else [target])
            check_choice(model, choice)
            targets = [] if own == "encoder_self" else model.targets
            seen = model.attend(ChosenAttention(choice), [own], targets or None)
            (found,) = sentence_maps("model", model.gates, targets, seen, choice, self.bundle.tokenizers)
        return attention_map(found, choice)

    def kept(self, source: str) -> KeptWords:
        """Return the words of one source with the gates that the model's filters give them.

        Raises:
            TypeError: ``source`` is no string.
            UserError: the model has no filter, or the text is empty.
        """
        _check_text(source=source)
        with arguments_in_errors():
            check_translates(self.recipe, self.directory, "It has no source.")
            if not self.recipe.model.memory:
                hint = "Load a model whose recipe has a filter under `model.memory`."
                raise UserError(NO_FILTER, where=str(self.directory), hint=hint)
            (found,) = self._analyzed([source]).gates
        assert found.gates is not None
        return kept_words(found.line, found.gates, self.bundle.tokenizers.source)

    def alignments(
        self,
        sources: Iterable[str],
        targets: Iterable[str] | None = None,
        *,
        layer: int | Sequence[int] | None = None,
        head: int | Sequence[int] | None = None,
    ) -> list[Alignment]:
        """Align the words of sources and targets by cross-attention; ``str`` of an alignment is its line of Pharaoh.

        Every target token is aligned with the source token that it attends to most when it is predicted, in the mean
        over the heads of the last decoder layer, as ``unknown="copy"`` finds what it copies, or by the head that
        training guided; dropped tokens and ``</s>`` are left out. Words are aligned if two of their tokens are.

        Args:
            targets: a translation of each source; None: the model's own.
            layer, head: numbers from 1, or lists of them, of other layers and heads; the mean over them decides.

        Raises:
            TypeError: an argument is a single string.
            UserError: there is no such layer or head, the numbers of sources and targets differ, or this is a language
                model.
        """
        lines = _lines(sources=sources)
        options = self.recipe.decoding.undivided
        texts = self.translate(lines, long=options.long or "cut").texts if targets is None else _lines(targets=targets)
        with arguments_in_errors():
            check_translates(self.recipe, self.directory, "It has no cross-attention.")
            self._beside(lines, texts)
            choice = MapChoice("cross", _numbers(layer, "layer"), _numbers(head, "head"))
            return self._aligned(lines, texts, choice, options)

    def encode(self, texts: Iterable[str]) -> list[SourceStates]:
        """Return the states that the decoder would read of each text, with its tokens and words.

        Raises:
            TypeError: ``texts`` is a single string.
            UserError: a batch does not fit into memory, or this is a language model.
        """
        lines = input_lines(_lines(texts=texts))
        with arguments_in_errors():
            check_translates(self.recipe, self.directory, "It has no encoder.")
            sources = read_sources(self.bundle, lines)
            warn_of_sources(self.bundle, sources, "texts", "read")
            found: dict[int, SourceStates] = {}
            with progress_bar("encode", len(lines)) as advance:
                batches = LineBatches(self.bundle, sources, self.recipe.decoding.batch_tokens, advance)
                for chosen, memory in batches.encoded():
                    for row, i in enumerate(chosen):
                        gates = None if memory.gates is None else memory.gates[row]
                        found[i] = self._states(lines[i].text, sources[i], memory.states[row], gates)
        return [found[i] for i in range(len(lines))]

    def _aligned(self, lines: list[str], texts: list[str], choice: MapChoice, options: Decoding) -> list[Alignment]:
        """Align texts along the search that ``options`` describe; blank lines have no links."""
        if not any(line.strip() for line in lines):
            return [Alignment()] * len(lines)
        model = self._analyzed(lines, texts)
        check_choice(model, choice)
        pairs = zip(model.sources, model.targets, strict=True)
        read = [ReadTarget(line, target.tokens, texts[line.number]) for line, target in pairs]
        chosen = AttentionHeads(choice.layers, choice.heads)
        heads = guided_heads(self.bundle) if chosen == LAST_LAYER else chosen
        aligned = align_targets(self.bundle, read, options, heads)
        found = {each.source.number: own.alignment for each, own in zip(read, aligned, strict=True)}
        return [found.get(number, Alignment()) for number in range(len(lines))]

    # --- what the methods share ------------------------------------------------------------------------------------

    def _search_options(self, options: DecodingOptions, n_best: int) -> Decoding:
        check_names(options, DecodingOptions.__annotations__)
        settings: dict[str, Any] = dict(options)
        layers = {side: settings.pop(side, None) for side in ("encoder_layers", "decoder_layers")}
        if n_best < 1:
            raise UserError(f"must be at least 1, not {n_best}", where="n_best", hint="Give the number of outputs.")
        return search_options(self.bundle, self.directory, settings, n_best=n_best, **layers)

    def _translations(self, texts: Sequence[str], found: Sequence[TranslatedLine], n_best: int) -> Translations:
        pairs, tokenizer = zip(texts, found, strict=True), self.bundle.tokenizers.source
        return Translations(tuple(translation_of(text, each, n_best, tokenizer) for text, each in pairs))

    def _analyzed(self, sources: Sequence[str], targets: Sequence[str] | None = None) -> AnalyzedModel:
        return AnalyzedModel(_TextSession([self.directory], sentences=sources, targets=targets), "model", self.bundle)

    def _beside(self, sources: Sequence[str], targets: list[str]) -> list[str]:
        """Return the targets; UserError unless there is one for each source."""
        if len(sources) != len(targets):
            found = f"there are {len(targets):,} for {len(sources):,} sources"
            raise UserError(found, where="targets", hint="Give one translation of each source.")
        return targets

    def _text_likelihoods(self, lines: Sequence[str]) -> list[Likelihood]:
        """Return the log-probabilities of the lines of one text, by a language model."""
        if not lines:
            return []
        tokenizer = self.bundle.tokenizers.target
        ids, _ = encode_lines(tokenizer, list(divide_lines((f"{line}\n" for line in lines), PART)))
        reading, modules = TextReading.of(self.recipe), self.bundle.model.modules()
        nats = token_nats(self.bundle.engine, ids, reading, self.bundle.device, modules=modules)
        values = -np.concatenate(list(nats))  # (N,)
        ends = np.flatnonzero(ids == EOS) + 1
        last = np.cumsum([line.count("\n") + 1 for line in lines]) - 1  # a text may have several lines
        found, begin = [], 0
        for line, end in zip(lines, ends[last].tolist(), strict=True):
            names = tuple(tokenizer.pieces(ids[begin:end].tolist()))
            found.append(Likelihood(line, names, tuple(values[begin:end].tolist())))
            begin = end
        return found

    def _text_attention(self, text: str, target: str | None, choice: MapChoice) -> AttentionMap:
        """Return the self-attention of a language model on a text, which it reads as one segment."""
        if target is not None or choice.site != "decoder_self":
            where = "site" if target is None else "target"
            raise UserError("a language model has decoder_self only", where=where, hint="Leave it out.")
        check_choice(AnalyzedModel(_TextSession([self.directory]), "model", self.bundle), choice)
        ids, most = self.bundle.tokenizers.target.encode(text), self.recipe.model.max_positions
        if self.recipe.model.positions != "none" and len(ids) >= most:
            found = f"the text has {len(ids):,} tokens, and the model {most:,} positions"
            raise UserError(found, where="source", hint="Give a shorter text.")
        seen, read = ChosenAttention(choice), np.array([*ids, EOS], dtype=np.int64)
        observe_text(self.bundle, read, TextReading.of(self.recipe, len(read), 0), [seen])
        names = tuple(shown_tokens(self.bundle.tokenizers.target.pieces([EOS, *ids])))  # the decoder's inputs
        weights = seen.weights(0, None, len(names), len(names))
        return AttentionMap(weights, names, names, choice.site, heads_in_words(choice), (False,) * len(names))

    def _states(self, text: str, line: SourceLine, states: Tensor, gates: Tensor | None) -> SourceStates:
        """Return the states (S, D) of a line; gates: (S) or None."""
        size, tokenizer = len(line.ids), self.bundle.tokenizers.source
        words = source_words(line, tokenizer)
        kept = None if gates is None else kept_words(line, gates[:size].double().cpu().numpy(), tokenizer)
        names = tuple(text for text, _ in words)
        tokens = tuple(token for _, own in words for token in own)
        lengths = tuple(len(own) for _, own in words)
        return SourceStates(text, states[:size].float().cpu().numpy(), tokens, names, lengths, kept)


def load(
    directory: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: DecodingDtype | torch.dtype | None = None,
    checkpoint: int | Sequence[int] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    disabled_heads: Sequence[str] = (),
) -> Model:
    """Load a trained model: ``sparsenmt.load("runs/demo/model")``.

    Args:
        directory: the model directory that training, `import` or `slice` wrote.
        device: ``cpu``, ``cuda``, ``cuda:1``; None: CUDA if available, otherwise the CPU.
        dtype: of matrix products: ``fp32``, ``bf16``, ``fp16``, ``int8``, ``auto`` for the fastest, or a dtype of
            PyTorch; None: that of the model's recipe.
        checkpoint: the update of a checkpoint to load in place of the final weights, or several, of which the mean is
            taken; training may still run.
        source_language, target_language: codes, for a model of several languages; None: the recipe's.
        disabled_heads: ``SITE:N,N`` values: heads, from 1, that give zeros.

    Raises:
        UserError: there is no such model, checkpoint, device, dtype, language or head, or a file is damaged.
    """
    check_lists(disabled_heads=disabled_heads)
    path = Path(directory)
    if isinstance(device, str) and not is_device_name(device):
        raise UserError(
            f"must be one of auto, cpu, cuda, cuda:N; not '{device}'",
            where="device",
            hint="Name a device of this machine, or leave it out.",
        )
    if isinstance(dtype, str) and dtype not in get_args(DecodingDtype):
        hint = f"Choose from {', '.join(get_args(DecodingDtype))}."
        raise UserError(f"there is no data type '{dtype}'", where="dtype", hint=hint)
    with arguments_in_errors():
        bundle = open_model(
            path,
            device="auto" if device is None else device,
            dtype="recipe" if dtype is None else dtype,
            disabled=read_disabled_heads(path, disabled_heads),
            languages=(source_language, target_language),
            any_task=True,
            weights=None if checkpoint is None else partial(_checkpoint_weights, checkpoint),
        )
    return Model(path, bundle)


def _checkpoint_weights(checkpoint: int | Sequence[int], directory: Path) -> Mapping[str, Tensor]:
    """Return the weights of a checkpoint of a run, or the mean of several."""
    updates = [checkpoint] if isinstance(checkpoint, int) else list(checkpoint)
    return average_weights(choose_checkpoints(directory, find_checkpoints(directory), [], updates))


def _lines(**given: Iterable[str]) -> list[str]:
    """Return the texts of an argument, which is named, as a list; TypeError if it is one string, or holds others."""
    check_lists(**given)
    ((name, texts),) = given.items()
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{number}] is {type(text).__name__}, not str")
    return found


def _texts_of(**given: Iterable[str | Translation]) -> list[str]:
    """Return the texts of an argument, which is named, of texts and translations."""
    check_lists(**given)
    (texts,) = given.values()
    return [each.text if isinstance(each, Translation) else each for each in texts]


def _check_text(**given: object) -> None:
    """Raise TypeError if a value that must be one text, named as given, is none."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {type(value).__name__}, not str: call the method once for each text")


def _check_site(site: str) -> None:
    if site not in SITES:
        raise UserError(f"there is no site '{site}'", where="site", hint=f"The sites are: {', '.join(SITES)}.")


def _numbers(given: int | Sequence[int] | None, where: str) -> tuple[int, ...]:
    """Return numbers of layers or heads, rising; empty: all.

    Raises:
        UserError: about ``where``: one is below 1.
    """
    found = () if given is None else (given,) if isinstance(given, int) else tuple(sorted(set(given)))
    if (found and found[0] < 1) or (given is not None and not found):
        raise UserError("must be numbers from 1", where=where, hint="Leave it out for the mean over all.")
    return found
