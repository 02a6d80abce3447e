"""Fixed heads against dense matrices that plain loops write from the paper's formulas; what is refused."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble.checks import check_recipe
from sparsenmt.assemble.methods import required_features
from sparsenmt.assemble.model import build_model
from sparsenmt.errors import UserError
from sparsenmt.model.sockets import Keys
from sparsenmt.recipe import schema
from sparsenmt.recipe.choices import PRESETS
from sparsenmt.sparsity import fixed_maps, registry
from sparsenmt.sparsity.fixed_heads import LOOKING_LEFT, SEVEN, FixedPattern, FixedPatternHeads
from tests.toys import registered

ALL: tuple[FixedPattern, ...] = get_args(FixedPattern)
LENGTHS = (9, 1, 6, 2, 3)
SIZE = 3


def naive_row(pattern: str, i: int, seen: Sequence[int]) -> dict[int, float]:
    """Row i over the positions that can be seen (of a whole sentence of n: 0 to n - 1), by section 3.2."""
    n = max(seen, default=-1) + 1
    found: dict[int, float] = {}
    for j in seen:
        match pattern:
            case "current" if j == i:
                found[j] = 1.0
            case "previous" if j == i - 1:
                found[j] = 1.0
            case "next" if j == i + 1:
                found[j] = 1.0
            case "last" if j == n - 1:
                found[j] = 1.0
            case "left" if 0 <= j <= i - 2:
                found[j] = float((j + 1) ** 3)
            case "right" if i + 2 <= j <= n - 1:
                found[j] = float((n - j) ** 3)
            case "end":
                found[j] = float((j + 1) ** 3)
            case "start":
                found[j] = float((n - j) ** 3)
    total = sum(found.values())
    return {j: weight / total for j, weight in found.items()}


def naive_matrix(pattern: str, length: int, seen: Sequence[int], *, or_self: bool = False) -> Tensor:
    """(K, K) over positions."""
    matrix = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        row = naive_row(pattern, i, seen)
        if not row and or_self and i in seen:
            row = {i: 1.0}
        for j, weight in row.items():
            matrix[i, j] = weight
    return matrix


def naive_words(pattern: str, words: Sequence[int], seen: Sequence[int], mass: str, *, or_self: bool) -> Tensor:
    """(K, K) over pieces: the matrix over words, whose weights their pieces split or copy."""
    matrix = torch.zeros(len(words), len(words), dtype=torch.float64)
    pieces = {word: [k for k in seen if words[k] == word] for word in {words[k] for k in seen}}
    over_words = naive_matrix(pattern, max(words) + 1, sorted(pieces), or_self=or_self)
    for i, word in enumerate(words):
        for other, own in pieces.items():
            for j in own:
                matrix[i, j] = over_words[word, other] / (len(own) if mass == "split" else 1)
    return matrix


def sentences(lengths: Sequence[int] = LENGTHS, *, holes: bool = False, seed: int = 0) -> Keys:
    """Padded to the longest; word ids from 0, padded by 0. ``holes``: a filter has masked some keys."""
    width = max(lengths)
    rng = torch.Generator().manual_seed(seed)
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    starts = torch.rand(valid.shape, generator=rng) < 0.5
    starts[:, 0] = False
    words = starts.long().cumsum(1) * valid
    if holes:
        valid &= torch.rand(valid.shape, generator=rng) < 0.7
    positions = torch.arange(width).expand(len(lengths), -1)
    return Keys(valid, positions, positions, valid[:, None, None, :], None, {"word_id": words})


def expected(heads: FixedPatternHeads, keys: Keys, mass: str | None, *, or_self: bool) -> Tensor:
    """(B, G, K, K)."""
    rows = []
    for b, valid in enumerate(keys.valid):
        seen = valid.nonzero().flatten().tolist()
        words = keys.features["word_id"][b].tolist()
        matrices = [
            naive_matrix(name, len(words), seen, or_self=or_self)
            if mass is None
            else naive_words(name, words, seen, mass, or_self=or_self)
            for name in heads.names
        ]
        rows.append(torch.stack(matrices))
    return torch.stack(rows)


def random_values(keys: Keys, heads: int, dtype: torch.dtype = torch.float64, *, more: int = 0) -> Tensor:
    """(B, G, K, E) as attention gives them: heads lie side by side, learned ones behind."""
    rows, width = keys.valid.shape
    rng = torch.Generator().manual_seed(1)
    flat = torch.randn(rows, width, (heads + more) * SIZE, generator=rng, dtype=torch.float64).to(dtype)
    return flat.unflatten(-1, (-1, SIZE)).transpose(1, 2)[:, :heads]


@pytest.mark.parametrize("holes", [False, True], ids=["padding", "holes"])
@pytest.mark.parametrize("or_self", [False, True], ids=["zero", "self"])
@pytest.mark.parametrize("mass", [None, "split", "copy"])
@pytest.mark.parametrize("block", [64, 3])
def test_as_the_formulas_say(
    monkeypatch: pytest.MonkeyPatch, mass: Any, or_self: bool, holes: bool, block: int
) -> None:
    monkeypatch.setattr(fixed_maps, "_BLOCK", block)  # short ones, so that sums run over many
    heads = FixedPatternHeads(ALL, or_self=or_self, mass=mass)
    keys = sentences(holes=holes)
    dense = expected(heads, keys, mass, or_self=or_self)
    torch.testing.assert_close(heads.weights(keys), dense, atol=1e-12, rtol=0)

    values = random_values(keys, len(ALL), more=1).requires_grad_()
    twin = values.detach().clone().requires_grad_()
    pull = torch.randn(values.shape, dtype=torch.float64)
    found, naive = heads(values, keys), dense @ twin
    torch.testing.assert_close(found, naive, atol=1e-12, rtol=0)
    (found * pull).sum().backward()
    (naive * pull).sum().backward()
    torch.testing.assert_close(values.grad, twin.grad, atol=1e-12, rtol=0)


def test_the_paper_s_figure_of_a_row() -> None:
    """Equation of pattern 4 at i = 4: positions 0, 1, 2 with 1, 8, 27 of 36; its mirror at i = n - 5."""
    heads = FixedPatternHeads(("left", "right"), or_self=False)
    left, right = heads.weights(sentences((9,)))[0]
    assert left[4].tolist() == pytest.approx([1 / 36, 8 / 36, 27 / 36, 0, 0, 0, 0, 0, 0])
    assert right[4].tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 27 / 36, 8 / 36, 1 / 36])


@pytest.mark.parametrize("mass", [None, "split"])
def test_rows_sum_to_one_or_are_empty(mass: Any) -> None:
    keys = sentences()
    for or_self in (False, True):
        sums = FixedPatternHeads(ALL, or_self=or_self, mass=mass).weights(keys).sum(-1)
        real = sums.masked_select(keys.valid[:, None])
        assert bool(((real - 1).abs() < 1e-12).logical_or(real == 0).all())
        assert bool((real > 0).all()) == or_self


def test_gradcheck() -> None:
    keys = sentences((4, 1))
    for mass in (None, "split"):
        heads = FixedPatternHeads(ALL, or_self=True, mass=mass)
        values = random_values(keys, len(ALL)).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, heads=heads: heads(x, keys), values)


@pytest.mark.parametrize("mass", [None, "split"])
def test_long_sentences_in_single_precision(mass: Any) -> None:
    """Cubes of hundreds are added up: relative to the largest value, fp32 must hold 1e-5."""
    heads, keys = FixedPatternHeads(ALL, or_self=False, mass=mass), sentences((700, 500))
    values = random_values(keys, len(ALL))
    exact = heads.weights(keys) @ values
    single = values.float().requires_grad_()
    found = heads(single, keys)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    found.sum().backward()
    gradient = heads.weights(keys).sum(2)[..., None].expand_as(values)
    assert single.grad is not None
    torch.testing.assert_close(single.grad.double(), gradient, atol=1e-4, rtol=1e-5)


def test_bf16_is_added_up_in_fp32() -> None:
    heads, keys = FixedPatternHeads(ALL, or_self=False), sentences((300, 40))
    values = random_values(keys, len(ALL), torch.bfloat16)
    exact = heads.weights(keys) @ values.double()
    found = heads(values, keys)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).abs().max() / exact.abs().max()) < 2**-8  # one rounding


@pytest.mark.parametrize("mass", [None, "split", "copy"])
def test_the_true_length_counts(mass: Any) -> None:
    """A sentence alone = in a batch with a longer one."""
    heads, keys = FixedPatternHeads(ALL, or_self=False, mass=mass), sentences((9, 4))
    values = random_values(keys, len(ALL))
    own = Keys(keys.valid[1:, :4], keys.queries[1:, :4], keys.positions[1:, :4], features=cut(keys))
    torch.testing.assert_close(heads(values[1:, :, :4], own)[0], heads(values, keys)[1, :, :4], atol=1e-12, rtol=0)


def cut(keys: Keys) -> dict[str, Tensor]:
    return {name: values[1:, :4] for name, values in keys.features.items()}


@pytest.mark.parametrize("or_self", [False, True])
def test_queries_behind_a_cache(or_self: bool) -> None:
    """The last positions alone = at once, for what looks left."""
    heads = FixedPatternHeads(tuple(sorted(LOOKING_LEFT)), or_self=or_self)
    keys = sentences((7, 7))
    values = random_values(keys, heads.heads)
    whole = heads(values, keys)
    for seen in range(1, 8):
        for queries in range(1, seen + 1):
            positions = keys.positions[:, :seen]
            last = Keys(keys.valid[:, :seen], positions[:, seen - queries :], positions)
            found = heads(values[:, :, :seen], last)
            torch.testing.assert_close(found, whole[:, :, seen - queries : seen], atol=1e-12, rtol=0)


def test_patterns_that_look_left_are_those_that_do() -> None:
    """No row changes when the sentence goes on."""
    for pattern in ALL:
        before = naive_matrix(pattern, 5, range(5))
        after = naive_matrix(pattern, 8, range(8))[:5, :5]
        causal = not bool(naive_matrix(pattern, 8, range(8)).triu(1).any())
        assert (torch.equal(before, after) and causal) == (pattern in LOOKING_LEFT), pattern


def test_other_keys_after_the_same_ones() -> None:
    """What is made once a batch is made again for another one."""
    heads = FixedPatternHeads(ALL, or_self=False, mass="split")
    first, second = sentences(seed=1), sentences(seed=2)
    for keys in (first, second, first):
        values = random_values(keys, len(ALL))
        torch.testing.assert_close(heads(values, keys), heads.weights(keys) @ values, atol=1e-12, rtol=0)
        single = values.float()
        assert heads(single, keys).dtype == torch.float32
    copy.deepcopy(heads)


def test_two_threads_with_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread makes its map, another one makes and uses the map of its own keys."""
    heads, (one, two) = FixedPatternHeads(ALL, or_self=False), (sentences((5, 3)), sentences((4, 2), seed=1))
    values = [random_values(keys, heads.heads) for keys in (one, two)]
    make, found = heads._make_map, {}

    def interrupted(keys: Keys, *rest: Any) -> Any:
        if keys is one:
            other = threading.Thread(target=lambda: found.update(during=heads(values[1], two)))
            other.start()
            other.join()
        return make(keys, *rest)

    monkeypatch.setattr(heads, "_make_map", interrupted)
    found |= {"own": heads(values[0], one), "after": heads(values[1], two)}
    torch.testing.assert_close(found["own"], expected(heads, one, None, or_self=False) @ values[0])
    for name in ("during", "after"):
        torch.testing.assert_close(found[name], expected(heads, two, None, or_self=False) @ values[1])


def section(**site: Any) -> schema.ModelSection:
    return schema.ModelSection.model_validate({**PRESETS["base"], "attention": {"encoder_self": site}})


def parameters(model: schema.ModelSection) -> int:
    with torch.device("meta"):
        built = build_model(model, source_size=8, target_size=8)
    return sum(p.numel() for p in built.parameters())


FIXED = {"name": "fixed_token"}


def test_parameters_at_base_size() -> None:
    """-2.758M and -0.394M: six layers without 7 and without 8 of 8 heads of 64 in queries and keys, biases included."""
    head = 64 * 512 + 64
    dense, with_learned = parameters(section()), parameters(section(heads={"given": FIXED}))
    assert dense - with_learned == 6 * 2 * 7 * head == 2_757_888
    eight = parameters(section(heads={"given": {**FIXED, "patterns": list(ALL)}}))
    assert with_learned - eight == 6 * 2 * head == 393_984
    words = parameters(section(heads={"given": {"name": "fixed_word"}}))
    assert words == with_learned
    assert parameters(section(heads={"count": 1})) == dense


@pytest.fixture
def toys() -> Iterator[None]:
    with registered():
        yield


EIGHT = {**FIXED, "patterns": list(ALL)}
REFUSED: list[tuple[str, Mapping[str, Any], str, str]] = [
    ("cross", {"heads": {"given": FIXED}}, "heads.given", "no previous, next or last position in the source"),
    (
        "decoder_self",
        {"heads": {"given": FIXED}},
        "heads.given",
        "next, right, end, start: depends on positions that the decoder has not produced yet",
    ),
    ("decoder_self", {"heads": {"given": {"name": "fixed_word"}}}, "heads.given", "only the words of the source"),
    ("cross", {"heads": {"given": {"name": "fixed_word"}}}, "heads.given", "only the words of the source"),
    (
        "encoder_self",
        {"heads": {"count": 16, "given": {**FIXED, "learned": 1}}},
        "heads.given",
        "7 patterns and learned: 1 are 8 heads, but the site has 16",
    ),
    ("encoder_self", {"heads": {"count": 4, "given": FIXED}}, "heads.given", "7 fixed heads do not fit into 4 heads"),
    (
        "encoder_self",
        {"heads": {"given": EIGHT}, "transform": {"name": "toy_temperature"}},
        "transform",
        "toy_temperature has no effect: all heads are fixed",
    ),
    (
        "encoder_self",
        {"heads": {"given": EIGHT}, "pattern": {"name": "toy_lookback"}},
        "pattern",
        "toy_lookback has no effect: all heads are fixed",
    ),
]


@pytest.mark.parametrize(("site", "values", "key", "what"), REFUSED)
@pytest.mark.usefixtures("toys")
def test_what_has_no_meaning_is_refused(site: str, values: Mapping[str, Any], key: str, what: str) -> None:
    model = schema.ModelSection.model_validate({**PRESETS["base"], "attention": {site: values}})
    with pytest.raises(UserError, match=what) as caught:
        check_recipe(recipe(model))
    assert caught.value.where == f"model.attention.{site}.{key}" and caught.value.hint


def recipe(model: schema.ModelSection) -> schema.Recipe:
    data = {"directory": "d", "train": [{"source": "s", "target": "t"}], "dev": {"source": "s", "target": "t"}}
    whole = schema.Recipe.model_validate({"name": "x", "directory": "m", "data": data})
    return whole.model_copy(update={"model": model})


@pytest.mark.usefixtures("toys")
def test_what_has_a_meaning_is_accepted() -> None:
    left = {"given": {**FIXED, "patterns": ["current", "previous", "left"], "learned": 5}}
    beside = {"transform": {"name": "toy_temperature"}, "pattern": {"name": "toy_lookback"}}
    attention = {
        "encoder_self": {"heads": {"given": {**FIXED, "learned": 1}}, **beside},
        "decoder_self": {"heads": left, **beside},
    }
    check_recipe(recipe(schema.ModelSection.model_validate({**PRESETS["base"], "attention": attention})))


def test_defaults_are_the_paper_s_systems() -> None:
    given = registry.get("heads", "fixed_token")
    made = given.build(given.options(), site="encoder_self", heads=8)
    assert made.names == SEVEN and made.heads == 7
    assert required_features(recipe(section(heads={"given": {"name": "fixed_word"}}))) == {"word_id"}
    assert required_features(recipe(section(heads={"given": FIXED}))) == frozenset()
