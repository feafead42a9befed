"""Captions ranked by their words: BM25 over all of them, exactly, in numpy.

SQLite's bm25() gives the same order for a few words, but looks at every row that holds any word of a long caption, one
at a time, and tells neither the mean nor the spread of the scores, which :mod:`fuse` needs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from densecap_search.embedding.cache import Array
from densecap_search.files import atomic_file
from densecap_search.retrieval.index_folder import read_arrays

K1, B = 1.2, 0.75  # how soon a repeated word stops counting; how much a long text is held against it
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_WORD = re.compile(r"\w+")
# scripts without spaces between words: their letters are taken in pairs, as search engines do
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")


def tokens(text: str) -> list[str]:
    """The words of a text in their order: letters and digits, without case and accents.

    Nothing is stemmed and no word is left out: the vectors of captions know other forms of a word, and words that are
    everywhere weigh next to nothing.
    """
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return [part for word in _WORD.findall(plain.casefold().replace("_", " ")) for part in _parts(word)]


def _parts(word: str) -> list[str]:
    if not UNSPACED.search(word):
        return [word]
    parts, at = [], 0
    for run in UNSPACED.finditer(word):
        letters = run.group()
        pairs = [letters[place:place + 2] for place in range(max(1, len(letters) - 1))]
        parts += [word[at:run.start()], *pairs]
        at = run.end()
    return [part for part in (*parts, word[at:]) if part]


def holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the wanted words stand in a text one after the other."""
    size = len(wanted)
    return any(list(words[start:start + size]) == list(wanted) for start in range(len(words) - size + 1))


@dataclass(frozen=True)
class WordPart:
    """How often each word stands in each of n texts.

    Of word terms[t], the texts rows[starts[t]:starts[t + 1]] (ascending) hold it counts[…] times. lengths [n]: words of
    each text.
    """

    terms: tuple[str, ...]
    starts: Ints
    rows: npt.NDArray[np.int32]
    counts: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int32]

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordPart:
        """Count the words of some texts."""
        places: dict[str, list[int]] = {}
        times: dict[str, list[int]] = {}
        lengths = []
        for row, text in enumerate(texts):
            words = tokens(text)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                places.setdefault(word, []).append(row)
                times.setdefault(word, []).append(count)
        terms = tuple(sorted(places))
        starts = np.cumsum([0, *(len(places[term]) for term in terms)], dtype=np.int64)
        rows = np.array([row for term in terms for row in places[term]], np.int32)
        counts = np.array([count for term in terms for count in times[term]], np.float32)
        return cls(terms, starts, rows, counts, np.array(lengths, np.int32))

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Of each word, its place in terms."""
        return {term: place for place, term in enumerate(self.terms)}

    def of_term(self, term: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The texts that hold a word, and how often each does."""
        place = self.number.get(term)
        if place is None:
            return self.rows[:0], self.counts[:0]
        start, end = self.starts[place:place + 2]
        return self.rows[start:end], self.counts[start:end]


@dataclass(frozen=True)
class Words:
    """The texts of several parts, one after the other, with those that count, bool [N]: neither removed nor empty.

    A text that does not count is in no mean, no frequency and no ranking, as if it had never been there.
    """

    parts: tuple[WordPart, ...]
    counted: Mask

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """In memory, of texts of which the empty ones do not count."""
        part = WordPart.of(texts)
        return cls((part,), part.lengths > 0)

    @cached_property
    def size(self) -> int:
        """Texts that count."""
        return int(self.counted.sum())

    def share(self, word: str) -> float:
        """Which share of the texts holds a word."""
        return len(self._of_term(word)[0]) / max(1, self.size)

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(len(part.lengths) for part in self.parts)])

    @cached_property
    def _damping(self) -> Array:
        """k₁(1 − b + b·length/mean length) of every text [N]."""
        lengths = np.concatenate([part.lengths for part in self.parts]).astype(np.float32)
        mean = max(float(lengths[self.counted].mean()), 1.0) if self.size else 1.0
        damping: Array = np.float32(K1) * (np.float32(1 - B) + np.float32(B / mean) * lengths)
        return damping

    def _of_term(self, term: str) -> tuple[Ints, Array]:
        """The texts that count and hold a word, and how often each does."""
        postings = [(start + rows, counts) for start, part in zip(self._starts, self.parts, strict=False)
                    for rows, counts in [part.of_term(term)] if len(rows)]
        if not postings:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        rows, counts = (np.concatenate(values) for values in zip(*postings, strict=True))
        kept = self.counted[rows]
        return rows[kept], counts[kept]

    def _weights(self, rows: Ints, counts: Array) -> Array:
        """What a word adds to the score of each text that holds it."""
        rarity = np.float32(np.log(1 + (self.size - len(rows) + 0.5) / (len(rows) + 0.5)))
        weights: Array = rarity * np.float32(K1 + 1) * counts / (counts + self._damping[rows])
        return weights

    def scores(self, query: str) -> Array:
        """BM25 of every text [N], 0 of those that hold no word of the query.

        Σ over the words w of the query, as often as each stands there: ln(1 + (n − n_w + ½)/(n_w + ½)) ·
        (k₁ + 1)·f/(f + k₁(1 − b + b·length/mean length)), with f times in the text, n texts, n_w of them with the word.
        Source: Robertson and Zaragoza 2009; the logarithm as in Lucene, never below 0.
        """
        total = np.zeros(len(self.counted), np.float32)
        for word, times in Counter(tokens(query)).items():
            rows, counts = self._of_term(word)
            total[rows] += np.float32(times) * self._weights(rows, counts)
        return total

    @cached_property
    def usual(self) -> Array:
        """What each text scores on average when the others ask [N], divided by the mean over all texts.

        A long text of common words is near the top for every query; what it scores above this is its own.
        """
        total = np.zeros(len(self.counted), np.float64)
        for term in sorted({term for part in self.parts for term in part.terms}):
            rows, counts = self._of_term(term)
            total[rows] += self._weights(rows, counts) * (counts.sum() - counts)
        mean = total[self.counted].mean() if self.size else 0.0
        usual: Array = (total / mean if mean > 0 else self.counted * 1.0).astype(np.float32)
        return usual

    def surprise(self, query: str) -> Array:
        """How far every text's score stands above what it usually is, in spreads over the texts that count; else 0.

        The mean over texts is 0: what is taken off is the query's mean score times the text's :attr:`usual`.
        """
        scores = self.scores(query)
        if not self.size:
            return scores
        above = scores - scores[self.counted].mean() * self.usual
        spread = float(above[self.counted].std())
        surprises: Array = np.where(self.counted, above / spread, 0).astype(np.float32) if spread > 0 else above * 0
        return surprises


def save_part(part: WordPart, path: Path) -> None:
    """As arrays in an uncompressed .npz."""
    with atomic_file(path) as file:
        np.savez(file, terms=np.frombuffer("\n".join(part.terms).encode(), np.uint8), starts=part.starts,
                 rows=part.rows, counts=part.counts.astype(np.uint16), lengths=part.lengths)


def load_part(path: Path) -> WordPart:
    """What :func:`save_part` wrote. Errors: ValueError, KeyError, OSError where it is damaged."""
    arrays = read_arrays(path)
    text = arrays["terms"].tobytes().decode()
    part = WordPart(tuple(text.split("\n")) if text else (), arrays["starts"], arrays["rows"],
                    arrays["counts"].astype(np.float32), arrays["lengths"])
    fits = (len(part.starts) == len(part.terms) + 1 and part.starts[-1] == len(part.rows) == len(part.counts)
            and (not len(part.rows) or 0 <= part.rows.min() <= part.rows.max() < len(part.lengths)))
    if not fits or (np.diff(part.starts) < 0).any():
        raise ValueError(f"{path} does not fit together")
    return part
