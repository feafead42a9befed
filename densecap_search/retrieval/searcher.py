"""Searcher = encoder + index: captions in, hits out. The command line and the page use this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.errors import DensecapError, IndexMismatch
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.sources import load_encoder
from densecap_search.model.window import Truncation
from densecap_search.retrieval.embeddings import Array, check_finite, embed_texts
from densecap_search.retrieval.index import ImageIndex, load_index


@dataclass(frozen=True)
class Hit:
    """One found picture; rank counts from 1, score is a cosine."""

    rank: int
    score: float
    image_id: str
    image: str
    caption: str


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
            vectors, truncation = embed_texts(self.encoder, captions, cached=False)
        return self._hits(vectors, k), truncation

    def by_image(self, path: Path, k: int) -> list[Hit]:
        """Hits for a picture: what looks like it."""
        image = open_image(path, min_side=self.encoder.image_size, max_pixels=self.encoder.max_pixels)
        if isinstance(image, Skipped):
            raise DensecapError(f"cannot search by {image}")
        with self._lock:
            vectors = _embed_one(self.encoder, image)
        return self._hits(vectors, k)[0]

    def _hits(self, vectors: Array, k: int) -> list[list[Hit]]:
        entries = self.index.entries
        return [
            [
                Hit(rank, score, entries[row].image_id, entries[row].image, "\n".join(entries[row].captions))
                for rank, (row, score) in enumerate(found, start=1)
            ]
            for found in self.index.search(vectors, k)
        ]


def _embed_one(encoder: DualEncoder, image: Any) -> Array:
    outputs = encoder.tower_outputs("image", encoder.preprocess(image)[None])
    vectors: Array = encoder.from_tower("image", outputs).detach().cpu().numpy()
    check_finite(vectors, ["the picture"])
    return vectors


def open_searcher(folder: Path, *, model: dict[str, Any] | None = None, device: str = "auto") -> Searcher:
    """Load an index and the encoder that its manifest names, or another one that must have its fingerprint.

    model: keywords of :func:`load_encoder` that override the manifest's.
    """
    index = load_index(folder)
    wanted = model or index.manifest.model
    try:
        encoder = load_encoder(**wanted, device=device)
    except DensecapError as error:
        if model:
            raise
        raise IndexMismatch(f"{folder} was built by {wanted.get('name')}, which cannot be loaded: {error}; "
                            "say with --model where it is now") from error
    index.check_encoder(str(wanted.get("name")), encoder.fingerprint())
    return Searcher(encoder, index)
