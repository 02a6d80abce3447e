"""The rules of Zhang, Titov and Sennrich (2021), section 7, against naive loops; what their options refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError

from sparsenmt.data.tagging import tagsets
from sparsenmt.model.compaction import apply_gates
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import MemoryFilter
from sparsenmt.sparsity import pos, registry

LENGTHS = (9, 6, 1)
RULES = ("pos", "freq", "inv_freq", "group")


def built(name: str, options: Mapping[str, Any]) -> MemoryFilter:
    method = registry.get("memory", name)
    found: MemoryFilter = method.build(method.options.model_validate(options), dimension=4)
    assert set(found.requires) == method.requires and found.position_dependent
    return found


def sentences(seed: int = 0) -> Memory:
    """Random features, </s> last: categories 0..10, ranks 0..20, coverage that rises with the rank."""
    rng = torch.Generator().manual_seed(seed)
    size = (len(LENGTHS), max(LENGTHS))
    valid = torch.arange(size[1]) < torch.tensor(LENGTHS)[:, None]
    end = torch.arange(size[1]) == torch.tensor(LENGTHS)[:, None] - 1
    ranks = torch.randint(1, 21, size, generator=rng).masked_fill(end, 0)
    features = {
        "pos_category": torch.randint(1, 11, size, generator=rng).masked_fill(end, 0),
        "later_piece": (torch.rand(size, generator=rng) < 0.3).long().masked_fill(end, 0),
        "frequency_rank": ranks,
        "frequency_coverage": ranks * 500,
        "word_id": (torch.rand(size, generator=rng) < 0.6).long().cumsum(1),
    }
    features = {name: values * valid for name, values in features.items()}
    positions = torch.arange(size[1]).expand(size)
    return Memory(torch.randn(*size, 4, generator=rng), valid, positions, features=features)


Naive = Callable[[dict[str, int], int], bool]
NAMES = get_args(pos.Category)
PAPER = ("function", "punctuation", "modal", "existential")
CASES: tuple[tuple[str, dict[str, Any], Naive], ...] = (
    ("pos", {}, lambda f, _: NAMES_OF[f["pos_category"]] in PAPER or f["later_piece"] == 1),
    ("pos", {"later_pieces": False}, lambda f, _: NAMES_OF[f["pos_category"]] in PAPER),
    ("pos", {"drop": ["number"], "later_pieces": False}, lambda f, _: NAMES_OF[f["pos_category"]] == "number"),
    ("pos", {"drop": []}, lambda f, _: f["later_piece"] == 1),
    ("freq", {"top": 7}, lambda f, _: 1 <= f["frequency_rank"] <= 7),
    ("freq", {"coverage": 0.35}, lambda f, _: f["frequency_rank"] >= 1 and f["frequency_coverage"] <= 3500),
    ("inv_freq", {"above": 7}, lambda f, _: f["frequency_rank"] > 7),
    ("inv_freq", {"coverage": 0.35}, lambda f, _: f["frequency_rank"] >= 1 and f["frequency_coverage"] > 3500),
    ("group", {}, lambda _, position: position % 2 == 1),
    ("group", {"size": 3}, lambda _, position: position % 3 > 0),
    ("group", {"unit": "words"}, lambda f, _: f["word_id"] % 2 == 1),
)
NAMES_OF = dict(enumerate(("end", *NAMES)))


@pytest.mark.parametrize(("name", "options", "dropped"), CASES)
@pytest.mark.parametrize("training", [False, True])
def test_as_in_naive_loops(name: str, options: dict[str, Any], dropped: Naive, training: bool) -> None:
    rule = built(name, options).train(training)
    for seed in range(5):
        memory = sentences(seed)
        gates = rule(memory)
        assert gates.losses == {} and gates.on_closed == "zero"
        for row, length in enumerate(LENGTHS):
            for position in range(length):
                features = {key: int(values[row, position]) for key, values in memory.features.items()}
                assert float(gates.values[row, position]) == (0.0 if dropped(features, position) else 1.0)


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, options, _ in CASES if name != "group"])
def test_the_end_of_a_sentence_is_kept(name: str, options: dict[str, Any]) -> None:
    memory = sentences()
    last = torch.tensor(LENGTHS)[:, None] - 1
    assert built(name, options)(memory).values.gather(1, last).tolist() == [[1.0]] * len(LENGTHS)


def test_a_word_that_was_never_seen_is_rare() -> None:
    """It has the rank after the last, and the coverage of everything."""
    memory = sentences()
    features = {
        **memory.features,
        "frequency_rank": torch.full_like(memory.positions, 21),
        "frequency_coverage": torch.full_like(memory.positions, 10_000),
    }
    memory = Memory(memory.states, memory.valid, memory.positions, features=features)
    for name, options, kept in (
        ("freq", {"top": 20}, True),
        ("freq", {"coverage": 0.99}, True),
        ("inv_freq", {"above": 20}, False),
        ("inv_freq", {"coverage": 0.99}, False),
    ):
        assert bool((built(name, options)(memory).values == kept).all())


@pytest.mark.parametrize("closed", ["zero", "mask"])
@pytest.mark.parametrize(("name", "options"), [(name, options) for name, options, _ in CASES])
def test_on_a_compacted_memory(name: str, options: dict[str, Any], closed: str) -> None:
    """Entries are judged by their positions; a stand-in stays closed. Twice the same rule is once."""
    rule = built(name, {**options, "closed": closed})
    memory = sentences()
    gates = rule(memory)
    assert gates.on_closed == closed
    once = apply_gates(memory, gates, compact=True)
    again = rule(once).values
    expected = (once.positions >= 0) & once.valid
    assert torch.equal((again > 0) & once.valid, expected)
    twice = apply_gates(once, rule(once), compact=True)
    assert once.gates is not None and twice.gates is not None
    assert torch.equal(once.gates, twice.gates)


def test_lower_precision() -> None:
    memory = sentences()
    half = Memory(memory.states.bfloat16(), memory.valid, memory.positions, features=memory.features)
    assert torch.equal(built("pos", {})(half).values.float(), built("pos", {})(memory).values)


def test_the_categories_are_those_of_the_feature() -> None:
    """A method does not know the data: it has the names once more."""
    assert {name: tagsets.WordCategory[name.upper()] for name in NAMES} == pos._VALUES
    assert len(NAMES) + 1 == len(tagsets.WordCategory)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("freq", {}),
        ("freq", {"top": 100, "coverage": 0.4}),
        ("freq", {"top": 0}),
        ("freq", {"coverage": 0.0}),
        ("freq", {"coverage": 1.0}),
        ("inv_freq", {}),
        ("inv_freq", {"above": 452, "coverage": 0.4}),
        ("inv_freq", {"above": -1}),
        ("group", {"size": 1}),
        ("group", {"unit": "sentences"}),
        ("pos", {"drop": ["nouns"]}),
        ("pos", {"closed": "open"}),
        ("pos", {"top": 100}),
    ],
)
def test_options_that_have_no_meaning(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        registry.get("memory", name).options.model_validate(options)


@pytest.mark.parametrize("name", RULES)
def test_the_paper_is_named_with_its_figures(name: str) -> None:
    rule = built(name, registry.get("memory", name).examples[0])
    text = type(rule).__doc__ or ""
    assert "Published" in text and "%" in text and "BLEU" in text and "ROUGE-L" in text
