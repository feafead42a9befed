"""Several rankings → one: a weighted sum of scores that are counted in spreads from their mean. numpy only.

Ranks say nothing of by how much one picture beats the next, so fusing ranks loses what a caption's words know for
certain. Weights are learned from queries whose picture is known, and judged on queries that they were not learned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from densecap_search.embedding.cache import Array

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
RANKINGS = ("image", "text", "words")  # pictures' vectors; captions by the text tower; captions by their words
SINGLE = 1.0  # points of mean recall by which one ranking must beat the sum before `auto` takes it alone
LEAST_QUERIES = 30  # fewer say nothing about weights: then all count the same
FOLDS = 5
PULL = 2.0  # queries' worth of holding the weights together
_STEPS = 50


@dataclass(frozen=True)
class Spread:
    """Mean [D] and covariance [D, D] of vectors: the mean and spread of their products with any query."""

    mean: Array
    covariance: Array

    @classmethod
    def of(cls, vectors: Array) -> Spread:
        """Of vectors [N, D]."""
        mean = vectors.mean(axis=0, dtype=np.float64)
        centred = vectors - mean
        return cls(mean.astype(np.float32), (centred.T @ centred / max(1, len(vectors))).astype(np.float32))

    def standard(self, scores: Array, query: Array) -> Array:
        """Products of some vectors with a query [D] → spreads above the mean over all vectors."""
        spread = float(np.sqrt(max(float(query @ self.covariance @ query), 0.0)))
        if spread < 1e-9:
            return np.zeros_like(scores)
        scaled: Array = (scores - np.float32(query @ self.mean)) / np.float32(spread)
        return scaled


@dataclass(frozen=True)
class Weights:
    """How much each of RANKINGS counts, and the figures that say so.

    values: by ranking, their mean is 1. best: the mode that ``auto`` stands for. figures: mode → {R@1, R@10} in
    percent over the queries; of ``fused`` with weights learned from the other queries. how: what the queries were.
    """

    values: Mapping[str, float]
    best: str
    queries: int = 0
    gallery: int = 0
    how: str = ""
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {value:.2f}" for name, value in self.values.items())
        if not self.figures:
            return f"they count beside the pictures with the weights {shares}: {self.how}"
        shown = "; ".join(f"{mode} {each['R@1']:.1f} / {each['R@10']:.1f}" for mode, each in self.figures.items())
        return (f"{self.how}: {self.queries} queries among {self.gallery} pictures, R@1 / R@10: {shown}. "
                f"Weights: {shares}. `--mode auto` is {self.best}")


def combine(signals: Mapping[str, Array], values: Mapping[str, float]) -> Array:
    """Weighted mean of standardised scores, each [N] or [Q, N]; a ranking that knows nothing of a picture says 0."""
    total = np.sum([np.float32(values[name]) * signals[name] for name in signals], axis=0)
    mean: Array = total / np.float32(sum(values[name] for name in signals))
    return mean


def equal_weights(why: str) -> Weights:
    """Where nothing can be learned."""
    return Weights(dict.fromkeys(RANKINGS, 1.0), "fused", how=why)


def choose_weights(signals: Mapping[str, Array], own: Ints, how: str) -> Weights:
    """Weights learned from queries whose pictures are known.

    signals: by ranking, standardised scores [Q, N]. own [Q]: the column of each query's picture.
    """
    stacked = np.stack([signals[name] for name in RANKINGS])
    figures = {name: recall(signals[name], own) for name in RANKINGS}
    if len(own) < LEAST_QUERIES:
        return equal_weights(f"only {len(own)} pictures have a description that can be taken in two, fewer than "
                             f"{LEAST_QUERIES}")
    figures["fused"] = recall(cross_fitted(stacked, own), own)
    mean = {mode: (each["R@1"] + each["R@10"]) / 2 for mode, each in figures.items()}
    alone = max(RANKINGS, key=lambda name: mean[name])
    best = alone if mean[alone] > mean["fused"] + SINGLE else "fused"
    values = dict(zip(RANKINGS, (float(value) for value in fit(stacked, own)), strict=True))
    return Weights(values, best, len(own), stacked.shape[2], how, figures)


def cross_fitted(signals: Array, own: Ints, folds: int = FOLDS) -> Array:
    """Scores [Q, N] of each query by weights that were learned from queries of other pictures.

    signals [F, Q, N]. Queries of one picture are in one fold.
    """
    scores = np.empty(signals.shape[1:], np.float32)
    pictures = np.unique(own)
    for fold in np.array_split(np.random.default_rng(0).permutation(pictures), min(folds, len(pictures))):
        left_out = np.isin(own, fold)
        values = fit(signals[:, ~left_out], own[~left_out])
        scores[left_out] = np.tensordot(values.astype(np.float32), signals[:, left_out], axes=1)
    return scores


def fit(signals: Array, own: Ints) -> Floats:
    """Weights [F] ≥ 0 with mean 1 under which the right pictures are most likely.

    Likelihood: softmax over the pictures of Σ w·z, then w to mean 1; less PULL·Σ(w − mean w)². Concave: by Newton's
    method. signals [F, Q, N]; own [Q]. Without a query all weights are 1.
    """
    count, queries = signals.shape[:2]
    if not queries:
        return np.ones(count)
    weights = np.ones(count)
    rows = np.arange(queries)
    right = signals[:, rows, own].astype(np.float64)  # [F, Q]
    apart = np.eye(count) - 1 / count  # Σ(w − mean w)² = wᵀ·apart·w
    for _ in range(_STEPS):
        likely = _softmax(np.tensordot(weights.astype(np.float32), signals, axes=1))
        expected = np.einsum("qn,fqn->fq", likely, signals, optimize=True).astype(np.float64)
        second = sum(((likely[row] * signals[:, row]) @ signals[:, row].T).astype(np.float64) for row in rows)
        slope = (expected - right).sum(axis=1) + 2 * PULL * apart @ weights
        curve = second - expected @ expected.T + 2 * PULL * apart + 1e-6 * np.eye(count)
        step = np.linalg.solve(curve, slope)
        moved = np.maximum(weights - np.clip(step, -0.5, 0.5), 0)
        if np.abs(moved - weights).max() < 1e-6:
            break
        weights = moved
    return weights / weights.mean() if weights.mean() > 1e-9 else np.ones(count)


def recall(scores: Array, own: Ints) -> dict[str, float]:
    """R@1 and R@10, percent: rank = 1 + those that score higher + half of the others that score the same."""
    right = scores[np.arange(len(own)), own][:, None]
    ranks = 1 + (scores > right).sum(axis=1) + ((scores == right).sum(axis=1) - 1) / 2
    return {f"R@{k}": float(100 * (ranks <= k).mean()) if len(own) else 0.0 for k in (1, 10)}


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely: Array = powers / powers.sum(axis=1, keepdims=True)
    return likely


def contributions(parts: Sequence[float], names: Sequence[str] = RANKINGS) -> str:
    """Which ranking spoke most for a picture."""
    return names[int(np.argmax(parts))]
