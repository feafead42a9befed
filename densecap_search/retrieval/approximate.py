"""Which type of index fits, building it beside the vectors, and how much of exact search it finds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.files import hash_file, temporary_folder
from densecap_search.retrieval.index_types import (
    INDEX_TYPES,
    MIN_APPROXIMATED,
    IndexType,
    candidates,
    fill,
    write_index,
)
from densecap_search.retrieval.manifest import Approximation
from densecap_search.retrieval.vectors import Mask, Numbers, Vectors, VectorSource, search_among, search_exactly

RECALL = 0.95  # share of the exact first ten that is asked of an approximation
NEIGHBOURS, DEPTH = 10, 128
QUERIES = 500  # captions, or pictures, that recall is measured with
FLAT_BYTES = 400 << 20  # vectors that are looked at within about a tenth of a second
MEMORY_SHARE = 0.5  # of the machine's memory that an index may take


def choose_type(count: int, dim: int, memory: int) -> tuple[str, str]:
    """A type for a number of vectors, and why in a phrase. memory: of the machine, in bytes."""
    size = count * dim * 4
    if size <= FLAT_BYTES:
        return "flat", f"{count:,} vectors are looked at one by one in a moment"
    graph, room = count * INDEX_TYPES["hnsw"].memory(dim), memory * MEMORY_SHARE
    if graph <= room:
        return "hnsw", f"{count:,} vectors are many, and a graph of them takes {graph / 2**30:.1f} GiB of memory"
    return "ivfpq", (f"a graph of {count:,} vectors would take {graph / 2**30:.1f} GiB, more than half of the "
                     f"{memory / 2**30:.1f} GiB of memory that are here")


def machine_memory() -> int:
    """Bytes of memory that this machine has; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


@dataclass(frozen=True)
class Asked:
    """Queries [Q, D] that recall is measured with, and what they are, in words."""

    vectors: Array
    words: str


def approximate(vectors: Vectors, alive: Mask, kind: str, folder: Path, ask: Callable[[], Asked]
                ) -> Approximation | None:
    """Build an index of a type into a folder and widen its search until it finds enough; None where exact is as good.

    alive: by number, which vectors count. ask: only called where one is built.
    """
    made = INDEX_TYPES[kind]
    if made.start is None or len(vectors) < MIN_APPROXIMATED:
        return None
    index = made.start(vectors)
    fill(index, vectors)
    return measured(index, vectors, alive, kind, folder, ask())


def measured(index: Any, vectors: Vectors, alive: Mask, kind: str, folder: Path, asked: Asked, enough: float = RECALL
             ) -> Approximation:
    """A built index of a type, written into a folder with what it finds. enough: the recall up to which its search is
    widened."""
    near = partial(_near, index, INDEX_TYPES[kind], alive)
    effort, recall = widen(near, kind, vectors, alive, asked, enough)
    with temporary_folder(folder, "faiss") as work:
        write_index(index, work / "new")
        name, size = f"{hash_file(work / 'new')}.faiss", (work / "new").stat().st_size
        (work / "new").replace(folder / name)
    return Approximation(kind, name, size, len(vectors), effort, recall, asked.words)


def _near(index: Any, kind: IndexType, alive: Mask, query: Array, effort: int) -> Numbers:
    return candidates(index, kind, query, DEPTH, effort, alive)


def widen(near: Callable[[Array, int], Numbers], kind: str, vectors: VectorSource, alive: Mask, asked: Asked,
          enough: float = RECALL) -> tuple[int, float]:
    """The least effort, from the type's own on in doublings, whose recall is enough, or the most; and what it reaches.

    near: a query [D] and an effort → numbers, ascending, of DEPTH vectors that the index finds.
    """
    exact = search_exactly(vectors, asked.vectors, NEIGHBOURS, alive)
    effort, most = INDEX_TYPES[kind].effort, INDEX_TYPES[kind].most
    while True:
        shares = []
        for query, wanted in zip(asked.vectors, exact, strict=True):
            ours = search_among(vectors, near(query, effort), query[None], NEIGHBOURS)[0]
            shares.append(len({number for number, _ in wanted} & {number for number, _ in ours}) / max(1, len(wanted)))
        recall = round(float(np.mean(shares)), 4) if shares else 1.0
        if recall >= enough or 2 * effort > most or effort == 0:
            return effort, recall
        effort *= 2
