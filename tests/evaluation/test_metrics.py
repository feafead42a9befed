"""Ranks and figures against tables worked by hand, slow loops, and three independent implementations."""

from __future__ import annotations

import math

import ir_measures
import numpy as np
import pytest
import torch
from ir_measures import AP, RR, R, Success, nDCG
from open_clip_train.train import get_clip_metrics

from densecap_search.evaluation import metrics
from densecap_search.evaluation.metrics import (
    MEANINGS,
    METRICS,
    Ranks,
    Relevance,
    mean_figures,
    rank_queries,
    statistic,
    summarise,
)


def vectors(count: int, dim: int = 24, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def ranks_of(scores: list[list[float]] | np.ndarray, right: list[list[int]]) -> Ranks:
    """Of a table of scores: queries are rows, and the gallery is the columns."""
    table = np.asarray(scores, np.float32)
    return rank_queries(table, np.eye(table.shape[1], dtype=np.float32), Relevance.of_columns(right))


def all_figures(ranks: Ranks) -> dict[str, float]:
    return mean_figures(ranks, METRICS)


# 4 pictures × 5 captions: captions 5i … 5i + 4 belong to picture i (CLIP_benchmark #7: one caption a picture gives
# other numbers). Beside each row: the rank of its picture, by pencil.
OWNER = np.repeat(np.arange(4), 5)
TABLE = np.array([
    [.90, .10, .20, .30],  # 1
    [.50, .60, .10, .20],  # 2
    [.80, .81, .10, .90],  # 3
    [.70, .10, .20, .30],  # 1
    [.11, .50, .30, .60],  # 4
    [.15, .55, .56, .31],  # 2
    [.21, .91, .12, .32],  # 1
    [.22, .92, .13, .33],  # 1
    [.61, .35, .14, .34],  # 2
    [.62, .19, .63, .64],  # 4
    [.01, .02, .71, .04],  # 1
    [.02, .03, .72, .05],  # 1
    [.03, .04, .73, .06],  # 1
    [.04, .05, .74, .07],  # 1
    [.05, .06, .75, .08],  # 1
    [.41, .42, .43, .40],  # 4
    [.51, .52, .17, .16],  # 4
    [.46, .47, .18, .45],  # 3
    [.48, .49, .28, .44],  # 3
    [.06, .07, .08, .09],  # 1
], dtype=np.float32)


def test_f1_four_pictures_with_five_captions_each_are_as_by_pencil_from_text_to_image():
    found = ranks_of(TABLE, [[owner] for owner in OWNER])
    assert found.rank.tolist() == [1, 2, 3, 1, 4, 2, 1, 1, 2, 4, 1, 1, 1, 1, 1, 4, 4, 3, 3, 1]
    figures = all_figures(found)
    assert figures["R@1"] == pytest.approx(100 * 10 / 20)
    assert figures["R@5"] == figures["R@10"] == figures["R@25"] == figures["R@50"] == 100.0
    assert figures["MRR"] == pytest.approx((10 + 3 / 2 + 3 / 3 + 4 / 4) / 20)
    assert figures["nDCG@10"] == pytest.approx((10 + 3 / math.log2(3) + 3 / 2 + 4 / math.log2(5)) / 20)
    assert figures["mAP@10"] == figures["MRR"]  # with one right answer they are the same
    assert figures["mean_rank"] == pytest.approx((10 + 3 * 2 + 3 * 3 + 4 * 4) / 20)
    assert figures["median_rank"] == 1.5


def test_f1_four_pictures_with_five_captions_each_are_as_by_pencil_from_image_to_text():
    found = ranks_of(TABLE.T, [list(range(5 * picture, 5 * picture + 5)) for picture in range(4)])
    # picture 0, its column sorted, + for its own: .90+ .80+ .70+ .62 .61 .51 .50+ .48 .46 .41 .22 .21 .15 .11+ …
    # picture 1: .92+ .91+ .81 .60 .55+ .52 .50 .49 .47 .42 .35+ .19+ …
    # picture 2: .75+ .74+ .73+ .72+ .71+
    # picture 3: .90 .64 .60 .45+ .44+ .40+ .34 .33 .32 .31 .30 .30 .20 .16+ .09+
    assert found.positions.tolist() == [
        [1, 2, 3, 7, 14], [1, 2, 5, 11, 12], [1, 2, 3, 4, 5], [4, 5, 6, 14, 15],
    ]
    figures = all_figures(found)
    assert figures["R@1"] == 75.0  # a picture's rank is that of its best caption
    assert figures["R@5"] == 100.0
    assert figures["MRR"] == pytest.approx((3 + 1 / 4) / 4)
    assert figures["mAP@10"] == pytest.approx(((3 + 4 / 7) / 5 + (2 + 3 / 5) / 5 + 1 + (1 / 4 + 2 / 5 + 3 / 6) / 5) / 4)
    gain = [0.0, *(1 / math.log2(1 + position) for position in range(1, 11))]
    ideal = sum(gain[1:6])
    assert figures["nDCG@10"] == pytest.approx(
        ((gain[1] + gain[2] + gain[3] + gain[7]) / ideal + (gain[1] + gain[2] + gain[5]) / ideal + 1
         + (gain[4] + gain[5] + gain[6]) / ideal) / 4)


def test_f3_right_answers_that_tie_with_each_other_cost_nothing():
    found = ranks_of([[.9, .9, .1], [.5, .5, .6]], [[0, 1], [0, 1]])
    assert found.positions.tolist() == [[1, 2], [2, 3]]
    assert found.ties.tolist() == [0, 0]


def test_ties_with_wrong_answers_count_half_at_every_right_answer_and_are_numbered():
    # .9+ .9 | .5+ .5 .5 .5 | : the first stands at 1.5, the second at 2 + 1 + 3/2
    found = ranks_of([[.9, .5, .9, .5, .5, .5]], [[0, 1]])
    assert found.positions.tolist() == [[1.5, 4.5]]
    assert found.ties.tolist() == [1]
    figures = all_figures(found)
    assert figures["R@1"] == 0.0
    assert figures["mAP@10"] == pytest.approx((1 / 1.5 + 2 / 4.5) / 2)
    assert figures["nDCG@10"] == pytest.approx((1 / math.log2(2.5) + 1 / math.log2(5.5)) / (1 + 1 / math.log2(3)))
    assert (found.first[0], found.right[0]) == (2, 0)  # where both share the best score, the wrong one comes first


def test_a_collapsed_model_gets_the_middle_rank():
    collapsed = np.ones((5, 1), np.float32)
    ranks = rank_queries(collapsed, collapsed, Relevance.of_labels(np.arange(5), np.arange(5)))
    assert ranks.rank.tolist() == [3.0] * 5
    assert ranks.ties.tolist() == [4] * 5
    assert mean_figures(ranks)["R@1"] == 0.0


@pytest.mark.parametrize("dim", [17, 64, 256, 512])
def test_equal_vectors_tie_wherever_they_stand(dim: int):
    # a matrix product may differ in the last bit between equal columns at different places
    for queries, count in ((1, 50), (2, 333), (5, 7), (33, 1000)):
        gallery = vectors(count, dim)
        gallery[-1] = gallery[count // 2] = gallery[0]
        found = rank_queries(vectors(queries, dim, seed=1), gallery, Relevance.of_columns([[0]] * queries))
        assert found.ties.tolist() == [2] * queries


def test_h8_k_beyond_the_gallery_is_the_whole_gallery():
    found = all_figures(ranks_of([[.1, .2, .3], [.3, .2, .1], [.2, .1, .3]], [[0], [1], [2]]))
    assert (found["R@1"], found["R@5"], found["R@10"], found["R@50"]) == (pytest.approx(100 / 3), 100.0, 100.0, 100.0)
    assert found["nDCG@10"] == pytest.approx((1 / 2 + 1 / math.log2(3) + 1) / 3)


def test_f4_every_figure_has_a_meaning_of_one_line():
    assert set(MEANINGS) == set(METRICS)
    assert all("\n" not in meaning and len(meaning) > 20 for meaning in MEANINGS.values())


def test_ranks_equal_a_slow_loop_and_open_clips_metrics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "BLOCK_SCORES", 500)  # several blocks
    image, text = vectors(60, seed=1), vectors(60, seed=2) + vectors(60, seed=1)
    diagonal = Relevance.of_labels(np.arange(60), np.arange(60))
    theirs = get_clip_metrics(torch.from_numpy(image), torch.from_numpy(text), torch.tensor(1.0))
    for name, queries, gallery in (("text_to_image", text, image), ("image_to_text", image, text)):
        found = rank_queries(queries, gallery, diagonal)
        for query in range(60):
            scores = [float(np.dot(queries[query], gallery[row])) for row in range(60)]
            assert found.rank[query] == 1 + sum(score > scores[query] for score in scores)
        for k in (1, 5, 10):
            assert mean_figures(found)[f"R@{k}"] == pytest.approx(100 * theirs[f"{name}_R@{k}"])
        assert all_figures(found)["mean_rank"] == pytest.approx(theirs[f"{name}_mean_rank"])
        assert math.floor(all_figures(found)["median_rank"]) == theirs[f"{name}_median_rank"]


def several_positives(seed: int) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Queries [40, D], a gallery [70, D], and 1 to 14 right answers a query, which lie nearer than the others."""
    generator = np.random.default_rng(seed)
    right = [sorted(generator.choice(70, generator.integers(1, 15), replace=False).tolist()) for _ in range(40)]
    gallery = vectors(70, seed=seed)
    queries = np.stack([vectors(1, seed=1000 + row)[0] + gallery[found].sum(axis=0) / 2 for row, found in enumerate(right)])
    return (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32), gallery, right


@pytest.mark.parametrize("seed", range(3))
def test_recall_equals_clip_benchmarks_formula(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "BLOCK_SCORES", 700)
    queries, gallery, right = several_positives(seed)
    found = rank_queries(queries, gallery, Relevance.of_columns(right))
    scores = torch.from_numpy(queries @ gallery.T)
    positive = torch.zeros(40, 70, dtype=torch.long)
    for row, columns in enumerate(right):
        positive[row, columns] = 1
    for k in (1, 5, 10, 25, 50):  # its recall_at_k: right ones among the first k, over right ones; then any at all
        among = torch.nn.functional.one_hot(torch.topk(scores, k, dim=1)[1], num_classes=70)
        recall = (among * positive[:, None]).sum(dim=(1, 2)) / positive.sum(dim=1)
        assert all_figures(found)[f"R@{k}"] == pytest.approx(100 * (recall > 0).float().mean().item())


@pytest.mark.parametrize("seed", range(3))
def test_figures_equal_those_of_trec_eval(seed: int):
    queries, gallery, right = several_positives(seed)
    figures = all_figures(rank_queries(queries, gallery, Relevance.of_columns(right)))
    relevant = {str(row): {str(column): 1 for column in columns} for row, columns in enumerate(right)}
    run = {str(row): {str(column): float(score) for column, score in enumerate(scores)}
           for row, scores in enumerate(queries @ gallery.T)}
    theirs = ir_measures.calc_aggregate([nDCG @ 10, AP @ 10, RR, *(Success @ k for k in (1, 5, 10))], relevant, run)
    assert figures["nDCG@10"] == pytest.approx(theirs[nDCG @ 10], abs=1e-9)
    assert figures["mAP@10"] == pytest.approx(theirs[AP @ 10], abs=1e-9)
    assert figures["MRR"] == pytest.approx(theirs[RR], abs=1e-9)
    for k in (1, 5, 10):
        assert figures[f"R@{k}"] == pytest.approx(100 * theirs[Success @ k], abs=1e-9)
    single = {str(row): {str(columns[0]): 1} for row, columns in enumerate(right)}
    one = all_figures(rank_queries(queries, gallery, Relevance.of_columns([columns[:1] for columns in right])))
    theirs = ir_measures.calc_aggregate([R @ 25, R @ 50], single, run)
    assert (one["R@25"], one["R@50"]) == (pytest.approx(100 * theirs[R @ 25]), pytest.approx(100 * theirs[R @ 50]))


def test_a_query_without_a_right_answer_is_never_found():
    found = ranks_of([[.9, .1], [.1, .9]], [[0], []])
    assert found.rank.tolist() == [1.0, np.inf]
    figures = all_figures(found)
    assert (figures["R@50"], figures["MRR"], figures["nDCG@10"], figures["mAP@10"]) == (50.0, 0.5, 0.5, 0.5)


def test_labels_and_columns_name_the_same_right_answers():
    found = Relevance.of_labels(np.array([7, 3, 9]), np.array([3, 7, 3, 5]))
    assert np.split(found.columns, found.starts[1:-1])[0].tolist() == [1]
    assert (found.columns.tolist(), found.counts.tolist()) == ([1, 0, 2], [1, 2, 0])


def test_intervals_hold_the_value_and_draw_the_captions_of_a_picture_together():
    rank = np.random.default_rng(0).integers(1, 4, 100).astype(float)
    single = summarise(Ranks.of(rank), np.arange(100), 100)
    assert set(single) == set(METRICS)
    assert single["R@1"].low < single["R@1"].value < single["R@1"].high
    grouped = summarise(Ranks.of(np.repeat(rank, 5)), np.repeat(np.arange(100), 5), 100)
    for name in METRICS:
        assert grouped[name].value == pytest.approx(single[name].value)
        assert (grouped[name].low, grouped[name].high) == (pytest.approx(single[name].low), pytest.approx(single[name].high))
    p = single["R@1"].value / 100
    assert single["R@1"].high - single["R@1"].low == pytest.approx(2 * 1.96 * 100 * (p * (1 - p) / 100) ** 0.5, rel=0.15)


def test_a_share_of_all_or_none_is_not_certain():
    all_right, none_right = (summarise(Ranks.of([rank] * 10), np.arange(10), 20, names=("R@5",))["R@5"] for rank in (1.0, 9.0))
    # if the share were 0.6915, ten of ten would come in 0.6915¹⁰ = 2.5 % of cases
    assert (all_right.value, all_right.low, all_right.high) == (100.0, pytest.approx(69.15, abs=0.01), 100.0)
    assert (none_right.value, none_right.low, none_right.high) == (0.0, 0.0, pytest.approx(30.85, abs=0.01))


@pytest.mark.parametrize(("rank", "name", "low", "high"), [
    (1.0, "MRR", 0.6915, 1.0), (1.0, "nDCG@10", 0.6915, 1.0), (1.0, "mAP@10", 0.6915, 1.0),
    (2.0, "MRR", 0.6915 / 2, 0.6915 / 2 + 0.3085),  # the queries that were not drawn have 0, or 1
    (1.0, "mean_rank", 1.0, 0.6915 + 0.3085 * 20),  # or the last rank of a gallery of 20
    (12.0, "nDCG@10", 0.0, 0.3085),
])
def test_ten_queries_that_are_all_alike_are_not_certain(rank: float, name: str, low: float, high: float):
    found = summarise(Ranks.of([rank] * 10), np.arange(10), 20, names=(name,))[name]
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-3))
    assert found.low <= found.value <= found.high


def test_pictures_that_are_alike_are_not_certain_even_where_their_captions_differ():
    found = summarise(Ranks.of([1.0, 4.0] * 10), np.repeat(np.arange(10), 2), 20, names=("R@1", "MRR"))
    assert (found["R@1"].low, found["R@1"].high) == (pytest.approx(34.6, abs=0.1), pytest.approx(65.4, abs=0.1))
    assert found["MRR"].low == pytest.approx(0.6915 * 0.625, abs=1e-4)


def test_the_median_of_like_ranks_is_certain_where_most_queries_must_be_like_them():
    six, five = (summarise(Ranks.of([3.0] * n), np.arange(n), 20, names=("median_rank",))["median_rank"] for n in (6, 5))
    assert (six.low, six.high) == (3.0, 3.0)  # below a share of 0.54 six alike come in less than 2.5 % of cases
    assert (five.low, five.high) == (1.0, 20.0)


@pytest.mark.parametrize(("queries", "p", "wrong"), [(11, 0.9, 2.0), (11, 0.9, 58.0), (11, 0.97, 7.0), (30, 0.98, 2.0)])
def test_95_percent_intervals_hold_the_true_mean_in_95_percent_of_cases(queries: int, p: float, wrong: float):
    """Exact: of queries that have rank 1 with probability p, and else another, all numbers of right ones."""
    names = ("R@1", "MRR", "nDCG@10", "mAP@10")
    held = dict.fromkeys(names, 0.0)
    for right in range(queries + 1):
        ranks = Ranks.of([1.0] * right + [wrong] * (queries - right))
        probability = math.comb(queries, right) * p**right * (1 - p) ** (queries - right)
        for name, figure in summarise(ranks, np.arange(queries), 58, names=names).items():
            good, bad = (metrics.METRICS[name](Ranks.of([rank])).item() for rank in (1.0, wrong))
            held[name] += probability * (figure.low <= p * good + (1 - p) * bad <= figure.high)
    assert min(held.values()) >= 0.95, held


def test_the_interval_of_the_median_is_that_of_a_plain_bootstrap():
    rank = np.random.default_rng(3).integers(1, 40, 31).astype(float)
    clusters = np.repeat(np.arange(11), [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1])
    found = summarise(Ranks.of(rank), clusters, 40, names=("median_rank",))["median_rank"]
    generator, medians = np.random.default_rng(0), []
    for _ in range(1000):
        drawn = generator.integers(11, size=11)
        medians.append(np.median(np.concatenate([rank[clusters == cluster] for cluster in drawn])))
    assert (found.low, found.high) == tuple(np.percentile(medians, [2.5, 97.5]))
    assert found.value == statistic("median_rank", rank) == np.median(rank)
