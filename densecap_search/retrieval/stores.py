"""Where an index keeps vectors and rows besides its own folder: the table of stores, and what each can do.

The folder stays the truth of what was indexed: its manifest, CURRENT, and the rows by which an update sees what has
changed. The store holds the vectors, everything that a search shows or filters by, and a copy of the manifest, so that
another machine searches with the store's name alone. A store is told of generations: what it is given belongs to one,
and no reader of an earlier one sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from densecap_search.config import STORE_NAMES
from densecap_search.embedding.cache import Array
from densecap_search.errors import ConfigError, IndexFolderError, StoreError
from densecap_search.retrieval.filters import Condition
from densecap_search.retrieval.manifest import Manifest, StoredIn
from densecap_search.retrieval.milvus import open_milvus
from densecap_search.retrieval.rows import Row, Rows
from densecap_search.retrieval.vectors import Found, Numbers, VectorSource

FILES = "faiss"  # as --store names what is no other store: files in the index folder


class Reader(VectorSource, Protocol):
    """One generation, read."""

    def count(self, condition: Condition | None, columns: Collection[str]) -> int:
        """Pictures that a filter lets through."""

    def find(self, condition: Condition | None, columns: Collection[str]) -> Numbers:
        """Their numbers, ascending."""

    def nearest(self, queries: Array, depth: int, effort: int, condition: Condition | None, columns: Collection[str]
                ) -> list[Found]:
        """The depth pictures with the highest cosine, for each query [D], as far as the type of index finds them."""

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """In their order. Errors: StoreError where one is not there."""


class Store(Protocol):
    """A place that holds the vectors of one index, in bodies: a body is to a generation what a file of rows is."""

    @property
    def place(self) -> str:
        """As the manifest names it."""

    @property
    def types(self) -> Collection[str]:
        """Of INDEX_TYPES, those that it can build."""

    def state(self) -> Mapping[str, Any] | None:
        """What :meth:`publish` was given last; None where no index is there."""

    def publish(self, said: Mapping[str, Any]) -> None:
        """Make a generation the one that others see, in one step."""

    def create(self, body: str, dim: int, kind: str) -> None:
        """A new body in place of one of that name."""

    def restore(self, body: str, current: int) -> None:
        """As it was at a generation: what later ones began, or ended, is taken back."""

    def add(self, body: str, generation: int, rows: Sequence[Row], vectors: Array) -> None:
        """Pictures that begin with a generation."""

    def end(self, body: str, generation: int, numbers: Sequence[int]) -> None:
        """Pictures that a generation no longer has."""

    def flush(self, body: str) -> None:
        """What was added and ended is on the disk."""

    def sweep(self, bodies: Collection[str], body: str, oldest: int) -> None:
        """Remove other bodies, and from one what no generation from ``oldest`` on has."""

    def reader(self, body: str, generation: int, dim: int, total: int) -> Reader:
        """For one generation."""


# how a store is named with --store, before the colon → how it is opened
STORES: Mapping[str, Callable[[str], Store]] = {"milvus": open_milvus}


def is_stored(place: str) -> bool:
    """Whether a text names an index in a store rather than a folder."""
    return place.startswith(STORE_NAMES)


def open_store(place: str) -> Store:
    """place: as ``milvus:URI#NAME``."""
    return STORES[place.partition(":")[0]](place)


def choose_store(asked: str | None, before: StoredIn | None, folder: Path, kind: str, *, replace: bool
                 ) -> StoredIn | None:
    """Where the next generation of an index goes; None: files in its folder.

    asked: as --store was given, None for where it is. kind: the index type. replace: what another index folder wrote
    there may go. Errors: ConfigError, StoreError.
    """
    if asked is None:
        chosen = before
    elif asked == FILES:
        chosen = None
    else:
        place = _whole(asked, folder)
        chosen = before if before is not None and before.place == place else StoredIn(place, uuid4().hex)
    if chosen is None:
        return None
    store = open_store(chosen.place)
    if kind not in store.types:
        raise ConfigError(f"{chosen.place.partition(':')[0]} builds no index of the type {kind}; it knows: "
                          f"{', '.join(store.types)}")
    said = store.state()
    if said is not None and said.get("owner") != chosen.owner and not replace:
        raise StoreError(f"{chosen.place} holds the index of another folder already; add #NAME to --store for another "
                         "name, or replace what is there with --prune")
    return chosen


def _whole(place: str, folder: Path) -> str:
    """As --store was given → as the manifest keeps it: with a name, a file by its whole path."""
    kind, _, rest = place.partition(":")
    if kind not in STORES or not rest:
        raise ConfigError(f"unknown store {place!r}; known: {FILES}, " + ", ".join(f"{name}:URI" for name in STORES))
    uri, _, name = rest.partition("#")
    if "://" not in uri:
        uri = str(Path(uri).expanduser().absolute())
    return f"{kind}:{uri}#{name or folder.absolute().name}"


def open_reader(manifest: Manifest) -> Reader:
    """The vectors of a generation. Errors: StoreError where its store holds something else."""
    assert manifest.store is not None
    store = open_store(manifest.store.place)
    said = store.state() or {}
    if said.get("owner") != manifest.store.owner:
        raise StoreError(f"{store.place} {'holds another index' if said else 'is empty'}, and not the one that "
                         "its folder names; `densecap index … --rebuild --store …` fills it again")
    return store.reader(manifest.store.body, manifest.number, manifest.dim, manifest.total)


def publish_state(manifest: Manifest, columns: Collection[str], kept: Sequence[Manifest]) -> None:
    """Let others see a generation, and sweep what none of those kept has. columns: of the users' tables."""
    assert manifest.store is not None
    store, body = open_store(manifest.store.place), manifest.store.body
    store.publish({"owner": manifest.store.owner, "columns": list(columns), "manifest": manifest.as_json()})
    numbers: dict[str, list[int]] = {}
    for each in (manifest, *kept):
        if each.store is not None and each.store.owner == manifest.store.owner:
            numbers.setdefault(each.store.body, []).append(each.number)
    store.sweep(numbers.keys(), body, min(numbers[body]))


class StoredRows(Rows):
    """The rows of a generation in a store, where there is no index folder beside them."""

    def __init__(self, reader: Reader, generation: int, count: int, columns: Sequence[str], place: str) -> None:
        self.path, self.generation, self._count, self._reader = Path(place), generation, count, reader
        self.columns = {name: name for name in columns}
        self._place = place

    def many(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of these numbers, in their order."""
        return self._reader.rows(numbers)

    def __iter__(self) -> Iterator[Row]:
        numbers = self._reader.find(None, ())
        for start in range(0, len(numbers), 1000):
            yield from self.many(numbers[start:start + 1000].tolist())

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What asks the full-text table, or for what an update compares, needs the index folder."""
        raise IndexFolderError(f"{self._place} is searched by its pictures alone here; captions and words are searched "
                               "with the index folder that wrote it")
