"""The sentences that a report shows one by one: kept and dropped words, attention by head, and alignments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.attention_maps import ChosenAttention, MapChoice, SentenceMap, sentence_maps
from sparsenmt.analysis.gates import GatedLine, LineBatches
from sparsenmt.analysis.head_roles import ROLES, THRESHOLD
from sparsenmt.analysis.kept_words import source_words
from sparsenmt.analysis.labels import SITE_NAMES
from sparsenmt.analysis.observe import Attended, TargetLine, observe
from sparsenmt.analysis.session import AnalyzedModel
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.decoding.alignment import ReadTarget, align_targets, guided_heads
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.decoding.translate import one_line
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe.method_choice import MethodChoice
from sparsenmt.report.page.document import (
    AlignedSentence,
    AttentionMaps,
    HeadDescription,
    HeadWeights,
    MarkedWord,
    ReportSection,
    SentenceWords,
)
from sparsenmt.report.page.table_views import number
from sparsenmt.report.tables import Value
from sparsenmt.workflows.evaluation.report.report_data import ReportData

MOST_WEIGHTS = 2_000_000
"""The most attention weights in a report, of all models together."""


def mark_words(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on kept and dropped words, with their tags where a tagger is at hand."""
    notes = data.session.notes_on_filters(needed=True)
    tagged: dict[int, TaggedSentence] | None = None
    try:
        tagged = data.tagged
    except UserError as error:
        notes.append(f"without tags: {error.message}")
    references = None if data.request.reference is None else data.references
    found, chosen = [], set(data.sample)
    for model in data.session.opened():
        for line in model.gates:
            place = line.line.number
            if line.gates is not None and place in chosen:
                words = _marked(line, model.bundle.tokenizers.source, None if tagged is None else tagged[place])
                output = data.outputs[model.label][place] if references is not None else ""
                reference = None if references is None else references[place]
                cut = f"cut after {line.line.kept:,} tokens" if line.line.cut else ""
                found.append(SentenceWords(place + 1, model.label, words, reference, output, cut))
    found.sort(key=lambda each: each.number)  # models stay in their order
    return replace(section, kept_words=tuple(found), notes=(_sampled(data), *notes))


def _sampled(data: ReportData) -> str:
    """Return the note on the sentences that are shown."""
    return f"{len(data.sample):,} of {len(data.session.lines):,} sentences, drawn with seed {data.request.test.seed}"


def _marked(line: GatedLine, tokenizer: Tokenizer, tagged: TaggedSentence | None) -> tuple[MarkedWord, ...]:
    """Return the words of a line with gates and tags; a word has the tag of its first token that has one."""
    gates = None if line.gates is None else line.gates.tolist()
    owners = None if tagged is None else align_words(tokenizer, line.line.plain_ids, tagged.words).words.tolist()
    words, first = [], 0
    for text, tokens in source_words(line.line, tokenizer):
        last = first + len(tokens)
        own = () if gates is None else tuple(gates[first:last])
        index = next((word for word in owners[first:last] if word >= 0), None) if owners is not None else None
        tag = None if tagged is None or index is None else tagged.tags[index]
        words.append(MarkedWord(text, tokens, own, tag))
        first = last
    return tuple(words)


def map_attention(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on attention weights by site, layer and head, of as many sentences as `MOST_WEIGHTS` allow.

    Raises:
        UserError: there is no such sentence.
    """
    models = list(data.session.opened())
    chosen = _affordable(data, models)
    if not chosen:
        raise UserError(
            f"every sentence has more than {MOST_WEIGHTS:,} attention weights",
            where="--source",
            hint="Report on shorter lines, or give shorter translations with --target.",
        )
    found: list[AttentionMaps] = []
    for model in models:
        found += _maps(data, model, chosen)
    found.sort(key=lambda each: each.number)
    notes = [_sampled(data), *data.session.notes_on_weights("they are shown as they are")]
    if len(chosen) < len(data.sample):
        notes.append(f"attention of {len(chosen):,} of them, which have {MOST_WEIGHTS:,} weights or fewer together")
    target = "the given translations" if data.request.target is not None else "each model's own translations"
    notes.append(f"the decoders read {target}; weights are those of PyTorch's operators along them")
    return replace(section, attention=tuple(found), heads=tuple(describe_heads(data)), notes=tuple(notes))


def _affordable(data: ReportData, models: Sequence[AnalyzedModel]) -> set[int]:
    """Return the first sentences of the sample whose weights fit, by number; longer ones are passed over."""
    costs = dict.fromkeys(data.sample, 0)
    for model in models:
        (encoder, decoder), names = model.bundle.depth, model.bundle.model.head_names
        for source, target in zip(model.sources, model.targets, strict=True):
            if source.number in costs:
                sizes = {"encoder_self": (encoder, len(source.ids), len(source.ids))}
                sizes |= {"decoder_self": (decoder, len(target.ids), len(target.ids))}
                sizes |= {"cross": (decoder, len(target.ids), len(source.ids))}
                costs[source.number] += sum(len(names(site)) * int(np.prod(sizes[site])) for site in SITES)
    chosen, total = set[int](), 0
    for place, cost in costs.items():
        if total + cost <= MOST_WEIGHTS:
            chosen.add(place)
            total += cost
    return chosen


def _maps(data: ReportData, model: AnalyzedModel, chosen: set[int]) -> Iterator[AttentionMaps]:
    """Yield the attention of a model in the chosen sentences, site by site."""
    places = [i for i, line in enumerate(model.sources) if line.number in chosen]
    if not places:
        return
    lines, targets = [model.sources[i] for i in places], [model.targets[i] for i in places]
    gated = [model.gates[i] for i in places]
    sites = model.present(SITES)
    observers = {site: ChosenAttention(MapChoice(site, apart=True)) for site in sites}

    def tell(seen: Attended) -> None:
        observers[seen.site](seen)

    with progress_bar(f"{model.label}: attention maps", len(lines)) as advance:
        batches = LineBatches(model.bundle, lines, model.decoding.batch_tokens, advance)
        observe(batches, targets, [tell], sites=sites)
    by_number = {line.number: (line, target) for line, target in zip(lines, targets, strict=True)}
    for site, seen in observers.items():
        choice = MapChoice(site, apart=True)
        maps = sentence_maps(model.label, gated, targets, seen, choice, model.bundle.tokenizers)
        for sentence, group in groupby(maps, key=lambda each: each.sentence):
            yield _as_document(data, model, site, *by_number[sentence - 1], list(group))


def _as_document(
    data: ReportData,
    model: AnalyzedModel,
    site: SiteName,
    line: SourceLine,
    target: TargetLine,
    maps: Sequence[SentenceMap],
) -> AttentionMaps:
    """Return the maps of a sentence at a site, with the words of rows and columns."""
    source = data.session.words.indices(line, model.bundle.tokenizers.source)
    rows, keys = source, source
    if site != "encoder_self":
        rows = _target_words(target, model.bundle.tokenizers.target, inputs=site == "decoder_self")
        keys = rows if site == "decoder_self" else source
    first = maps[0]
    columns = [0, *(keys + 1).tolist()] if first.stand_in else keys.tolist()
    heads = []
    for each in maps:
        assert each.part is not None
        heads.append(HeadWeights(*each.part, tuple(map(tuple, each.weights.tolist()))))
    return AttentionMaps(
        first.sentence,
        model.label,
        site,
        tuple(first.rows),
        tuple(first.columns),
        tuple(rows.tolist()),
        tuple(columns),
        tuple(first.dropped),
        first.stand_in,
        tuple(heads),
    )


def _target_words(target: TargetLine, tokenizer: Tokenizer, *, inputs: bool) -> NDArray[np.int64]:
    """Return the word of each target position, or of the decoder's inputs, whose first token is a word of its own."""
    ids = target.ids[:-1] if inputs else target.ids
    words = word_ids(ids, tokenizer)
    return np.concatenate([np.zeros(1, dtype=np.int64), words + 1])[: len(target.ids)] if inputs else words


def describe_heads(data: ReportData) -> Iterator[HeadDescription]:
    """Yield the heads of all models with role, alpha and density, as the sections on these have them."""
    scores, sites = _head_rows(data, "roles"), {name: site for site, name in SITE_NAMES.items()}
    for (model, name, layer, head), row in _head_rows(data, "density").items():
        choice: MethodChoice = getattr(data.recipes[model].model.attention, sites[name]).transform
        own = scores.get((model, name, layer, head), {})
        roles = [role for role in ROLES if (number(own.get(role)) or 0.0) >= THRESHOLD]
        fixed = choice.options.get("alpha")
        alpha = number(row["alpha"]) if row["alpha"] is not None else fixed if isinstance(fixed, int | float) else None
        yield HeadDescription(
            model, sites[name], layer, head, ", ".join(roles), choice.name, alpha, number(row["density"])
        )


def _head_rows(data: ReportData, name: str) -> dict[tuple[str, str, int, int], dict[str, Value]]:
    """Return the rows of a section's table of heads, by model, site, layer and head."""
    section, found = data.made.get(name), {}
    for table in () if section is None else section.tables:
        for row in table.records() if table.name == "heads" else ():
            assert isinstance(row["layer"], int) and isinstance(row["number"], int)
            place = str(row["model"]), str(row.get("site") or SITE_NAMES["encoder_self"]), row["layer"], row["number"]
            found[place] = row
    return found


def align_sentences(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the word alignments of the sample. UserError unless they are asked for."""
    if not data.request.alignments:
        raise UserError("alignments are made where they are asked for", hint="Add --alignments.")
    found, notes, chosen = [], [_sampled(data)], set(data.sample)
    for model in data.session.opened():
        heads = guided_heads(model.bundle)
        own = f"layer {heads.layers[0]}" if heads.layers else "the last decoder layer, mean over its heads"
        notes.append(f"{model.label}: cross-attention of {own}{f', head {heads.heads[0]}' if heads.heads else ''}")
        pairs = [
            ReadTarget(source, target.tokens, target_text(data, model, source, target))
            for source, target in zip(model.sources, model.targets, strict=True)
            if source.number in chosen
        ]
        with progress_bar(f"{model.label}: alignments", None):
            aligned = align_targets(model.bundle, pairs, model.decoding, heads)
        for pair, each in zip(pairs, aligned, strict=True):
            links = each.alignment
            found.append(AlignedSentence(pair.source.number + 1, model.label, links.source, links.target, links.pairs))
    found.sort(key=lambda each: each.number)
    return replace(section, alignments=tuple(found), notes=tuple(notes))


def target_text(data: ReportData, model: AnalyzedModel, source: SourceLine, target: TargetLine) -> str:
    """Return the text of a target that a decoder reads: the given line, or what the tokens stand for."""
    given = data.session.given_targets
    if given is not None:
        return given[source.number]
    return one_line(model.bundle.tokenizers.target.decode(target.tokens, target.unknown))
