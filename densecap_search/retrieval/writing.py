"""A generation is written: vectors and rows that come, rows that end, and an approximation where one is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.retrieval.approximate import Asked, approximate
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.index_folder import VECTORS, next_number, publish
from densecap_search.retrieval.index_types import MIN_APPROXIMATED
from densecap_search.retrieval.manifest import Approximation, Manifest, VectorFile
from densecap_search.retrieval.rows import Row, Rows, add_rows, changing, count_versions, create_rows, end_rows
from densecap_search.retrieval.vectors import BLOCK, Mask, Numbers, Vectors, VectorWriter, map_vectors, vector_writer

Blocks = Iterable[tuple[Sequence[Row], Array]]  # rows (their numbers do not count) and their vectors, in memory at once
Ask = Callable[[Rows, Vectors, Mask], Asked]  # what recall is measured with
DEAD_SHARE = 0.25  # removed vectors beyond which all others are written anew
TAIL_SHARE = 0.1  # vectors beside an approximation beyond which it is built anew
MOST_FILES = 16  # of vectors; beyond, all but the first become one


def write_new(folder: Path, manifest: Manifest, blocks: Blocks, ask: Ask) -> Path:
    """A generation that shares nothing with those before; numbers begin at 0. Returns its folder.

    manifest: what is known of it; counts and files are filled in.
    """
    number = next_number(folder)
    path = folder / f"rows-{number:06d}.db"
    path.unlink(missing_ok=True)
    try:
        with vector_writer(folder / VECTORS) as writer:
            create_rows(path, number, _numbered(blocks, writer, 0))
            files = (VectorFile(writer.finish(), writer.count),)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    made = replace(manifest, number=number, rows=path.name, vectors=files, approximation=None)
    return _finish(folder, made, np.empty(0, np.int64), ask)


def write_more(old: ImageIndex, manifest: Manifest, gone: Sequence[int], restated: Sequence[Row], blocks: Blocks,
               ask: Ask) -> Path:
    """A generation after another, whose files it shares. Returns its folder.

    gone: numbers that end. restated: new versions of rows, under their numbers. blocks: what comes.
    """
    number = next_number(old.folder)
    files, merged = _kept_files(old)
    ended = [*gone, *(row.number for row in restated)]
    with vector_writer(old.folder / VECTORS) as writer:
        for _, block in merged:
            writer.add(block)
        with changing(old.rows.path, old.manifest.number, number) as connection:
            end_rows(connection, number, ended)
            add_rows(connection, number, restated)
            add_rows(connection, number, _numbered(blocks, writer, old.manifest.total))
            if writer.count:
                files = (*files, VectorFile(writer.finish(), writer.count))
    made = replace(manifest, number=number, rows=old.manifest.rows, vectors=files,
                   approximation=old.manifest.approximation)
    return _finish(old.folder, made, np.union1d(old.dead, np.asarray(gone, np.int64)), ask)


def is_worn(old: ImageIndex, gone: int, new: int) -> bool:
    """Whether so much of an index is of removed pictures that all others are better written anew."""
    left = len(old) - gone + new
    return (len(old.dead) + gone > DEAD_SHARE * (old.manifest.total + new)
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


def _numbered(blocks: Blocks, writer: VectorWriter, first: int) -> Iterator[Row]:
    """Rows with their numbers, while their vectors are written."""
    number = first
    for rows, vectors in blocks:
        writer.add(vectors)
        for row in rows:
            yield replace(row, number=number)
            number += 1


def _kept_files(old: ImageIndex) -> tuple[tuple[VectorFile, ...], Iterable[tuple[int, Array]]]:
    """Files of vectors that stay, and the blocks of those that are written again as one."""
    files = old.manifest.vectors
    if len(files) < MOST_FILES:
        return files, ()
    return files[:1], old.stored.blocks(start=files[0].count)


def _finish(folder: Path, manifest: Manifest, dead: Numbers, ask: Ask) -> Path:
    total = sum(file.count for file in manifest.vectors)
    made = replace(manifest, total=total, count=total - len(dead))
    return publish(folder, replace(made, approximation=_approximation(folder, made, dead, ask)), dead)


def _approximation(folder: Path, manifest: Manifest, dead: Numbers, ask: Ask) -> Approximation | None:
    """The one that is there while it covers most vectors, or a new one."""
    before, total = manifest.approximation, manifest.total
    if before and before.kind == manifest.index_type and total - before.covered <= TAIL_SHARE * total:
        return before
    if total < MIN_APPROXIMATED:
        return None
    files = folder / VECTORS
    vectors = map_vectors([(files / file.name, file.count) for file in manifest.vectors], manifest.dim)
    alive = np.ones(total, dtype=bool)
    alive[dead] = False
    rows = Rows(folder / manifest.rows, manifest.number, manifest.count)
    return approximate(vectors, alive, manifest.index_type, files, lambda: ask(rows, vectors, alive))
