"""Captions longer than the text window, split at sentence ends into segments that fit. Pure text; no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from densecap_search.model.window import Truncation

Ints = npt.NDArray[np.int64]
Count = Callable[[Sequence[str]], Sequence[int]]  # texts → the tokens of each, with those that every text begins and ends with
# after . ! ? … and what closes a quotation or bracket, where white space follows; 。！？ need none; and at line ends
_SENTENCE_END = re.compile(r"""(?<=[.!?…])["'”’»)\]]*\s+|(?<=[。！？])["'”’」』）]*\s*|\s*\n\s*""")


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


def starts_of(counts: Ints) -> Ints:
    """Where the segments of each caption begin among all of them, int64 [N]."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def sentences(text: str) -> list[str]:
    """A text cut after its sentences and at its line ends, without the white space between them."""
    found, at = [], 0
    for end in _SENTENCE_END.finditer(text):
        closing = end.end() - len(end.group()) + len(end.group().rstrip())
        found.append(text[at:closing])
        at = end.end()
    found.append(text[at:])
    return [sentence.strip() for sentence in found if sentence.strip()]


def split_text(text: str, window: int, count: Count) -> list[str]:
    """A text longer than the window → as few segments of whole sentences as fit, as equal as they can be.

    A sentence longer than the window is cut between words, a word longer than it between letters; nothing is lost.
    """
    around = count([""])[0]  # the tokens that every text begins and ends with
    pieces = sentences(text)
    room = window
    while True:
        fitting = [part for piece in pieces for part in _fitting(piece, room, count)]
        lengths = [length - around for length in count(fitting)]
        segments = _join(fitting, _equal_runs(lengths, room - around), text)
        if max(count(segments)) <= window or room <= around + 1:
            return segments
        room -= 1  # a tokenizer that makes more of two sentences together than of each


def _fitting(piece: str, window: int, count: Count) -> list[str]:
    """A piece cut in halves, between words where it has several, until each fits."""
    if count([piece])[0] <= window or len(piece) < 2:
        return [piece]
    words = piece.split()
    if len(words) > 1:
        middle = len(words) // 2
        halves = [" ".join(words[:middle]), " ".join(words[middle:])]
    else:
        halves = [piece[:len(piece) // 2], piece[len(piece) // 2:]]
    return [part for half in halves for part in _fitting(half, window, count)]


def _equal_runs(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Runs of neighbours whose lengths sum to at most room: as few as possible, the longest as short as possible."""
    fewest = len(_greedy_runs(lengths, room))
    low, high = max(lengths), room
    while low < high:
        middle = (low + high) // 2
        if len(_greedy_runs(lengths, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _greedy_runs(lengths, max(low, max(lengths)))


def _greedy_runs(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    runs, start, used = [], 0, 0
    for number, length in enumerate(lengths):
        if number > start and used + length > room:
            runs.append((start, number))
            start, used = number, 0
        used += length
    return [*runs, (start, len(lengths))]


def _join(pieces: Sequence[str], runs: Sequence[tuple[int, int]], text: str) -> list[str]:
    """Runs of pieces as they stand in the text, with the white space between them."""
    places = []
    at = 0
    for piece in pieces:
        words = piece.split()
        start = text.index(words[0], at)
        for word in words:  # halves of a piece were joined by single spaces, which the text need not have
            at = text.index(word, at) + len(word)
        places.append((start, at))
    return [text[places[first][0]:places[last - 1][1]] for first, last in runs]


def best_of(found: Sequence[Sequence[tuple[int, float]]], k: int) -> list[tuple[int, float]]:
    """Hits of each segment as (row, score) → the k best rows by their best segment; equal scores in order of rows.

    Exact where each list holds the k best of its segment: whoever is missing there is beaten by k others.
    """
    best: dict[int, float] = {}
    for hits in found:
        for row, score in hits:
            best[row] = max(score, best.get(row, score))
    return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def group_by(counts: Ints) -> list[tuple[int, int]]:
    """Counts → from where to where each caption's segments go."""
    ends = list(accumulate(counts.tolist()))
    return list(zip([0, *ends[:-1]], ends, strict=True))
