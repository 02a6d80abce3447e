"""The alignment error rate: the definition of Och and Ney, and the format of its files."""

from __future__ import annotations

import random

import pytest

from sparsenmt.data.word_links import WordLinks, parse_links
from sparsenmt.errors import UserError
from sparsenmt.evaluation.alignment_error import AlignmentError


def test_the_rate_of_an_example_worked_by_hand() -> None:
    gold = parse_links("0-0 1-1 2?1 3-2", "gold")
    found = AlignmentError.of([([(0, 0), (1, 1), (2, 1), (2, 2)], gold)])
    # |A| = 4, |S| = 3, |A and S| = 2, |A and P| = 3
    assert (found.rate, found.precision, found.recall) == (1 - 5 / 7, 3 / 4, 2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_that_of_the_definition(seed: int) -> None:
    generator = random.Random(seed)
    links = [(i, j) for i in range(6) for j in range(6)]
    rows = []
    for _ in range(10):
        sure = set(generator.sample(links, 5))
        rows.append((generator.sample(links, 7), WordLinks(tuple(sure), tuple(generator.sample(links, 4)))))
    found = AlignmentError.of(rows)
    a = sum(len(own) for own, _ in rows)
    s = sum(len(gold.sure) for _, gold in rows)
    a_s = sum(link in gold.sure for own, gold in rows for link in own)
    a_p = sum(link in {*gold.sure, *gold.possible} for own, gold in rows for link in own)
    assert found.rate == 1 - (a_s + a_p) / (a + s)


def test_with_sure_links_alone_the_rate_is_one_less_f1() -> None:
    found = AlignmentError.of([([(0, 0), (1, 2), (3, 3)], WordLinks(((0, 0), (1, 1))))])
    f1 = 2 * found.precision * found.recall / (found.precision + found.recall)
    assert found.rate == pytest.approx(1 - f1)
    assert AlignmentError.of([]).rate == AlignmentError.of([([], WordLinks())]).rate == 0


@pytest.mark.parametrize("item", ["0", "0-", "-1-0", "0:0", "a-b", "1-1-1", "٣-1", "0-2", "3-0", "9999999-0"])
def test_an_item_that_is_no_link_is_named(item: str) -> None:
    with pytest.raises(UserError, match=r"^gold, line 4: '.*' is no pair of places in 3 source and 2 target words"):
        parse_links(f"0-0 {item}", "gold, line 4", (3, 2))
    assert parse_links(" 2-1\t0?0 ", "gold", (3, 2)) == WordLinks(((2, 1),), ((0, 0),))
