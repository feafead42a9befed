"""An index in Milvus: a file (milvus-lite), a server or a cluster, by pymilvus.

    densecap_NAME           one row: what the live generation is
    densecap_NAME_000001    a body: versions of pictures with vector, row and the fields that filters ask

A version is never changed but for the generation in which it ends, as in :mod:`rows`, so the last row that is written
is that of ``densecap_NAME``, and a reader sees the old or the new state. What a killed update left belongs to a
generation that never was; the next one takes it back. A token comes from the environment and is kept nowhere.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.errors import ConfigError, MissingPackage, StoreError
from densecap_search.retrieval.filters import Condition
from densecap_search.retrieval.milvus_filters import HAS, expression, fields_of
from densecap_search.retrieval.rows import ALIVE, Row
from densecap_search.retrieval.vectors import Found, Numbers

TOKEN = "DENSECAP_MILVUS_TOKEN"  # a key, or USER:PASSWORD
AT_ONCE = 1000  # versions in one message; Milvus refuses answers of more than 16,384 rows
QUERIES = 16  # that are asked together
CHUNK = 60_000  # letters of a row, in ASCII, in one cell of at most 65,535 bytes
_NUMBERS = 1 << 40  # of pictures in a body; the key of a version is its generation times this, plus its number
# how each type is built, and the name of its effort
MILVUS_TYPES: Mapping[str, tuple[str, Mapping[str, int], str]] = {
    "flat": ("FLAT", {}, ""),
    "hnsw": ("HNSW", {"M": 32, "efConstruction": 200}, "ef"),
}


def open_milvus(place: str) -> MilvusStore:
    """place: ``milvus:URI#NAME``. Errors: MissingPackage; StoreError where nothing answers."""
    uri, _, name = place.partition(":")[2].partition("#")
    name = re.sub(r"[^0-9A-Za-z_]", "_", name)
    if not name:
        raise ConfigError(f"{place} does not say which index: {place}#NAME")
    if "://" not in uri and not uri.endswith(".db"):
        raise ConfigError(f"{uri} is no place for Milvus: name a file that ends in .db, or http://HOST:PORT")
    with _told(place):
        return MilvusStore(place, _connect(uri, os.environ.get(TOKEN, "")), f"densecap_{name}")


@lru_cache(maxsize=8)
def _connect(uri: str, token: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise MissingPackage("--store milvus:… needs the package pymilvus; "
                             "pip install 'densecap-search[milvus]'") from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what goes wrong is told once, by us
    if "://" not in uri:
        logging.getLogger("grpc._server").setLevel(logging.CRITICAL)  # a file's engine lacks what a server has
    return MilvusClient(uri, token=token)


@contextmanager
def _told(place: str) -> Iterator[None]:
    """What Milvus says, as a sentence."""
    try:
        yield
    except MissingPackage:
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pymilvus", "milvus_lite", "grpc"):
            raise
        said = str(getattr(error, "message", "") or error).strip().splitlines()[0]
        raise StoreError(f"{place} cannot be read or written: {said}; is it running, is ${TOKEN} right, and is a "
                         "file used by this process alone?") from error


@dataclass(frozen=True)
class MilvusStore:
    """The bodies of one index. name: of the collection that says which generation is live."""

    place: str
    client: Any
    name: str

    @property
    def types(self) -> Collection[str]:
        """That it can build."""
        return MILVUS_TYPES.keys()

    def state(self) -> Mapping[str, Any] | None:
        """What the live generation is."""
        with _told(self.place):
            if not self.client.has_collection(self.name):
                return None
            said = self.client.query(self.name, filter="id == 0", output_fields=["said"])
            return json.loads("".join(said[0]["said"])) if said else None

    def publish(self, said: Mapping[str, Any]) -> None:
        """In one row, which is there as it was or as it is to be."""
        with _told(self.place):
            if not self.client.has_collection(self.name):
                self._create(self.name, "id", ["said"], 2, "flat", dynamic=False)
            self.client.upsert(self.name, [{"id": 0, "said": _chunks(json.dumps(said)), "vector": [0.0, 1.0]}])

    def create(self, body: str, dim: int, kind: str) -> None:
        """A new body in place of one of that name."""
        with _told(self.place):
            if self.client.has_collection(self._body(body)):
                self.client.drop_collection(self._body(body))
            self._create(self._body(body), "key", ["row", HAS], dim, kind, dynamic=True)

    def _create(self, name: str, key: str, texts: Sequence[str], dim: int, kind: str, *, dynamic: bool) -> None:
        from pymilvus import DataType

        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=dynamic)
        schema.add_field(key, DataType.INT64, is_primary=True)
        for number in ("number", "born", "died") if dynamic else ():
            schema.add_field(number, DataType.INT64)
        for text in texts:
            schema.add_field(text, DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=4096, max_length=65535)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        index, parameters, _ = MILVUS_TYPES[kind]
        indexes = self.client.prepare_index_params()
        indexes.add_index("vector", index_type=index, metric_type="IP", params=dict(parameters))
        self.client.create_collection(name, schema=schema, index_params=indexes, consistency_level="Strong")

    def restore(self, body: str, current: int) -> None:
        """What generations after ``current`` began, or ended, is taken back."""
        with _told(self.place):
            self.client.delete(self._body(body), filter=f"born > {current:d}")
            ended = f"died > {current:d} and died < {ALIVE:d}"
            while versions := self.client.query(self._body(body), filter=ended, output_fields=["*"], limit=AT_ONCE):
                self.client.upsert(self._body(body), [{**version, "died": ALIVE} for version in versions])

    def add(self, body: str, generation: int, rows: Sequence[Row], vectors: Array) -> None:
        """Pictures that begin with a generation."""
        with _told(self.place):
            for start in range(0, len(rows), AT_ONCE):
                block = slice(start, start + AT_ONCE)
                self.client.upsert(self._body(body), versions_of(rows[block], vectors[block], generation))

    def end(self, body: str, generation: int, numbers: Sequence[int]) -> None:
        """Pictures that a generation no longer has; those that it began anew stay."""
        with _told(self.place):
            for start in range(0, len(numbers), AT_ONCE):
                block = _list(numbers[start:start + AT_ONCE])
                alive = f"number in {block} and born < {generation:d} and died == {ALIVE:d}"
                versions = self.client.query(self._body(body), filter=alive, output_fields=["*"], limit=AT_ONCE)
                if versions:
                    self.client.upsert(self._body(body), [{**version, "died": generation} for version in versions])

    def flush(self, body: str) -> None:
        """On the disk, once an update: servers let a collection be flushed every ten seconds, and the client waits."""
        with _told(self.place):
            self.client.flush(self._body(body))

    def sweep(self, bodies: Collection[str], body: str, oldest: int) -> None:
        """Remove other bodies, and versions that had ended."""
        with _told(self.place):
            kept = {self.name, *map(self._body, bodies)}
            for name in self.client.list_collections():
                if re.fullmatch(re.escape(self.name) + "_[0-9]{6,12}", name) and name not in kept:
                    self.client.drop_collection(name)
            self.client.delete(self._body(body), filter=f"died <= {oldest:d}")

    def reader(self, body: str, generation: int, dim: int, total: int) -> MilvusReader:
        """For one generation."""
        return MilvusReader(self, self._body(body), generation, dim, total)

    def _body(self, body: str) -> str:
        return f"{self.name}_{body}"


@dataclass(frozen=True)
class MilvusReader:
    """One generation of a body."""

    store: MilvusStore
    body: str
    generation: int
    dim: int
    total: int

    def __len__(self) -> int:
        return self.total

    def _filter(self, condition: Condition | None = None, columns: Collection[str] = (), and_: str = "") -> str:
        parts = [f"born <= {self.generation:d}", f"died > {self.generation:d}"]
        parts += [and_] if and_ else []
        parts += [expression(condition, columns)] if condition is not None else []
        return " and ".join(parts)

    def _query(self, filter_: str, fields: Sequence[str], limit: int) -> list[dict[str, Any]]:
        with _told(self.store.place):
            versions: list[dict[str, Any]] = self.store.client.query(
                self.body, filter=filter_, output_fields=list(fields), limit=limit)
            return versions

    def take(self, numbers: Numbers) -> Array:
        """The vectors of some numbers, [M, dim], in their order; zeros where there is none."""
        out = np.zeros((len(numbers), self.dim), np.float32)
        for start in range(0, len(numbers), AT_ONCE):
            block = numbers[start:start + AT_ONCE].tolist()
            vectors = {version["number"]: version["vector"] for version in self._query(
                self._filter(and_=f"number in {_list(block)}"), ("number", "vector"), len(set(block)))}
            for place, number in enumerate(block, start=start):
                if number in vectors:
                    out[place] = vectors[number]
        return out

    def blocks(self, start: int = 0, size: int = AT_ONCE) -> Iterator[tuple[int, Array]]:
        """All vectors from a number on: (number of the first, [≤ size, dim])."""
        step = min(size, AT_ONCE)
        for begin in range(start, self.total, step):
            yield begin, self.take(np.arange(begin, min(begin + step, self.total)))

    def count(self, condition: Condition | None, columns: Collection[str]) -> int:
        """Pictures that a filter lets through."""
        with _told(self.store.place):
            counted = self.store.client.query(self.body, filter=self._filter(condition, columns),
                                              output_fields=["count(*)"])
            return int(counted[0]["count(*)"])

    def find(self, condition: Condition | None, columns: Collection[str]) -> Numbers:
        """Their numbers, ascending."""
        numbers: list[int] = []
        with _told(self.store.place):
            pages = self.store.client.query_iterator(self.body, batch_size=10 * AT_ONCE, output_fields=["number"],
                                                     filter=self._filter(condition, columns))
            while page := pages.next():
                numbers += [version["number"] for version in page]
            pages.close()
        return np.array(sorted(numbers), np.int64)

    def nearest(self, queries: Array, depth: int, effort: int, condition: Condition | None, columns: Collection[str]
                ) -> list[Found]:
        """effort: how widely a graph is searched; for the exact type it says nothing."""
        lists: list[Found] = []
        wanted, filter_ = {"metric_type": "IP", "params": {"ef": max(effort, depth)}}, self._filter(condition, columns)
        with _told(self.store.place):
            for start in range(0, len(queries), QUERIES):
                answers = self.store.client.search(self.body, data=queries[start:start + QUERIES].tolist(), limit=depth,
                                                   filter=filter_, output_fields=["number"], search_params=wanted)
                lists += [sorted(((hit["entity"]["number"], float(hit["distance"])) for hit in own),
                                 key=lambda pair: (-pair[1], pair[0])) for own in answers]
        return lists

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """In their order."""
        by_number: dict[int, Row] = {}
        for start in range(0, len(numbers), AT_ONCE):
            block = [int(number) for number in numbers[start:start + AT_ONCE]]
            for version in self._query(self._filter(and_=f"number in {_list(block)}"), ("number", "row"), len(block)):
                by_number[version["number"]] = _row(version["number"], "".join(version["row"]), self.store.place)
        missing = next((number for number in numbers if int(number) not in by_number), None)
        if missing is not None:
            raise StoreError(f"{self.store.place} does not hold picture {missing}; `densecap index … --rebuild` "
                             "fills it again")
        return [by_number[int(number)] for number in numbers]


def versions_of(rows: Sequence[Row], vectors: Array, generation: int) -> list[dict[str, Any]]:
    """Pictures that begin with a generation, as Milvus takes them."""
    return [{"key": generation * _NUMBERS + row.number, "number": row.number, "born": generation, "died": ALIVE,
             "row": _chunks(_row_text(row)), "vector": vector.tolist(), **fields}
            for row, vector, fields in zip(rows, vectors, fields_of(rows), strict=True)]


def _list(numbers: Sequence[int]) -> str:
    return "[" + ", ".join(f"{int(number):d}" for number in numbers) + "]"


def _chunks(text: str) -> list[str]:
    return [text[start:start + CHUNK] for start in range(0, len(text), CHUNK)] or [""]


def _row_text(row: Row) -> str:
    """All of a row in ASCII: file names may hold half characters."""
    said = {**asdict(row), "signature": row.signature.hex(), "columns": dict(row.columns)}
    return json.dumps(said)


def _row(number: int, text: str, place: str) -> Row:
    try:
        said = json.loads(text)
        return Row(**{**said, "number": number, "captions": tuple(map(str, said["captions"])),
                      "signature": bytes.fromhex(said["signature"])})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place} is damaged (the row of picture {number}: {error}); `densecap index … "
                         "--rebuild` fills it again") from error
