"""Captions whose pictures are known → a Report of retrieval in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.collection.records import Record, Skipped
from densecap_search.errors import CollectionError
from densecap_search.evaluation.metrics import Figure, Ranks, mean_figures, median_rank, rank_queries, summarise
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.window import Truncation
from densecap_search.retrieval.embeddings import Array, embed_images, embed_queries, hash_images
from densecap_search.talk import SILENT, Talk

Hashed = tuple[dict[str, str], list[Skipped]]
RULE = "every caption is a query; a picture's rank is that of its best caption"


@dataclass(frozen=True)
class Direction:
    """Retrieval in one direction: figures in percent for R@k."""

    queries: int
    gallery: int
    ties: int  # queries whose right answer has the same score as a wrong one
    figures: Mapping[str, Figure]
    median_rank: float

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        figures = {name: asdict(figure) for name, figure in self.figures.items()}
        return {"queries": self.queries, "gallery": self.gallery, "ties": self.ties, **figures,
                "median_rank": self.median_rank}


@dataclass(frozen=True)
class Pairs:
    """Vectors of pictures [N, D] and of captions [S, D], the picture of each caption [Q], and its rows in text [Q]."""

    image: Array
    text: Array
    owner: np.ndarray[Any, np.dtype[np.int64]]
    counts: np.ndarray[Any, np.dtype[np.int64]] | None = None  # None: one each

    def text_to_image(self) -> Ranks:
        """The rank of each caption's picture."""
        return rank_queries(self.text, self.image, self.owner, np.arange(len(self.image)),
                            query_counts=self.counts)

    def image_to_text(self) -> Ranks:
        """The rank of each picture's best caption."""
        return rank_queries(self.image, self.text, np.arange(len(self.image)), self.owner,
                            gallery_counts=self.counts)

    def mean_figures(self) -> dict[str, dict[str, float]]:
        """Direction → metric → value, without intervals."""
        return {"text_to_image": mean_figures(self.text_to_image()),
                "image_to_text": mean_figures(self.image_to_text())}


def embed_pairs(encoder: DualEncoder, records: Sequence[Record], hashes: Mapping[str, str], *, cached: bool = True,
                workers: int | None = None) -> Pairs:
    """Vectors of the records whose pictures can be opened, and of their captions."""
    embeddings, _ = embed_images(encoder, records, hashes, cached=cached, workers=workers)
    kept = _in_order(records, embeddings.image_ids)
    text = embed_queries(encoder, [caption for record in kept for caption in record.captions], cached=cached)
    return Pairs(embeddings.vectors, text.rows, _owners(kept), text.counts)


@dataclass(frozen=True)
class Report:
    """What was measured, on what, and by which rule: enough to repeat it."""

    model: str
    fingerprint: str
    precision: str
    collection: str
    splits: tuple[str, ...]
    truncation: Truncation
    text_to_image: Direction
    image_to_text: Direction
    skipped: tuple[Skipped, ...] = ()
    trained_on: int = 0
    rule: str = RULE

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return {
            "model": self.model, "fingerprint": self.fingerprint, "precision": self.precision,
            "collection": self.collection, "splits": list(self.splits), "rule": self.rule,
            "truncated": asdict(self.truncation), "skipped": len(self.skipped), "trained_on": self.trained_on,
            "text_to_image": self.text_to_image.as_json(), "image_to_text": self.image_to_text.as_json(),
        }


def evaluate(
    encoder: DualEncoder, records: Sequence[Record], *, model: str, collection: str, splits: Sequence[str],
    trained_hashes: frozenset[str] = frozenset(), hashed: Hashed | None = None, workers: int | None = None,
    talk: Talk = SILENT,
) -> Report:
    """Retrieval among the captioned records, in both directions, by exact cosine in float32.

    trained_hashes: content hashes of the pictures that the model was trained on; those among the records are counted.
    hashed: what :func:`hash_images` found of these records, or of more, where it has been called already.
    """
    hashes, unreadable = hashed or hash_images(records, talk=talk, workers=workers)
    asked = {str(record.image) for record in records}
    unreadable = [skip for skip in unreadable if skip.path in asked]
    readable = [record for record in records if record.image_id in hashes]
    embeddings, broken = embed_images(encoder, readable, hashes, workers=workers, talk=talk)
    skipped = (*unreadable, *broken)
    kept = _in_order(readable, embeddings.image_ids)
    if not kept:
        raise CollectionError(f"{collection}: none of the {len(records)} pictures could be opened"
                              + (f"; the first: {skipped[0]}" if skipped else ""))
    captions = [caption for record in kept for caption in record.captions]
    owner = _owners(kept)
    text = embed_queries(encoder, captions, talk=talk)
    pairs = Pairs(embeddings.vectors, text.rows, owner, text.counts)
    return Report(
        model, encoder.fingerprint(), encoder.precision, collection, tuple(splits), text.truncation,
        text_to_image=_direction(pairs.text_to_image(), owner, len(kept)),
        image_to_text=_direction(pairs.image_to_text(), np.arange(len(kept)), len(captions)),
        skipped=skipped, trained_on=sum(hashes[record.image_id] in trained_hashes for record in kept),
    )


def _direction(ranks: Ranks, clusters: Any, gallery: int) -> Direction:
    return Direction(
        queries=len(ranks.rank), gallery=gallery, ties=int((ranks.ties > 0).sum()),
        figures=summarise(ranks, clusters), median_rank=median_rank(ranks),
    )


def _owners(records: Sequence[Record]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.repeat(np.arange(len(records)), [len(record.captions) for record in records])


def _in_order(records: Sequence[Record], image_ids: Sequence[str]) -> list[Record]:
    by_id = {record.image_id: record for record in records}
    return [by_id[name] for name in image_ids]
