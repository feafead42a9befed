"""Whether captions fit their pictures, and how hard batches of them are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from densecap_search.inspection.findings import of_pairs
from densecap_search.inspection.pair_fit import PairFit, batch_losses, look_at_pairs, score_pairs, told_apart


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_a_pair_is_judged_by_its_cosine_less_the_mean_of_its_neighbours():
    pictures = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    captions = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)
    cosines, scores, random = score_pairs(pictures, captions, np.arange(3), np.arange(3))
    assert cosines == pytest.approx([1, 0.8, 0.8])
    # of picture 0 the other captions have 0.6 and 0, of caption 0 the other pictures 0 and 0.6
    assert scores[0] == pytest.approx(1 - (0.3 + 0.3) / 2)
    # of picture 1: captions 0 and 2 have 0 and 1; of caption 1: pictures 0 and 2 have 0.6 and 1
    assert scores[1] == pytest.approx(0.8 - (0.5 + 0.8) / 2)
    assert len(random)


def test_pairs_of_one_group_are_no_neighbours_and_no_random_pairs():
    pictures = unit(np.array([[1.0, 0], [1, 0], [0, 1]]))
    _, scores, random = score_pairs(pictures, pictures, np.arange(3), np.array([0, 0, 2]))
    assert scores[:2] == pytest.approx([1, 1])  # the only neighbour is at a right angle
    assert random.max() == pytest.approx(0)


def test_swapped_captions_are_the_worst_and_a_model_that_knows_nothing_says_so():
    generator = np.random.default_rng(0)
    pictures = unit(generator.normal(size=(200, 32)))
    captions = unit(pictures + 0.1 * generator.normal(size=(200, 32)))
    captions[[3, 4, 5]] = captions[[4, 5, 3]]
    _, scores, random = score_pairs(pictures, captions, np.arange(200), np.arange(200))
    assert set(np.argsort(scores)[:3]) == {3, 4, 5}
    assert told_apart(scores, random) > 0.95
    _, scores, random = score_pairs(pictures, unit(generator.normal(size=(200, 32))), np.arange(200), np.arange(200))
    assert told_apart(scores, random) == pytest.approx(0.5, abs=0.1)


def test_told_apart_counts_pairs_above_and_half_of_the_ties():
    assert told_apart(np.array([1.0, 3.0]), np.array([0.0, 1.0, 2.0, 4.0])) == pytest.approx((1.5 + 3) / 8)
    assert math.isnan(told_apart(np.array([1.0]), np.array([])))


def test_the_loss_of_a_batch_is_info_nce_in_both_directions():
    pictures = np.array([[1, 0], [0, 1]], np.float32)
    captions = np.array([[1, 0], [1, 0]], np.float32)
    losses = batch_losses(pictures, captions, np.arange(2), 2, 3.0)
    # rows: s·(1, 1) and s·(0, 0), so ln 2 each; columns: s·(1, 0) twice, so ln(1 + e⁻³) and ln(1 + e³)
    expected = (math.log(2) + (math.log1p(math.exp(-3)) + math.log1p(math.exp(3))) / 2) / 2
    assert losses == pytest.approx(expected)


def test_pictures_and_captions_of_a_collection_are_judged_and_the_worst_come_first(collection, tiny):
    found = look_at_pairs(collection, tiny, model="tiny", batch_size=8, logit_scale=10.0)
    assert (found.pairs, found.batch_size, len(found.worst)) == (24, 8, 24)
    assert [pair.score for pair in found.worst] == sorted(pair.score for pair in found.worst)
    assert all(collection.records[pair.row].image_id == pair.image_id for pair in found.worst)
    assert not found.can_tell  # random weights
    (finding,) = of_pairs(collection.captioned, found)
    assert "tiny cannot tell here" in finding.what
    assert finding.do == ""


def test_what_does_not_fit_is_a_finding_and_the_order_is_another(collection):
    from densecap_search.inspection.pair_fit import Pair

    worst = tuple(Pair(row, collection.records[row].image_id, "a boat", 0.1, -1.0) for row in range(20))
    sure = PairFit("m", 24, 0.99, 2, worst, 8, 10.0, 0.0, 1.0)
    wrong, order = of_pairs(collection.captioned, sure)
    assert (wrong.kind, wrong.count, len(wrong.examples)) == ("pairs that do not fit", 2, 2)
    assert wrong.what == "2 captions fit their pictures no better than another picture's would"
    assert (order.do, len(order.examples), order.examples[-1].note) == ("", 20, f"cosine 0.10, {worst[19].image_id}: a boat")
