"""Pictures and captions as vectors, and who is a right answer to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from densecap_search.collection.captions import caption_key
from densecap_search.collection.records import Record
from densecap_search.collection.splits import picture_numbers
from densecap_search.embedding.cache import Array
from densecap_search.embedding.texts import TextRows, heads_of, queries_of, segments_of, text_rows
from densecap_search.embedding.tower_rows import check_finite
from densecap_search.embedding.towers import image_rows
from densecap_search.evaluation.metrics import DEPTH, Ints, Ranks, Relevance, mean_figures, rank_queries
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import mean_of


@dataclass(frozen=True)
class Pairs:
    """Vectors of pictures [N, D] and of captions [Q, D], and what belongs together.

    segments: what captions are ranked by: rows [S, D], and how many each caption has; text is the mean of them.
    owner [Q]: the picture that each caption was written for. picture [N], caption [Q]: equal numbers are the same
    picture, the same caption. A picture is a right answer to a caption if the caption was written for it, for the
    same picture, or if the identical caption was; and the other way round.
    asked: the first so many pictures, and their captions, are the queries; the others are only in the galleries.
    """

    records: tuple[Record, ...]
    captions: tuple[str, ...]
    image: Array
    text: Array
    owner: Ints
    picture: Ints
    caption: Ints
    segments: TextRows
    asked: int

    @classmethod
    def of(cls, records: Sequence[Record], image: Array, text: TextRows, asked: int | None = None) -> Pairs:
        """records: those of the rows of image; text: what their captions are ranked by, in their order; asked: or all.
        """
        captions = tuple(caption for record in records for caption in record.captions)
        owner = np.repeat(np.arange(len(records)), [len(record.captions) for record in records])
        seen: dict[str, int] = {}
        same = np.array([seen.setdefault(caption_key(caption), len(seen)) for caption in captions], np.int64)
        picture = np.array(picture_numbers(records), np.int64)
        return cls(tuple(records), captions, image, mean_of(text.rows, text.counts), owner, picture, same, text,
                   len(records) if asked is None else asked)

    @property
    def queries(self) -> tuple[str, ...]:
        """The captions that are asked."""
        return self.captions[: int(np.searchsorted(self.owner, self.asked))]

    @property
    def query_segments(self) -> tuple[Array, Ints]:
        """What these are ranked by: rows [S, D], and how many each caption has."""
        counts = self.segments.counts[: len(self.queries)]
        return self.segments.rows[: counts.sum()], counts

    @property
    def query_pictures(self) -> Ints:
        """The picture number of each caption that is asked."""
        return self.picture[self.owner[: len(self.queries)]]

    @cached_property
    def pictures_of_captions(self) -> Relevance:
        """The right pictures of each caption that is asked."""
        return _related(self.caption, self.picture[self.owner], self.caption[: len(self.queries)], self.picture)

    @cached_property
    def captions_of_pictures(self) -> Relevance:
        """The right captions of each picture that is asked."""
        return _related(self.picture[self.owner], self.caption, self.picture[: self.asked], self.caption)

    def text_to_image(self, depth: int = DEPTH) -> Ranks:
        """Where each caption's pictures stand among the pictures."""
        rows, counts = self.query_segments
        return rank_queries(rows, self.image, self.pictures_of_captions, depth=depth, query_counts=counts)

    def image_to_text(self, depth: int = DEPTH) -> Ranks:
        """Where each picture's captions stand among the captions."""
        return rank_queries(self.image[: self.asked], self.segments.rows, self.captions_of_pictures, depth=depth,
                            gallery_counts=self.segments.counts)

    def mean_figures(self) -> dict[str, dict[str, float]]:
        """Direction → metric of QUICK → value, without intervals."""
        return {"text_to_image": mean_figures(self.text_to_image(1)),
                "image_to_text": mean_figures(self.image_to_text(1))}


@dataclass(frozen=True)
class PairRows:
    """What the towers hand to their heads, of pictures [N, W] and of captions: while only heads change, read once."""

    records: tuple[Record, ...]
    image: Array
    text: TextRows

    def pairs(self, encoder: DualEncoder) -> Pairs:
        """Their vectors by the heads as they are now."""
        image = heads_of(encoder, "image", self.image)
        check_finite(image, [record.image_id for record in self.records])
        captions = [caption for record in self.records for caption in record.captions]
        text = queries_of(encoder, segments_of(encoder, self.text, captions))
        return Pairs.of(self.records, image, text)


def pair_rows(encoder: DualEncoder, records: Sequence[Record], *, cached: bool = True,
              workers: int | None = None) -> PairRows:
    """Of the records (read before) whose pictures can be opened."""
    images = image_rows(encoder, records, cached=cached, workers=workers)
    kept = tuple(records[row] for row in images.kept)
    text = text_rows(encoder, [caption for record in kept for caption in record.captions], cached=cached)
    return PairRows(kept, images.rows, text)


def mean_recall_at_1(figures: Mapping[str, Mapping[str, float]]) -> float:
    """Of :meth:`Pairs.mean_figures`: R@1, mean of both directions, percent; what checkpoints are chosen by."""
    return sum(direction["R@1"] for direction in figures.values()) / len(figures)


def in_order(records: Sequence[Record], image_ids: Sequence[str]) -> list[Record]:
    """The records of these ids, in their order."""
    by_id = {record.image_id: record for record in records}
    return [by_id[name] for name in image_ids]


def _related(of: Ints, to: Ints, queries: Ints, gallery: Ints) -> Relevance:
    """of, to: equally long lists of what is related, by number; queries, gallery: the numbers of either side."""
    related: dict[int, set[int]] = {}
    for one, other in zip(of.tolist(), to.tolist(), strict=True):
        related.setdefault(one, set()).add(other)
    columns: dict[int, list[int]] = {}
    for column, number in enumerate(gallery.tolist()):
        columns.setdefault(number, []).append(column)
    return Relevance.of_columns([
        sorted(column for number in related.get(query, ()) for column in columns.get(number, ()))
        for query in queries.tolist()
    ])
