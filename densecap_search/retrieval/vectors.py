"""Vectors of an index on the disk: files that are only added, mapped and searched exactly.

A file holds rows of float32 without a header; its name is a hash of its bytes, and the manifest says how many rows it
has. The vector of number n is row n of all files, one after the other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from densecap_search.embedding.cache import Array
from densecap_search.errors import IndexFolderError
from densecap_search.files import HASH_BYTES, temporary_folder

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Found = list[tuple[int, float]]  # number and score, best first; of equal scores the lower number first
SUFFIX = ".f32"
BLOCK = 1 << 14  # vectors whose scores are held at once
QUERIES = 64


class VectorSource(Protocol):
    """Vectors by number, wherever they lie."""

    @property
    def dim(self) -> int:
        """Numbers in each."""

    def __len__(self) -> int: ...

    def take(self, numbers: Numbers) -> Array:
        """The vectors of some numbers, [M, dim], in their order."""

    def blocks(self, start: int = 0) -> Iterator[tuple[int, Array]]:
        """All vectors from a number on: (number of the first, [M, dim])."""


@dataclass(frozen=True)
class Vectors:
    """Rows float32 [N, dim] of several mapped files."""

    parts: tuple[Array, ...]
    dim: int

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _starts(self) -> Numbers:
        return np.cumsum([0, *(len(part) for part in self.parts)])

    def take(self, numbers: Numbers) -> Array:
        """The vectors of some numbers, [M, dim], in their order."""
        out = np.empty((len(numbers), self.dim), np.float32)
        owner = np.searchsorted(self._starts, numbers, side="right") - 1
        for place in np.unique(owner):
            own = owner == place
            out[own] = self.parts[place][numbers[own] - self._starts[place]]
        return out

    def blocks(self, start: int = 0, size: int = BLOCK) -> Iterator[tuple[int, Array]]:
        """All vectors from a number on: (number of the first, [≤ size, dim])."""
        for begin, part in zip(self._starts.tolist(), self.parts, strict=False):
            for row in range(max(start - begin, 0), len(part), size):
                yield begin + row, part[row:row + size]


def map_vectors(files: Sequence[tuple[Path, int]], dim: int) -> Vectors:
    """Map files of (path, rows). Errors: IndexFolderError where a size is not what it should be."""
    parts = []
    for path, rows in files:
        size = path.stat().st_size
        if size != rows * dim * 4:
            raise IndexFolderError(f"{path} is damaged: it has {size} bytes, and {rows} vectors of {dim} numbers take "
                                   f"{rows * dim * 4}; build the index again with `densecap index … --rebuild`")
        parts.append(np.memmap(path, np.float32, "r", shape=(rows, dim)) if rows else np.empty((0, dim), np.float32))
    return Vectors(tuple(parts), dim)


class VectorWriter:
    """A new file of vectors: :meth:`add` blocks, then :meth:`finish`."""

    def __init__(self, file: BinaryIO, path: Path, folder: Path) -> None:
        self._file, self._path, self._folder = file, path, folder
        self._digest = hashlib.blake2b(digest_size=HASH_BYTES)
        self.count = 0

    def add(self, rows: Array) -> None:
        """Append vectors [M, dim]."""
        data = np.ascontiguousarray(rows, dtype="<f4").tobytes()
        self._file.write(data)
        self._digest.update(data)
        self.count += len(rows)

    def finish(self) -> str:
        """Flush the file to the disk and give it its name, which is returned."""
        self._file.flush()
        os.fsync(self._file.fileno())
        name = self._digest.hexdigest() + SUFFIX
        self._path.replace(self._folder / name)
        return name


@contextmanager
def vector_writer(folder: Path) -> Iterator[VectorWriter]:
    """For a new file in a folder; nothing is left of one that is not finished."""
    with temporary_folder(folder, "vectors") as work, (work / "new").open("wb") as file:
        yield VectorWriter(file, work / "new", folder)


def search_exactly(vectors: VectorSource, queries: Array, k: int, allowed: Mask | None = None, start: int = 0
                   ) -> list[Found]:
    """The k best of all vectors from number ``start`` on, for each query [D].

    allowed: by number, those that may be found; None: all.
    """
    lists: list[Found] = []
    for row in range(0, len(queries), QUERIES):
        best = [_Best(k) for _ in queries[row:row + QUERIES]]
        for begin, block in vectors.blocks(start):
            scores = queries[row:row + QUERIES] @ block.T
            if allowed is not None:
                scores[:, ~allowed[begin:begin + len(block)]] = -np.inf
            for own, values in zip(best, scores, strict=True):
                own.offer(begin, values)
        lists.extend(own.found() for own in best)
    return lists


def search_among(vectors: VectorSource, numbers: Numbers, queries: Array, k: int) -> list[Found]:
    """The k best of some numbers (ascending), for each query; reads only their vectors."""
    if len(numbers) > BLOCK:
        best = [_Best(k) for _ in queries]
        for begin in range(0, len(numbers), BLOCK):
            scores = queries @ vectors.take(numbers[begin:begin + BLOCK]).T
            for own, values in zip(best, scores, strict=True):
                own.offer(begin, values)
        return [[(int(numbers[row]), score) for row, score in own.found()] for own in best]
    scores = queries @ vectors.take(numbers).T
    return [in_order(numbers, values)[:k] for values in scores]


def some_of(numbers: Numbers, most: int) -> Numbers:
    """A random few, the same each time, in their order."""
    return np.sort(np.random.default_rng(0).permutation(numbers)[:most]) if len(numbers) > most else numbers


def in_order(numbers: Numbers, scores: Array) -> Found:
    """Best first; of equal scores the lower number first."""
    order = np.lexsort((numbers, -scores))
    return [(int(numbers[row]), float(scores[row])) for row in order]


class _Best:
    """The k highest of many scores, and all that equal the last of them."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._numbers: list[Numbers] = []
        self._scores: list[Array] = []
        self._held = 0
        self._least = np.float32(-np.inf)  # what is lower cannot be among the k

    def offer(self, begin: int, scores: Array) -> None:
        rows = np.flatnonzero((scores >= self._least) & (scores > -np.inf))
        self._numbers.append(begin + rows)
        self._scores.append(scores[rows])
        self._held += len(rows)
        if self._held >= 2 * self._k or self._least == -np.inf:
            self._prune()

    def _prune(self) -> None:
        numbers, scores = np.concatenate(self._numbers), np.concatenate(self._scores)
        if len(scores) > self._k:
            self._least = np.partition(scores, len(scores) - self._k)[len(scores) - self._k]
            kept = scores >= self._least
            numbers, scores = numbers[kept], scores[kept]
        self._numbers, self._scores, self._held = [numbers], [scores], len(scores)

    def found(self) -> Found:
        if not self._numbers:
            return []
        return in_order(np.concatenate(self._numbers), np.concatenate(self._scores))[:self._k]
