"""Captions longer than the text window, split at sentence ends into segments that fit. Pure text; no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from densecap_search.collection.captions import sentences

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[np.float32]
Count = Callable[[Sequence[str]], Sequence[int]]  # texts → the tokens of each, with those that every text has around it



@dataclass(frozen=True)
class Truncation:
    """How many captions were longer than the window, and how much of them was lost; or into what they were split."""

    captions: int
    truncated: int
    tokens: int  # in all captions
    lost: int  # tokens beyond the window, in all captions
    longest: int  # tokens of the longest caption
    context_length: int
    split: int = 0  # captions read in several segments, of which nothing is lost
    segments: int = 0  # of those

    @classmethod
    def of(cls, lengths: Sequence[int], context_length: int) -> Truncation:
        """From the untruncated lengths in tokens, where captions are cut."""
        lost = [max(0, length - context_length) for length in lengths]
        return cls(
            len(lengths), sum(1 for tokens in lost if tokens), sum(lengths), sum(lost),
            max(lengths, default=0), context_length,
        )

    @classmethod
    def of_split(cls, lengths: Sequence[int], context_length: int, counts: Sequence[int]) -> Truncation:
        """From the lengths in tokens and the segments of each caption, where captions are split."""
        several = [count for count in counts if count > 1]
        whole = cls.of(lengths, context_length)
        return replace(whole, truncated=0, lost=0, split=len(several), segments=sum(several))

    def and_of(self, more: Truncation) -> Truncation:
        """Of these captions and more of them, by the same model."""
        sums = {name: getattr(self, name) + getattr(more, name)
                for name in ("captions", "truncated", "tokens", "lost", "split", "segments")}
        return replace(self, longest=max(self.longest, more.longest), **sums)

    @property
    def longer(self) -> int:
        """Captions longer than the window."""
        return self.truncated + self.split

    def __str__(self) -> str:
        window = f"the window of {self.context_length} tokens"
        if self.split:
            return (f"{self.split} of {self.captions} captions are longer than {window} and were split into "
                    f"{self.segments} segments; the longest has {self.longest}")
        if not self.truncated:
            return f"no caption is longer than {window} (the longest has {self.longest})"
        return (
            f"{self.truncated} of {self.captions} captions were cut to {window}: "
            f"{100 * self.lost / self.tokens:.1f} % of all tokens lost, the longest caption has {self.longest}"
        )


@dataclass(frozen=True)
class Segments:
    """The segments of each caption, in order: the caption itself where it fits. truncation: how many did not."""

    texts: tuple[tuple[str, ...], ...]
    truncation: Truncation

    @property
    def flat(self) -> list[str]:
        """All segments, those of a caption together."""
        return [segment for segments in self.texts for segment in segments]

    @property
    def counts(self) -> Ints:
        """Segments of each caption, int64 [N]."""
        return np.array([len(segments) for segments in self.texts], dtype=np.int64)


def in_segments(captions: Sequence[str], lengths: Sequence[int], window: int, count: Count, long_text: str) -> Segments:
    """The parts in which captions of so many tokens are read: each whole or cut, or split to fit, as long_text says."""
    if long_text == "cut":
        return Segments(tuple((caption,) for caption in captions), Truncation.of(lengths, window))
    texts = tuple((caption,) if length <= window else tuple(split_text(caption, window, count))
                  for caption, length in zip(captions, lengths, strict=True))
    return Segments(texts, Truncation.of_split(lengths, window, [len(parts) for parts in texts]))


def starts_of(counts: Ints) -> Ints:
    """Where the segments of each caption begin among all of them, int64 [N]."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def mean_of(vectors: Array, counts: Ints) -> Array:
    """Unit vectors of segments [S, D] → of each caption the mean, of length 1 again [N, D]; a single one as it is."""
    if len(vectors) == len(counts):
        return vectors
    starts = starts_of(counts)
    sums = np.add.reduceat(vectors, starts)
    means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    pooled: Array = np.where((counts == 1)[:, None], vectors[starts], means)
    return pooled


def best_of(lists: Sequence[Sequence[tuple[int, float]]], k: int) -> list[tuple[int, float]]:
    """Hits of each segment as (row, score) → the k best rows by their best segment; equal scores in order of rows.

    Exact where each list holds the k best of its segment: a row that is missing there is beaten by k others.
    """
    best: dict[int, float] = {}
    for hits in lists:
        for row, score in hits:
            best[row] = max(score, best.get(row, score))
    return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def split_text(text: str, window: int, count: Count) -> list[str]:
    """A text longer than the window → as few segments of whole sentences as fit, as equal as they can be.

    A sentence longer than the window is cut between words, a word longer than it between letters; nothing is lost.
    """
    around = count([""])[0]  # the tokens that every text has around it
    whole = sentences(text)
    pieces = [part for sentence, tokens in zip(whole, count(whole), strict=True)
              for part in ([sentence] if tokens <= window else _words(sentence, window, count))]
    lengths = [tokens - around for tokens in count(pieces)]
    for room in range(window - around, 0, -1):  # less where a tokenizer makes more of two sentences together
        segments = _cut(text, pieces, _equal_runs(lengths, room))
        if max(count(segments)) <= window:
            break
    return segments


def _words(sentence: str, window: int, count: Count) -> list[str]:
    """The words of a sentence, and the letters of those that are longer than the window."""
    words = sentence.split()
    return [part for word, tokens in zip(words, count(words), strict=True)
            for part in ([word] if tokens <= window else word)]


def _equal_runs(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Runs of neighbours whose lengths sum to at most room: as few as possible, the longest as short as possible."""
    fewest = len(_runs(lengths, room))
    low, high = max(lengths), max(room, max(lengths))
    while low < high:
        middle = (low + high) // 2
        if len(_runs(lengths, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _runs(lengths, low)


def _runs(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    runs, start, used = [], 0, 0
    for number, length in enumerate(lengths):
        if number > start and used + length > room:
            runs.append((start, number))
            start, used = number, 0
        used += length
    return [*runs, (start, len(lengths))]


def _cut(text: str, pieces: Sequence[str], runs: Sequence[tuple[int, int]]) -> list[str]:
    """Runs of pieces as they stand in the text, with the white space between them."""
    starts, ends, at = [], [], 0
    for piece in pieces:
        starts.append(text.index(piece, at))
        at = starts[-1] + len(piece)
        ends.append(at)
    return [text[starts[first]:ends[last - 1]] for first, last in runs]
