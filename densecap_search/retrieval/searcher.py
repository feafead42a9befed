"""Searcher = encoder + index: captions in, hits out. The command line and the page use this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding.cache import Array
from densecap_search.embedding.towers import check_finite, embed_queries
from densecap_search.errors import DensecapError, IndexMismatch
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import Truncation, best_of
from densecap_search.model.sources import load_encoder
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.rows import Row


@dataclass(frozen=True)
class Hit:
    """One found picture; rank counts from 1, score is a cosine; number is the picture's own in the index."""

    rank: int
    score: float
    image_id: str
    image: str
    caption: str
    number: int = -1


@dataclass(frozen=True)
class Searcher:
    """An index with the encoder that made it."""

    encoder: DualEncoder
    index: ImageIndex
    _lock: Lock = field(default_factory=Lock, repr=False)  # towers are changed for a moment while they encode

    def by_captions(self, captions: Sequence[str], k: int) -> tuple[list[list[Hit]], Truncation]:
        """Hits for each caption, best first, and how much of the captions was cut."""
        blank = [number for number, caption in enumerate(captions, start=1) if not caption.strip()]
        if blank:
            raise DensecapError(f"query {blank[0]} is empty; describe the picture you look for")
        with self._lock:
            found = embed_queries(self.encoder, captions, cached=False)
        lists = iter(self.index.search(found.rows, k))  # of each segment; of several the best decides
        return self._hits([best_of(list(islice(lists, count)), k) for count in found.counts]), found.truncation

    def by_image(self, path: Path, k: int) -> list[Hit]:
        """Hits for a picture: what looks like it."""
        image = open_image(path, min_side=self.encoder.image_size, max_pixels=self.encoder.max_pixels)
        if isinstance(image, Skipped):
            raise DensecapError(f"cannot search by {image}")
        with self._lock:
            vectors = _embed_one(self.encoder, image)
        return self._hits(self.index.search(vectors, k))[0]

    def _hits(self, results: Sequence[Sequence[tuple[int, float]]]) -> list[list[Hit]]:
        return [
            [
                Hit(rank, score, row.image_id, row.image, "\n".join(row.captions), row.number)
                for rank, ((_, score), row) in enumerate(zip(found, self._rows(found), strict=True), start=1)
            ]
            for found in results
        ]

    def _rows(self, found: Sequence[tuple[int, float]]) -> list[Row]:
        return self.index.rows.many([number for number, _ in found])


def _embed_one(encoder: DualEncoder, image: Any) -> Array:
    outputs = encoder.tower_outputs("image", encoder.preprocess(image)[None])
    vectors: Array = encoder.from_tower("image", outputs).detach().cpu().numpy()
    check_finite(vectors, ["the picture"])
    return vectors


def open_searcher(
    folder: Path, *, model: ModelConfig | None = None, device: str = "auto", long_text: str | None = None,
    max_pixels: int | None = None,
) -> Searcher:
    """Load an index and the encoder that its manifest names, or another one that must have its fingerprint.

    model: in place of the manifest's; how pictures are resized stays as it was there unless it says so.
    long_text: another treatment of captions beyond the window than the model's.
    max_pixels: of pictures that are searched by.
    """
    index = load_index(folder)
    before = index.manifest.model
    wanted = replace(model, resize=model.resize or before.resize) if model else before
    wanted = replace(wanted, long_text=long_text or wanted.long_text)
    try:
        encoder = load_encoder(wanted, device=device, max_pixels=max_pixels)
    except DensecapError as error:
        if model:
            raise
        raise IndexMismatch(f"{folder} was built by {wanted.name}, which cannot be loaded: {error}; "
                            "say with --model where it is now") from error
    index.check_encoder(wanted.name, encoder.fingerprint())
    return Searcher(encoder, index)
