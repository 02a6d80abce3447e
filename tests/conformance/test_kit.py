"""The kit itself: it catches methods that break the rules, and handles refusals in the open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.model.sites import SITES
from sparsenmt.model.sockets import FixedHeads, Gates, Keys
from sparsenmt.sparsity import registry
from sparsenmt.testing import rules
from sparsenmt.testing.bench import build, is_refused
from sparsenmt.testing.cases import DEFAULTS, NORMS, Case, Plug, accepted
from sparsenmt.testing.checks import BrokenRule
from sparsenmt.testing.rules import broken, build_or_refuse, rule_of
from tests.conformance.cases import ENGINE_KEYS, alone, methods, mixes, pairs, plugs
from tests.conformance.support import is_first
from tests.toys import TOYS
from tests.toys.faint_filter import FaintFilter
from tests.toys.left_heads import LeftHeads
from tests.toys.lookback import Lookback
from tests.toys.recency import Recency
from tests.toys.scattered import Scattered
from tests.toys.temperature import Temperature


def case_of(*wanted: tuple[str, str], norm: Any = "pre") -> Case:
    """(place, method) -> a case with the first example of each."""
    every = {(plug.place, plug.method.name): plug for plug in plugs(examples=1)}
    return Case(tuple(every[item] for item in wanted), norm)


COUNTED = case_of(("cross.transform", "toy_temperature"), ("memory.output", "toy_faint"))


def future_scores(self: Temperature, scores: Tensor, keys: Keys) -> Tensor:
    return torch.softmax(scores, -1)  # sees what is hidden


def uncounted(self: Temperature, scores: Tensor, keys: Keys) -> Tensor:
    return torch.softmax(scores.masked_fill(~keys.visible(), -1e30), -1)


def query_index(self: Scattered, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    back = torch.arange(queries.shape[1])[:, None] - positions[:, None, None, :]
    return visible & (back.abs() <= 2)


def padded_length(self: Scattered, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    return visible & (positions[:, None, None, :] * 2 < visible.shape[-1])


def wider(self: Lookback, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    return (queries[:, None, :, None] - positions[:, None, None, :]).abs() <= 2 * sum(self.reach)


def with_padding(self: LeftHeads, values: Tensor, keys: Keys) -> Tensor:
    mean = values.mean(2, keepdim=True)
    return mean.expand(-1, -1, keys.queries.shape[1], -1)


def without_bias(self: Recency, scores: Tensor, keys: Keys) -> Tensor:
    return torch.softmax(scores.masked_fill(~keys.visible(), -1e30), -1)


def above_the_mean(self: FaintFilter, memory: Memory) -> Gates:
    return Gates((memory.states.mean(-1) > memory.states.mean()).to(memory.states.dtype))


def random_gates(self: FaintFilter, memory: Memory) -> Gates:
    found = FAINT(self, memory)
    return Gates((found.values + 0.2 * torch.rand_like(found.values)).clamp(0, 1), found.on_closed, found.losses)


FAINT = FaintFilter.forward

BROKEN: list[tuple[str, type, Any, Case, str]] = [
    ("no mask", Temperature, future_scores, case_of(("decoder_self.transform", "toy_temperature")), "future"),
    ("no mask, by steps", Temperature, future_scores, case_of(("decoder_self.transform", "toy_temperature")), "steps"),
    ("no counts", Temperature, uncounted, case_of(("cross.transform", "toy_temperature")), "counts"),
    ("no counts, compacted", Temperature, uncounted, COUNTED, "compaction"),
    ("index of the query", Scattered, query_index, case_of(("decoder_self.pattern", "toy_scattered")), "positions"),
    (
        "index of the query, by steps",
        Scattered,
        query_index,
        case_of(("decoder_self.pattern", "toy_scattered")),
        "steps",
    ),
    ("padded length", Scattered, padded_length, case_of(("encoder_self.pattern", "toy_scattered")), "batch"),
    ("reach too short", Lookback, wider, case_of(("encoder_self.pattern", "toy_lookback")), "reach"),
    ("reach and cache", Lookback, wider, case_of(("decoder_self.pattern", "toy_lookback")), "steps"),
    ("weight on padding", LeftHeads, with_padding, case_of(("encoder_self.heads", "toy_left")), "padding"),
    ("weight on padding, alone", LeftHeads, with_padding, case_of(("encoder_self.heads", "toy_left")), "batch"),
    ("other weights", LeftHeads, with_padding, case_of(("cross.heads", "toy_left")), "weights"),
    ("unlike its bias", Recency, without_bias, case_of(("cross.transform", "toy_recency")), "fused"),
    ("gates by batch", FaintFilter, above_the_mean, case_of(("memory.output", "toy_faint")), "batch"),
    ("random gates", FaintFilter, random_gates, case_of(("memory.output", "toy_faint")), "deterministic"),
]
# Where each socket's function stands in its class.
CALLED = {Temperature: "forward", Recency: "forward", FaintFilter: "forward"}


@pytest.mark.parametrize(("owner", "damage", "case", "rule"), [row[1:] for row in BROKEN], ids=[r[0] for r in BROKEN])
def test_broken_methods_are_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, damage: Any, case: Case, rule: str
) -> None:
    assert broken(rule_of(rule), build(case)) == (True, None)
    monkeypatch.setattr(owner, CALLED.get(owner, "__call__"), damage)
    applies, message = broken(rule_of(rule), build(case))
    assert applies and message is not None


def test_refusals_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Case, seed: int) -> None:
        raise UserError("this has no meaning")

    monkeypatch.setattr(rules, "build_with", refuse)
    with pytest.raises(BrokenRule, match=r"no method of .*toy_temperature declares it"):
        build_or_refuse(case_of(("cross.transform", "toy_temperature")))


def test_built_in_methods_have_reasons_of_their_own() -> None:
    """Built-in methods refuse by themselves the places in `refuses`, with another message than the general one."""
    refused = [plug for plug in plugs() if plug.refused]
    assert len(refused) == 38
    for plug in refused:
        with pytest.raises(UserError) as caught:
            build(Case((plug,)))
        assert "has no meaning" not in caught.value.message


def test_what_is_declared_is_refused() -> None:
    """A method need not raise where it declares that it has no meaning."""
    quiet = registry.Method(
        "transform", "quiet", registry.Options, lambda options, **_: Temperature(4), refuses=("cross", "pattern")
    )
    plug, cross = Plug("encoder_self.transform", quiet, {}), Plug("cross.transform", quiet, {})
    build(Case((plug,)))
    window = Plug.of("encoder_self.pattern", "window")
    for case, words in ((Case((cross,)), "at cross"), (Case((plug, window)), "beside the pattern method 'window'")):
        assert is_refused(case) and build_or_refuse(case) is None
        with pytest.raises(UserError, match=f"quiet has no meaning {words}"):
            build(case)
    build(Case((plug, Plug.of("decoder_self.pattern", "window"))))


def test_what_is_refused_alone_is_in_no_pair_and_no_mix() -> None:
    assert not any(plug.refused for case in (*pairs(), *mixes()) for plug in case.plugs)
    assert {plug.method.name for plug in plugs()} == {plug.method.name for plug in accepted(plugs())}
    assert any(is_refused(case) for case in alone())


def test_every_registered_method_is_tried() -> None:
    tried = {(plug.method.socket, plug.method.name) for plug in plugs()} | {*DEFAULTS.items()}
    everything = {(m.socket, m.name) for m in methods()}
    assert everything == tried and {toy.socket for toy in TOYS} == set(registry.SOCKETS)
    places = {plug.place for plug in plugs()}
    assert places >= {f"{site}.{socket}" for site in SITES for socket in ("pattern", "transform", "heads")}
    assert {"memory.output", "memory.between", "depth"} <= places
    assert len(alone()) == len(NORMS) * (len(plugs()) + 1 + len(ENGINE_KEYS))


def test_second_examples_and_norms_are_thorough_and_first_ones_are_not() -> None:
    first = [case for case in alone() if is_first(case)]
    tried = {(plug.place, plug.method.name) for case in first for plug in case.plugs}
    assert tried == {(plug.place, plug.method.name) for plug in plugs()} and len(first) < len(alone()) / 3
    assert {case.norm for case in first} == set(NORMS)


def test_pairs_stay_as_they_are_when_a_method_is_added() -> None:
    method = registry.Method("transform", "another", registry.Options, lambda: None)
    more = Case((Plug("cross.transform", method, {}), *case_of(("depth", "toy_revisit")).plugs), "pre")
    assert sorted([*pairs(), more], key=lambda case: case.seed) != pairs()
    assert [case for case in sorted([*pairs(), more], key=lambda case: case.seed) if case is not more] == pairs()


def test_toys_are_registered_only_while_asked_for() -> None:
    assert not {toy.name for toy in TOYS} & {method.name for method in registry.all_methods()}


def test_fixed_heads_fit_their_protocol() -> None:
    heads: FixedHeads = LeftHeads()
    assert heads.heads == 2
