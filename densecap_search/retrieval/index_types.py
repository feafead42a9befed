"""Types of index: how an approximation of the vectors is built, and what a search of it costs.

Whatever a type finds is scored again with the vectors themselves, so scores are cosines for every type.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.errors import IndexFolderError
from densecap_search.retrieval.vectors import Mask, Numbers, Vectors

faiss: Any = _faiss  # its stubs lack what Python's wrappers add
HNSW_LINKS, HNSW_BUILD = 32, 200  # neighbours of a node; candidates kept while building
TRAINING_ROWS = 100_000  # vectors that learn the cells and codes
MIN_APPROXIMATED = 1_000  # below, any type searches exactly: faster, and some types could not be trained
ADDED = 1 << 14  # vectors handed to faiss at once


@dataclass(frozen=True)
class IndexType:
    """One way to search.

    start: vectors → an empty faiss index, trained with them; None where they are searched exactly, without one.
    searched: its parameters for an effort and a selector. effort, most: where widening begins and ends. fetched:
    candidates for each one that is wanted, scored again exactly. memory: bytes that a vector of dim numbers takes while
    it is searched; pages of files that are only mapped do not count.
    """

    words: str
    start: Callable[[Vectors], Any] | None
    searched: Callable[[int, Any], Any]
    memory: Callable[[int], float]
    effort: int = 0
    most: int = 0
    fetched: int = 1

    @property
    def exact(self) -> bool:
        """Whether it finds what a look at every vector finds."""
        return self.start is None


def _hnsw(vectors: Vectors) -> Any:
    """A graph. Source: Malkov and Yashunin 2016."""
    index = faiss.IndexHNSWSQ(vectors.dim, faiss.ScalarQuantizer.QT_fp16, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = HNSW_BUILD
    return _trained(index, vectors)


def _ivf(vectors: Vectors) -> Any:
    """Cells around centres; only the nearest cells are looked into."""
    index = faiss.index_factory(vectors.dim, f"IVF{_cells(vectors)},SQfp16", faiss.METRIC_INNER_PRODUCT)
    return _trained(index, vectors)


def _ivfpq(vectors: Vectors) -> Any:
    """Cells, and in them codes of a byte for 4 numbers. Source: Jégou, Douze and Schmid 2011."""
    parts = next(parts for parts in range(max(1, vectors.dim // 4), 0, -1) if vectors.dim % parts == 0)
    index = faiss.index_factory(vectors.dim, f"IVF{_cells(vectors)},PQ{parts}x8", faiss.METRIC_INNER_PRODUCT)
    index.pq.cp.min_points_per_centroid = 1  # faiss says on stderr when they are few
    return _trained(index, vectors)


def _quantised(kind: int) -> Callable[[Vectors], Any]:
    return lambda vectors: _trained(faiss.IndexScalarQuantizer(vectors.dim, kind, faiss.METRIC_INNER_PRODUCT), vectors)


def _cells(vectors: Vectors) -> int:
    """About 4 √N, each with the 39 vectors that faiss wants to learn it from."""
    return max(1, min(int(4 * len(vectors) ** 0.5), min(len(vectors), TRAINING_ROWS) // 39))


def _trained(index: Any, vectors: Vectors) -> Any:
    """With a sample, where the type learns anything."""
    if not index.is_trained:
        chosen = np.random.default_rng(0).permutation(len(vectors))[:TRAINING_ROWS]
        index.train(vectors.take(np.sort(chosen).astype(np.int64)))
    return index


def fill(index: Any, vectors: Vectors, seconds: float = float("inf")) -> bool:
    """Give a faiss index the vectors that it lacks, in bounded memory; whether it has all before the time is up."""
    started = time.perf_counter()
    for _, block in vectors.blocks(start=int(index.ntotal), size=ADDED):
        if time.perf_counter() - started > seconds:
            return False
        index.add(np.ascontiguousarray(block))
    return True


def _plain(effort: int, selector: Any) -> Any:
    del effort
    return faiss.SearchParameters(sel=selector)


def _graph(effort: int, selector: Any) -> Any:
    return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)


def _in_cells(effort: int, selector: Any) -> Any:
    return faiss.SearchParametersIVF(nprobe=effort, sel=selector)


INDEX_TYPES: Mapping[str, IndexType] = {
    "flat": IndexType("exact: every vector is looked at", None, _plain, lambda dim: 0),
    "hnsw": IndexType("a graph: the fastest, in memory", _hnsw, _graph,
                      lambda dim: 2 * dim + 8 * HNSW_LINKS + 16, effort=128, most=1024),
    "ivf": IndexType("cells of vectors in half precision", _ivf, _in_cells, lambda dim: 2 * dim + 8,
                     effort=16, most=512),
    "ivfpq": IndexType("cells of short codes: the least memory", _ivfpq, _in_cells, lambda dim: dim / 4 + 8,
                       effort=16, most=512, fetched=4),
    "sq8": IndexType("every vector is looked at, in 8 bits a number", _quantised(faiss.ScalarQuantizer.QT_8bit), _plain,
                     lambda dim: dim, fetched=2),
    "fp16": IndexType("every vector is looked at, in half precision", _quantised(faiss.ScalarQuantizer.QT_fp16), _plain,
                      lambda dim: 2 * dim, fetched=2),
}


def candidates(index: Any, kind: IndexType, query: Array, depth: int, effort: int, allowed: Mask) -> Numbers:
    """Numbers, ascending, of at least ``depth`` vectors near a query [D], where the index finds as many.

    allowed: by number, those that may be found; the graph and the cells search more widely the fewer these are.
    """
    count = int(np.count_nonzero(allowed))
    share = max(count / max(1, len(allowed)), 1e-3)
    effort = min(round(max(effort, depth if kind.searched is _graph else 0) / share), int(index.ntotal))
    selector = None if count == len(allowed) else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    fetched = min(kind.fetched * depth, index.ntotal)
    _, numbers = index.search(query[None], fetched, params=kind.searched(effort, selector))
    # FAISS pads short results with -1; a damaged file could name any number
    return np.unique(numbers[(numbers >= 0) & (numbers < len(allowed))]).astype(np.int64)


def write_index(index: Any, path: Path) -> None:
    """Through Python's own file: faiss cannot open every name everywhere."""
    with path.open("wb") as file:
        file.write(faiss.serialize_index(index).data)
        file.flush()
        os.fsync(file.fileno())


def read_index(path: Path, wrote: str) -> Any:
    """wrote: the version of faiss that made it, for the error."""
    try:
        return faiss.deserialize_index(np.fromfile(path, np.uint8))
    except RuntimeError as error:
        raise IndexFolderError(f"{path} was written by faiss {wrote} and cannot be read by faiss {faiss.__version__}; "
                               "update faiss-cpu or build the index again with `densecap index … --rebuild`") from error
