"""Ranks → figures. numpy only; METRICS is the one place for the next metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from densecap_search.evaluation.intervals import (
    all_or_none_bound,
    bootstrap_means,
    bootstrap_medians,
    constant_interval,
    interval,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
BLOCK_SCORES = 1 << 24  # scores in memory at once: 64 MiB of float32
DEPTH = 10  # the cut of nDCG and mAP: a right answer after the tenth cannot stand among the first ten


@dataclass(frozen=True)
class Relevance:
    """Which items of a gallery are right answers to which query: of query q, columns[starts[q]:starts[q + 1]]."""

    starts: Ints  # [Q + 1]
    columns: Ints

    @classmethod
    def of_labels(cls, query_labels: Ints, gallery_labels: Ints) -> Relevance:
        """Right if the labels are equal."""
        order = np.argsort(gallery_labels, kind="stable")
        sorted_labels = gallery_labels[order]
        low = np.searchsorted(sorted_labels, query_labels, side="left")
        high = np.searchsorted(sorted_labels, query_labels, side="right")
        return cls.of_columns([order[a:b] for a, b in zip(low, high, strict=True)])

    @classmethod
    def of_columns(cls, columns: Sequence[Ints] | Sequence[Sequence[int]]) -> Relevance:
        """From the right answers of each query."""
        starts = np.zeros(len(columns) + 1, np.int64)
        starts[1:] = np.cumsum([len(rows_of) for rows_of in columns])
        flat = [np.asarray(rows_of, np.int64) for rows_of in columns]
        return cls(starts, np.concatenate([np.empty(0, np.int64), *flat]))

    @property
    def counts(self) -> Ints:
        """Right answers of each query [Q]."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Ranks:
    """Where the right answers of Q queries stand.

    positions [Q, J]: of the J best right answers, best first, inf where there are fewer. The position of the j-th is
    j + the wrong answers that score higher + half of the wrong ones that score the same.
    first: the column that comes first in the list (a wrong one, where it ties with the right one); right: the best
    right answer's column. A query without a right answer has rank inf and right -1.
    """

    positions: Floats
    positives: Ints  # right answers, all of them
    ties: Ints  # wrong answers that score the same as the best right one
    first: Ints
    first_score: Floats
    right: Ints
    right_score: Floats

    @classmethod
    def of(cls, rank: Sequence[float] | Floats) -> Ranks:
        """Ranks of queries with one right answer, of which nothing else is known."""
        ranks = np.asarray(rank, np.float64)
        one, none, unknown = (np.full(len(ranks), value) for value in (1, -1, np.nan))
        return cls(ranks[:, None], one, one - 1, none, unknown, none, unknown)

    @property
    def rank(self) -> Floats:
        """From 1: the position of the best right answer [Q]."""
        return self.positions[:, 0]

    def take(self, queries: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Ranks:
        """Of some of the queries."""
        return Ranks(*(getattr(self, each.name)[queries] for each in fields(self)))


@dataclass(frozen=True)
class Figure:
    """A figure over queries with its 95 % interval."""

    value: float
    low: float
    high: float


def _recall_at(k: int) -> Callable[[Ranks], Floats]:
    return lambda ranks: np.where(ranks.rank <= k, 100.0, 0.0)


def _ndcg(ranks: Ranks) -> Floats:
    """DCG of the first ten with gain 1 and discount log2(1 + position), over that of the best possible order."""
    gain = np.where(ranks.positions <= DEPTH, 1 / np.log2(1 + ranks.positions), 0.0).sum(axis=1)
    ideal = np.concatenate([[0.0], np.cumsum(1 / np.log2(1 + np.arange(1, DEPTH + 1)))])
    share: Floats = gain / ideal[np.clip(ranks.positives, 1, DEPTH)]
    return share


def _average_precision(ranks: Ranks) -> Floats:
    """Sum of j / position over the right answers among the first ten, over the number of all right answers."""
    precision = np.arange(1, ranks.positions.shape[1] + 1) / ranks.positions
    precisions = np.where(ranks.positions <= DEPTH, precision, 0.0).sum(axis=1)
    mean: Floats = precisions / np.maximum(ranks.positives, 1)
    return mean


# name → what each query adds [Q]; a figure is the mean of these, or their median where MEDIANS says so
METRICS: Mapping[str, Callable[[Ranks], Floats]] = {
    "R@1": _recall_at(1),
    "R@5": _recall_at(5),
    "R@10": _recall_at(10),
    "R@25": _recall_at(25),
    "R@50": _recall_at(50),
    "MRR": lambda ranks: 1.0 / ranks.rank,
    "nDCG@10": _ndcg,
    "mAP@10": _average_precision,
    "mean_rank": lambda ranks: ranks.rank,
    "median_rank": lambda ranks: ranks.rank,
}
MEDIANS = frozenset({"median_rank"})
PERCENT = frozenset(name for name in METRICS if name.startswith("R@"))
LESS_IS_BETTER = frozenset({"mean_rank", "median_rank"})
QUICK = ("R@1", "R@5", "R@10", "MRR")  # what training measures after every epoch; they need the best right answer only

MEANINGS: Mapping[str, str] = {
    "R@1": "share of queries, in percent, for which a right answer comes first",
    "R@5": "share of queries, in percent, with a right answer among the first 5 (all of the gallery, if it is smaller)",
    "R@10": "share of queries, in percent, with a right answer among the first 10",
    "R@25": "share of queries, in percent, with a right answer among the first 25",
    "R@50": "share of queries, in percent, with a right answer among the first 50",
    "MRR": "mean of 1/rank of the best right answer: 1 if it always comes first",
    "nDCG@10": "how near the order of the first 10 is to the best possible one, all right answers counted: 1 if none "
               "is better placed; gain 1, discount log2(1 + position)",
    "mAP@10": "mean over queries of the precision at each right answer among the first 10, divided by the number of "
              "all right answers (as trec_eval's map_cut_10)",
    "mean_rank": "mean rank of the best right answer; a few very bad queries decide it",
    "median_rank": "half of the queries have their best right answer at this rank or before",
}


def rank_queries(queries: Scores, gallery: Scores, relevance: Relevance, *, depth: int = DEPTH,
                 query_counts: Ints | None = None, gallery_counts: Ints | None = None) -> Ranks:
    """Positions of the right answers by cosine.

    queries [Q, D], gallery [N, D]: unit rows. depth: for how many right answers of a query the position is found.
    query_counts [Q], gallery_counts [N]: rows of each query, of each item, where they have several: segments of a
    caption, of which the best decides. Scores are float32, in blocks of bounded memory; items with the same vector
    have the same score.
    """
    queries, gallery = np.asarray(queries, np.float32), np.asarray(gallery, np.float32)
    kinds, kind_of = _distinct(gallery)
    depth = max(1, min(depth, int(relevance.counts.max(initial=1))))
    step = max(1, BLOCK_SCORES // max(1, len(gallery)))
    counts = np.ones(len(queries), np.int64) if query_counts is None else query_counts
    begins = np.concatenate([[0], np.cumsum(counts)])
    parts = []
    for start in range(0, max(1, len(counts)), step):
        own = counts[start:start + step]
        scores = queries[begins[start]:begins[start] + own.sum()] @ kinds.T
        scores = scores if kind_of is None else scores[:, kind_of]
        scores = best_of_rows(scores, own, axis=0)
        if gallery_counts is not None:
            scores = best_of_rows(scores, gallery_counts, axis=1)
        bounds = relevance.starts[start:start + step + 1]
        parts.append(_rank_block(scores, np.diff(bounds), relevance.columns[bounds[0]:bounds[-1]], depth))
    return Ranks(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Ranks)))


def rank_scores(scores: Scores, relevance: Relevance, *, depth: int = DEPTH) -> Ranks:
    """Positions of the right answers by given scores [Q, N], higher is better."""
    depth = max(1, min(depth, int(relevance.counts.max(initial=1))))
    return _rank_block(np.asarray(scores, np.float32), relevance.counts, relevance.columns, depth)


def best_of_rows(scores: Scores, counts: Ints, axis: int) -> Scores:
    """Along one axis the greatest of each ``counts`` that follow each other."""
    if scores.shape[axis] == len(counts):
        return scores
    best: Scores = np.maximum.reduceat(scores, np.concatenate([[0], np.cumsum(counts)[:-1]]), axis=axis)
    return best


def _rank_block(scores: Scores, counts: Ints, columns: Ints, depth: int) -> Ranks:
    """scores [b, N]; counts [b] right answers of each row, whose columns follow each other in ``columns``."""
    own = np.repeat(np.arange(len(scores)), counts)
    right_scores = scores[own, columns]
    order = np.lexsort((-right_scores, own))
    columns, right_scores = columns[order], right_scores[order]
    place = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)  # 0: the row's best right answer
    positions = np.full((len(scores), depth), np.inf)
    ties = np.zeros(len(scores), np.int64)
    right, right_score = np.full(len(scores), -1), np.full(len(scores), np.nan)
    for number in range(min(depth, int(counts.max(initial=0)))):
        rows, score = own[place == number], right_scores[place == number]
        some = scores if len(rows) == len(scores) else scores[rows]
        right_above, right_level = _right_ones(own, right_scores, rows, score, len(scores))
        above = np.count_nonzero(some > score[:, None], axis=1)
        level = np.count_nonzero(some >= score[:, None], axis=1) - above - right_level
        positions[rows, number] = 1 + number + above - right_above + level / 2
        if number == 0:
            ties[rows], right[rows], right_score[rows] = level, columns[place == 0], score
    first = _first_column(scores, own, columns, right, ties)
    first_score = scores[np.arange(len(scores)), first].astype(np.float64)
    return Ranks(positions, counts, ties, first, first_score, right, right_score)


def _right_ones(own: Ints, right_scores: Scores, rows: Ints, score: Scores, height: int) -> tuple[Ints, Ints]:
    """How many right answers of each of ``rows`` score more than ``score``, and how many the same."""
    limit = np.full(height, np.inf, np.float32)
    limit[rows] = score
    above = np.bincount(own[right_scores > limit[own]], minlength=height)[rows]
    return above, np.bincount(own[right_scores == limit[own]], minlength=height)[rows]


def _first_column(scores: Scores, own: Ints, columns: Ints, right: Ints, ties: Ints) -> Ints:
    """The column that comes first; where a right and a wrong one share the best score, the wrong one."""
    first: Ints = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), first]
    for row in np.flatnonzero((ties > 0) & (scores[np.arange(len(scores)), right] == best)):
        wrong = scores[row].copy()
        wrong[columns[own == row]] = -np.inf
        first[row] = wrong.argmax()
    return first


def _distinct(vectors: Scores) -> tuple[Scores, Ints | None]:
    """The distinct rows, and for each row which of them it is; None where no two are the same.

    A matrix product may differ in the last bit between equal columns at different places.
    """
    seen: dict[bytes, int] = {}
    kind_of = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in vectors], np.int64)
    if len(seen) == len(vectors):
        return vectors, None
    _, firsts = np.unique(kind_of, return_index=True)
    return vectors[firsts], kind_of


def summarise(ranks: Ranks, clusters: Ints, gallery: int, *, names: Sequence[str] = tuple(METRICS), seed: int = 0
              ) -> dict[str, Figure]:
    """Metrics with bootstrap intervals; queries of one cluster (a picture) are drawn together.

    gallery: how many items were ranked. Where all clusters are alike there is no spread to draw from: there the
    interval is the widest that so many clusters leave possible.
    """
    values = np.stack([METRICS[name](ranks) for name in names], axis=1)
    drawn = bootstrap_means(values, clusters, seed=seed)
    for column, name in enumerate(names):
        if name in MEDIANS:
            drawn[:, column] = bootstrap_medians(values[:, column], clusters, seed=seed)
    count = len(np.unique(clusters))
    figures = {}
    for column, name in enumerate(names):
        figure = Figure(statistic(name, values[:, column]), *interval(drawn[:, column]))
        spread = values[:, column] if name in MEDIANS else drawn[:, column]  # the median of unlike ranks may be certain
        figures[name] = _widened(name, figure, gallery, count) if np.allclose(spread, spread[0], atol=0) else figure
    return figures


def _widened(name: str, figure: Figure, gallery: int, clusters: int) -> Figure:
    """The figure of clusters that are all alike, with an interval that allows for others that were not drawn."""
    if not np.isfinite(figure.value):
        return figure
    if name in MEDIANS and all_or_none_bound(clusters) >= 0.5:
        return figure  # more than half of all queries are like these, and that decides a median
    least, most = (1.0, float(gallery)) if name in LESS_IS_BETTER else (0.0, 100.0 if name in PERCENT else 1.0)
    if name in MEDIANS:
        return Figure(figure.value, least, most)
    return Figure(figure.value, *constant_interval(figure.value, least, most, clusters))


def statistic(name: str, values: Floats) -> float:
    """One figure from what each query adds: the mean, or the median where MEDIANS says so."""
    return float(np.median(values) if name in MEDIANS else values.mean())


def mean_figures(ranks: Ranks, names: Iterable[str] = QUICK) -> dict[str, float]:
    """Metrics without intervals."""
    return {name: statistic(name, METRICS[name](ranks)) for name in names}
