"""What an index knows of its pictures beside their vectors: one SQLite file, read by generation.

A row is never changed: a picture that moves or is described anew gets another version under its number, and the one
before stays for readers of older generations. Reading API: ``rows[number]``, ``rows.many(numbers)``, iteration in the
order of numbers, and :meth:`Rows.query` for SQL over the view ``pictures`` (this generation's rows, see SCHEMA) and the
full-text table ``words``:

    SELECT number, bm25(words) FROM words JOIN pictures ON pictures.key = words.rowid WHERE words MATCH ?
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

from densecap_search.collection.records import NO_TIME
from densecap_search.errors import IndexFolderError
from densecap_search.files import HASH_BYTES

Value = str | int | float
ALIVE = 1 << 62  # in place of the generation in which a version ended
MOST_COLUMNS = 1000  # of a user's table; SQLite takes 2,000 in all
# captions apart: a filter over a million rows must not read their texts. words: of captions (porter: "boats" finds
# "boat") and file names; contentless, for the texts are in the other tables.
SCHEMA = """
CREATE TABLE versions (key INTEGER PRIMARY KEY, number INTEGER NOT NULL, born INTEGER NOT NULL, died INTEGER NOT NULL,
    source TEXT NOT NULL, image_id TEXT NOT NULL, image TEXT NOT NULL, hash TEXT NOT NULL, size INTEGER NOT NULL,
    modified INTEGER NOT NULL, signature BLOB NOT NULL, split TEXT, "group" TEXT, burst TEXT, taken TEXT,
    folder TEXT NOT NULL);
CREATE INDEX by_number ON versions (number);
CREATE INDEX by_end ON versions (died) WHERE died < 4611686018427387904;
CREATE TABLE texts (key INTEGER PRIMARY KEY, captions TEXT NOT NULL);
CREATE TABLE columns (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE skips (image TEXT PRIMARY KEY, hash TEXT NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL,
    reason TEXT NOT NULL, under TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (captions, name, content='', tokenize='porter unicode61 remove_diacritics 2');
"""
_OWN = ("source", "image_id", "image", "hash", "size", "modified", "signature", "split", "group", "burst", "taken",
        "folder")
_HASH = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")


@dataclass(frozen=True)
class Row:
    """What an index knows of a picture beside its vector.

    number: which vector is its own, from 0. source: the collection that it came from. image: an absolute path.
    modified: the file's time of change in nanoseconds, or NO_TIME. signature: of all that its record said.
    taken: when, by its EXIF, as ``2019-05-31 14:03:59``. folder: where it lies in its collection, ``.`` for the top.
    """

    number: int
    source: str
    image_id: str
    image: str
    captions: tuple[str, ...]
    hash: str
    size: int = 0
    modified: int = NO_TIME
    signature: bytes = b""
    split: str | None = None
    group: str | None = None
    burst: str | None = None
    taken: str | None = None
    folder: str = "."
    columns: Mapping[str, Value] = field(default_factory=dict)


class Known(NamedTuple):
    """Of a row what an update compares; a tuple, for there may be millions."""

    number: int
    source: str
    image_id: str
    image: str
    hash: str
    size: int
    modified: int
    signature: bytes


class Rows:
    """The rows of one generation, read when they are asked for; may be used by several threads."""

    def __init__(self, path: Path, generation: int, count: int) -> None:
        self.path, self.generation, self._count = path, generation, count
        self._own = threading.local()
        with _told(path):
            names = self.query("SELECT number, name FROM columns ORDER BY number")
        self.columns: dict[str, str] = {str(name): f"c{int(number)}" for number, name in names}  # name → in SQL

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Row:
        return self.many([number])[0]

    def __iter__(self) -> Iterator[Row]:
        with _told(self.path):
            for columns in self._connection().execute(f"{self._select()} ORDER BY number"):
                yield self._row(columns)

    def many(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of these numbers, in their order. Errors: IndexFolderError where one is not there."""
        by_number: dict[int, Row] = {}
        for start in range(0, len(numbers), 500):
            block = [int(number) for number in numbers[start:start + 500]]
            for values in self.query(f"{self._select()} WHERE number IN ({', '.join('?' * len(block))})", block):
                row = self._row(values)
                by_number[row.number] = row
        missing = next((int(number) for number in numbers if int(number) not in by_number), None)
        if missing is not None:
            raise _damaged(self.path, f"it does not name picture {missing}")
        return [by_number[int(number)] for number in numbers]

    def known(self) -> list[Known]:
        """All rows, in any order, as an update compares them."""
        answers = self.query("SELECT number, source, image_id, image, hash, size, modified, signature FROM pictures")
        rows: Iterator[Known] = map(partial(tuple.__new__, Known), answers)  # as _make, without its check of the length
        return [row if type(row.image) is str and type(row.image_id) is str else
                row._replace(image=_from_sql(row.image), image_id=_from_sql(row.image_id)) for row in rows]

    def skips(self) -> list[Skip]:
        """Files that the last update could not use."""
        return [Skip(_from_sql(image), *rest) for image, *rest in self.query("SELECT * FROM skips")]

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All results of a statement that reads. Errors: IndexFolderError where the file is damaged."""
        with _told(self.path):
            return self._connection().execute(sql, parameters).fetchall()

    def check(self) -> None:
        """Read the whole file and raise IndexFolderError where SQLite finds it damaged."""
        answer = self.query("PRAGMA integrity_check(1)")
        if answer != [("ok",)]:
            raise _damaged(self.path, str(answer[0][0]))

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._own, "connection"):
            self._own.connection = _open_to_read(self.path, self.generation)
        connection: sqlite3.Connection = self._own.connection
        return connection

    def _select(self) -> str:
        columns = ", ".join(f'pictures."{name}"' for name in ("number", *_OWN, *self.columns.values()))
        return f"SELECT captions, {columns} FROM pictures JOIN texts USING (key)"

    def _row(self, values: Sequence[Any]) -> Row:
        captions, number, *own = values
        named: dict[str, Any] = dict(zip(_OWN, own, strict=False))
        if not isinstance(named["hash"], str) or not _HASH.fullmatch(named["hash"]):  # it becomes a file's name
            raise _damaged(self.path, f"the hash of picture {number} is {named['hash']!r}")
        try:
            texts = tuple(str(text) for text in json.loads(captions))
        except (ValueError, TypeError) as error:
            raise _damaged(self.path, f"captions of picture {number}: {error}") from error
        cells = zip(self.columns, own[len(_OWN):], strict=True)
        return Row(number, captions=texts, columns={name: value for name, value in cells if value is not None},
                   **{**named, "image": _from_sql(named["image"]), "image_id": _from_sql(named["image_id"])})


def create_rows(path: Path, generation: int, rows: Iterable[Row]) -> None:
    """Write a new file of rows, flushed to the disk."""
    with _told(path):
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN;" + SCHEMA)
            add_rows(connection, generation, rows)
            connection.execute("COMMIT")
        finally:
            connection.close()
        with path.open("rb+") as file:
            os.fsync(file.fileno())


@contextmanager
def changing(path: Path, current: int, next: int) -> Iterator[sqlite3.Connection]:
    """A transaction that becomes part of generation ``next``: what a reader of ``current`` sees stays as it is.

    What generations after ``current`` had begun (a killed update) or done (before --undo) is ended or taken back.
    """
    with _told(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        try:
            _harden(connection)
            connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE versions SET died = ? WHERE born > ? AND died > ?", (next, current, next))
            connection.execute("UPDATE versions SET died = ? WHERE born <= ? AND died > ? AND died < ?",
                               (ALIVE, current, current, ALIVE))
            yield connection
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        finally:
            connection.close()


def add_rows(connection: sqlite3.Connection, generation: int, rows: Iterable[Row]) -> None:
    """Versions that begin with a generation."""
    columns = {name: number for number, name in connection.execute("SELECT number, name FROM columns")}
    key = connection.execute("SELECT coalesce(max(key), 0) FROM versions").fetchone()[0]
    for row in rows:
        key += 1
        for name in row.columns:
            if name not in columns and len(columns) < MOST_COLUMNS:
                columns[name] = len(columns) + 1
                connection.execute("INSERT INTO columns VALUES (?, ?)", (columns[name], name))
                connection.execute(f"ALTER TABLE versions ADD COLUMN c{columns[name]}")
        own = {name: _to_sql(name, getattr(row, name)) for name in _OWN}
        cells = {f"c{columns[name]}": _to_sql("", value) for name, value in row.columns.items() if name in columns}
        values = {"key": key, "number": row.number, "born": generation, "died": ALIVE, **own, **cells}
        names = ", ".join(f'"{name}"' for name in values)
        connection.execute(f"INSERT INTO versions ({names}) VALUES ({', '.join('?' * len(values))})",
                           list(values.values()))
        texts = json.dumps(row.captions, ensure_ascii=not all(map(_encodes, row.captions)))
        connection.execute("INSERT INTO texts VALUES (?, ?)", (key, texts))
        connection.execute("INSERT INTO words (rowid, captions, name) VALUES (?, ?, ?)",
                           (key, _plain("\n".join(row.captions)), _plain(PurePath(row.image).name)))


def end_rows(connection: sqlite3.Connection, generation: int, numbers: Iterable[int]) -> None:
    """The versions of these numbers end before a generation."""
    connection.executemany("UPDATE versions SET died = ? WHERE number = ? AND died = ?",
                           ((generation, int(number), ALIVE) for number in numbers))


class Skip(NamedTuple):
    """A file that could not be used. under: the version and limits that said so; another may say otherwise."""

    image: str
    hash: str
    size: int
    modified: int
    reason: str
    under: str


def note(path: Path, times: Sequence[tuple[int, int, int]], skips: Sequence[Skip]) -> None:
    """What spares the next update work, and is no part of a generation.

    times: of files that were read and had not changed, (number, size, modified). skips: in place of those before.
    """
    with _told(path):
        connection = sqlite3.connect(path, timeout=60)
        try:
            _harden(connection)
            with connection:
                connection.executemany("UPDATE versions SET size = ?2, modified = ?3 WHERE number = ?1 AND died = ?4",
                                       ((*time, ALIVE) for time in times))
                connection.execute("DELETE FROM skips")
                connection.executemany("INSERT OR REPLACE INTO skips VALUES (?, ?, ?, ?, ?, ?)",
                                       ([_to_sql("image", value) for value in skip] for skip in skips))
        finally:
            connection.close()


def count_versions(rows: Rows) -> int:
    """All versions in the file, of whatever generation."""
    return int(rows.query("SELECT coalesce(max(key), 0) FROM versions")[0][0])


def _open_to_read(path: Path, generation: int) -> sqlite3.Connection:
    """On a disk that cannot be written the write-ahead log cannot be shared: the file is then read as it is."""
    place = f"file:{quote(str(path.absolute()))}?mode=ro"
    for uri in (place, f"{place}&immutable=1"):
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=60)
        try:
            _harden(connection)
            connection.execute("SELECT count(*) FROM columns").fetchone()
            connection.execute(f"CREATE TEMP VIEW pictures AS SELECT * FROM main.versions WHERE born <= {generation:d} "
                               f"AND died > {generation:d}")
            return connection
        except sqlite3.OperationalError:
            connection.close()
            if uri != place or not path.exists():
                raise
    raise AssertionError("unreachable")


def _harden(connection: sqlite3.Connection) -> None:
    """An index may come from anywhere: nothing that its schema says is run with side effects."""
    connection.executescript("PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if not path.exists():
            raise FileNotFoundError(2, "no such file", str(path)) from error
        raise IndexFolderError(f"cannot read or write {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> IndexFolderError:
    return IndexFolderError(f"{path} is damaged ({why}); build the index again with `densecap index … --rebuild`")


def _to_sql(name: str, value: Any) -> Any:
    """SQLite has no half characters, which file names of other encodings hold, and no integers beyond 64 bits."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    if isinstance(value, str) and not _encodes(value):
        return value.encode("utf-8", "surrogateescape") if name in ("image", "image_id") else _plain(value)
    return value


def _from_sql(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
