"""Captions → vectors, cached by content. Nothing here knows torch: an encoder of captions alone will do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.embedding.tower_rows import Computed, blocks, check_finite, find_rows, stack
from densecap_search.files import hash_text
from densecap_search.model.segments import Ints, Truncation, mean_of
from densecap_search.model.text_encoder import TextEncoder, Tower
from densecap_search.talk import SILENT, Talk

TEXT_BATCH = 64


@dataclass(frozen=True)
class TextRows:
    """Of captions: tower outputs or unit vectors float32 [S, W] of their segments, those of a caption together.

    counts: segments of each caption, int64 [N]; all 1 where captions fit or are cut, and S is N then.
    """

    rows: Array
    counts: Ints
    truncation: Truncation

    def followed_by(self, more: TextRows) -> TextRows:
        """These and then others, of which the truncation is not counted."""
        return TextRows(np.concatenate([self.rows, more.rows]), np.concatenate([self.counts, more.counts]),
                        self.truncation)


def text_rows(encoder: TextEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT) -> TextRows:
    """What the text tower hands to its head for every segment of the captions."""
    segments = encoder.segments(captions)
    texts = segments.flat
    unique = list(dict.fromkeys(texts))
    lengths = [length for block in blocks(unique, 1024) for length in encoder.lengths(block)]
    order = sorted(range(len(unique)), key=lambda row: lengths[row])  # batches of like length waste no padding

    def compute(missing: Sequence[int]) -> Iterator[Computed]:
        wanted = set(missing)
        for block in blocks([row for row in order if row in wanted], TEXT_BATCH):
            yield Computed(list(block), encoder.text_outputs([unique[row] for row in block]), len(block))

    rows, _ = find_rows(encoder, "text", [hash_text(text) for text in unique], compute, np.asarray, cached, talk)
    number = {text: row for row, text in enumerate(unique)}
    return TextRows(stack([rows[number[text]] for text in texts]), segments.counts, segments.truncation)


def embed_segments(encoder: TextEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                   ) -> TextRows:
    """Unit vectors of the segments of captions, float32 [S, D]."""
    return segments_of(encoder, text_rows(encoder, captions, cached=cached, talk=talk), captions)


def segments_of(encoder: TextEncoder, segments: TextRows, captions: Sequence[str]) -> TextRows:
    """Tower outputs of captions → unit vectors of their segments."""
    vectors = heads_of(encoder, "text", segments.rows)
    check_finite(vectors, [caption for number, caption in enumerate(captions) for _ in range(segments.counts[number])])
    return TextRows(vectors, segments.counts, segments.truncation)


def embed_texts(encoder: TextEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                ) -> tuple[Array, Truncation]:
    """One unit vector of each caption, float32 [N, D]: of one in several segments their mean."""
    segments = embed_segments(encoder, captions, cached=cached, talk=talk)
    return mean_of(segments.rows, segments.counts), segments.truncation


def embed_queries(encoder: TextEncoder, captions: Sequence[str], *, cached: bool = True, talk: Talk = SILENT
                  ) -> TextRows:
    """The unit vectors by which captions are ranked: one of each, or of its segments where the best decides."""
    return queries_of(encoder, embed_segments(encoder, captions, cached=cached, talk=talk))


def queries_of(encoder: TextEncoder, segments: TextRows) -> TextRows:
    """Unit vectors of segments → those by which their captions are ranked."""
    if encoder.long_text == "best":
        return segments
    return TextRows(mean_of(segments.rows, segments.counts), np.ones_like(segments.counts), segments.truncation)


def heads_of(encoder: TextEncoder, tower: Tower, rows: Array) -> Array:
    """Tower outputs [N, W] → unit vectors [N, D]; in blocks, so that memory stays that of the result."""
    made = [encoder.through_head(tower, np.ascontiguousarray(block)) for block in blocks(rows, 4096)]
    return np.concatenate(made) if made else np.empty((0, encoder.dim), np.float32)
