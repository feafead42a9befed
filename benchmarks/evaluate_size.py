"""Retrieval figures of many pairs, in both directions: peak memory, and time as a ratio to the bare matrix product."""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
from measure import quartiles, report

from densecap_search.evaluation.metrics import BLOCK_SCORES, Relevance, rank_queries, summarise


def unit_vectors(generator: np.random.Generator, count: int, dim: int) -> np.ndarray:
    values = generator.standard_normal((count, dim), dtype=np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def bare(queries: np.ndarray, gallery: np.ndarray) -> float:
    """Every score once, in the same blocks; nothing is kept."""
    step, total = max(1, BLOCK_SCORES // len(gallery)), 0.0
    for start in range(0, len(queries), step):
        total += float((queries[start:start + step] @ gallery.T)[0, 0])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3, help="the whole and the bare product in turns")
    chosen = parser.parse_args()
    generator, labels = np.random.default_rng(0), np.arange(chosen.pairs)
    image = unit_vectors(generator, chosen.pairs, chosen.dim)
    text = unit_vectors(generator, chosen.pairs, chosen.dim) + image / 5
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ranking, product = [], []
    for _ in range(chosen.rounds):
        started = time.perf_counter()
        found = [rank_queries(*sides, Relevance.of_labels(labels, labels)) for sides in ((text, image), (image, text))]
        ranking.append(time.perf_counter() - started)
        started = time.perf_counter()
        bare(text, image), bare(image, text)
        product.append(time.perf_counter() - started)
    started = time.perf_counter()
    figures = [summarise(ranks, labels, chosen.pairs) for ranks in found]
    intervals = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    low, middle, high = quartiles([a / b for a, b in zip(ranking, product, strict=True)])
    report(
        f"{chosen.pairs} × {chosen.pairs} pairs of {chosen.dim} numbers, both directions: peak {peak:.2f} GB of memory "
        f"({own:.2f} GB of it vectors and libraries), {middle:.2f} times the bare matrix product "
        f"({low:.2f}–{high:.2f}; {np.median(ranking):.0f} s), {intervals:.0f} s more for all intervals; "
        f"R@1 {figures[0]['R@1'].value:.1f} / {figures[1]['R@1'].value:.1f}",
        {"benchmark": "evaluate_size", "pairs": chosen.pairs, "dim": chosen.dim, "peak_gb": peak,
         "time_to_product": middle, "low": low, "high": high, "seconds": float(np.median(ranking)),
         "interval_seconds": intervals},
    )


if __name__ == "__main__":
    main()
