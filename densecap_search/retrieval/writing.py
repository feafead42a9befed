"""A generation is written: vectors and rows that come, rows that end, and an approximation where one is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.retrieval.approximate import DEPTH, Asked, approximate, widen
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.index_folder import VECTORS, kept_manifests, next_number, publish
from densecap_search.retrieval.index_types import INDEX_TYPES, MIN_APPROXIMATED
from densecap_search.retrieval.manifest import Approximation, Manifest, StoredIn, VectorFile
from densecap_search.retrieval.rows import Row, Rows, add_rows, changing, count_versions, create_rows, end_rows
from densecap_search.retrieval.stores import Store, open_store, publish_state
from densecap_search.retrieval.vectors import (
    BLOCK,
    Mask,
    Numbers,
    Vectors,
    VectorSource,
    VectorWriter,
    map_vectors,
    vector_writer,
)

Blocks = Iterable[tuple[Sequence[Row], Array]]  # rows (their numbers do not count) and their vectors, in memory at once
Ask = Callable[[Rows, VectorSource, Mask], Asked]  # what recall is measured with
DEAD_SHARE = 0.25  # removed vectors beyond which all others are written anew
TAIL_SHARE = 0.1  # vectors beside an approximation beyond which it is built anew
MOST_FILES = 16  # of vectors; beyond, all but the first become one


def write_new(folder: Path, manifest: Manifest, blocks: Blocks, ask: Ask) -> Path:
    """A generation that shares nothing with those before; numbers begin at 0. Returns its folder.

    manifest: what is known of it; counts, files and the store's body are filled in.
    """
    number = next_number(folder)
    path = folder / f"rows-{number:06d}.db"
    path.unlink(missing_ok=True)
    store = replace(manifest.store, body=f"{number:06d}") if manifest.store else None
    if store is not None:
        open_store(store.place).create(store.body, manifest.dim, manifest.index_type)
    try:
        with _destination(folder, store, number) as out:
            create_rows(path, number, _numbered(blocks, out, 0))
            files = out.finish()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    made = replace(manifest, number=number, rows=path.name, vectors=files, total=out.count, store=store,
                   approximation=None)
    return _finish(folder, made, np.empty(0, np.int64), ask)


def write_more(old: ImageIndex, manifest: Manifest, gone: Sequence[int], restated: Sequence[Row], blocks: Blocks,
               ask: Ask) -> Path:
    """A generation after another, whose files or store it shares. Returns its folder.

    gone: numbers that end. restated: new versions of rows, under their numbers. blocks: what comes.
    """
    number, store = next_number(old.folder), old.manifest.store
    files, merged = _kept_files(old)
    ended = [*gone, *(row.number for row in restated)]
    with _destination(old.folder, store, number) as out:
        out.restore(old.manifest.number)
        for _, block in merged:
            out.add((), block)
        with changing(old.rows.path, old.manifest.number, number) as connection:
            end_rows(connection, number, ended)
            add_rows(connection, number, restated)
            out.change(ended, restated, old.stored)
            add_rows(connection, number, _numbered(blocks, out, old.manifest.total))
        files = (*files, *out.finish())
    made = replace(manifest, number=number, rows=old.manifest.rows, vectors=files, store=store,
                   total=sum(file.count for file in files) if store is None else old.manifest.total + out.count,
                   approximation=old.manifest.approximation)
    assert old.dead is not None
    return _finish(old.folder, made, np.union1d(old.dead, np.asarray(gone, np.int64)), ask)


class _Destination(Protocol):
    """Where the vectors of a generation go. count: those that were added."""

    count: int

    def restore(self, current: int) -> None:
        """Take back what generations after the live one left."""

    def add(self, rows: Sequence[Row], vectors: Array) -> None:
        """New pictures under their numbers, with vectors [M, dim]."""

    def change(self, ended: Sequence[int], restated: Sequence[Row], before: VectorSource) -> None:
        """Versions that end, and new ones of pictures whose vectors stay."""

    def finish(self) -> tuple[VectorFile, ...]:
        """On the disk; the files that were made."""


@dataclass
class _InFile:
    """A new file of vectors in the index folder, which knows nothing of rows."""

    writer: VectorWriter
    count: int = 0

    def restore(self, current: int) -> None:
        pass

    def add(self, rows: Sequence[Row], vectors: Array) -> None:
        del rows
        self.writer.add(vectors)
        self.count += len(vectors)

    def change(self, ended: Sequence[int], restated: Sequence[Row], before: VectorSource) -> None:
        pass

    def finish(self) -> tuple[VectorFile, ...]:
        return (VectorFile(self.writer.finish(), self.count),) if self.count else ()


@dataclass
class _InStore:
    """A generation in the body of a store."""

    store: Store
    body: str
    generation: int
    count: int = 0

    def restore(self, current: int) -> None:
        self.store.restore(self.body, current)

    def add(self, rows: Sequence[Row], vectors: Array) -> None:
        self.store.add(self.body, self.generation, rows, vectors)
        self.count += len(rows)

    def change(self, ended: Sequence[int], restated: Sequence[Row], before: VectorSource) -> None:
        for start in range(0, len(restated), BLOCK):
            rows = restated[start:start + BLOCK]
            vectors = before.take(np.array([row.number for row in rows], np.int64))
            self.store.add(self.body, self.generation, rows, vectors)
        self.store.end(self.body, self.generation, ended)

    def finish(self) -> tuple[VectorFile, ...]:
        self.store.flush(self.body)
        return ()


@contextmanager
def _destination(folder: Path, store: StoredIn | None, generation: int) -> Iterator[_Destination]:
    if store is not None:
        yield _InStore(open_store(store.place), store.body, generation)
        return
    with vector_writer(folder / VECTORS) as writer:
        yield _InFile(writer)


def is_worn(old: ImageIndex, gone: int, new: int) -> bool:
    """Whether so much of an index is of removed pictures that all others are better written anew."""
    left, dead = len(old) - gone + new, old.manifest.total - len(old)
    return (dead + gone > DEAD_SHARE * (old.manifest.total + new)
            or count_versions(old.rows) > 2 * left + 1000)


def blocks_of(old: ImageIndex, gone: Sequence[int], restated: Sequence[Row]) -> Iterator[tuple[list[Row], Array]]:
    """What an index has, but for what is gone, with new versions of some rows."""
    ended, anew = set(gone), {row.number: row for row in restated}
    rows: list[Row] = []
    for row in old.rows:
        if row.number not in ended:
            rows.append(anew.get(row.number, row))
        if len(rows) == BLOCK:
            yield rows, old.stored.take(np.array([row.number for row in rows], np.int64))
            rows = []
    if rows:
        yield rows, old.stored.take(np.array([row.number for row in rows], np.int64))


def _numbered(blocks: Blocks, out: _Destination, first: int) -> Iterator[Row]:
    """Rows with their numbers, while their vectors are written."""
    number = first
    for rows, vectors in blocks:
        numbered = [replace(row, number=place) for place, row in enumerate(rows, start=number)]
        out.add(numbered, vectors)
        yield from numbered
        number += len(rows)


def _kept_files(old: ImageIndex) -> tuple[tuple[VectorFile, ...], Iterable[tuple[int, Array]]]:
    """Files of vectors that stay, and the blocks of those that are written again as one."""
    files = old.manifest.vectors
    if len(files) < MOST_FILES or not isinstance(old.stored, Vectors):
        return files, ()
    return files[:1], old.stored.blocks(start=files[0].count)


def _finish(folder: Path, manifest: Manifest, dead: Numbers, ask: Ask) -> Path:
    counted = replace(manifest, count=manifest.total - len(dead))
    made = replace(counted, approximation=_approximation(folder, counted, dead, ask))
    place = publish(folder, made, dead)
    publish_store(folder, made)
    return place


def publish_store(folder: Path, manifest: Manifest) -> None:
    """Let others see a generation that is live here, where a store holds its vectors."""
    if manifest.store is None:
        return
    columns = Rows(folder / manifest.rows, manifest.number, manifest.count).columns
    publish_state(manifest, columns, kept_manifests(folder))


def _approximation(folder: Path, manifest: Manifest, dead: Numbers, ask: Ask) -> Approximation | None:
    """The one that is there while it covers most vectors, or a new one."""
    before, total = manifest.approximation, manifest.total
    if before and before.kind == manifest.index_type and total - before.covered <= TAIL_SHARE * total:
        return before
    if total < MIN_APPROXIMATED:
        return None
    alive = np.ones(total, dtype=bool)
    alive[dead] = False
    rows = Rows(folder / manifest.rows, manifest.number, manifest.count)
    if manifest.store is not None:
        return _measured(manifest, alive, rows, ask)
    files = folder / VECTORS
    vectors = map_vectors([(files / file.name, file.count) for file in manifest.vectors], manifest.dim)
    return approximate(vectors, alive, manifest.index_type, files, lambda: ask(rows, vectors, alive))


def _measured(manifest: Manifest, alive: Mask, rows: Rows, ask: Ask) -> Approximation | None:
    """How much of exact search the store's own index finds, and how widely it must look for that."""
    if INDEX_TYPES[manifest.index_type].exact:
        return None
    assert manifest.store is not None
    store = open_store(manifest.store.place)
    reader = store.reader(manifest.store.body, manifest.number, manifest.dim, manifest.total)

    def near(query: Array, effort: int) -> Numbers:
        (nearest,) = reader.nearest(query[None], DEPTH, effort, None, ())
        return np.unique(np.array([number for number, _ in nearest], np.int64))

    asked = ask(rows, reader, alive)
    effort, recall = widen(near, manifest.index_type, reader, alive, asked)
    return Approximation(manifest.index_type, "", 0, manifest.total, effort, recall, asked.words)
