"""Searcher = encoder + index: captions in, hits out. The command line and the page use this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding.cache import Array
from densecap_search.embedding.texts import embed_queries
from densecap_search.embedding.tower_rows import check_finite
from densecap_search.errors import ConfigError, DensecapError, IndexMismatch
from densecap_search.model.query_files import load_query_encoder
from densecap_search.model.segments import Truncation, best_of
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval.caption_store import Captions, load_captions
from densecap_search.retrieval.captioned import Texts, read_texts
from densecap_search.retrieval.explain import Explanation, explain, parts_of
from densecap_search.retrieval.fuse import RANKINGS
from densecap_search.retrieval.heat import Heat, heat, seen
from densecap_search.retrieval.hits import Hit
from densecap_search.retrieval.index import ImageIndex, open_index
from densecap_search.retrieval.manifest import stamp_of
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.ranking import Asked, Match, rank
from densecap_search.retrieval.required import with_words
from densecap_search.retrieval.stacks import DEEPER, near_to, stack
from densecap_search.retrieval.vectors import Found, Mask, Numbers, search_among, some_of
from densecap_search.retrieval.words import tokens

if TYPE_CHECKING:
    from densecap_search.model.encoder import DualEncoder

__all__ = ["Hit", "Narrowed", "Searcher", "open_searcher"]
MODES = ("auto", *RANKINGS, "fused")
SORTS = ("score", "date")
LEAST_FOR_MEAN, FOR_MEAN = 100, 1000  # vectors


@dataclass(frozen=True)
class Narrowed:
    """Which pictures may be found: by a filter (:mod:`filters`), by words that must occur, by a least cosine; others:
    not those that are searched by, nor what is nearly the same as one of them."""

    where: str | None = None
    must: tuple[str, ...] = ()
    min_score: float | None = None
    others: bool = False


ALL = Narrowed()


@dataclass(frozen=True)
class Searcher:
    """An index with the encoder that made it, and with its captions where they may be searched.

    load: where encoder reads captions alone, gives the whole one when a picture is asked for.
    """

    encoder: TextEncoder
    index: ImageIndex
    captions: Captions | None = None
    load: Callable[[], DualEncoder] | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)  # towers are changed for a moment while they encode

    def mode(self, asked: str = "auto") -> str:
        """What a mode of MODES means here. Errors: ConfigError where the index has no captions to search."""
        if asked not in MODES:
            raise ConfigError(f"unknown mode {asked}; known: {', '.join(MODES)}")
        if self.captions is None:
            if asked in ("auto", "image"):
                return "image"
            raise ConfigError(f"{self.index.folder} holds no captions that could be searched; `densecap index` of a "
                              "collection that has some adds them, and --mode image does without")
        return self.captions.weights.best if asked == "auto" else asked

    def by_captions(self, captions: Sequence[str], k: int, where: str | None = None, *, mode: str = "auto"
                    ) -> tuple[list[list[Hit]], Truncation]:
        """Hits for each caption, best first, and how much of the captions was cut. where: as in ImageIndex.search."""
        blank = [number for number, caption in enumerate(captions, start=1) if not caption.strip()]
        if blank:
            raise DensecapError(f"query {blank[0]} is empty; describe the picture you look for")
        return self.find([Query(caption) for caption in captions], k, mode=mode, narrowed=Narrowed(where))

    def _by_vectors(self, captions: Sequence[str], k: int, narrowed: Narrowed) -> tuple[list[list[Hit]], Truncation]:
        with self._lock:
            segments = embed_queries(self.encoder, captions, cached=False)
        lists = iter(self._nearest(segments.rows, k, narrowed))  # of each segment; of several the best decides
        return self._hits([best_of(list(islice(lists, count)), k) for count in segments.counts]), segments.truncation

    def by_image(self, path: Path, k: int, where: str | None = None) -> list[Hit]:
        """Hits for a picture: what looks like it."""
        return self._hits(self.index.search(self._embedded(path), k, where))[0]

    def find(self, queries: Sequence[Query], k: int, *, mode: str = "auto", narrowed: Narrowed = ALL,
             sort: str = "score") -> tuple[list[list[Hit]], Truncation]:
        """As :meth:`by_queries`; queries that are captions alone are ranked as :meth:`by_captions` ranks them.

        sort: of SORTS. By date, the k best stand newest first with the ranks that they have; where nothing is ranked,
        they are the k newest.
        """
        if sort not in SORTS:
            raise ConfigError(f"unknown order {sort}; known: {', '.join(SORTS)}")
        if sort == "date":
            lists, truncation = self.find(queries, k, mode=mode, narrowed=narrowed)
            lists = [self._newest(k, self._narrowed(query, narrowed)) if _asks_nothing(query) else
                     self.newest_first(hits) for query, hits in zip(queries, lists, strict=True)]
            return lists, truncation
        if self.mode(mode) == "image" and all(query == Query(query.caption) and query.caption.strip()
                                              for query in queries):
            return self._by_vectors([query.caption for query in queries], k, narrowed)
        return self.by_queries(queries, k, mode=mode, narrowed=narrowed)

    def by_queries(self, queries: Sequence[Query], k: int, *, mode: str = "auto", narrowed: Narrowed = ALL
                   ) -> tuple[list[list[Hit]], Truncation]:
        """Hits for queries of several parts; how much of their captions was cut.

        What a query itself requires comes beside what ``narrowed`` does.
        """
        named = self.mode(mode)
        texts = [text for query in queries for _, text in query.texts]
        with self._lock:
            encoded = read_texts(self.encoder, [[text] for text in texts], cached=False)
        rows = iter(range(len(texts)))
        results = []
        for query in queries:
            own = encoded.take([next(rows) for _ in query.texts])
            asked = Asked(own, tuple(weight for weight, _ in query.texts), *self._pictures(query))
            results.append(self._by_query(asked, k, named, self._narrowed(query, narrowed)))
        return results, encoded.truncation

    def newest_first(self, hits: Sequence[Hit]) -> list[Hit]:
        """By the dates when the pictures were taken; those without one stand last, equal ones in the order of ranks."""
        taken = [row.taken or "" for row in self.index.rows.many([hit.number for hit in hits])]
        order = sorted(range(len(hits)), key=taken.__getitem__, reverse=True)  # stable also in reverse
        return [hits[place] for place in order]

    @staticmethod
    def _narrowed(query: Query, narrowed: Narrowed) -> Narrowed:
        return replace(narrowed, must=(*narrowed.must, *query.must))

    def stacks(self, queries: Sequence[Query], k: int, *, mode: str = "auto", narrowed: Narrowed = ALL,
               sort: str = "score") -> tuple[list[list[Hit]], Truncation]:
        """As :meth:`find`, with k stacks for each query: what is nearly the same picture lies under the best of it."""
        depth, looked_at = DEEPER * k, sort if all(map(_asks_nothing, queries)) else "score"
        while True:
            lists, truncation = self.find(queries, depth, mode=mode, narrowed=narrowed, sort=looked_at)
            stacked = [self._stacked(hits) for hits in lists]
            if all(len(own) >= k or len(hits) < depth for own, hits in zip(stacked, lists, strict=True)):
                stacked = [own[:k] for own in stacked]
                return [self.newest_first(own) for own in stacked] if sort == "date" else stacked, truncation
            depth *= DEEPER

    def _stacked(self, hits: Sequence[Hit]) -> list[Hit]:
        numbers = [hit.number for hit in hits]
        vectors = self.index.stored.take(np.array(numbers, np.int64))
        return stack(hits, self.index.rows.many(numbers), vectors, self._mean)

    @cached_property
    def _mean(self) -> Array | None:
        """Of a thousand of the index's vectors [D]; None where it has too few for their mean to say something."""
        some = some_of(self.index.numbers, FOR_MEAN)
        mean: Array | None = self.index.stored.take(some).mean(axis=0) if len(some) >= LEAST_FOR_MEAN else None
        return mean

    def explain(self, query: Query, numbers: Sequence[int]) -> Explanation:
        """What each sentence of a query says of some pictures, in one pass through the text tower."""
        parts = parts_of(query)
        with self._lock:
            texts = read_texts(self.encoder, [[part] for part in parts], cached=False)
        words = self.captions.captioned.words if self.captions else None
        return explain(self.index, parts, texts.vectors, numbers, words)

    def heat(self, image: Path, text: str) -> Heat:
        """Where in a picture a text fits. Errors: DensecapError where it cannot be opened, ModelError where the model
        tells no parts of a picture apart."""
        from densecap_search.embedding.towers import picture_patches  # and with it torch

        encoder = self.load() if self.load else cast("DualEncoder", self.encoder)
        with self._lock:
            patched = picture_patches(encoder, image)
            if isinstance(patched, Skipped):
                raise DensecapError(f"cannot look into {patched}")
            asked = read_texts(self.encoder, [[text]], cached=False)
        patches, size, shape = patched
        return heat(patches, asked.vectors[0], seen(size, shape, encoder.resize_mode))

    def _by_query(self, asked: Asked, k: int, mode: str, narrowed: Narrowed) -> list[Hit]:
        if not asked.texts.texts and not len(asked.like):
            return self._required(k, narrowed)
        if mode == "image" or self.captions is None:
            return self._hits(self._nearest(asked.vector[None], k, narrowed, asked.like))[0]
        captions = self.captions
        values = captions.weights.values if mode == "fused" else {mode: 1.0}
        if not asked.texts.texts:  # a picture alone says nothing about captions
            values = {"image": 1.0}
        alone = narrowed.where if not narrowed.must and not narrowed.others else None
        (matches,) = rank(self.index, captions.captioned, [asked], values, k if narrowed.min_score is None else
                          len(self.index), allowed=self._allowed(narrowed, asked.like), where=alone)
        if narrowed.min_score is not None:
            matches = [match for match in matches if match.score >= narrowed.min_score][:k]
        return self._matched(matches, asked.texts, fused=mode == "fused")

    def _matched(self, matches: Sequence[Match], texts: Texts, *, fused: bool) -> list[Hit]:
        words = sum(len(tokens(text)) for text in texts.texts)
        foreign = self.captions.calibration.foreign if self.captions and fused and len(texts.texts) == 1 else None
        rows = self.index.rows.many([match.number for match in matches])
        return [Hit(place, match.score, row.image_id, row.image, "\n".join(row.captions), row.number, match.match,
                    match.by, foreign.strength(match.match, words) if foreign else None)
                for place, (match, row) in enumerate(zip(matches, rows, strict=True), start=1)]

    def _required(self, k: int, narrowed: Narrowed) -> list[Hit]:
        """Without a caption or a picture: what may be found at all, in the order of the index; it has no score."""
        if not narrowed.must and narrowed.where is None:
            raise DensecapError("the query is empty; describe the picture you look for")
        return self._unranked(self._meeting(narrowed)[:k])

    def _newest(self, k: int, narrowed: Narrowed) -> list[Hit]:
        """As :meth:`_required`, newest first."""
        numbers = self._meeting(narrowed).tolist()
        taken: list[str] = []
        for start in range(0, len(numbers), 1000):
            taken += [row.taken or "" for row in self.index.rows.many(numbers[start:start + 1000])]
        order = sorted(range(len(numbers)), key=taken.__getitem__, reverse=True)
        return self._unranked(np.array([numbers[place] for place in order[:k]], np.int64))

    def _meeting(self, narrowed: Narrowed, like: Array | None = None) -> Numbers:
        """The pictures that may be found, in the order of the index."""
        allowed = self._allowed(narrowed, like)
        return np.flatnonzero(self.index.alive if allowed is None else self.index.alive & allowed)

    def _unranked(self, numbers: Numbers) -> list[Hit]:
        return [Hit(place, None, row.image_id, row.image, "\n".join(row.captions), row.number)
                for place, row in enumerate(self.index.rows.many(numbers.tolist()), start=1)]

    def _nearest(self, vectors: Array, k: int, narrowed: Narrowed, like: Array | None = None) -> list[Found]:
        if not narrowed.must and not narrowed.others:
            lists = self.index.search(vectors, k, narrowed.where)
        else:
            numbers = self._meeting(narrowed, like)
            lists = search_among(self.index.stored, numbers, vectors, k) if len(numbers) else [[] for _ in vectors]
        if narrowed.min_score is None:
            return lists
        return [[(number, score) for number, score in own if score >= narrowed.min_score] for own in lists]

    def _allowed(self, narrowed: Narrowed, like: Array | None = None) -> Mask | None:
        """By number, what may be found; None: all. like: the pictures that are searched by."""
        total = self.index.manifest.total
        masks = [with_words(self.index.rows, total, narrowed.must)] if narrowed.must else []
        if narrowed.where is not None:
            masks.append(np.zeros(total, bool))
            masks[-1][self.index.matching(narrowed.where)] = True
        if narrowed.others and like is not None:
            masks.append(~self._near_to(like))
        return np.logical_and.reduce(masks) if masks else None

    def _near_to(self, like: Array) -> Mask:
        """By number, what is nearly the same picture as one of some vectors [M, D]."""
        near = np.zeros(self.index.manifest.total, bool)
        for start, block in self.index.stored.blocks():
            near[start:start + len(block)] = near_to(block, like, self._mean).any(axis=1)
        return near

    def _pictures(self, query: Query) -> tuple[Array, tuple[float, ...]]:
        """Vectors of a query's pictures and their weights; those of the index are not encoded again."""
        near = self.index.stored.take(np.array([number for _, number in query.near], np.int64))
        weights = tuple(weight for weight, _ in query.near)
        if query.image is None:
            return near, weights
        return np.concatenate([self._embedded(query.image), near]), (1.0, *weights)

    def _embedded(self, path: Path) -> Array:
        encoder = self.load() if self.load else cast("DualEncoder", self.encoder)
        image = open_image(path, min_side=encoder.image_size, max_pixels=encoder.max_pixels)
        if isinstance(image, Skipped):
            raise DensecapError(f"cannot search by {image}")
        with self._lock:
            return _embed_one(encoder, image)

    def _hits(self, results: Sequence[Found]) -> list[list[Hit]]:
        return [
            [
                Hit(rank, score, row.image_id, row.image, "\n".join(row.captions), row.number)
                for rank, ((_, score), row) in enumerate(
                    zip(result, self.index.rows.many([number for number, _ in result]), strict=True), start=1)
            ]
            for result in results
        ]


def _asks_nothing(query: Query) -> bool:
    """Whether it only names conditions."""
    return not query.texts and query.image is None and not query.near


def _embed_one(encoder: DualEncoder, image: Any) -> Array:
    outputs = encoder.tower_outputs("image", encoder.preprocess(image)[None])
    vectors: Array = encoder.from_tower("image", outputs).detach().cpu().numpy()
    check_finite(vectors, ["the picture"])
    return vectors


def open_searcher(
    folder: Path | str, *, model: ModelConfig | None = None, device: str = "auto", long_text: str | None = None,
    max_pixels: int | None = None, quick: bool = False,
) -> Searcher:
    """Load an index and the encoder that its manifest names, or another one that must have its fingerprint.

    folder: or the name of a store, as in :func:`open_index`.
    model: in place of the manifest's; how pictures are resized stays as it was there unless it says so.
    long_text: another treatment of captions beyond the window than the model's.
    max_pixels: of pictures that are searched by. quick: captions are read by the encoder of queries in the cache,
    which needs no torch; where it is not there, it is made for the next time.
    """
    index = open_index(folder)
    load = cache(partial(_load, folder, index, model, device, long_text, max_pixels))
    made = index.manifest
    known = quick and model is None and made.stamp == stamp_of(made.model)
    reader = load_query_encoder(made.fingerprint, long_text or made.model.long_text) if known else None
    if reader is not None:
        return Searcher(reader, index, load_captions(index), load)
    encoder = load()
    if quick:
        from densecap_search.model.query_making import keep_query_encoder

        keep_query_encoder(encoder)
    return Searcher(encoder, index, load_captions(index))


def _load(folder: Path | str, index: ImageIndex, model: ModelConfig | None, device: str, long_text: str | None,
          max_pixels: int | None) -> DualEncoder:
    from densecap_search.model.loading import load_encoder  # and with it torch

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
    return encoder
