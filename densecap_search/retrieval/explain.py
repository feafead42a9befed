"""Why a picture was found: what each sentence of a query says of it, and which words its caption has in common.

A cosine by itself says little: it is as high for nonsense. So each sentence is told by its percentile, the share of the
archive's other pictures that it fits less well than this one. All from vectors that are in the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from densecap_search.collection.captions import sentences
from densecap_search.embedding.cache import Array
from densecap_search.retrieval.captioned import SAMPLE
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.vectors import Mask, some_of
from densecap_search.retrieval.words import UNSPACED, Words, tokens

MOST_PARTS = 100  # sentences of a query that are told of
COMMON = 0.5  # of the captions have a word that says nothing
_WORD = re.compile("[^\\W_](?:[^\\W_]|[\u0300-\u036f])*")  # accents may be letters of their own


@dataclass(frozen=True)
class Explanation:
    """parts [S]: sentences and further texts of a query. Of each of H hits, percentiles [H][S] from 0 to 100 or None
    where the archive holds no other picture, and captions [H]: in pieces, each with whether the query has the word."""

    parts: tuple[str, ...]
    percentiles: tuple[tuple[float | None, ...], ...]
    captions: tuple[tuple[tuple[str, bool], ...], ...]

    def of(self, hit: int) -> list[dict[str, Any]]:
        """The parts of the query and their percentiles for one hit."""
        return [{"text": text, "percentile": None if share is None else round(share, 1)}
                for text, share in zip(self.parts, self.percentiles[hit], strict=True)]


def own_parts(query: Query) -> int:
    """How many of :func:`parts_of` are sentences of the caption."""
    return min(len(sentences(query.caption)), MOST_PARTS)


def parts_of(query: Query) -> tuple[str, ...]:
    """The sentences of a query's caption, then its further texts, at most MOST_PARTS."""
    further = tuple(text for _, text in query.texts if text != query.caption)
    return (*sentences(query.caption), *further)[:MOST_PARTS]


def explain(index: ImageIndex, parts: Sequence[str], vectors: Array, numbers: Sequence[int],
            words: Words | None = None) -> Explanation:
    """vectors: of the parts [S, D]. numbers: of the hits. words: of the archive, by which common ones are not marked.

    Percentiles are taken among all pictures, or a sample of them, the same each time.
    """
    hits = np.array(numbers, np.int64)
    some = some_of(index.numbers, SAMPLE)
    scores, of_hits = vectors @ index.stored.take(some).T, vectors @ index.stored.take(hits).T
    places = np.minimum(np.searchsorted(some, hits), max(0, len(some) - 1))
    within = some[places] == hits if len(some) else np.zeros(len(hits), bool)
    of_hits[:, within] = scores[:, places[within]]  # the same number: another product may round otherwise
    shares = percentiles(scores, of_hits, within)
    telling = {word for word in tokens("\n".join(parts)) if words is None or words.share(word) <= COMMON}
    rows = index.rows.many(hits.tolist())
    return Explanation(
        tuple(parts), tuple(tuple(None if np.isnan(value) else float(value) for value in own) for own in shares.T),
        tuple(marked("\n".join(row.captions), telling) for row in rows))


def percentiles(scores: Array, of_hits: Array, within: Mask) -> Array:
    """What share in percent of a sample's scores [S, M] lies below each of some others [S, H], equal ones by half.

    within [H]: whether a score is one of the sample's, which is then not compared with itself. NaN where there is
    nothing to compare with.
    """
    shares = np.full(of_hits.shape, np.nan)
    others = scores.shape[1] - within
    for row, (sample, own) in enumerate(zip(np.sort(scores, axis=1), of_hits, strict=True)):
        low, high = (np.searchsorted(sample, own, side) for side in ("left", "right"))
        np.divide(100 * (low + (high - low - within) / 2), others, out=shares[row], where=others > 0)
    return shares.astype(np.float32)


def marked(caption: str, telling: set[str]) -> tuple[tuple[str, bool], ...]:
    """A whole caption in pieces, each with whether it is one of some words, as :func:`tokens` writes them."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    for start, end in _spans(caption):
        if not telling.isdisjoint(tokens(caption[start:end])):
            if start > at:
                pieces.append((caption[at:start], False))
            if pieces and pieces[-1][1] and start <= at:
                pieces[-1] = (pieces[-1][0] + caption[at:end], True)
            else:
                pieces.append((caption[start:end], True))
            at = end
    return (*pieces, (caption[at:], False)) if at < len(caption) else tuple(pieces)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each word stands; in scripts without spaces each pair of letters, as :func:`tokens` cuts them."""
    for word in _WORD.finditer(text):
        at = word.start()
        for run in UNSPACED.finditer(text, word.start(), word.end()):
            if run.start() > at:
                yield at, run.start()
            for place in range(run.start(), max(run.end() - 1, run.start() + 1)):
                yield place, min(place + 2, run.end())
            at = run.end()
        if at < word.end():
            yield at, word.end()
