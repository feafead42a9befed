"""Pictures of an index ranked by their captions, or by captions and vectors together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.retrieval.caption_space import unit
from densecap_search.retrieval.captioned import Captioned, Texts
from densecap_search.retrieval.fuse import RANKINGS, combine
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.vectors import Mask, Numbers

CANDIDATES = 1000  # of each ranking; only these are scored by all of them


@dataclass(frozen=True)
class Asked:
    """One query: texts with their weights, below 0 for what should not be there, and pictures [M, D] to be like, or
    unlike, with theirs."""

    texts: Texts
    weights: tuple[float, ...]
    like: Array
    like_weights: tuple[float, ...] = ()

    @classmethod
    def plain(cls, texts: Texts) -> list[Asked]:
        """Each text by itself."""
        nothing = np.empty((0, texts.vectors.shape[1]), np.float32)
        return [cls(texts.take([row]), (1.0,), nothing) for row in range(len(texts.texts))]

    @cached_property
    def vector(self) -> Array:
        """The weighted sum of all, a unit vector [D]; what a score is the cosine with."""
        weights, alike = np.array(self.weights, np.float32), np.array(self.like_weights, np.float32)
        summed: Array = unit((weights @ self.texts.vectors + alike @ self.like)[None])[0]
        return summed

    @property
    def total(self) -> float:
        """All weights together, whatever their signs."""
        return sum(map(abs, (*self.weights, *self.like_weights))) or 1.0


@dataclass(frozen=True)
class Match:
    """A picture that was found. score: its cosine; match: the weighted mean of its signals, in spreads above the mean;
    by: which of RANKINGS said most for it."""

    number: int
    score: float
    match: float
    by: str


def rank(index: ImageIndex, captioned: Captioned, queries: Sequence[Asked], values: Mapping[str, float], k: int, *,
         allowed: Mask | None = None, where: str | None = None) -> list[list[Match]]:
    """The k best pictures for each query by Σ values·signal / Σ values.

    Exact among the CANDIDATES best of each ranking, which in an index of no more pictures are all. values: of
    RANKINGS; one alone ranks by its signal, and pictures without a caption are then no answers. allowed: by number,
    what may be found; where: the filter that it came from, if that was all.
    """
    values = {name: values[name] for name in RANKINGS if values.get(name, 0) > 0}
    mask = index.alive if allowed is None else index.alive & allowed
    if "image" not in values:
        mask = mask & captioned.described
    return [_rank_one(index, captioned, asked, values, mask, max(k, CANDIDATES), where)[:k] for asked in queries]


def _rank_one(index: ImageIndex, captioned: Captioned, asked: Asked, values: Mapping[str, float], mask: Mask,
              depth: int, where: str | None) -> list[Match]:
    signals = _caption_signals(captioned, asked, list(values))
    numbers = np.flatnonzero(mask)
    if len(numbers) > depth:
        best = [_best(signal, numbers, depth) for signal in signals.values()]
        if "image" in values:
            near = np.array([number for number, _ in index.search(asked.vector[None], depth, where)[0]], np.int64)
            best.append(near[mask[near]])
        numbers = np.unique(np.concatenate(best))
    pictures = index.stored.take(numbers)
    signals = {name: signal[numbers] for name, signal in signals.items()}
    if "image" in values:
        signals["image"] = _image_signal(captioned, asked, pictures)
    match = combine(signals, values)
    order = np.lexsort((numbers, -match))
    if list(values) == ["words"]:  # what holds none of the words was not found by them
        order = order[captioned.has_word("\n".join(asked.texts.texts))[numbers[order]]]
    names = [name for name in RANKINGS if name in values]
    parts = np.stack([np.float32(values[name]) * signals[name] for name in names])
    cosines = pictures @ asked.vector
    return [Match(int(numbers[place]), float(cosines[place]), float(match[place]), names[int(parts[:, place].argmax())])
            for place in order[:depth]]


def _caption_signals(captioned: Captioned, asked: Asked, names: Sequence[str]) -> dict[str, Array]:
    """By number, of the whole index; of several texts their weighted mean."""
    weights = np.array(asked.weights, np.float32) / np.float32(asked.total)
    signals = {}
    if "text" in names:
        signals["text"] = weights @ captioned.text(asked.texts.rows)
    if "words" in names:
        words = [weight * captioned.word(text) for weight, text in zip(weights, asked.texts.texts, strict=True)]
        signals["words"] = np.sum([np.zeros(captioned.total, np.float32), *words], axis=0)
    return signals


def _image_signal(captioned: Captioned, asked: Asked, pictures: Array) -> Array:
    texts = [np.float32(weight) * captioned.image(vector, pictures)
             for weight, vector in zip(asked.weights, asked.texts.vectors, strict=True)]
    alike = [np.float32(weight) * captioned.scale.image.standard(pictures @ vector, vector)
             for weight, vector in zip(asked.like_weights, asked.like, strict=True)]
    signal: Array = np.sum([np.zeros(len(pictures), np.float32), *texts, *alike], axis=0) / np.float32(asked.total)
    return signal


def _best(signal: Array, numbers: Numbers, depth: int) -> Numbers:
    own = signal[numbers]
    return numbers[np.argpartition(-own, depth - 1)[:depth]]
