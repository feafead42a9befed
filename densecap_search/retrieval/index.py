"""ImageIndex: one generation of an index, mapped and searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.errors import IndexMismatch, NewerIndex, StoreError
from densecap_search.files import hash_file
from densecap_search.retrieval.filters import find_numbers, parse_filter
from densecap_search.retrieval.index_folder import THUMBNAILS, VECTORS, current_place, read_dead, whole
from densecap_search.retrieval.index_types import INDEX_TYPES, candidates, read_index
from densecap_search.retrieval.manifest import FORMAT, Manifest, damaged, parse_manifest, read_values
from densecap_search.retrieval.migrate import migrate
from densecap_search.retrieval.rows import Rows
from densecap_search.retrieval.stores import Reader, StoredRows, is_stored, open_reader, open_store
from densecap_search.retrieval.vectors import (
    Found,
    Mask,
    Numbers,
    Vectors,
    VectorSource,
    map_vectors,
    search_among,
    search_exactly,
)
from densecap_search.talk import SILENT, Talk

DEPTHS = (128, 1024, 8192)  # how many an approximation is asked for, in turn, until there are enough
NARROW = 0.05  # a filter that leaves fewer is searched exactly, as is a question for more than EXACT_SHARE of all
EXACT_SHARE = 0.1


@dataclass(frozen=True)
class ImageIndex:
    """Pictures that can be searched by vectors. A picture is known by its number, from 0; removed ones leave gaps.

    place: the generation's folder. stored: the vectors of all numbers. dead: numbers of removed pictures, ascending;
    None where only the store knows. approximation: a faiss index of the first vectors. store: what searches in place
    of both, where the vectors are in a store.
    """

    folder: Path
    place: Path
    manifest: Manifest
    stored: VectorSource
    dead: Numbers | None
    rows: Rows
    approximation: Any = None
    store: Reader | None = None

    def __len__(self) -> int:
        return self.manifest.count

    @cached_property
    def numbers(self) -> Numbers:
        """Of all pictures, ascending, int64 [N]."""
        return np.flatnonzero(self.alive)

    @cached_property
    def alive(self) -> Mask:
        """By number, whether it has a picture, bool [total]."""
        if self.dead is None:
            assert self.store is not None
            mask = np.zeros(self.manifest.total, dtype=bool)
            mask[self.store.find(None, ())] = True
            return mask
        mask = np.ones(self.manifest.total, dtype=bool)
        mask[self.dead] = False
        return mask

    def vectors(self) -> Array:
        """The vectors of all pictures, float32 [N, D], in the order of :attr:`numbers`; mapped where they lie so."""
        if isinstance(self.stored, Vectors) and len(self) == self.manifest.total and len(self.stored.parts) == 1:
            return self.stored.parts[0]
        return self.stored.take(self.numbers)

    def matching(self, where: str) -> Numbers:
        """The pictures that a filter (:mod:`filters`) lets through, ascending. Errors: ConfigError."""
        if isinstance(self.rows, StoredRows):
            assert self.store is not None
            return self.store.find(parse_filter(where), self.rows.columns)
        return find_numbers(self.rows, where)

    def search(self, queries: Array, k: int, where: str | None = None) -> list[Found]:
        """For each query [D], up to k pairs (number, cosine), best first; equal scores in the order of numbers.

        where: a filter (:mod:`filters`); what it does not let through is not ranked. The first 5 of 50 are the same as
        a search for 5. An approximate type may miss some of the best: what only a deeper search finds stands after
        what the first one found, so the promise holds for it as well, and k = N finds all.
        """
        if queries.ndim != 2 or queries.shape[1] != self.manifest.dim:
            raise IndexMismatch(f"{self.folder} holds vectors of {self.manifest.dim} numbers; "
                                f"the query has {queries.shape[-1]}: another model made it")
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if self.store is not None:
            return self._search_store(self.store, queries, k, where)
        if where is None:
            return self._search(queries, k, self.alive, len(self))
        wanted = find_numbers(self.rows, where)
        if len(wanted) <= NARROW * len(self):
            return search_among(self.stored, wanted, queries, k)
        allowed = np.zeros(self.manifest.total, dtype=bool)
        allowed[wanted] = True
        return self._search(queries, k, allowed, len(wanted))

    def search_exactly(self, queries: Array, k: int) -> list[Found]:
        """As :meth:`search`, by a look at every vector, whatever the type."""
        return search_exactly(self.stored, queries, k, self.alive if len(self) < self.manifest.total else None)

    def _search_store(self, store: Reader, queries: Array, k: int, where: str | None) -> list[Found]:
        """As :meth:`_search`, at the same depths."""
        condition = None if where is None else parse_filter(where)
        count = len(self) if condition is None else store.count(condition, self.rows.columns)
        k, made = min(k, count), self.manifest.approximation
        lists: list[Found] = [[] for _ in queries]
        for depth in DEPTHS:
            if min(map(len, lists), default=k) < k:
                more = store.nearest(queries, min(depth, count), made.effort if made else 0, condition,
                                     self.rows.columns)
                lists = [_continued(*pair) for pair in zip(lists, more, strict=True)]
        if min(map(len, lists), default=k) < k:
            more = search_among(store, store.find(condition, self.rows.columns), queries, k)
            lists = [_continued(*pair) for pair in zip(lists, more, strict=True)]
        return [own[:k] for own in lists]

    def _search(self, queries: Array, k: int, allowed: Mask, count: int) -> list[Found]:
        k = min(k, count)
        if k < 1:
            return [[] for _ in queries]
        lists: list[Found] = [[] for _ in queries]
        depths = [] if self.approximation is None else [depth for depth in DEPTHS if depth <= EXACT_SHARE * count]
        for depth in depths:
            if min(map(len, lists), default=k) < k:
                lists = [_continued(*pair) for pair in zip(lists, self._nearly(queries, depth, allowed), strict=True)]
        if min(map(len, lists), default=k) < k:
            whole = search_exactly(self.stored, queries, k, None if count == self.manifest.total else allowed)
            lists = [_continued(*pair) for pair in zip(lists, whole, strict=True)]
        return [own[:k] for own in lists]

    def _nearly(self, queries: Array, depth: int, allowed: Mask) -> list[Found]:
        """The depth best that the approximation finds, with all vectors that came after it, for each query."""
        assert self.manifest.approximation is not None
        kind, covered = INDEX_TYPES[self.manifest.approximation.kind], self.manifest.approximation.covered
        effort, mask = self.manifest.approximation.effort, allowed[:covered]
        tails: Sequence[Found] = [[] for _ in queries]
        if covered < self.manifest.total:
            tails = search_exactly(self.stored, queries, depth, allowed, start=covered)
        lists = []
        for query, tail in zip(queries, tails, strict=True):
            near = candidates(self.approximation, kind, query, depth, effort, mask)
            both = search_among(self.stored, near, query[None], depth)[0] + tail
            lists.append(sorted(both, key=lambda pair: (-pair[1], pair[0]))[:depth])
        return lists

    def thumbnails(self) -> Path:
        """Where small copies of the pictures may be kept."""
        return self.folder / THUMBNAILS

    def check_encoder(self, name: str, fingerprint: str) -> None:
        """Refuse an encoder that did not make these vectors."""
        if fingerprint != self.manifest.fingerprint:
            a = f"{self.manifest.model.name} [{self.manifest.fingerprint[:8]}]"
            raise IndexMismatch(f"{self.folder} was built by {a}; you asked for {name} [{fingerprint[:8]}]. "
                                f"Rebuild with `densecap index …` or pass --model {self.manifest.model.name}.")

    def check_files(self) -> None:
        """Read every byte and raise IndexFolderError where one is not what was written."""
        for name in self.manifest.files():
            if hash_file(self.folder / VECTORS / name) != name.partition(".")[0]:
                raise damaged(self.folder / VECTORS / name, "its bytes are not those that were written")
        if self.store is not None:
            self._check_store(self.store)
        self.rows.check()

    def _check_store(self, store: Reader) -> None:
        """The store holds the same pictures as the folder names, with vectors of length 1."""
        if not np.array_equal(store.find(None, ()), self.numbers):
            raise StoreError(f"{self.folder} and its store do not hold the same pictures; `densecap index … --rebuild` "
                             "fills it again")
        for start, block in store.blocks():
            lengths = np.linalg.norm(block, axis=1)[self.alive[start:start + len(block)]]
            if not np.allclose(lengths, 1, atol=1e-3):
                raise StoreError(f"the store of {self.folder} holds vectors that are not of length 1; `densecap index "
                                 "… --rebuild` fills it again")


def _continued(first: Found, more: Found) -> Found:
    """A list, and after it what another one has beside that."""
    had = {number for number, _ in first}
    return first + [pair for pair in more if pair[0] not in had]


def load_index(folder: Path, *, talk: Talk = SILENT) -> ImageIndex:
    """The live generation of an index: sizes and headers are checked here, all bytes by ``check_files``.

    One of the format before is brought to this one first, which needs a folder that can be written.
    """
    for attempt in range(3):  # the generation may be replaced while it is read; then CURRENT names the next
        place = current_place(folder)
        try:
            values = read_values(place)
            if values["format"] != FORMAT:
                place = migrate(folder, place, values, talk)
                values = read_values(place)
            return _load_generation(folder, place, parse_manifest(values, place))
        except FileNotFoundError:
            if attempt == 2:
                with whole(place):
                    raise
    raise AssertionError("unreachable")


def open_index(place: Path | str, *, talk: Talk = SILENT) -> ImageIndex:
    """An index in a folder, or one in a store by its name alone (``milvus:URI#NAME``), without its folder."""
    if isinstance(place, Path) or not is_stored(place):
        return load_index(Path(place), talk=talk)
    said = open_store(place).state()
    if said is None:
        raise StoreError(f"{place} holds no index; write one with `densecap index … --store {place}`")
    manifest = parse_manifest(said["manifest"], Path(place))
    reader = open_reader(manifest)
    rows = StoredRows(reader, manifest.number, manifest.count, said["columns"], place)
    return ImageIndex(Path(place), Path(place), manifest, reader, None, rows, store=reader)


def _load_generation(folder: Path, place: Path, manifest: Manifest) -> ImageIndex:
    made = manifest.approximation
    if manifest.index_type not in INDEX_TYPES or (made and made.kind not in INDEX_TYPES):
        raise NewerIndex(f"{place} is of the type {manifest.index_type}, which this version does not know (known: "
                         f"{', '.join(INDEX_TYPES)}); update densecap-search")
    files, dead = folder / VECTORS, read_dead(place, manifest)
    rows = Rows(folder / manifest.rows, manifest.number, manifest.count)
    if manifest.store is not None:
        reader = open_reader(manifest)
        return ImageIndex(folder, place, manifest, reader, dead, rows, store=reader)
    stored = map_vectors([(files / file.name, file.count) for file in manifest.vectors], manifest.dim)
    return ImageIndex(folder, place, manifest, stored, dead, rows, _load_approximation(files, manifest))


def _load_approximation(files: Path, manifest: Manifest) -> Any:
    made = manifest.approximation
    if made is None:
        return None
    path = files / made.name
    if path.stat().st_size != made.size:
        raise damaged(path, f"it has {path.stat().st_size} bytes, not {made.size}")
    index = read_index(path, manifest.libraries.get("faiss-cpu", "of another version"))
    if (index.d, index.ntotal) != (manifest.dim, made.covered):
        raise damaged(path, f"it holds {index.ntotal} vectors of {index.d} numbers")
    return index
