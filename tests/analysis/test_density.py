"""Density of attention, against loops."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.analysis.density import BINS, DensityCounter, DensityResult, panels, report
from sparsenmt.analysis.labels import Head
from sparsenmt.analysis.observe import Attended
from sparsenmt.model.sites import SITES
from tests.analysis.attention_support import KINDS, OUTPUTS, attention_bundle, listen, places, rows_alone, texts


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
    for head, sentences in heads.items():
        densities, attended, visible, queries = [], 0, 0, 0
        for rows in sentences:
            shares = []
            for weights, shown in rows:
                if any(shown):
                    used = sum(weight != 0 for weight in weights)
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


def test_numbers_by_hand() -> None:
    """Two heads on two sentences of three and two queries over three keys; the last query sees nothing."""
    first = [
        [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]],  # 2, 1 and 3 of 3 keys
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],  # 1 of 3, three times
    ]
    second = [
        [
            [1.0, 1e-40, 0.0],
            [0.0, 0.0, 0.0],
            [9.0, 9.0, 9.0],
        ],  # 1 of 2: the other weight is no normal number; nothing; padding
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]],  # 2 of 2
    ]
    visible = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    visible[1, :, :, 2] = visible[1, :, 1] = False
    real = torch.tensor([[True, True, True], [True, True, False]])
    counter = DensityCounter()
    counter(Attended("cross", 1, torch.tensor([first, second]), visible, real, [0, 1]))
    one, two = counter.result("m").heads.values()
    assert (one.density, two.density) == (pytest.approx((6 / 9 + 1 / 2) / 2), pytest.approx((3 / 9 + 1) / 2))
    assert (one.attended, two.attended) == (pytest.approx(7 / 4), pytest.approx(5 / 4))
    assert one.visible == two.visible == pytest.approx(11 / 4)
    assert (one.sentences, one.queries) == (two.sentences, two.queries) == (2, 4)
    bins = [[i for i, count in enumerate(each.histogram) for _ in range(count)] for each in (one, two)]
    assert bins == [[10, 13], [6, 19]]


def test_a_window_is_dense_in_what_it_sees_and_top_k_is_counted() -> None:
    """A window of three in the encoder; in the decoder the last three, and the best two of them; all of the source."""
    sources = [len(line.ids) for line in texts(attention_bundle("window"))]
    targets = [len(target.ids) for target in OUTPUTS]
    queries = sum(targets)
    expected = {
        "encoder_self": (1, *[sum(3 * n - 2 for n in sources) / sum(sources)] * 2),
        "decoder_self": (
            sum(sum(1 if i < 2 else 2 / 3 for i in range(n)) / n for n in targets) / len(targets),
            sum(min(i + 1, 2) for n in targets for i in range(n)) / queries,
            sum(min(i + 1, 3) for n in targets for i in range(n)) / queries,
        ),
        "cross": (1, *[sum(n * m for n, m in zip(sources, targets, strict=True)) / queries] * 2),
    }
    for (site, _, _), one in measured("window").heads.items():
        assert (one.density, one.attended, one.visible) == tuple(map(pytest.approx, expected[site]))


def test_heads_do_not_depend_on_their_company() -> None:
    alone, together = measured("sparse", batch_tokens=1), measured("sparse", batch_tokens=10_000)
    for head, one in alone.heads.items():
        other = together.heads[head]
        assert one.density == pytest.approx(other.density) and one.histogram == other.histogram


def test_the_report_sorts_heads_and_counts_all_sentences() -> None:
    found = measured("sparse")
    sites, heads, histogram = report([found]).tables
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
