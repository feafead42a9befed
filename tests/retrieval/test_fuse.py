from __future__ import annotations

import numpy as np
import pytest

from densecap_search.retrieval.caption_space import SHRINK, CaptionSpace
from densecap_search.retrieval.fuse import RANKINGS, Spread, choose_weights, combine, cross_fitted, fit, recall


def signals_of(queries: int, pictures: int, strength: dict[str, float], seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Noise of spread 1 and, at each query's picture, so much more."""
    generator = np.random.default_rng(seed)
    own = np.arange(queries) % pictures
    found = {}
    for name, above in strength.items():
        found[name] = generator.normal(size=(queries, pictures)).astype(np.float32)
        found[name][np.arange(queries), own] += above
    return found, own


def test_standard_scores_worked_by_hand():
    vectors = np.array([[1, 0], [3, 0], [2, 2], [2, -2]], np.float32)
    spread = Spread.of(vectors)  # of the first column: 1 3 2 2, mean 2, spread √½; of the second: mean 0, spread √2
    assert spread.standard(np.array([1, 3, 2, 2], np.float32), np.array([1, 0], np.float32)) == pytest.approx(
        [-2**0.5, 2**0.5, 0, 0], abs=1e-6)
    query = np.array([1, 1], np.float32)
    scores = vectors @ query
    assert spread.standard(scores, query) == pytest.approx((scores - scores.mean()) / scores.std(), abs=1e-6)
    assert not Spread.of(vectors[:1]).standard(np.array([1], np.float32), query).any()


def test_the_sum_is_the_weighted_mean_of_standard_scores():
    signals = {"image": np.array([2.0, 0.0]), "text": np.array([0.0, 4.0]), "words": np.array([1.0, 1.0])}
    assert combine(signals, {"image": 1, "text": 2, "words": 1}) == pytest.approx([0.75, 2.25])


def test_a_ranking_that_tells_nothing_gets_no_weight_and_a_good_one_most():
    signals, own = signals_of(300, 100, {"image": 0, "text": 3, "words": 1.5})
    weights = dict(zip(RANKINGS, fit(np.stack([signals[name] for name in RANKINGS]), own), strict=True))
    assert sum(weights.values()) == pytest.approx(3)
    assert weights["image"] < 0.15 < weights["words"] < weights["text"]
    assert weights["text"] / weights["words"] == pytest.approx(2, rel=0.25)  # the likelihood's answer for equal noise


def test_weights_are_those_of_a_slow_search():
    signals, own = signals_of(40, 12, {"image": 0.5, "text": 2, "words": 1})
    stacked = np.stack([signals[name] for name in RANKINGS])

    def loss(values: np.ndarray) -> float:
        scores = np.tensordot(values, stacked, axes=1)
        likely = scores[np.arange(40), own] - np.log(np.exp(scores).sum(axis=1))
        return float(-likely.sum() + 2.0 * ((values - values.mean()) ** 2).sum())

    grid = np.arange(0, 3.01, 0.25)
    best = min(((a, b, c) for a in grid for b in grid for c in grid), key=lambda values: loss(np.array(values)))
    assert fit(stacked, own) == pytest.approx(np.array(best) / np.mean(best), abs=0.3)


def test_few_queries_leave_the_weights_together():
    signals, own = signals_of(2, 100, {"image": 0, "text": 3, "words": 1.5})
    few = fit(np.stack([signals[name] for name in RANKINGS]), own)
    signals, own = signals_of(300, 100, {"image": 0, "text": 3, "words": 1.5})
    many = fit(np.stack([signals[name] for name in RANKINGS]), own)
    assert np.ptp(few) < np.ptp(many)
    assert fit(np.empty((3, 0, 5), np.float32), np.empty(0, np.int64)).tolist() == [1, 1, 1]


def test_no_query_is_scored_by_weights_that_were_learned_from_it():
    signals, own = signals_of(60, 60, {"image": 0.5, "text": 2, "words": 1})
    stacked = np.stack([signals[name] for name in RANKINGS])
    before = cross_fitted(stacked, own)
    wrong = own.copy()
    wrong[7] = (own[7] + 1) % 60  # another answer to query 7, in the fold of picture 7
    wrong_first = stacked.copy()
    wrong_first[:, 7] += 3 * np.random.default_rng(1).normal(size=(3, 60))
    after = cross_fitted(wrong_first, own)
    ratio = np.linalg.lstsq(wrong_first[:, 7].T, after[7], rcond=None)[0]  # the weights that query 7 was scored by
    assert ratio == pytest.approx(np.linalg.lstsq(stacked[:, 7].T, before[7], rcond=None)[0], abs=1e-4)


def test_auto_is_one_ranking_alone_only_where_it_beats_the_sum():
    signals, own = signals_of(200, 50, {"image": 1, "text": 1, "words": 1})
    chosen = choose_weights(signals, own, "made up")
    assert (chosen.best, chosen.queries, chosen.gallery) == ("fused", 200, 50)
    assert chosen.figures["fused"]["R@1"] > max(chosen.figures[name]["R@1"] for name in RANKINGS)
    broken = {**signals, "words": signals["words"].copy()}
    broken["words"][np.arange(200), own] = 20  # certain of every answer, but
    broken["image"] = -50 * broken["words"]  # this one is certain of the contrary
    assert choose_weights(broken, own, "made up").best in ("fused", "words")
    few = choose_weights(*signals_of(10, 50, {"image": 1, "text": 1, "words": 1}), "made up")
    assert set(few.values.values()) == {1.0}
    assert "only 10 pictures" in str(few)


def test_recall_counts_half_of_the_ties():
    scores = np.zeros((2, 3), np.float32)
    assert recall(scores, np.array([0, 1])) == {"R@1": 0.0, "R@10": 100.0}  # both have rank 2
    assert recall(np.eye(2, dtype=np.float32), np.array([0, 1])) == {"R@1": 100.0, "R@10": 100.0}


def test_a_direction_in_which_captions_differ_more_counts_less():
    rows = np.array([[1, 0], [-1, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
    space = CaptionSpace.of(7 * rows)  # mean 0; variance 4/6 and 2/6, which is 4/3 and 2/3 of their mean
    assert space.mean == pytest.approx([0, 0])
    assert space.turn == pytest.approx(np.diag([(4 / 3 + SHRINK) ** -0.5, (2 / 3 + SHRINK) ** -0.5]), abs=1e-6)
    assert space.vectors(np.array([[3, 3]], np.float32))[0] == pytest.approx(
        np.array([(2 / 3 + SHRINK) ** 0.5, (4 / 3 + SHRINK) ** 0.5]) / (2 + 2 * SHRINK) ** 0.5, abs=1e-6)


def test_what_all_captions_share_is_taken_off():
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32) + 3
    assert np.linalg.norm(CaptionSpace.of(rows).vectors(rows).mean(axis=0)) < 0.1 < np.linalg.norm(rows.mean(axis=0))
    assert np.isfinite(CaptionSpace.of(rows[:1]).vectors(rows[:1])).all()
