"""Every pattern against a mask written in plain loops: in the encoder, in the decoder, at any length, with padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.assemble.checks import check_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.errors import UserError
from sparsenmt.model.attend import restrict
from sparsenmt.model.sockets import Keys, Pattern
from sparsenmt.recipe import schema
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.random_pattern import mixed

Seen = Callable[[int, int, bool], bool]  # query, key, causal -> whether the pattern shows the key
LENGTHS = (1, 2, 3, 7, 20)
WORD = 2**32


def built(name: str, site: str, options: Mapping[str, Any]) -> Pattern:
    method = registry.get("pattern", name)
    pattern: Pattern = method.build(method.options.model_validate(options), site=site)
    return pattern


def keys_of(lengths: tuple[int, ...], width: int | None = None) -> Keys:
    """Sentences of these lengths, padded."""
    width = width or max(lengths)
    at = torch.arange(width).expand(len(lengths), -1)
    return Keys(at < torch.tensor(lengths)[:, None], at, at)


def mask_of(pattern: Pattern, keys: Keys, *, causal: bool) -> Tensor:
    """(B, Q, K) bool."""
    allowed = restrict(keys, pattern, causal).allowed
    assert allowed is not None
    return allowed.expand(keys.valid.shape[0], 1, keys.queries.shape[1], -1)[:, 0]


def window(k: int) -> Seen:
    def seen(i: int, j: int, causal: bool) -> bool:
        return i - k < j <= i if causal else i - k // 2 <= j <= i + (k - 1) // 2

    return seen


def block(k: int) -> Seen:
    return lambda i, j, causal: i // k == j // k


def dilated(k: int, rate: int) -> Seen:
    def seen(i: int, j: int, causal: bool) -> bool:
        steps = range(-(k - 1), 1) if causal else range(-(k // 2), (k - 1) // 2 + 1)
        return j in [i + rate * step for step in steps]

    return seen


def global_(k: int) -> Seen:
    return lambda i, j, causal: i < k or j < k or (causal and i == j)


LOCAL: list[tuple[str, dict[str, int], Seen]] = [
    *(("window", {"k": k}, window(k)) for k in (1, 2, 3, 4, 8, 50)),
    *(("block", {"k": k}, block(k)) for k in (1, 3, 4, 50)),
    *(("dilated", {"k": k, "rate": rate}, dilated(k, rate)) for k, rate in [(1, 2), (4, 2), (3, 3), (8, 1), (4, 50)]),
    *(("global", {"k": k}, global_(k)) for k in (1, 3, 50)),
]
each_local = pytest.mark.parametrize(("name", "options", "seen"), LOCAL, ids=[f"{n}-{o}" for n, o, _ in LOCAL])
each_site = pytest.mark.parametrize("site", ["encoder_self", "decoder_self"])


@each_site
@each_local
def test_against_loops(name: str, options: dict[str, int], seen: Seen, site: str) -> None:
    causal = site == "decoder_self"
    pattern = built(name, site, options)
    for length in LENGTHS:
        mask = mask_of(pattern, keys_of((length, (length + 1) // 2)), causal=causal)
        for b, real in enumerate((length, (length + 1) // 2)):
            for i in range(length):
                for j in range(length):
                    expected = j < real and seen(i, j, causal) and not (causal and j > i)
                    assert bool(mask[b, i, j]) == expected, (length, b, i, j)


@each_site
@each_local
def test_a_reach_is_as_far_as_the_pattern_sees(name: str, options: dict[str, int], seen: Seen, site: str) -> None:
    pattern, length = built(name, site, options), 120
    causal, first = site == "decoder_self", getattr(pattern, "first", 0)
    assert pattern.reach is not None and first == (options["k"] if name == "global" else 0)
    assert all(seen(i, j, causal) for i in range(first, length) for j in range(first)), "the first keys"
    assert all(seen(i, j, causal) for i in range(first) for j in range(length)), "their queries"
    later = [(i, j) for i in range(first, length) for j in range(first, length) if not (causal and j > i)]
    far = [i - j for i, j in later if seen(i, j, causal)] or [0]
    inside = max(pattern.reach) < length  # otherwise the text is shorter than the reach
    assert max(far) <= pattern.reach[0] and -min(far) <= pattern.reach[1]
    assert not inside or (max(far), -min(far)) == pattern.reach


@each_site
@pytest.mark.parametrize("name", ["window", "block", "dilated", "global", "random", "bigbird"])
def test_a_row_sees_its_own_position(name: str, site: str) -> None:
    """So that no row of the decoder is empty; in the encoder, the patterns of neighbours."""
    if site == "encoder_self" and name in ("global", "random"):
        return
    for k in (4, 5, 30):
        for length in LENGTHS:
            mask = mask_of(built(name, site, {"k": k}), keys_of((length,)), causal=site == "decoder_self")
            assert bool(mask[0].diagonal().all())


@each_site
@pytest.mark.parametrize("name", ["window", "block", "global", "random", "bigbird"])
def test_what_is_wider_than_the_text_is_full(name: str, site: str) -> None:
    causal = site == "decoder_self"
    pattern, keys = built(name, site, {"k": 100}), keys_of((9, 4))
    assert torch.equal(mask_of(pattern, keys, causal=causal), mask_of_nothing(keys, causal=causal))


def mask_of_nothing(keys: Keys, *, causal: bool) -> Tensor:
    allowed = restrict(keys, None, causal).allowed
    assert allowed is not None
    return allowed.expand(keys.valid.shape[0], 1, keys.queries.shape[1], -1)[:, 0]


# Random


def hashed(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D % WORD
    x = (x ^ (x >> 15)) * 0x846CA68B % WORD
    return x ^ (x >> 16)


def drawn(i: int, among: list[int], k: int, seed: int, first: int | None) -> set[int]:
    """The k of ``among`` with the smallest hash; ``first`` before all others."""
    row = hashed(hashed(i) ^ seed)
    return set(sorted(among, key=lambda j: (j != first, hashed((row + hashed(j)) % WORD), j))[:k])


def test_the_hash_is_that_of_exact_integers() -> None:
    numbers = [0, 1, 2, 77, 2**31, 2**32 - 1, 0xDEADBEEF]
    assert mixed(torch.tensor(numbers)).tolist() == [hashed(x) for x in numbers]
    many = mixed(torch.arange(2**16))
    assert many.unique().numel() == 2**16, "a bijection"


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
@pytest.mark.parametrize(("k", "seed"), [(1, 0), (3, 0), (3, 5), (8, 2**32 - 1), (50, 1)])
def test_random_against_loops(k: int, seed: int, site: str) -> None:
    causal = site == "decoder_self"
    pattern = built("random", site, {"k": k, "seed": seed})
    for length in LENGTHS:
        keys = keys_of((length, (length + 1) // 2))
        mask = mask_of(pattern, keys, causal=causal)
        for b, real in enumerate((length, (length + 1) // 2)):
            for i in range(length):
                visible = [j for j in range(real) if j <= i or not causal]
                expected = drawn(i, visible, k, seed, i if causal else None)
                assert set(mask[b, i].nonzero().flatten().tolist()) == expected


def test_random_rows_differ_and_are_spread_evenly() -> None:
    keys = keys_of((400,))
    mask = mask_of(built("random", "encoder_self", {"k": 8}), keys, causal=False)[0]
    other = mask_of(built("random", "encoder_self", {"k": 8, "seed": 1}), keys, causal=False)[0]
    assert (mask.sum(1) == 8).all() and mask.unique(dim=0).shape[0] == 400
    assert int((mask & other).sum()) < 0.1 * 3200
    seen = mask.sum(0).double()  # binomial: mean 8, standard deviation 2.8
    assert 2.3 < float(seen.std()) < 3.3 and float(seen.max()) < 24


# BigBird


@each_site
@pytest.mark.parametrize(("k", "near", "quarter"), [(4, 2, 1), (5, 3, 1), (8, 4, 2), (11, 7, 2), (100, 50, 25)])
def test_bigbird_against_loops(k: int, near: int, quarter: int, site: str) -> None:
    causal = site == "decoder_self"
    pattern = built("bigbird", site, {"k": k, "seed": 3})
    for length in LENGTHS:
        keys = keys_of((length, (length + 1) // 2))
        mask = mask_of(pattern, keys, causal=causal)
        for b, real in enumerate((length, (length + 1) // 2)):
            for i in range(length):
                visible = [j for j in range(real) if j <= i or not causal]
                fixed = {j for j in visible if window(near)(i, j, causal) or global_(quarter)(i, j, causal)}
                expected = fixed | drawn(i, [j for j in visible if j not in fixed], quarter, 3, None)
                assert set(mask[b, i].nonzero().flatten().tolist()) == expected


def test_bigbird_shows_k_positions() -> None:
    mask = mask_of(built("bigbird", "encoder_self", {"k": 8}), keys_of((60,)), causal=False)[0]
    assert (mask[:2].sum(1) == 60).all(), "global positions see all"
    assert (mask[6:-1].sum(1) == 8).all(), "away from both ends all parts are whole and apart"


# Whatever is in the batch


@each_site
@pytest.mark.parametrize("name", ["window", "block", "dilated", "global", "random", "bigbird"])
def test_batch_mates_change_nothing(name: str, site: str) -> None:
    causal = site == "decoder_self"
    pattern = built(name, site, {"k": 4})
    lengths = (20, 3, 11)
    together = mask_of(pattern, keys_of(lengths), causal=causal)
    for b, length in enumerate(lengths):
        alone = mask_of(pattern, keys_of((length,)), causal=causal)
        assert torch.equal(together[b, :length, :length], alone[0]) and not bool(together[b, :, length:].any())


@pytest.mark.parametrize("name", ["window", "block", "dilated", "global", "random", "bigbird"])
def test_rows_of_their_own_positions_are_the_same(name: str) -> None:
    """Positions that are one row expanded are compared once: the result must not differ."""
    pattern, keys = built(name, "encoder_self", {"k": 4}), keys_of((15, 6))
    own = Keys(keys.valid, keys.queries.clone(), keys.positions.clone())
    assert torch.equal(mask_of(pattern, keys, causal=False), mask_of(pattern, own, causal=False))


# Refusals


def section(site: str, **choice: Any) -> schema.ModelSection:
    return schema.ModelSection.model_validate({"attention": {site: {"pattern": choice}}})


@pytest.mark.parametrize("name", ["window", "block", "dilated", "global", "bigbird"])
def test_neighbours_have_no_meaning_at_cross_attention(name: str) -> None:
    with pytest.raises(UserError, match="only self-attention has neighbours") as caught:
        build_model(section("cross", name=name), source_size=9, target_size=9)
    assert caught.value.where == "model.attention.cross.pattern"
    build_model(section("cross", name="random"), source_size=9, target_size=9)


def test_refused_before_data_are_read() -> None:
    recipe = schema.Recipe.model_construct(model=section("cross", name="window"), losses={})
    with pytest.raises(UserError, match="cross-attention"):
        check_recipe(recipe)
