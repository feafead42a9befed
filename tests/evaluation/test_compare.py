"""Paired differences against what can be worked by hand and against scipy-free plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from densecap_search.errors import CollectionError
from densecap_search.evaluation.compare import LEAST_CLUSTERS, compare, paired, smallest_visible
from densecap_search.evaluation.evaluate import Direction
from densecap_search.evaluation.metrics import METRICS, Ranks


def direction(rank: list[float], clusters: list[int] | None = None) -> Direction:
    return Direction.of(Ranks.of(rank), np.array(clusters or range(len(rank))), 50)


def test_five_queries_worked_by_hand():
    found = compare(direction([1, 1, 1, 2, 7]), direction([1, 2, 3, 1, 9]))
    r1 = found["R@1"]  # right: 1 1 1 0 0 against 1 0 0 1 0
    assert (r1.value, r1.wins, r1.losses, r1.equal) == (pytest.approx(20.0), 2, 1, 2)
    assert r1.p_value == 1.0  # of the 8 signs of +1 +1 −1, all have a sum of at least 1 in size
    rank = found["mean_rank"]  # differences 0 −1 −2 +1 −2; less is better
    assert (rank.value, rank.wins, rank.losses) == (pytest.approx(-4 / 5), 3, 1)
    assert rank.p_value == 6 / 16  # |±1 ±2 ±1 ±2| ≥ 4: six of sixteen
    assert (found["median_rank"].value, found["median_rank"].wins) == (1 - 2, 3)
    assert list(found) == list(METRICS)


def test_one_model_against_itself_is_no_difference():
    rank = [1.0, 4, 2, 1, 60]
    for difference in compare(direction(rank), direction(rank)).values():
        assert (difference.value, difference.low, difference.high, difference.p_value) == (0, 0, 0, 1)
        assert (difference.wins, difference.losses, difference.equal) == (0, 0, 5)


def test_the_p_value_flips_the_captions_of_a_picture_together():
    generator = np.random.default_rng(0)
    first, second, clusters = generator.normal(0.4, 1, 24), generator.normal(0, 1, 24), np.repeat(np.arange(8), 3)
    sums = [sum(first[clusters == c] - second[clusters == c]) for c in range(8)]
    reached = [abs(sum(sign * value for sign, value in zip(signs, sums, strict=True)))
               for signs in itertools.product((1, -1), repeat=8)]
    exact = np.mean([value >= abs(sum(sums)) * (1 - 1e-9) for value in reached])
    assert paired(first, second, clusters).p_value == exact
    assert paired(first, second, np.arange(24)).p_value != exact


def test_random_flips_agree_with_the_binomial_of_a_sign_test():
    first, second = np.r_[np.ones(20), np.zeros(80)], np.r_[np.zeros(20), np.ones(7), np.zeros(73)]
    # 20 for, 7 against: two-sided binomial at 1/2
    from math import comb
    exact = 2 * sum(comb(27, k) for k in range(20, 28)) / 2**27
    assert paired(first, second, np.arange(100)).p_value == pytest.approx(exact, abs=4 * (exact / 9999) ** 0.5)


@pytest.mark.slow
def test_p_values_are_even_under_chance_and_small_under_a_difference():
    generator = np.random.default_rng(1)
    chance = [paired(generator.normal(size=60), generator.normal(size=60), np.arange(60)).p_value for _ in range(60)]
    assert 0.3 < np.mean(chance) < 0.7
    assert np.mean(np.array(chance) < 0.1) < 0.25
    assert paired(generator.normal(1.5, 1, 60), generator.normal(size=60), np.arange(60)).p_value == 1 / 10_000


def test_the_interval_of_a_difference_is_paired():
    # the second is the first less exactly 1 everywhere: no doubt at all, however wide the values spread
    values = np.random.default_rng(0).normal(0, 100, 40)
    found = paired(values, values - 1, np.arange(40))
    assert (found.low, found.high) == (pytest.approx(1), pytest.approx(1))
    assert found.told_apart
    noise = np.random.default_rng(1).normal(0, 2, 400)
    found = paired(noise, np.zeros(400), np.arange(400))
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.15)


def test_what_a_small_set_cannot_show_is_said():
    # 20 queries, 5 of them won and none lost: p = 2/2⁵ > 5 %, so not even 25 points can be told from chance
    five = paired(np.r_[[100.0] * 5, [0.0] * 15], np.zeros(20), np.arange(20))
    assert (five.value, five.p_value, five.told_apart) == (25.0, 2 / 32, False)
    assert smallest_visible(five, percent=True) >= 100 * LEAST_CLUSTERS / 20 == 30.0
    six = paired(np.r_[[100.0] * 6, [0.0] * 14], np.zeros(20), np.arange(20))
    assert (six.p_value, six.told_apart) == (2 / 64, True)
    wide = paired(np.random.default_rng(0).normal(0, 5, 100), np.zeros(100), np.arange(100))
    assert smallest_visible(wide, percent=False) == pytest.approx(1.96 * 5 / 10, rel=0.2)


def test_reports_of_other_queries_are_refused():
    with pytest.raises(CollectionError, match=r"on the same queries; these have 3 and 4 queries"):
        compare(direction([1, 2, 3]), direction([1, 2, 3, 4]))
