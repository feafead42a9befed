"""Ranks → figures. numpy only; METRICS is the one place for the next metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BLOCK_SCORES = 1 << 24  # scores in memory at once: 64 MiB of float32
RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Ranks:
    """For each query: the rank (from 1) of its best positive, and how many negatives tie with it."""

    rank: Floats
    ties: Ints


@dataclass(frozen=True)
class Figure:
    """A mean over queries with its 95 % interval."""

    value: float
    low: float
    high: float


def _recall_at(k: int) -> Callable[[Floats], Floats]:
    return lambda rank: np.where(rank <= k, 100.0, 0.0)


# name → what one query adds to the mean, from its rank
METRICS: Mapping[str, Callable[[Floats], Floats]] = {
    "R@1": _recall_at(1),
    "R@5": _recall_at(5),
    "R@10": _recall_at(10),
    "MRR": lambda rank: 1.0 / rank,
}


def rank_queries(queries: npt.NDArray[np.float32], gallery: npt.NDArray[np.float32],
                 query_labels: Ints, gallery_labels: Ints, *, query_counts: Ints | None = None,
                 gallery_counts: Ints | None = None) -> Ranks:
    """Ranks of the right answers by cosine.

    queries [Q, D], gallery [N, D]: unit rows. An item of the gallery is right for a query if their labels are equal.
    rank = 1 + wrong items that score higher than the best right one + half of the wrong ones that score the same,
    in float32. Scores are computed in blocks of bounded memory.
    query_counts, gallery_counts: rows of each query, of each item, where it has several and the best one decides.
    """
    queries, gallery = np.asarray(queries, np.float32), np.asarray(gallery, np.float32)
    rank = np.empty(len(query_labels), np.float64)
    ties = np.empty(len(query_labels), np.int64)
    step = max(1, BLOCK_SCORES // max(1, len(gallery)))
    for start in range(0, len(query_labels), step):
        block = slice(start, start + step)
        scores = best_scores(queries, gallery, query_counts, gallery_counts, block)
        right = query_labels[block, None] == gallery_labels[None, :]
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        ties[block] = ((scores == best) & ~right).sum(axis=1)
        rank[block] = 1 + ((scores > best) & ~right).sum(axis=1) + ties[block] / 2
    return Ranks(rank, ties)


def best_scores(queries: npt.NDArray[np.float32], gallery: npt.NDArray[np.float32], query_counts: Ints | None,
                gallery_counts: Ints | None, block: slice) -> npt.NDArray[np.float32]:
    """Cosines of a block of queries with all items [b, N]; where either has several rows, that of the best two."""
    scores: npt.NDArray[np.float32]
    if query_counts is None or len(queries) == len(query_counts):
        scores = queries[block] @ gallery.T
    else:
        bounds = np.concatenate([[0], np.cumsum(query_counts)])
        first, last = bounds[block.start], bounds[min(block.stop, len(query_counts))]
        scores = np.maximum.reduceat(queries[first:last] @ gallery.T, bounds[:-1][block] - first, axis=0)
    if gallery_counts is None or len(gallery) == len(gallery_counts):
        return scores
    best: npt.NDArray[np.float32] = np.maximum.reduceat(
        scores, np.concatenate([[0], np.cumsum(gallery_counts)[:-1]]), axis=1)
    return best


def summarise(ranks: Ranks, clusters: Ints, *, seed: int = 0) -> dict[str, Figure]:
    """Every metric with a bootstrap interval; queries of one cluster (a picture) are drawn together."""
    return {name: _bootstrap(contribution(ranks.rank), clusters, seed) for name, contribution in METRICS.items()}


def mean_figures(ranks: Ranks) -> dict[str, float]:
    """Every metric without intervals."""
    return {name: float(contribution(ranks.rank).mean()) for name, contribution in METRICS.items()}


def median_rank(ranks: Ranks) -> float:
    """The median of the ranks."""
    return float(np.median(ranks.rank))


def _bootstrap(values: Floats, clusters: Ints, seed: int) -> Figure:
    _, member = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(member, values), np.bincount(member)
    generator = np.random.default_rng(seed)
    count = len(sums)
    means = []
    for _ in range(RESAMPLES):
        drawn = generator.integers(count, size=count)
        means.append(sums[drawn].sum() / sizes[drawn].sum())
    low, high = np.percentile(means, INTERVAL)
    return Figure(float(values.mean()), float(low), float(high))
