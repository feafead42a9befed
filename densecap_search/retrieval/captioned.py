"""The captions of an archive as rankings of its pictures, beside the pictures' own vectors.

Three signals of a query, each in spreads above its mean over the pictures: ``image``, the cosine with the picture;
``text``, with its captions as the text tower hands them to its head; ``words``, BM25 with them. A picture without a
caption has 0 in the last two: it neither wins nor loses by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.embedding.texts import heads_of, text_rows
from densecap_search.model.segments import Truncation, mean_of
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval.caption_space import CaptionSpace, unit
from densecap_search.retrieval.fuse import Spread
from densecap_search.retrieval.vectors import Vectors
from densecap_search.retrieval.words import Ints, Mask, Words
from densecap_search.talk import SILENT, Talk

SAMPLE = 10_000  # pictures, at most, from which means and spreads are taken


@dataclass(frozen=True)
class Texts:
    """What is known of N texts, each of one or several captions.

    rows [N, W]: what the text tower hands to its head, unit rows, the mean over captions and segments. vectors [N, D]:
    the same in the space that captions share with pictures. A text without a caption has rows of zeros.
    """

    texts: tuple[str, ...]
    rows: Array
    vectors: Array
    truncation: Truncation

    def take(self, rows: Sequence[int]) -> Texts:
        """Some of them."""
        numbers = np.asarray(rows, np.int64)
        return Texts(tuple(self.texts[row] for row in rows), self.rows[numbers], self.vectors[numbers], self.truncation)


def read_texts(encoder: TextEncoder, captions: Sequence[Sequence[str]], *, cached: bool = True, talk: Talk = SILENT
               ) -> Texts:
    """Encode the captions of N pictures, or N queries of one caption each."""
    flat = [caption for own in captions for caption in own if caption.strip()]
    segments = text_rows(encoder, flat, cached=cached, talk=talk)
    owner = np.repeat(np.arange(len(captions)), [sum(bool(text.strip()) for text in own) for own in captions])
    vectors = rows = np.empty((0, encoder.dim), np.float32)
    if flat:
        vectors = mean_of(heads_of(encoder, "text", segments.rows), segments.counts)
        rows = mean_of(unit(segments.rows), segments.counts)
    return Texts(tuple("\n".join(own) for own in captions), _pooled(rows, owner, len(captions)),
                 _pooled(vectors, owner, len(captions)), segments.truncation)


def _pooled(rows: Array, owner: Ints, count: int) -> Array:
    """The mean direction of the rows of each owner; zeros where there is none."""
    sums = np.zeros((count, rows.shape[1]), np.float32)
    np.add.at(sums, owner, rows)
    return unit(sums)


@dataclass(frozen=True)
class Scale:
    """By what the signals are measured: learned from the archive's captions and pictures, kept in the index.

    space: where captions are compared; text: the spread of captions there. image: the spread of the pictures' vectors.
    centre [D]: the mean vector of captions among pictures; what every query shares says nothing about pictures.
    """

    space: CaptionSpace
    text: Spread
    image: Spread
    centre: Array

    @classmethod
    def of(cls, captions: Texts, pictures: Array) -> Scale:
        """captions: of at most SAMPLE pictures, without those that have none; pictures [M, D]: of at most as many."""
        space = CaptionSpace.of(captions.rows)
        return cls(space, Spread.of(space.vectors(captions.rows)), Spread.of(pictures),
                   captions.vectors.mean(axis=0, dtype=np.float64).astype(np.float32))

    def image_query(self, vectors: Array) -> Array:
        """Vectors of queries [Q, D] → what pictures are multiplied with for the signal ``image``."""
        return vectors - self.centre


@dataclass(frozen=True)
class Captioned:
    """The captions of pictures 0 … total − 1, ready to be asked.

    rows [R, W] as in :class:`Texts`, words over the same R texts; numbers [R]: whose picture each is. A row that
    ``words`` does not count is not there. lengths [R]: by which a row must be divided in ``scale.space``.
    """

    words: Words
    rows: Vectors
    numbers: Ints
    total: int
    scale: Scale
    lengths: Array

    @classmethod
    def of(cls, captions: Texts, pictures: Array) -> Captioned:
        """In memory, of the captions [N] and vectors [N, D] of N pictures, of which some may have no caption."""
        words = Words.of(captions.texts)
        some = captions.take(np.flatnonzero(words.counted)[:SAMPLE].tolist())
        scale = Scale.of(some, pictures[:SAMPLE])
        rows = Vectors((captions.rows,), captions.rows.shape[1])
        return cls(words, rows, np.arange(len(pictures)), len(pictures), scale, lengths_in(scale.space, rows))

    @cached_property
    def described(self) -> Mask:
        """By number, whether a picture has a caption, bool [total]."""
        mask = np.zeros(self.total, bool)
        mask[self.numbers[self.words.counted]] = True
        return mask

    def text(self, rows: Array) -> Array:
        """The signal ``text`` of queries with tower outputs [Q, W], [Q, total]."""
        asked = self.scale.space.vectors(rows)
        turned = asked @ self.scale.space.turn
        scores = np.empty((len(rows), len(self.numbers)), np.float32)
        for start, block in self.rows.blocks():
            scores[:, start:start + len(block)] = turned @ block.T
        scores -= (turned @ self.scale.space.mean)[:, None]
        scores /= self.lengths
        for number, query in enumerate(asked):
            scores[number] = self.scale.text.standard(scores[number], query)
        return self._of_pictures(scores)

    def word(self, query: str) -> Array:
        """The signal ``words`` of a query [total]."""
        scores: Array = self._of_pictures(self.words.surprise(query)[None])[0]
        return scores

    def has_word(self, query: str) -> Mask:
        """By number, whether a caption holds a word of the query."""
        held: Mask = self._of_pictures(self.words.scores(query)[None])[0] > 0
        return held

    def image(self, vector: Array, pictures: Array) -> Array:
        """The signal ``image`` of a query [D] for some pictures' vectors [M, D], [M]."""
        query = self.scale.image_query(vector)
        scores: Array = self.scale.image.standard(pictures @ query, query)
        return scores

    def signals(self, asked: Texts, pictures: Array) -> dict[str, Array]:
        """All signals [Q, total] of some queries, for the vectors of all pictures."""
        return {
            "image": np.stack([self.image(vector, pictures) for vector in asked.vectors]),
            "text": self.text(asked.rows),
            "words": np.stack([self.word(text) for text in asked.texts]),
        }

    def _of_pictures(self, scores: Array) -> Array:
        """Scores [Q, R] of rows → of pictures [Q, total], 0 where a picture has no caption."""
        of_all = np.zeros((len(scores), self.total), np.float32)
        of_all[:, self.numbers[self.words.counted]] = scores[:, self.words.counted]
        return of_all


def lengths_in(space: CaptionSpace, rows: Vectors) -> Array:
    """‖(x − mean)·turn‖ of unit rows x [N, W]."""
    blocks = [np.linalg.norm((block - space.mean) @ space.turn, axis=1) for _, block in rows.blocks()]
    lengths: Array = np.maximum(np.concatenate([np.zeros(0), *blocks]), 1e-9).astype(np.float32)
    return lengths
