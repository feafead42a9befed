"""How sure a figure is: bootstrap and randomisation over clusters of queries. numpy only.

The queries of one picture are no independent draws, so whole clusters are drawn, and change sides, together.
Sources: Efron 1979 (bootstrap); Smucker, Allan and Carterette 2007 (paired randomisation in retrieval).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles
FLIPS = 9999  # random flips of signs, where all of them are too many
EXACT_CLUSTERS = 13  # up to so many differing clusters all 2^n flips are tried
BLOCK = 1 << 24  # numbers in memory at once


def bootstrap_means(values: Floats, clusters: Ints, *, seed: int = 0) -> Floats:
    """Means [RESAMPLES, M] of values [Q, M] under draws of whole clusters [Q] with replacement."""
    member = _members(clusters)
    sizes = np.bincount(member).astype(np.float64)
    sums = np.stack([np.bincount(member, column, minlength=len(sizes)) for column in values.T], axis=1)
    return np.stack([(counts @ sums) / (counts @ sizes) for counts in _draws(len(sizes), seed)])


def bootstrap_medians(values: Floats, clusters: Ints, *, seed: int = 0) -> Floats:
    """Medians [RESAMPLES] of values [Q] under the same draws."""
    member = _members(clusters)
    order = np.argsort(values, kind="stable")
    ordered, places = values[order], member[order]
    return np.array([_weighted_median(ordered, counts[places]) for counts in _draws(int(member.max()) + 1, seed)])


def interval(drawn: Floats) -> tuple[float, float]:
    """The 95 % interval of resampled figures."""
    low, high = np.percentile(drawn, INTERVAL, method="linear" if np.isfinite(drawn).all() else "nearest")
    return float(low), float(high)


def all_or_none_bound(clusters: int) -> float:
    """The share that yields only hits, in so many draws, in 2.5 % of cases (Clopper and Pearson 1934)."""
    return float((INTERVAL[0] / 100) ** (1 / clusters))


def constant_interval(value: float, least: float, most: float, clusters: int) -> tuple[float, float]:
    """The 95 % interval of a mean where every draw had the same value: a bootstrap of it would have no width.

    least, most: what a value can be. If a share p of all draws has this value, the mean lies from
    p·value + (1 − p)·least to p·value + (1 − p)·most; and so many draws are alike in less than 2.5 % of cases if p is
    below :func:`all_or_none_bound`. For a share of 0 or 1 it is the interval of Clopper and Pearson.
    """
    p = all_or_none_bound(clusters)
    return p * value + (1 - p) * least, p * value + (1 - p) * most


def flip_p_value(differences: Floats, clusters: Ints, *, seed: int = 0) -> float:
    """Two-sided p-value of a mean paired difference [Q] under random signs of whole clusters.

    With few differing clusters all signs are tried and it is exact; else (1 + as extreme) / (1 + FLIPS).
    """
    sums = np.bincount(_members(clusters), differences)
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    reached = abs(sums.sum()) * (1 - 1e-9)
    if len(sums) <= EXACT_CLUSTERS:
        signs = 1 - 2 * ((np.arange(1 << len(sums))[:, None] >> np.arange(len(sums))) & 1)
        return float(np.mean(np.abs(signs @ sums) >= reached))
    generator, extreme, step = np.random.default_rng(seed), 0, max(1, BLOCK // len(sums))
    for start in range(0, FLIPS, step):
        bits = _random_bits(generator, min(step, FLIPS - start), len(sums))
        extreme += int(np.count_nonzero(np.abs(2 * (bits @ sums) - sums.sum()) >= reached))
    return (1 + extreme) / (1 + FLIPS)


def swap_p_value(first: Floats, second: Floats, clusters: Ints, *, seed: int = 0) -> float:
    """Two-sided p-value of the difference of two medians, when whole clusters swap sides at random."""
    member, generator = _members(clusters), np.random.default_rng(seed)
    reached = abs(np.median(first) - np.median(second))
    extreme = 0
    for _ in range(RESAMPLES - 1):
        swapped = generator.integers(0, 2, int(member.max()) + 1).astype(bool)[member]
        one, other = np.where(swapped, second, first), np.where(swapped, first, second)
        extreme += bool(abs(np.median(one) - np.median(other)) >= reached)
    return (1 + extreme) / RESAMPLES


def _members(clusters: Ints) -> Ints:
    """Clusters numbered from 0."""
    member: Ints = np.unique(clusters, return_inverse=True)[1]
    return member


def _draws(clusters: int, seed: int) -> Iterator[Floats]:
    """How often each cluster is drawn, RESAMPLES times."""
    generator = np.random.default_rng(seed)
    for _ in range(RESAMPLES):
        yield np.bincount(generator.integers(clusters, size=clusters), minlength=clusters).astype(np.float64)


def _random_bits(generator: np.random.Generator, rows: int, width: int) -> npt.NDArray[np.float32]:
    packed = np.frombuffer(generator.bytes(rows * ((width + 7) // 8)), np.uint8).reshape(rows, -1)
    return np.unpackbits(packed, axis=1, count=width).astype(np.float32)


def _weighted_median(ordered: Floats, weights: Floats) -> float:
    """The median of ordered values, each as often as its weight says."""
    total = np.cumsum(weights)
    count = int(total[-1])
    low, high = np.searchsorted(total, [(count - 1) // 2, count // 2], side="right")
    return float((ordered[low] + ordered[high]) / 2)
