"""What is being read: a path, how the user wants it read, and its beginning, looked at once by all recognisers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.text_files import decode, text_lines, utf_16
from densecap_search.collection.walk import pair_side_files, walk
from densecap_search.config import BY_CONTENT, Reading
from densecap_search.errors import CollectionError

Row = Mapping[str, Any]
Rows = Iterable[tuple[int, Row | Skipped]]  # each with its number in the input, from 1

_WINDOW = 1 << 16  # bytes of a file that recognisers see
_TRIED_LINES = 20  # of JSON Lines, until one is an object


@dataclass(frozen=True)
class Source:
    """A folder or a file that is to become a collection. notes: what a reader wants said about how it read."""

    path: Path
    reading: Reading = BY_CONTENT
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where relative picture paths begin."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What lies in the folder, sorted; nothing for a file."""
        if not self.path.is_dir():
            return ()
        try:
            return tuple(sorted(entry.name for entry in self.path.iterdir()))
        except OSError as error:
            raise CollectionError(f"cannot read the folder {self.path}: {error.strerror}") from error

    @cached_property
    def start(self) -> bytes:
        """The first bytes of a file; none of a folder."""
        if self.path.is_dir():
            return b""
        try:
            with self.path.open("rb") as file:
                return file.read(_WINDOW)
        except OSError as error:
            raise CollectionError(f"cannot read {self.path}: {error.strerror}") from error

    @cached_property
    def text(self) -> str:
        """The beginning as text; the window may end inside a letter, which must not decide the encoding."""
        if utf_16(self.start[:4096]):
            return decode(self.start[: len(self.start) // 2 * 2])
        whole = self.start.rpartition(b"\n")[0] if len(self.start) == _WINDOW else b""
        return decode(whole or self.start)

    @cached_property
    def value(self) -> Any:
        """The one JSON value that the whole file is; None where it is not, as with JSON Lines."""
        if not self.text.lstrip().startswith(("{", "[")):
            return None
        if self.text.lstrip().startswith("{"):
            lines = (line for line in text_lines(self.path) if line.strip())
            item = _parsed(next(lines, ""))
            if isinstance(item, dict):
                return item if next(lines, None) is None else None
        return _parsed(decode(self.path.read_bytes()))

    @cached_property
    def first(self) -> Mapping[str, Any]:
        """The first object of a JSON list or of JSON Lines, or the one object that the file is; {} where none."""
        if isinstance(self.value, list):
            return next((item for item in self.value if isinstance(item, dict)), {})
        if isinstance(self.value, dict):
            return self.value
        if not self.text.lstrip().startswith("{"):
            return {}
        lines = islice((line for line in text_lines(self.path) if line.strip()), _TRIED_LINES)
        return next((item for line in lines if isinstance(item := _parsed(line), dict)), {})

    @cached_property
    def pictures(self) -> tuple[tuple[Path, Path | None] | Skipped, ...]:
        """The pictures below a folder, each with its text file or None; unreadable folders are skipped."""
        return tuple(self._pictures())

    @cached_property
    def lone_texts(self) -> list[Path]:
        """Text files below the folder that belong to no picture; known once ``pictures`` is."""
        return []

    def _pictures(self) -> Iterator[tuple[Path, Path | None] | Skipped]:
        for found in walk(self.path, hidden=self.reading.hidden):
            if isinstance(found, Skipped):
                yield found
                continue
            place, names = found
            pairs, lone = pair_side_files(names)
            self.lone_texts.extend(place / name for name in lone)
            yield from ((place / name, place / text if text else None) for name, text in pairs)


def parse_json(text: str) -> Any:
    """The value of a JSON text. Errors: ValueError with one line."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None
