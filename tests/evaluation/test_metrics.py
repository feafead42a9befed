from __future__ import annotations

import numpy as np
import pytest
from open_clip_train.train import get_clip_metrics  # an independent implementation
from torch import from_numpy, tensor

from densecap_search.evaluation import metrics
from densecap_search.evaluation.metrics import Ranks, mean_figures, median_rank, rank_queries, summarise


def vectors(count: int, dim: int = 24, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_four_pictures_with_two_captions_each_worked_by_hand():
    # scores of pictures (columns) for each caption (rows); captions 2i and 2i+1 belong to picture i
    scores = np.array([
        [0.9, 0.1, 0.2, 0.3],   # rank 1
        [0.5, 0.6, 0.1, 0.2],   # rank 2
        [0.8, 0.7, 0.1, 0.9],   # rank 3
        [0.1, 0.9, 0.2, 0.3],   # rank 1
        [0.4, 0.5, 0.3, 0.6],   # rank 4
        [0.4, 0.5, 0.55, 0.6],  # rank 2
        [0.1, 0.2, 0.3, 0.4],   # rank 1
        [0.4, 0.3, 0.2, 0.1],   # rank 4
    ], dtype=np.float32)
    owner = np.repeat(np.arange(4), 2)
    text_to_image = rank_queries(scores, np.eye(4, dtype=np.float32), owner, np.arange(4))
    assert text_to_image.rank.tolist() == [1, 2, 3, 1, 4, 2, 1, 4]
    figures = mean_figures(text_to_image)
    assert figures["R@1"] == pytest.approx(37.5)
    assert figures["R@5"] == figures["R@10"] == 100.0
    assert figures["MRR"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 + 1 / 4 + 1 / 2 + 1 + 1 / 4) / 8)
    assert median_rank(text_to_image) == 2.0
    # for pictures the best of their two captions counts: columns sorted, wrong captions above it
    image_to_text = rank_queries(np.eye(4, dtype=np.float32), scores, np.arange(4), owner)
    assert image_to_text.rank.tolist() == [1, 1, 1, 4]


def test_ties_count_half_and_are_numbered():
    collapsed = np.ones((5, 1), np.float32)
    ranks = rank_queries(collapsed, collapsed, np.arange(5), np.arange(5))
    assert ranks.rank.tolist() == [3.0] * 5
    assert ranks.ties.tolist() == [4] * 5
    assert mean_figures(ranks)["R@1"] == 0.0


def test_right_answers_that_tie_with_each_other_cost_nothing():
    query, gallery = np.array([[1.0, 0.0]], np.float32), np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    ranks = rank_queries(query, gallery, np.array([0]), np.array([0, 0, 1]))
    assert (ranks.rank[0], ranks.ties[0]) == (1.0, 0)


def test_ranks_equal_a_slow_loop_and_open_clips_metrics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "BLOCK_SCORES", 500)  # several blocks
    image, text = vectors(60, seed=1), vectors(60, seed=2) + vectors(60, seed=1)
    found = rank_queries(text, image, np.arange(60), np.arange(60))
    for query in range(60):
        scores = [float(np.dot(text[query], image[row])) for row in range(60)]
        assert found.rank[query] == 1 + sum(score > scores[query] for score in scores)
    theirs = get_clip_metrics(from_numpy(image), from_numpy(text), tensor(1.0))
    for k in (1, 5, 10):
        assert mean_figures(found)[f"R@{k}"] == pytest.approx(100 * theirs[f"text_to_image_R@{k}"])
    assert np.mean(found.rank) == pytest.approx(theirs["text_to_image_mean_rank"])


def test_intervals_hold_the_value_and_draw_the_captions_of_a_picture_together():
    generator = np.random.default_rng(0)
    one = Ranks(generator.integers(1, 4, 100).astype(float), np.zeros(100, int))
    single = summarise(one, np.arange(100))["R@1"]
    assert single.low < single.value < single.high
    copies = Ranks(np.repeat(one.rank, 5), np.zeros(500, int))
    grouped = summarise(copies, np.repeat(np.arange(100), 5))["R@1"]
    assert grouped.value == pytest.approx(single.value)
    assert (grouped.low, grouped.high) == (pytest.approx(single.low), pytest.approx(single.high))
    p = single.value / 100
    assert single.high - single.low == pytest.approx(2 * 1.96 * 100 * (p * (1 - p) / 100) ** 0.5, rel=0.15)
