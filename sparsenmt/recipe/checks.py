"""What the keys of a recipe must be to each other; each check is skipped where one of its keys is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from sparsenmt.recipe.data_checks import DATA_CHECKS, Check, Finding
from sparsenmt.recipe.origins import Node, find, nearest_origin, plain, replace
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, YamlOrigin
from sparsenmt.recipe.schema import Documents, Model, Section, TokenizerSection, Training
from sparsenmt.recipe.sockets import socket_at


def cross_problems(recipe: Node, known: list[Problem]) -> list[Problem]:
    """Contradictions between keys that are valid by themselves."""
    wrong = {problem.path for problem in known}
    sound = _without(recipe, wrong)
    problems = []
    for kind, path, check in _CHECKS:
        node = find(sound, path)
        section = _section(kind, plain(node) if node is not None else {})
        for finding in check(section, path) if section is not None else ():
            if any(_concerns(key, wrong) for key in finding.keys):
                continue
            blamed = next((key for key in finding.keys if find(recipe, key) is not None), finding.keys[0])
            problems.append(Problem(_blame(recipe, finding.keys), blamed, finding.complaint))
    problems += _losses(sound) + _shared_table(sound, recipe, wrong) + _positions(sound, recipe, wrong)
    problems += _blocks(sound, recipe, wrong) + _metric(sound, recipe, wrong)
    return problems


def _blame(recipe: Node, keys: tuple[KeyPath, ...]) -> YamlOrigin:
    """Origin of the first key that stands in the recipe, overrides first: the last change is the likely mistake."""
    written = [node.origin for node in (find(recipe, key) for key in keys) if node is not None]
    overrides = [origin for origin in written if origin.is_override]
    return (overrides or written or [nearest_origin(recipe, keys[0])])[0]


def _concerns(key: KeyPath, wrong: set[KeyPath]) -> bool:
    """Whether a problem is known with the key, with a section around it or with something in it."""
    return any(key[: len(path)] == path or path[: len(key)] == key for path in wrong if path)


def _without(recipe: Node, wrong: set[KeyPath]) -> Node:
    """The recipe without the values that are wrong by themselves, and without what cannot be read without them."""
    for path in wrong:
        is_missing = path and find(recipe, path) is None
        if is_missing or (path and path[-1] == "name" and socket_at(path[:-1]) is not None):
            path = path[:-1]
        if len(path) <= 1 and is_missing:
            continue  # a top-level section stays, for the sections inside it
        # A list goes as a whole: without one item, the indices of the others would be wrong.
        index = next((position for position, part in enumerate(path) if isinstance(part, int)), len(path))
        path = path[:index]
        if path and find(recipe, path) is not None:
            recipe = replace(recipe, path, None)
    return recipe


def _section(kind: type[Section], value: Any) -> Any:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


def _model(model: Model, path: KeyPath) -> Iterator[Finding]:
    dimension, heads = (*path, "dimension"), (*path, "heads")
    if model.dimension % model.heads:
        yield Finding(
            (dimension, heads),
            Complaint(
                f"{model.dimension} is not divisible by the number of heads, {model.heads}",
                "Change `model.dimension` or `model.heads`.",
            ),
        )
    if model.dimension % 2 and model.positions == "sinusoidal":
        yield Finding(
            (dimension, (*path, "positions")),
            Complaint(
                "sinusoidal positions need an even dimension",
                "Take an even `model.dimension`, or `model.positions: learned`.",
            ),
        )
    for site in ("encoder_self", "decoder_self", "cross"):
        count = getattr(model.attention, site).heads.count
        if count is not None and model.dimension % count:
            key = (*path, "attention", site, "heads", "count")
            yield Finding(
                (key, dimension),
                Complaint(
                    f"must divide the dimension, {model.dimension}; {count} does not",
                    "Take another number of heads, or another `model.dimension`.",
                ),
            )
        for index, head in enumerate(getattr(model.attention, site).heads.disabled):
            if head > (count or model.heads):
                place = (*path, "attention", site, "heads")
                yield Finding(
                    ((*place, "disabled", index), (*place, "count"), heads),
                    Complaint(
                        f"there is no head {head}: the site has {count or model.heads}",
                        "Numbers count from 1; given heads come first.",
                    ),
                )
    for index, choice in enumerate(model.memory):
        if choice.at == "between" and model.encoder_layers < 2:
            key = (*path, "memory", index, "at")
            yield Finding(
                (key, (*path, "encoder_layers")),
                Complaint(
                    "there is nothing between the layers of a one-layer encoder",
                    "Write `at: output`, or take more `model.encoder_layers`.",
                ),
            )
        if choice.at == "between" and choice.per == "exit":
            key = (*path, "memory", index, "per")
            yield Finding(
                (key, (*path, "memory", index, "at")),
                Complaint(
                    "between encoder layers every filter is before all later exits",
                    "Leave `per` out, or write `at: output`.",
                ),
            )


def _training(training: Training, path: KeyPath) -> Iterator[Finding]:
    def keys(*names: str) -> tuple[KeyPath, ...]:
        return tuple((*path, name) for name in names)

    if training.average_last > training.keep_last:
        complaint = Complaint(
            f"{training.average_last} checkpoints cannot be averaged where `keep_last` keeps {training.keep_last}",
            "Raise `training.keep_last`, or lower `training.average_last`.",
        )
        yield Finding(keys("average_last", "keep_last"), complaint)
    if training.accumulate_tokens is not None and training.accumulate_tokens < training.batch_tokens:
        complaint = Complaint(
            f"must be at least `batch_tokens`, {training.batch_tokens}, not {training.accumulate_tokens}",
            "Raise it, lower `training.batch_tokens`, or leave the key out: then a batch is an update.",
        )
        yield Finding(keys("accumulate_tokens", "batch_tokens"), complaint)
    if training.schedule == "linear" and training.warmup_updates >= training.max_updates:
        complaint = Complaint(
            f"the linear schedule has no updates left after a warm-up of {training.warmup_updates}",
            f"Lower `training.warmup_updates`, or raise `training.max_updates`, which is {training.max_updates}.",
        )
        yield Finding(keys("warmup_updates", "max_updates"), complaint)


def _shared_table(sound: Node, recipe: Node, wrong: set[KeyPath]) -> list[Problem]:
    """One table for both languages needs one vocabulary."""
    tie_key: KeyPath = ("model", "tie_embeddings")
    shared_key: KeyPath = ("data", "tokenizer", "shared")
    if _concerns(tie_key, wrong) or _concerns(shared_key, wrong):
        return []
    tie, shared = find(sound, tie_key), find(sound, shared_key)
    default = Model.model_fields["tie_embeddings"].default
    if (tie.value if tie else default) != "all" or shared is None or not _is_false(shared.value):
        return []
    blamed = tie_key if tie is not None else shared_key
    complaint = Complaint(
        "`tie_embeddings: all` needs one vocabulary for both languages",
        "Set `data.tokenizer.shared` to true, or `model.tie_embeddings` to target or none.",
    )
    return [Problem(_blame(recipe, (blamed, shared_key)), blamed, complaint)]


def _positions(sound: Node, recipe: Node, wrong: set[KeyPath]) -> list[Problem]:
    """Sources as long as they are cut to, and their ends, must fit the model's positions."""
    length_key: KeyPath = ("data", "filters", "max_source_length")
    positions_key: KeyPath = ("model", "max_positions")
    if _concerns(length_key, wrong) or _concerns(positions_key, wrong):
        return []
    cut, reach = find(sound, length_key), find(sound, positions_key)
    positions = reach.value if reach is not None else Model.model_fields["max_positions"].default
    if cut is None or not isinstance(cut.value, int) or not isinstance(positions, int) or cut.value < positions:
        return []
    complaint = Complaint(
        f"{cut.value} pieces and the end do not fit {positions} positions",
        f"Set `model.max_positions` to {cut.value + 1} or more, or lower `data.filters.max_source_length`.",
    )
    return [Problem(_blame(recipe, (length_key, positions_key)), length_key, complaint)]


def _blocks(sound: Node, recipe: Node, wrong: set[KeyPath]) -> list[Problem]:
    """Blocks of sentences must fit the model's positions."""
    section_key: KeyPath = ("data", "documents")
    positions_key: KeyPath = ("model", "max_positions")
    node = find(sound, section_key)
    if node is None or _concerns(section_key, wrong) or _concerns(positions_key, wrong):
        return []
    documents, reach = _section(Documents, plain(node)), find(sound, positions_key)
    positions = reach.value if reach is not None else Model.model_fields["max_positions"].default
    if documents is None or not isinstance(positions, int) or documents.max_length <= positions:
        return []
    complaint = Complaint(
        f"blocks of {documents.max_length} pieces do not fit {positions} positions",
        f"Set `model.max_positions` to {documents.max_length} or more, or lower `data.documents.max_length`.",
    )
    length_key: KeyPath = (*section_key, "max_length")
    blamed = length_key if find(recipe, length_key) is not None else section_key
    return [Problem(_blame(recipe, (blamed, positions_key)), blamed, complaint)]


def _metric(sound: Node, recipe: Node, wrong: set[KeyPath]) -> list[Problem]:
    """A metric of documents needs to know them."""
    metric_key: KeyPath = ("training", "validation", "metric")
    ids_key: KeyPath = ("data", "dev", "documents")
    metric, ids = find(sound, metric_key), find(sound, ids_key)
    known = ids is not None and ids.value is not None
    if metric is None or metric.value != "dbleu" or known or _concerns(ids_key, wrong):
        return []
    complaint = Complaint(
        "scores documents, but nothing says where those of the validation text end",
        "Write `data.dev.documents`, the path of their ids; or take `bleu`.",
    )
    return [Problem(_blame(recipe, (metric_key,)), metric_key, complaint)]


def _is_false(value: object) -> bool:
    tokenizer: TokenizerSection | None = _section(TokenizerSection, {"shared": value})
    return tokenizer is not None and not tokenizer.shared


def _losses(sound: Node) -> list[Problem]:
    """A loss has a weight, which never becomes negative, or a target, which is a share."""
    losses = find(sound, ("losses",))
    problems = []
    for name, loss in losses.value.items() if losses is not None and isinstance(losses.value, dict) else ():
        key: KeyPath = ("losses", name)
        weight, target = find(loss, ("weight",)), find(loss, ("target",))
        if target is not None and target.value is not None:
            if weight is not None and weight.value is not None:
                complaint = Complaint("stands beside a target", "Give either a weight or a target.")
                problems.append(Problem(weight.origin, (*key, "weight"), complaint))
            problems += _ends(target, (*key, "target"), _target)
        elif weight is not None and isinstance(weight.value, dict):
            problems += _ends(weight, (*key, "weight"), _weight)
    return problems


def _ends(node: Node, key: KeyPath, complain: Callable[[float, str], Complaint | None]) -> list[Problem]:
    """What is wrong with a number, or with the ends of its change."""
    ends = {part: find(node, (part,)) for part in ("from", "to")} if isinstance(node.value, dict) else {"": node}
    problems = []
    for part, end in ends.items():
        if end is None or isinstance(end.value, bool) or not isinstance(end.value, (int, float)):
            continue
        complaint = complain(end.value, part)
        if complaint is not None:
            problems.append(Problem(end.origin, (*key, part) if part else key, complaint))
    return problems


def _weight(value: float, part: str) -> Complaint | None:
    if value >= 0:
        return None
    return Complaint(f"must be at least 0, not {value}", "A weight that changes may not become negative.")


def _target(value: float, part: str) -> Complaint | None:
    if 0 < value < 1 or (value == 0 and part == "from"):
        return None
    hint = "A target is the share of gates to close: 0.4 is 40%."
    return Complaint(f"must be between 0 and 1, not {value}", hint)


_CHECKS: tuple[tuple[type[Section], KeyPath, Check], ...] = (
    (Model, ("model",), _model),
    *DATA_CHECKS,
    (Training, ("training",), _training),
)
