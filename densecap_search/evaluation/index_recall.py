"""The same queries through an index's own search: what its type costs against exact search of the same vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.collection.splits import picture_numbers
from densecap_search.errors import IndexMismatch
from densecap_search.evaluation.metrics import METRICS, Floats, Ranks, Relevance, best_of_rows, rank_queries
from densecap_search.evaluation.pairs import Pairs
from densecap_search.model.segments import best_of
from densecap_search.retrieval.index import ImageIndex

RECALLS = (1, 5, 10, 25, 50)
NEIGHBOURS = 10


@dataclass(frozen=True)
class IndexRecall:
    """Text → image over the pictures of an index.

    exact, found: R@K by exact search of the index's vectors and by the index's own; neighbours: share, in percent,
    of the exact first ten that the index returns among its first ten. missing: captions whose picture the index lacks.
    """

    index: str
    index_type: str
    queries: int
    gallery: int
    missing: int
    exact: dict[str, float]
    found: dict[str, float]
    neighbours: float

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return asdict(self)


def measure_index(index: ImageIndex, pairs: Pairs, name: str, fingerprint: str) -> IndexRecall:
    """Search the captions of pairs in an index that the same encoder made.

    A picture of pairs is found where the index has the same content.
    """
    index.check_encoder(name, fingerprint)
    relevance = _relevance(index, pairs)
    if not relevance.counts.any():
        raise IndexMismatch(f"{index.folder} holds none of the pictures that are evaluated; build it from the same "
                            "collection with `densecap index`")
    rows, counts = pairs.query_segments
    exact = rank_queries(rows, index.vectors(), relevance, depth=1, query_counts=counts)
    found_pictures = index.search(rows, max(RECALLS))
    best = [best_of(found_pictures[end - count:end], max(RECALLS))
            for count, end in zip(counts, np.cumsum(counts), strict=True)]
    hits = [np.searchsorted(index.numbers, [number for number, _ in own]).tolist() for own in best]  # rows of vectors()
    right = [set(relevance.columns[a:b].tolist()) for a, b in zip(relevance.starts, relevance.starts[1:], strict=False)]
    places = np.array([next((place for place, row in enumerate(rows, start=1) if row in wanted), np.inf)
                       for rows, wanted in zip(hits, right, strict=True)])
    return IndexRecall(
        str(index.folder), index.manifest.index_type, len(hits), len(index),
        int((relevance.counts == 0).sum()), _recalls(exact.rank), _recalls(places),
        _shared(hits, _exact_rows(pairs, index)),
    )


def _recalls(rank: Floats) -> dict[str, float]:
    return {f"R@{k}": float(METRICS[f"R@{k}"](Ranks.of(rank)).mean()) for k in RECALLS}


def _relevance(index: ImageIndex, pairs: Pairs) -> Relevance:
    number_of: dict[str, set[int]] = {}  # content → numbers of the same picture
    for record, number in zip(pairs.records, picture_numbers(pairs.records), strict=True):
        number_of.setdefault(record.hash, set()).add(number)
    rows_of: dict[int, list[int]] = {}
    for place, row in enumerate(index.rows):
        for number in number_of.get(row.hash, ()):
            rows_of.setdefault(number, []).append(place)
    wanted: dict[int, set[int]] = {}  # caption number → picture numbers
    for caption, picture in zip(pairs.caption.tolist(), pairs.picture[pairs.owner].tolist(), strict=True):
        wanted.setdefault(caption, set()).add(picture)
    return Relevance.of_columns([sorted(row for number in wanted[caption] for row in rows_of.get(number, ()))
                                 for caption in pairs.caption[: len(pairs.queries)].tolist()])


def _exact_rows(pairs: Pairs, index: ImageIndex) -> list[set[int]]:
    vectors, (all_segments, counts) = index.vectors(), pairs.query_segments
    begins = np.concatenate([[0], np.cumsum(counts)])
    rows: list[set[int]] = []
    for start in range(0, len(counts), 256):
        own = counts[start:start + 256]
        segments = all_segments[begins[start]:begins[start] + own.sum()]
        scores = best_of_rows(segments @ vectors.T, own, axis=0)
        rows.extend(set(row.tolist()) for row in np.argsort(-scores, axis=1, kind="stable")[:, :NEIGHBOURS])
    return rows


def _shared(hits: Sequence[Sequence[int]], exact: Sequence[set[int]]) -> float:
    return 100 * float(np.mean([len(wanted & set(rows[:NEIGHBOURS])) / len(wanted)
                                for rows, wanted in zip(hits, exact, strict=True)]))
