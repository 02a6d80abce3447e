"""Contradictions between keys of a recipe that are valid by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.recipe.data_checks import check_data, check_filters, check_tokenizer
from sparsenmt.recipe.errors import Complaint, Contradiction, Problem, YamlOrigin, named_keys
from sparsenmt.recipe.key_paths import KeyPath, key_path
from sparsenmt.recipe.schema import (
    OPTIMIZER_KEYS,
    Data,
    Decoding,
    Documents,
    Filters,
    ModelSection,
    TokenizerSection,
    Training,
)
from sparsenmt.recipe.section import Section
from sparsenmt.recipe.socket_methods import socket_at
from sparsenmt.recipe.task_keys import TASK_KEYS
from sparsenmt.recipe.validation_errors import describe
from sparsenmt.recipe.yaml_tree import YamlNode, child, find, items, mapping, nearest_origin, plain, replace_all


def contradictions(recipe: YamlNode, known: list[Problem]) -> list[Problem]:
    """Contradictions between keys; a check is skipped if one of its keys has a problem already."""
    wrong = {problem.path for problem in known}
    sound = _without(recipe, wrong)
    problems: list[Problem] = []
    # A key of another task is not compared with others; of an unknown task, no key is known.
    for check in (_check,) if ("data", "task") in wrong else (_task, _check):
        around = {path[:length] for path in wrong for length in range(1, len(path) + 1)}
        for found in list(check(sound)):
            if not any(_concerns(key, wrong, around) for key in found.keys):
                blamed = next((key for key in found.keys if find(recipe, key) is not None), found.keys[0])
                problems.append(Problem(_blamed_origin(recipe, found.keys), blamed, found.complaint))
        if more := {problem.path for problem in problems} - wrong:
            wrong |= more
            sound = _without(recipe, wrong)
    return problems


def _blamed_origin(recipe: YamlNode, keys: tuple[KeyPath, ...]) -> YamlOrigin:
    """Origin of the first key that the recipe contains, overrides first: the last change is the likely mistake."""
    written = [node.origin for node in (find(recipe, key) for key in keys) if node is not None]
    overrides = [origin for origin in written if origin.is_override]
    return (overrides or written or [nearest_origin(recipe, keys[0])])[0]


def _concerns(key: KeyPath, wrong: set[KeyPath], around: set[KeyPath]) -> bool:
    """True if a problem is known of the key, of a section around it or of a value inside it.

    Args:
        around: the wrong paths and all sections around them.
    """
    return key in around or any(key[:length] in wrong for length in range(1, len(key)))


def _without(recipe: YamlNode, wrong: set[KeyPath]) -> YamlNode:
    """The recipe without the values that are wrong by themselves, and without sections that need them."""
    removed: dict[KeyPath, None] = {}
    for path in wrong:
        is_missing = path and find(recipe, path) is None
        if is_missing or (path and path[-1] == "name" and socket_at(path[:-1]) is not None):
            path = path[:-1]
        if len(path) <= 1 and is_missing:
            continue  # a top-level section stays, for the sections inside it
        # A list is removed as a whole: without one item, the indices of the others would be wrong.
        index = next((position for position, part in enumerate(path) if isinstance(part, int)), len(path))
        path = path[:index]
        if path and find(recipe, path) is not None:
            removed[path] = None
    return replace_all(recipe, removed)


def _check(sound: YamlNode) -> Iterator[Contradiction]:
    for kind, key, check_section in _SECTION_CHECKS:
        section = _section(sound, kind, key)
        if section is not None:
            yield from check_section(section)
    for check in _RECIPE_CHECKS:
        yield from check(sound)


def _section(recipe: YamlNode, kind: type[Section], key: str) -> Any:
    """The typed section at a key, with defaults if it is absent; None if it is not valid."""
    node = find(recipe, key_path(key))
    try:
        return kind.model_validate(plain(node) if node is not None else {})
    except ValidationError:
        return None


def _model(model: ModelSection) -> Iterator[Contradiction]:
    if model.head_size is None and model.dimension % model.heads:
        complaint = Complaint(
            f"{model.dimension} is not divisible by the number of heads, {model.heads}",
            "Change `model.dimension` or `model.heads`, or set `model.head_size`.",
        )
        yield Contradiction(named_keys("model.dimension", "model.heads"), complaint)
    if model.dimension % 2 and model.positions == "sinusoidal":
        complaint = Complaint(
            "sinusoidal positions need an even dimension",
            "Set an even `model.dimension`, or `model.positions` to learned.",
        )
        yield Contradiction(named_keys("model.dimension", "model.positions"), complaint)
    for key in ("sinusoids", "first_position") if model.positions != "sinusoidal" else ():
        if getattr(model, key) != ModelSection.model_fields[key].default:
            complaint = Complaint(
                f"belongs to sinusoidal positions, not to `positions: {model.positions}`",
                "Leave it out, or set `model.positions` to sinusoidal.",
            )
            yield Contradiction(named_keys(f"model.{key}", "model.positions"), complaint)
    for site in ("encoder_self", "decoder_self", "cross"):
        yield from _heads(model, site)
    for index, choice in enumerate(model.memory):
        key = f"model.memory.{index}"
        if choice.at == "between" and model.encoder_layers < 2:
            complaint = Complaint(
                "an encoder with one layer has no place between layers",
                "Write `at: output`, or raise `model.encoder_layers`.",
            )
            yield Contradiction(named_keys(f"{key}.at", "model.encoder_layers"), complaint)
        if choice.at == "between" and choice.per == "exit":
            complaint = Complaint(
                "a filter between encoder layers acts before all later exits",
                "Leave `per` out, or write `at: output`.",
            )
            yield Contradiction(named_keys(f"{key}.per", f"{key}.at"), complaint)


def _heads(model: ModelSection, site: str) -> Iterator[Contradiction]:
    options, key = getattr(model.attention, site).heads, f"model.attention.{site}.heads"
    if model.head_size is None and options.count is not None and model.dimension % options.count:
        complaint = Complaint(
            f"must divide the dimension, {model.dimension}; {options.count} does not",
            "Set another number of heads, or another `model.dimension`.",
        )
        yield Contradiction(named_keys(f"{key}.count", "model.dimension"), complaint)
    count = options.count or model.heads
    for index, head in enumerate(options.disabled):
        if head > count:
            complaint = Complaint(
                f"there is no head {head}: the site has {count}", "Count heads from 1, fixed heads first."
            )
            yield Contradiction(named_keys(f"{key}.disabled.{index}", f"{key}.count", "model.heads"), complaint)


def _training(training: Training) -> Iterator[Contradiction]:
    if training.average_last > training.keep_last:
        complaint = Complaint(
            f"{training.average_last} checkpoints cannot be averaged if `keep_last` keeps {training.keep_last}",
            "Raise `training.keep_last`, or lower `training.average_last`.",
        )
        yield Contradiction(named_keys("training.average_last", "training.keep_last"), complaint)
    if training.accumulate_tokens is not None and training.accumulate_tokens < training.batch_tokens:
        complaint = Complaint(
            f"must be at least `batch_tokens`, {training.batch_tokens}, not {training.accumulate_tokens}",
            "Raise it, lower `training.batch_tokens`, or leave the key out: then a batch is an update.",
        )
        yield Contradiction(named_keys("training.accumulate_tokens", "training.batch_tokens"), complaint)
    if training.falls_to_zero and training.warmup_updates >= training.max_updates:
        complaint = Complaint(
            f"the {training.schedule} schedule has no updates left after a warm-up of {training.warmup_updates}",
            f"Lower `training.warmup_updates`, or raise `training.max_updates`, which is {training.max_updates}.",
        )
        yield Contradiction(named_keys("training.warmup_updates", "training.max_updates"), complaint)
    if training.clip == "step" and training.optimizer.name != "adagrad":
        complaint = Complaint("clips the steps of Adagrad only", "Write total or tensor.")
        yield Contradiction(named_keys("training.clip", "training.optimizer.name"), complaint)


_SECTION_CHECKS: tuple[tuple[type[Section], str, Callable[[Any], Iterator[Contradiction]]], ...] = (
    (ModelSection, "model", _model),
    (TokenizerSection, "data.tokenizer", check_tokenizer),
    (Filters, "data.filters", check_filters),
    (Data, "data", check_data),
    (Training, "training", _training),
)


# Several sections


def _is_written(recipe: YamlNode, key: KeyPath) -> bool:
    node = find(recipe, key)
    return node is not None and node.value is not None


def _is_language_model(recipe: YamlNode) -> bool:
    task = find(recipe, ("data", "task"))
    return task is not None and task.value == "language_model"


def _task(recipe: YamlNode) -> Iterator[Contradiction]:
    """Keys belong to a task, and every corpus has the texts of its task."""
    own, other = ("language_model", "translation") if _is_language_model(recipe) else ("translation", "language_model")
    texts = {"translation": ("source", "target"), "language_model": ("text",)}
    foreign = {
        "translation": ("source", "target", "tags", "documents", "tag", "alignments"),
        "language_model": ("text",),
    }[other]
    count = len(items(find(recipe, ("data", "train"))))
    places: list[KeyPath] = [*(("data", "train", index) for index in range(count)), ("data", "dev"), ("data", "test")]
    corpora = [place for place in places if isinstance(getattr(find(recipe, place), "value", None), dict)]
    for key in [*named_keys(*TASK_KEYS[other]), *((*place, name) for place in corpora for name in foreign)]:
        if _is_written(recipe, key):
            yield Contradiction((key, ("data", "task")), _foreign(own))
    for place in corpora:
        for name in texts[own]:
            key = (*place, name)
            if find(recipe, key) is None:
                complaint = Complaint("this key is required", f"Add it. Its meaning: {describe(key)}")
                yield Contradiction((key,), complaint)


def _foreign(own: str) -> Complaint:
    if own == "language_model":
        return Complaint(
            "has no meaning for a language model, which has one text and no encoder",
            "Remove it, or set `data.task` to translation.",
        )
    return Complaint("belongs to a language model", "Remove it, or set `data.task` to language_model.")


def _language_model(recipe: YamlNode) -> Iterator[Contradiction]:
    """Segments, batches and memory of a language model must fit each other and the positions."""
    model, training = _section(recipe, ModelSection, "model"), _section(recipe, Training, "training")
    decoding = _section(recipe, Decoding, "decoding")
    if not _is_language_model(recipe) or model is None or training is None or decoding is None:
        return
    length, batch = training.segment_length, training.batch_tokens
    if batch < length:
        complaint = Complaint(
            f"a batch of {batch} tokens has no place for a segment of {length}",
            "Raise `training.batch_tokens`, or lower `training.segment_length`.",
        )
        yield Contradiction(named_keys("training.batch_tokens", "training.segment_length"), complaint)
    if training.loss_normalization == "sentences":
        complaint = Complaint("a language model reads a text without dividing it into sentences", "Write tokens.")
        yield Contradiction(named_keys("training.loss_normalization"), complaint)
    if decoding.unknown == "copy":
        complaint = Complaint("a language model has no source to copy from", "Write allow or forbid.")
        yield Contradiction(named_keys("decoding.unknown"), complaint)
    if model.positions == "none":
        return
    for section, memory in (("model", model.segment_memory), ("decoding", decoding.segment_memory)):
        if memory:
            complaint = Complaint(
                f"the absolute positions of a segment begin at 0: those of {memory} tokens before it would be negative",
                "Set `model.positions` to none and give the self-attention relative positions "
                "(`model.attention.decoder_self.position`), or leave the memory out.",
            )
            yield Contradiction(named_keys(f"{section}.segment_memory", "model.positions"), complaint)
    for section, tokens in (("training", length), ("decoding", decoding.segment_length)):
        if tokens is not None and tokens > model.max_positions:
            complaint = Complaint(
                f"a segment of {tokens} tokens does not fit {model.max_positions} positions",
                f"Set `model.max_positions` to {tokens} or more, or lower `{section}.segment_length`.",
            )
            yield Contradiction(named_keys(f"{section}.segment_length", "model.max_positions"), complaint)


def _optimizer(recipe: YamlNode) -> Iterator[Contradiction]:
    """Constants belong to an optimizer."""
    here = "training.optimizer"
    name = find(recipe, key_path(f"{here}.name"))
    chosen = "adam" if name is None else name.value
    for other, keys in OPTIMIZER_KEYS.items():
        for key in named_keys(*(f"{here}.{key}" for key in keys if other != chosen)):
            if _is_written(recipe, key):
                complaint = Complaint(f"belongs to {other}", f"Remove it, or set `{here}.name` to {other}.")
                yield Contradiction((key, *named_keys(f"{here}.name")), complaint)


def _encoder(recipe: YamlNode) -> Iterator[Contradiction]:
    """A translation model has an encoder."""
    layers = find(recipe, ("model", "encoder_layers"))
    if layers is not None and layers.value == 0 and not _is_language_model(recipe):
        complaint = Complaint(
            "without an encoder there is no source to translate",
            "Write 1 or more, or set `data.task` to language_model and leave the key out.",
        )
        yield Contradiction(named_keys("model.encoder_layers", "data.task"), complaint)


def _position_encodings(recipe: YamlNode) -> Iterator[Contradiction]:
    """A translation model must know the order of its tokens."""
    positions = find(recipe, ("model", "positions"))
    if positions is None or positions.value != "none" or _is_language_model(recipe):
        return
    sides = ("encoder",) if _is_written(recipe, key_path("model.recurrence")) else ("encoder", "decoder")
    sites = [f"model.attention.{side}_self.position" for side in sides]
    if missing := [key for key in sites if not _is_written(recipe, key_path(key))]:
        complaint = Complaint(
            "without position encodings, the self-attention does not know the order of tokens",
            f"Add relative positions, `{missing[0]}: {{name: ...}}`, or write sinusoidal.",
        )
        yield Contradiction(named_keys("model.positions"), complaint)


def _recurrence(recipe: YamlNode) -> Iterator[Contradiction]:
    """A recurrent layer stands in the place of the decoder's self-attention."""
    key = "model.attention.decoder_self"
    if _is_written(recipe, key_path("model.recurrence")) and _is_written(recipe, key_path(key)):
        complaint = Complaint(
            "a recurrent layer is in the place of the decoder's self-attention",
            f"Remove `{key}`, or `model.recurrence`.",
        )
        yield Contradiction(named_keys(key, "model.recurrence"), complaint)


def _losses(recipe: YamlNode) -> Iterator[Contradiction]:
    """A loss has a weight, which never becomes negative, or a target, which is a share."""
    for name, loss in mapping(find(recipe, ("losses",))).items():
        weight, target = child(loss, "weight"), child(loss, "target")
        if target is not None and target.value is not None:
            if weight is not None and weight.value is not None:
                complaint = Complaint("cannot be combined with a target", "Set either a weight or a target.")
                yield Contradiction((("losses", name, "weight"),), complaint)
            for part, value in _ends(target):
                if not (0 < value < 1 or (value == 0 and part == ("from",))):
                    hint = "A target is the share of gates to close: 0.4 is 40%."
                    complaint = Complaint(f"must be between 0 and 1, not {value}", hint)
                    yield Contradiction((("losses", name, "target", *part),), complaint)
        elif weight is not None and isinstance(weight.value, dict):
            for part, value in _ends(weight):
                if not value >= 0:
                    hint = "A weight that changes may not become negative."
                    complaint = Complaint(f"must be at least 0, not {value}", hint)
                    yield Contradiction((("losses", name, "weight", *part),), complaint)


def _ends(node: YamlNode) -> Iterator[tuple[KeyPath, float]]:
    """A number, or the ends of its change by their keys."""
    ends = {(part,): child(node, part) for part in ("from", "to")} if isinstance(node.value, dict) else {(): node}
    for part, end in ends.items():
        if end is not None and isinstance(end.value, int | float) and not isinstance(end.value, bool):
            yield part, end.value


def _shared_table(recipe: YamlNode) -> Iterator[Contradiction]:
    """One embedding table for both languages needs one vocabulary."""
    model, tokenizer = _section(recipe, ModelSection, "model"), _section(recipe, TokenizerSection, "data.tokenizer")
    if model is None or tokenizer is None or not model.shares_vocabulary or tokenizer.shared:
        return
    complaint = Complaint(
        f"`tie_embeddings: {model.tie_embeddings}` needs one vocabulary for both languages",
        "Set `data.tokenizer.shared` to true, or `model.tie_embeddings` to target or none.",
    )
    yield Contradiction(named_keys("model.tie_embeddings", "data.tokenizer.shared"), complaint)


def _positions(recipe: YamlNode) -> Iterator[Contradiction]:
    """Cut sources with their end, and blocks of sentences, must fit the model's positions."""
    model, filters = _section(recipe, ModelSection, "model"), _section(recipe, Filters, "data.filters")
    if model is None:
        return
    positions = model.max_positions
    if filters is not None and filters.max_source_length is not None and filters.max_source_length >= positions:
        cut = filters.max_source_length
        complaint = Complaint(
            f"{cut} tokens and the end do not fit {positions} positions",
            f"Set `model.max_positions` to {cut + 1} or more, or lower `data.filters.max_source_length`.",
        )
        yield Contradiction(named_keys("data.filters.max_source_length", "model.max_positions"), complaint)
    has_blocks = find(recipe, ("data", "documents")) is not None
    documents = _section(recipe, Documents, "data.documents") if has_blocks else None
    if documents is not None and documents.max_length > positions:
        complaint = Complaint(
            f"blocks of {documents.max_length} tokens do not fit {positions} positions",
            f"Set `model.max_positions` to {documents.max_length} or more, or lower `data.documents.max_length`.",
        )
        yield Contradiction(named_keys("data.documents.max_length", "data.documents", "model.max_positions"), complaint)


def _alignments(recipe: YamlNode) -> Iterator[Contradiction]:
    """Alignments are those of training pairs, line by line, and a loss is made of them."""
    aligned = [
        ("data", "train", index, "alignments")
        for index in range(len(items(find(recipe, ("data", "train")))))
        if _is_written(recipe, ("data", "train", index, "alignments"))
    ]
    for name in ("dev", "test"):
        if _is_written(recipe, key := ("data", name, "alignments")):
            yield Contradiction((key,), Complaint("only training pairs have alignments", "Remove the key."))
    if aligned and _is_written(recipe, ("data", "documents")):
        complaint = Complaint("pairs that are packed into blocks cannot have alignments", "Remove one of the two keys.")
        yield Contradiction((aligned[0], ("data", "documents")), complaint)
    for own in aligned:
        if _is_written(recipe, tag := (*own[:-1], "tag")):
            complaint = Complaint("a tag is a token that no link counts", "Remove one of the two keys.")
            yield Contradiction((own, tag), complaint)
    if aligned and _is_written(recipe, found := ("data", "subword_regularization")):
        complaint = Complaint("links are those of tokens that stay as they are", "Remove one of the two keys.")
        yield Contradiction((aligned[0], found), complaint)
    if not aligned and _is_written(recipe, guided := ("training", "guided_alignment")):
        complaint = Complaint(
            "no training corpus has alignments", "Write `alignments`, their path, beside `source` and `target`."
        )
        yield Contradiction((guided,), complaint)


def _validation_metric(recipe: YamlNode) -> Iterator[Contradiction]:
    """A metric of documents needs the document boundaries of the validation text."""
    metric, ids = find(recipe, ("training", "validation", "metric")), find(recipe, ("data", "dev", "documents"))
    name = None if metric is None else str(metric.value)
    own, other = (TEXT_METRICS, METRICS) if _is_language_model(recipe) else (METRICS, TEXT_METRICS)
    if name in other:
        kind, task = ("translations", "translation") if other is METRICS else ("language models", "language_model")
        names = ", ".join(["loss", *(each for each in own if getattr(own[each], "validates", True))])
        complaint = Complaint(f"is a metric of {kind}", f"Choose one of {names}; or set `data.task` to {task}.")
        yield Contradiction(named_keys("training.validation.metric", "data.task"), complaint)
    record = METRICS.get(name or "")
    if record is None or not record.needs_documents or (ids is not None and ids.value is not None):
        return
    complaint = Complaint(
        "scores documents, but the documents of the validation text are not known",
        "Set `data.dev.documents` to the path of their ids; or choose `bleu`.",
    )
    yield Contradiction(named_keys("training.validation.metric", "data.dev.documents"), complaint)


_RECIPE_CHECKS = (
    _alignments,
    _language_model,
    _optimizer,
    _encoder,
    _position_encodings,
    _recurrence,
    _losses,
    _shared_table,
    _positions,
    _validation_metric,
)
