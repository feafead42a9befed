"""Tables: CSV and its relatives, JSON Lines, JSON, Parquet. A row is a mapping as it stands in the file."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.rows import IMAGE_COLUMNS, matches
from densecap_search.collection.source import Row, Rows, Source, parse_json
from densecap_search.collection.text_files import decode, text_lines
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError, MissingPackage

csv.field_size_limit(1 << 30)  # captions of any length: the default of 128 KiB is a limit on other people's data


def is_csv(source: Source) -> str | None:
    """Every other file: the first line then says whether it is one."""
    if source.path.is_dir():
        return None
    return f"a table whose cells are set apart by {_DELIMITERS[_delimiter(source.text, source.reading.image_column)]}"


def read_csv(source: Source) -> Rows:
    """Comma, semicolon, tab or pipe; with or without a header; quoted as CSV is."""
    delimiter = _delimiter(source.text, source.reading.image_column)
    header: list[str] | None = None
    number = 0
    for cells in _cells(_Lines(source.path), delimiter):
        if not cells:
            continue
        if header is None:
            header = _header(cells, source.reading.image_column)
            if header is not cells:  # no header: the first line is data
                number += 1
                yield number, dict(zip(header, cells, strict=True))
            continue
        number += 1
        if len(cells) > len(header):
            reason = f"{len(cells)} cells where the header has {len(header)}; put captions in quotes"
            yield number, Skipped(cells[0], reason, number)
        else:
            yield number, dict(zip_longest(header, cells, fillvalue=""))


class _Lines:
    """The lines of a CSV file, which can be handed back: a stray quote must not swallow the rows below it."""

    def __init__(self, path: Path) -> None:
        self._fresh = (part for line in text_lines(path) for part in _split_returns(line))
        self._waiting: deque[str] = deque()
        self.taken: list[str] = []  # since the row began

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._fresh)
        self.taken.append(line)
        return line

    def hand_back(self) -> str:
        """The row's first line; the others will come again."""
        first, *others = self.taken
        self._waiting.extendleft(reversed(others))
        return first


def _split_returns(line: str) -> list[str]:
    """A line cut where old Macs ended theirs."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", line) if "\r" in line[:-2] else [line]


def _cells(lines: _Lines, delimiter: str) -> Iterator[list[str]]:
    """Rows as cells. Where quotes do not stand as CSV wants them, the line is taken as it is, quotes and all."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.taken.clear()
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield lines.hand_back().rstrip("\r\n").split(delimiter)


_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


def _delimiter(text: str, image_column: str | None) -> str:
    """The delimiter whose first line has a column we know, or else the one that cuts most lines alike."""

    def score(delimiter: str) -> tuple[bool, int]:
        rows: list[list[str]] = []
        try:
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
                rows += [row] if row else []
                if len(rows) == 50:
                    break
        except csv.Error:
            pass  # what was read before counts
        rows = rows or [[""]]
        known = any(matches(cell, (image_column,) if image_column else IMAGE_COLUMNS) for cell in rows[0])
        width = len(rows[0])
        return known and width > 1, sum(len(row) == width for row in rows) if width > 1 else 0

    return max(_DELIMITERS, key=score)


def _header(cells: list[str], image_column: str | None) -> list[str]:
    """The first line where it names columns; where it is data already, invented names."""
    if image_column is not None or any(matches(cell, IMAGE_COLUMNS) for cell in cells):
        return cells
    pictures = [index for index, cell in enumerate(cells) if is_picture(cell.strip())]
    if not pictures:
        return cells
    rest = [index for index in range(len(cells)) if index != pictures[0]]
    caption = max(rest, key=lambda index: len(cells[index]), default=-1)
    return ["image" if i == pictures[0] else "caption" if i == caption else f"column{i + 1}" for i in range(len(cells))]


def is_jsonl(source: Source) -> str | None:
    """A file that begins with an object."""
    return "one JSON object a line" if source.text.lstrip().startswith("{") else None


def read_jsonl(source: Source) -> Rows:
    """One JSON object a line."""
    if isinstance(source.value, dict) and "\n" in source.text.strip():
        raise CollectionError(f"{source.path} is one JSON object; a list of objects, or one object a line, "
                              "was expected")
    for number, line in enumerate((line for line in text_lines(source.path) if line.strip()), start=1):
        try:
            yield number, as_row(parse_json(line), number)
        except ValueError as error:
            yield number, Skipped("", f"not JSON ({error})", number)


def is_json(source: Source) -> str | None:
    """A list of objects, or an object that holds one such list and nothing like it."""
    if source.text.lstrip().startswith("["):
        return "a JSON list of objects"
    key = _list_key(source.value)
    return None if key is None else f"a JSON list of objects, below the key {key!r}"


def read_json(source: Source) -> Rows:
    """A JSON list of objects."""
    key = _list_key(source.value)
    items = source.value if key is None else source.value[key]
    if items is None:
        try:
            items = parse_json(decode(source.path.read_bytes()))
        except ValueError as error:
            raise CollectionError(f"{source.path} is not JSON: {error}") from error
    if not isinstance(items, list):
        raise CollectionError(f"{source.path} holds no JSON list of objects, but {_kind(items)}")
    for number, item in enumerate(items, start=1):
        yield number, as_row(item, number)


def as_row(item: Any, number: int) -> Row | Skipped:
    """An object as a row; anything else is skipped."""
    return item if isinstance(item, dict) else Skipped("", f"an object was expected, not {type(item).__name__}", number)


def _list_key(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    keys = [key for key, items in value.items() if isinstance(items, list) and items and isinstance(items[0], dict)]
    return keys[0] if len(keys) == 1 else None


def _kind(value: Any) -> str:
    return "one object" if isinstance(value, dict) else f"a single {type(value).__name__}"


def is_parquet(source: Source) -> str | None:
    """Parquet's four letters."""
    return "Parquet's mark at its beginning" if source.start.startswith(b"PAR1") else None


def read_parquet(source: Source) -> Rows:
    """A Parquet table, a batch of rows in memory at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage(f"{source.path} is Parquet, which needs the extra `parquet` "
                             "(pip install 'densecap-search[parquet]')") from error
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(source.path) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise CollectionError(f"cannot read {source.path} as Parquet: {' '.join(str(error).split())}") from error
