"""Density of attention: by hand, in closed form where the pattern gives it, and against loops."""

from __future__ import annotations

import copy
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsenmt.analysis.density import BINS, DensityCounter, DensityResult, panels, report, sentence_densities
from sparsenmt.analysis.gates import LineBatches, gated_lines
from sparsenmt.analysis.labels import Head
from sparsenmt.analysis.observe import Attended, TargetLine, observe
from sparsenmt.engine.entmax_kernel import simplex_kernel, use_kernel
from sparsenmt.model.sites import SITES
from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.native.library import SWITCH
from sparsenmt.sparsity.entmax import Entmax
from sparsenmt.sparsity.simplex.function import NEWTON
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.topk import TopK
from tests.analysis.attention_support import KINDS, OUTPUTS, attention_bundle, listen, places, rows_alone, texts
from tests.analysis.support import EVERYWHERE, L0DROP, gated_bundle, sources

LEAST = 2.0**-126


def measured(kind: str, batch_tokens: int = 90) -> DensityResult:
    bundle, counter = attention_bundle(kind), DensityCounter()
    listen(bundle, counter, batch_tokens=batch_tokens)
    return counter.result("m", {("encoder_self", 1, 2): 1.25})


@pytest.mark.parametrize("kind", KINDS)
def test_densities_are_those_of_loops(kind: str) -> None:
    found = measured(kind)
    heads = {
        (site, layer, number): sentences
        for site, layer in places(kind)
        for number, sentences in enumerate(rows_alone(kind, site, layer), start=1)
    }
    assert set(heads) == set(found.heads)
    bundle = attention_bundle(kind)
    dropped = [each.dropped.tolist() for each in gated_lines(LineBatches(bundle, texts(bundle), 90))]
    for head, sentences in heads.items():
        densities, attended, visible, queries = [], 0, 0, 0
        for rows, closed in zip(sentences, dropped, strict=True):
            shares = []
            for weights, shown in rows:
                if any(shown):
                    empty = closed if head[0] == "cross" else [False] * len(weights)
                    used = sum(weight >= LEAST and not gone for weight, gone in zip(weights, empty, strict=True))
                    shares.append(used / sum(shown))
                    attended, visible, queries = attended + used, visible + sum(shown), queries + 1
            if shares:
                densities.append(sum(shares) / len(shares))
        one = found.heads[head]
        assert (one.sentences, one.queries) == (len(densities), queries)
        if queries:
            assert one.density == pytest.approx(sum(densities) / len(densities))
            assert one.attended == pytest.approx(attended / queries)
            assert one.visible == pytest.approx(visible / queries)
        else:
            assert one.density is None and one.attended is None and one.visible is None
        counts = [0] * BINS
        for density in densities:
            counts[min(int(density * BINS + 1e-9), BINS - 1)] += 1
        assert one.histogram == counts


def test_softmax_is_dense_and_sparsemax_is_not() -> None:
    for one in measured("dense").heads.values():
        assert one.density == 1 and one.attended == one.visible and one.histogram[-1] == one.sentences
    sparse = [one.density or 0 for one in measured("sparse").heads.values()]
    assert max(sparse) < 1 and min(sparse) > 0


def test_windows_and_top_k_have_the_counts_of_their_definition() -> None:
    """A window of 3 for every head, in the decoder with the top 2 of it; everything at cross-attention."""
    found = measured("window")
    pairs = zip(texts(attention_bundle("window")), OUTPUTS, strict=True)
    lengths = [(len(line.ids), len(output.ids)) for line, output in pairs]
    expected: dict[str, list[list[tuple[int, int]]]] = {"encoder_self": [], "decoder_self": [], "cross": []}
    for source, target in lengths:  # attended, visible of every query
        windows = [min(q + 2, source) - max(q - 1, 0) for q in range(source)]
        expected["encoder_self"].append([(n, n) for n in windows])
        expected["decoder_self"].append([(min(q + 1, 2), min(q + 1, 3)) for q in range(target)])
        expected["cross"].append([(source, source)] * target)
    assert {key[0] for key in found.heads} == set(expected) and len(found.heads) == 4 * (3 + 2 + 2)
    for (site, _, _), one in found.heads.items():
        queries = [query for sentence in expected[site] for query in sentence]
        densities = [statistics.fmean(used / seen for used, seen in sentence) for sentence in expected[site]]
        assert one.density == pytest.approx(statistics.fmean(densities), rel=1e-12)
        assert one.attended == pytest.approx(statistics.fmean(used for used, _ in queries), rel=1e-12)
        assert one.visible == pytest.approx(statistics.fmean(seen for _, seen in queries), rel=1e-12)
        assert (one.queries, one.sentences) == (len(queries), len(lengths))


def seen_by(weights: Tensor, visible: list[list[list[int]]], real: list[list[int]]) -> Attended:
    """Weights (B, H, Q, K), visible keys (B, Q, K) of all heads, and queries that are no padding (B, Q)."""
    shown = torch.tensor(visible, dtype=torch.bool)[:, None]
    return Attended("cross", 1, weights, shown, torch.tensor(real, dtype=torch.bool), list(range(len(real))))


@pytest.mark.parametrize("memory", [L0DROP, EVERYWHERE])
def test_dropped_positions_are_visible_and_not_attended(memory: list[dict[str, Any]]) -> None:
    """A zero vector in the place of a dropped position gets weight, but there is nothing to read."""
    found: dict[bool, DensityResult] = {}
    counts: list[int] = []
    for gates in ([], memory):
        bundle, counter = gated_bundle(gates), DensityCounter()
        lines = sources(bundle)
        outputs = [TargetLine(line.ids[:3]) for line in lines]
        observe(LineBatches(bundle, lines, 400), outputs, [counter])
        found[bool(gates)] = counter.result("m")
        counts = [int(each.dropped.sum()) for each in gated_lines(LineBatches(bundle, lines, 400))]
    queries = [len(output.ids) for output in outputs]
    total = sum(queries)
    dropped = sum(count * number for count, number in zip(counts, queries, strict=True)) / total
    dense, gated = (found[each].site_mean("cross", "attended") for each in (False, True))
    assert 0 < dropped < dense == found[True].site_mean("cross", "visible")
    assert gated == pytest.approx(dense - dropped)
    for site in ("decoder_self", "encoder_self"):
        assert found[True].site_mean(site, "attended") == found[False].site_mean(site, "attended")


def test_two_sentences_by_hand() -> None:
    """Padded keys and queries, a query that sees nothing, and weights on both sides of 2^-126."""
    weights = torch.tensor(
        [
            [
                [[0.5, 0.5, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0.2, 0.8, 0, 0]],  # 2 of 4, 1 of 3, nothing, padding
                [[1, LEAST, LEAST / 2, 1e-45], [0.3, 0.3, 0.4, 0], [0, 0, 0, 0], [1, 0, 0, 0]],  # 2 of 4, 3 of 3
            ],
            [
                [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0]],  # 1, 2, 2, 1 of 2
                [[0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]],  # 1 of 2, four times
            ],
        ]
    )
    visible = [[[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 0, 0]] * 4]
    seen = seen_by(weights, visible, [[1, 1, 1, 0], [1, 1, 1, 1]])
    density, attended, shown, queries = sentence_densities(seen)
    torch.testing.assert_close(density, torch.tensor([[5 / 12, 3 / 4], [3 / 4, 1 / 2]]).double())
    assert attended.tolist() == [[3, 5], [6, 4]] and shown.tolist() == [[7, 7], [8, 8]]
    assert queries.tolist() == [[2, 2], [4, 4]]
    counter = DensityCounter()
    counter(seen)
    counter(seen_by(torch.zeros(1, 2, 1, 4), [[[0, 0, 0, 0]]], [[1]]))  # a sentence that sees nothing is none
    first, second = counter.result("m").heads.values()
    assert first.density == pytest.approx((5 / 12 + 3 / 4) / 2) and second.density == pytest.approx(5 / 8)
    assert (first.attended, second.attended) == (9 / 6, 9 / 6) and first.visible == second.visible == 15 / 6
    assert (first.sentences, first.queries) == (2, 6)
    assert {i for i, count in enumerate(first.histogram) if count} == {int(5 / 12 * BINS), 15}


def test_a_density_on_the_edge_of_a_bin_lies_above_it() -> None:
    """Every number of twentieths has a bin of its own, the last two share one."""
    weights = (torch.arange(20) < torch.arange(21)[:, None]).float()[:, None, None]
    counter = DensityCounter()
    counter(seen_by(weights, [[[1] * 20]] * 21, [[1]] * 21))
    (one,) = counter.result("m").heads.values()
    assert one.histogram == [1] * 19 + [2]


ALL = torch.ones(1, 5, dtype=torch.bool)


@pytest.mark.parametrize("native", ["0", "always"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("transform", "scores", "density"),
    [
        (Softmax(), [0.0, -70, -87, -88, -120], 3 / 5),  # e^-87 is above 2^-126, e^-88 below
        (Entmax(1.0), [0.0, -70, -87, -88, -120], 3 / 5),
        (TopK(4), [0.0, -70, -87, -88, -120], 3 / 5),
        (Softmax(), [3.0, 2, -80, 1, 0], 5 / 5),
        (Entmax(1.01), [0.0, -70, -99, -101, -101], 1 / 5),  # u of the second is 0.3, its weight 0.3^100
        (Entmax(1.01), [0.0, -40, -60, -99, -101], 2 / 5),  # 0.6^100 is 7e-23, 0.4^100 is 2e-40
        (Entmax(1.5), [0.0, 0, 0, -1, -2], 4 / 5),  # u of three 0.5547, of the others 0.0547 and 0
        (Entmax(2.0), [1.0, 0.5, 0.5, -1, -1], 3 / 5),  # the threshold is 1/3
        (Entmax(2.0), [5.0, 4.5, 4.0, 3.99, 0], 2 / 5),  # 4.25
    ],
)
def test_one_definition_for_every_transform(
    transform: Transform,
    scores: list[float],
    density: float,
    dtype: torch.dtype,
    native: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand, with and without the compiled kernel, in both number formats."""
    monkeypatch.setenv(SWITCH, native)
    use_kernel(nn.ModuleList([nn.Linear(1, 1), transform := copy.copy(transform)]))
    keys = Keys(ALL, torch.zeros(1, 1, dtype=torch.long), torch.arange(5)[None])
    weights = transform(torch.tensor(scores, dtype=dtype).view(1, 1, 1, 5), keys)
    found, *_ = sentence_densities(seen_by(weights, [[[1] * 5]], [[1]]))
    assert found.item() == pytest.approx(density)


@pytest.mark.parametrize("native", ["0", "always"])
def test_masks_and_counts_move_the_support(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparsemax of 2, 1.5, 0.9: the threshold is 1.25. Without the first key 0.7, or 1.5 if the first counts as 2."""
    monkeypatch.setenv(SWITCH, native)
    use_kernel(nn.ModuleList([nn.Linear(1, 1), transform := Entmax(2.0)]))
    assert (transform.solver is NEWTON) == (native == "0" or simplex_kernel() is None)
    scores, valid = torch.tensor([[[[2.0, 1.5, 0.9]]]]), torch.ones(1, 3, dtype=torch.bool)
    for allowed, counts, attended, visible in (
        ([1, 1, 1], None, 2, 3),
        ([0, 1, 1], None, 2, 2),
        ([1, 1, 1], [2, 1, 1], 1, 3),
        ([1, 0, 1], [1, 1, 3], 1, 2),
    ):
        shown = torch.tensor(allowed, dtype=torch.bool).view(1, 1, 1, 3)
        of = None if counts is None else torch.tensor([counts], dtype=torch.float32)
        keys = Keys(valid, torch.zeros(1, 1, dtype=torch.long), torch.arange(3)[None], shown, of)
        _, found, seen, _ = sentence_densities(seen_by(transform(scores, keys), [[allowed]], [[1]]))
        assert (found.item(), seen.item()) == (attended, visible)


def test_heads_do_not_depend_on_their_company() -> None:
    alone, together = measured("sparse", batch_tokens=1), measured("sparse", batch_tokens=10_000)
    for head, one in alone.heads.items():
        other = together.heads[head]
        assert one.density == pytest.approx(other.density) and one.histogram == other.histogram


def test_the_report_sorts_heads_and_counts_all_sentences() -> None:
    found = measured("sparse")
    sites, _, heads, histogram = report([found]).tables
    assert [row["site"] for row in sites.records()] == ["encoder self", "decoder self", "cross"]
    for site in SITES:
        own = [row for row in heads.records() if row["site"] == site.replace("_", " ")]
        for layer in {row["layer"] for row in own}:
            densities = [float(str(row["density"])) for row in own if row["layer"] == layer]
            assert densities == sorted(densities) and len(densities) == 4
        mean = found.site_mean(site, "density")
        assert mean == pytest.approx(sum(float(str(row["density"])) for row in own) / len(own))
    assert sum(int(str(row["count"])) for row in histogram.records()) == len(texts(attention_bundle("sparse"))) * 4 * 7
    named = {(row["site"], row["head"]): row["alpha"] for row in heads.records()}
    assert named["encoder self", "1.2"] == 1.25 and named["cross", "1.2"] is None
    assert not histogram.listed


def test_one_column_a_site_and_one_line_a_model() -> None:
    found = [measured("sparse"), DensityResult("other", measured("dense").heads)]
    lines = panels(found)
    assert [len(line) for line in lines] == [3, 3, 3]
    for panel in lines[0]:
        assert list(panel.series) == ["m", "other"]
        for points in panel.series.values():
            assert sum(y or 0 for _, y in points) == pytest.approx(1)
    (points,) = lines[1][0].series.values()
    assert [y is None for _, y in points] == ([False] * 3 + [True]) * 4  # a line a rank over three layers


def test_what_was_not_measured_is_not_zero() -> None:
    bundle, counter = attention_bundle("masked"), DensityCounter()
    listen(bundle, counter, sites=["cross"])
    found = counter.result("m")
    assert {site for site, _, _ in found.heads} == {"cross"}
    assert found.site_mean("encoder_self", "density") is None
    head: Head = ("cross", 1, 1)
    assert found.heads[head].sentences <= len(texts(bundle))
