"""Which vectors, or codes, are nearest to which: within one set of them, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from densecap_search.embedding.cache import Array

RANGE_BLOCK = 256  # queries of a range search at once: each may find all of the others


def nearest(vectors: Array, k: int) -> Any:
    """For each row of unit vectors [N, D], the numbers of its k nearest other rows by cosine, best first [N, k]."""
    index = _exact(np.ascontiguousarray(vectors, dtype=np.float32))
    _, rows = index.search(vectors, min(k + 1, len(vectors)))
    others = [[row for row in row_numbers if row != number][:k] for number, row_numbers in enumerate(rows.tolist())]
    return np.array(others, dtype=np.int64)


def near_vectors(vectors: Array, least: float) -> Iterator[tuple[int, Any, Any]]:
    """For each row of unit vectors [N, D]: its number, the other rows whose cosine is at least ``least``, cosines."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    border = float(np.nextafter(np.float32(least), np.float32(-2)))  # faiss wants more than the border
    return _within(_exact(vectors), vectors, border)


def near_codes(codes: Any, bits: int) -> Iterator[tuple[int, Any, Any]]:
    """For each of N codes uint64 [N]: its number, the others that differ in at most ``bits`` bits, by how many.

    Codes that differ in b bits agree on one of b + 1 bands: only those are compared.
    """
    rows = np.ascontiguousarray(codes, dtype=np.uint64).view(np.uint8).reshape(-1, 8)
    index = faiss.IndexBinaryMultiHash(64, bits + 1, 64 // (bits + 1))
    index.add(rows)
    return _within(index, rows, bits + 1)  # faiss wants less than the border


def _within(index: Any, queries: Any, border: float) -> Iterator[tuple[int, Any, Any]]:
    """Range search in blocks, so that memory is that of a block's results."""
    for start in range(0, len(queries), RANGE_BLOCK):
        limits, values, numbers = index.range_search(queries[start:start + RANGE_BLOCK], border)
        for place, (low, high) in enumerate(zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True)):
            if high - low > 1:  # more than itself
                others = numbers[low:high] != start + place
                yield start + place, numbers[low:high][others], values[low:high][others]



def _exact(vectors: Array) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index
