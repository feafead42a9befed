"""What is being read: a path, how the user wants it read, and its beginning, looked at once by all recognisers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.side_files import pair
from densecap_search.collection.text_files import TABLE_BYTES, decode, parse_json, text_lines, utf_16
from densecap_search.collection.walk import is_picture, walk
from densecap_search.config import BY_CONTENT, Reading
from densecap_search.errors import CollectionError
from densecap_search.files import open_file, read_bytes

Row = Mapping[str, Any]
Rows = Iterable[tuple[int, Row | Skipped]]  # each with its number in the input, from 1

_WINDOW = 1 << 16  # bytes of a file that recognisers see
_TRIED_LINES = 20  # of JSON Lines, until one is an object


@dataclass(frozen=True)
class Source:
    """A folder or a file that is to become a collection.

    notes: what a reader wants said about how it read. done: the files, beside pictures, that it has read. left: what
    was left out as the user asked.
    """

    path: Path
    reading: Reading = BY_CONTENT
    notes: list[str] = field(default_factory=list)
    done: set[Path] = field(default_factory=set)
    left: list[str] = field(default_factory=list)

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

    @property
    def names_if_readable(self) -> tuple[str, ...]:
        """The same, and nothing of a folder that may not be read."""
        try:
            return self.names
        except CollectionError:
            return ()

    @cached_property
    def start(self) -> bytes:
        """The first bytes of a file; none of a folder."""
        if self.path.is_dir():
            return b""
        try:
            with open_file(self.path) as file:
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
        return _parsed(decode(read_bytes(self.path, TABLE_BYTES)))

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
    def walked(self) -> tuple[tuple[Path, list[str]] | Skipped, ...]:
        """Every folder below a folder with its file names; those that cannot be read are skipped."""
        reading = self.reading
        return tuple(walk(self.path, hidden=reading.hidden, exclude=reading.exclude, left=self.left))

    @cached_property
    def pictures(self) -> tuple[tuple[Path, tuple[Path, ...]] | Skipped, ...]:
        """The pictures below a folder, each with its side files; unreadable folders are skipped.

        Of a picture and links to it, or of several links to one file, one is taken: the picture before the links.
        """
        entries = list(self._pictures())
        links = {path: path.resolve() for path, _ in _paths(entries) if path.is_symlink()}
        shown = {path.resolve() for path, _ in _paths(entries) if path not in links} if links else set()
        twice = set()
        for link, target in links.items():
            if target in shown:
                twice.add(link)
            shown.add(target)
        if twice:
            self.notes.append(f"{len(twice)} links to pictures that are there already")
        return tuple(pair for pair in entries if isinstance(pair, Skipped) or pair[0] not in twice)

    def other_files(self) -> Iterator[Path]:
        """The files below a folder that are no pictures."""
        for entry in self.walked:
            if not isinstance(entry, Skipped):
                yield from (entry[0] / name for name in entry[1] if not is_picture(name))

    def _pictures(self) -> Iterator[tuple[Path, tuple[Path, ...]] | Skipped]:
        for entry in self.walked:
            if isinstance(entry, Skipped):
                yield entry
                continue
            place, names = entry
            yield from ((place / name, tuple(place / side for side in sides)) for name, sides in pair(names)[0])


def _paths(entries: Iterable[tuple[Path, tuple[Path, ...]] | Skipped]) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    return (pair for pair in entries if not isinstance(pair, Skipped))


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None
