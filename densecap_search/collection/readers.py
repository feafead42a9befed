"""A user's folder or table becomes a Collection. READERS is the one place for the next format.

A reader turns a path into rows: mappings as they stand in the file, each with its number, or a Skipped where
a row cannot be read. Everything after that (which column is what, where the picture lies, which rows are one
picture) is the same for all formats and happens in :func:`read_collection`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from densecap_search.collection.image_types import IMAGE_SUFFIXES
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.splits import normal_split
from densecap_search.errors import CollectionError

IMAGE_COLUMNS = ("image", "filename", "file_name", "filepath", "path", "original_filename")
CAPTION_COLUMNS = ("caption", "captions", "text", "description", "title", "original_caption")
OWN_COLUMNS = ("id", "split", "group", "burst")

Row = Mapping[str, Any]
Rows = Iterable[tuple[int, Row | Skipped]]

csv.field_size_limit(1 << 30)  # captions of any length: the default of 128 KiB is a limit on other people's data


@dataclass(frozen=True)
class _Columns:
    """The names, as the file spells them, of the columns that mean something to us."""

    image: str
    captions: tuple[str, ...]  # the first that a row has is the row's
    own: Mapping[str, str]  # our word → the file's


def read_collection(
    path: Path, *, image_column: str | None = None, caption_column: str | None = None, format: str | None = None
) -> Collection:
    """Read a folder of pictures with side files, or a CSV, TSV, JSON Lines or JSON table.

    Relative picture paths are looked up beside the table. Rows of one picture become one record, their
    captions in the order of the rows. Rows that cannot be used are in ``skipped``, with the reason.
    """
    path = path.expanduser()
    if not path.exists():
        raise CollectionError(f"{path} does not exist; give a folder of pictures or a CSV, TSV, JSONL or JSON table")
    kind = format or recognise(path)
    if kind not in READERS:
        raise CollectionError(f"unknown format {kind!r}; known formats: {', '.join(READERS)}")
    rows = list(READERS[kind](path, image_column))
    folder = path if path.is_dir() else path.parent
    records, skipped = _records(rows, folder, path, image_column, caption_column)
    whole = path.resolve()
    name = whole.name if whole.is_dir() else f"{whole.parent.name}/{whole.name}"
    return Collection(name, tuple(records), tuple(skipped))


def recognise(path: Path) -> str:
    """The format of a path, by what it is and, for tables, by how its text begins."""
    if path.is_dir():
        return "folder"
    try:
        with path.open("rb") as file:
            data = file.read(1 << 12)
    except OSError as error:
        raise CollectionError(f"cannot read {path}: {error.strerror}") from error
    # the window may end inside a letter, which decode() would take for another encoding: only the start counts
    start = data.decode("utf-16" if data.startswith(_UTF_16_MARKS) else "utf-8-sig", "ignore").lstrip()
    if start.startswith("["):
        return "json"
    return "jsonl" if start.startswith("{") else "csv"


_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def decode(data: bytes) -> str:
    """Text of files as people have them: UTF-8 with or without a mark, UTF-16 with one, else Windows-1252."""
    if data.startswith(_UTF_16_MARKS):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def find_images(folder: Path) -> Iterator[Path]:
    """The pictures below a folder, sorted, without hidden files and the folders that systems add."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        status = Path(place).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back to where we have been
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if {"CURRENT", "model.json"} & set(names):  # an index or a run of ours: its pictures are not the user's
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "@")))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield Path(place, name)


def _read_folder(folder: Path, image_column: str | None) -> Rows:
    """Pictures and, beside each, an optional text file with the same stem."""
    del image_column
    for number, image in enumerate(find_images(folder), start=1):
        row: dict[str, Any] = {"image": image.relative_to(folder).as_posix()}
        side = _side_file(image)
        if side is not None:
            try:
                row["caption"] = decode(side.read_bytes()).removesuffix("\n").removesuffix("\r")
            except OSError as error:
                yield number, Skipped(row["image"], f"cannot read its caption file: {error.strerror}", number)
                continue
        yield number, row


def _side_file(image: Path) -> Path | None:
    """The text file with the picture's stem, in whichever Unicode form its name came (Macs decompose letters)."""
    stems = dict.fromkeys([image.stem, *(unicodedata.normalize(form, image.stem) for form in ("NFC", "NFD"))])
    candidates = (image.with_name(stem + suffix) for stem in stems for suffix in (".txt", ".TXT", ".Txt"))
    return next((path for path in candidates if path.is_file()), None)


def _read_csv(path: Path, image_column: str | None) -> Rows:
    """Comma, semicolon, tab or pipe; with or without a header; quoted as CSV is."""
    text = decode(path.read_bytes())
    delimiter = _delimiter(text, image_column)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header: list[str] | None = None
    number = 0
    for cells in lines:
        if not cells:
            continue
        if header is None:
            header = _header(cells, image_column)
            if header is not cells:  # no header: the first line is data
                number += 1
                yield number, dict(zip(header, cells, strict=True))
            continue
        number += 1
        if len(cells) > len(header):
            reason = f"{len(cells)} cells where the header has {len(header)}; put captions in quotes"
            yield number, Skipped(cells[0], reason, number)
        else:
            yield number, dict(zip(header, cells, strict=False))


def _delimiter(text: str, image_column: str | None) -> str:
    """The delimiter whose first line has a column we know, or else the one that cuts most lines alike."""
    sample = text[: 1 << 16]

    def score(delimiter: str) -> tuple[bool, int]:
        rows = list(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter))[:50]
        rows = [row for row in rows if row] or [[""]]
        known = any(_matches(cell, (image_column,) if image_column else IMAGE_COLUMNS) for cell in rows[0])
        width = len(rows[0])
        return known and width > 1, sum(len(row) == width for row in rows) if width > 1 else 0

    return max(("\t", ",", ";", "|"), key=score)


def _header(cells: list[str], image_column: str | None) -> list[str]:
    """The first line where it names columns; where it is data already, invented names."""
    if image_column is not None or any(_matches(cell, IMAGE_COLUMNS) for cell in cells):
        return cells
    pictures = [index for index, cell in enumerate(cells) if Path(cell.strip()).suffix.lower() in IMAGE_SUFFIXES]
    if not pictures:
        return cells
    rest = [index for index in range(len(cells)) if index != pictures[0]]
    caption = max(rest, key=lambda index: len(cells[index]), default=-1)
    return ["image" if i == pictures[0] else "caption" if i == caption else f"column{i + 1}" for i in range(len(cells))]


def _read_jsonl(path: Path, image_column: str | None) -> Rows:
    """One JSON object a line."""
    del image_column
    number = 0
    text = decode(path.read_bytes())
    if text.lstrip().startswith("{") and _is_one_object(text):
        raise CollectionError(f"{path} is one JSON object; a list of objects, or one object a line, was expected")
    for line in text.split("\n"):  # not splitlines: captions may hold U+2028
        if not line.strip():
            continue
        number += 1
        try:
            yield number, _as_row(json.loads(line), number)
        except (json.JSONDecodeError, RecursionError) as error:
            yield number, Skipped("", f"not JSON ({error})", number)


def _is_one_object(text: str) -> bool:
    """Whether a text of several lines is a single JSON value."""
    first = text.lstrip().split("\n", 1)[0]
    try:
        json.loads(first)
    except (json.JSONDecodeError, RecursionError):
        try:
            return isinstance(json.loads(text), dict)
        except (json.JSONDecodeError, RecursionError):
            return False
    return False


def _read_json(path: Path, image_column: str | None) -> Rows:
    """A JSON list of objects."""
    del image_column
    try:
        items = json.loads(decode(path.read_bytes()))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CollectionError(f"{path} is not JSON: {error}") from error
    for number, item in enumerate(items, start=1):
        yield number, _as_row(item, number)


def _as_row(item: Any, number: int) -> Row | Skipped:
    return item if isinstance(item, dict) else Skipped("", f"an object was expected, not {type(item).__name__}", number)


READERS: Mapping[str, Callable[[Path, str | None], Rows]] = {
    "folder": _read_folder,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "json": _read_json,
}


def _records(
    rows: Sequence[tuple[int, Row | Skipped]], folder: Path, path: Path,
    image_column: str | None, caption_column: str | None,
) -> tuple[list[Record], list[Skipped]]:
    columns = _columns([row for _, row in rows if not isinstance(row, Skipped)], path, image_column, caption_column)
    skipped: list[Skipped] = []
    records: dict[Path, Record] = {}
    for number, row in rows:
        record = row if isinstance(row, Skipped) else _record(row, number, folder, columns)
        if isinstance(record, Skipped):
            skipped.append(record)
        elif twin := records.get(record.image):
            records[record.image] = _merge(twin, record)
        else:
            records[record.image] = record
    return list(records.values()), skipped


def _columns(rows: Sequence[Row], path: Path, image_column: str | None, caption_column: str | None) -> _Columns:
    found = list(dict.fromkeys(key for row in rows for key in row))
    image = _named(found, image_column, "--image-column", path) or _first(found, IMAGE_COLUMNS)
    named = _named(found, caption_column, "--caption-column", path)
    captions = [named] if named else [name for word in CAPTION_COLUMNS if (name := _first(found, (word,))) is not None]
    if rows and image is None:
        raise CollectionError(
            f"{path}: no column names the pictures; columns found: {', '.join(map(str, found)) or 'none'}; "
            "say which one with --image-column NAME"
        )
    if rows and not captions and not path.is_dir():
        raise CollectionError(
            f"{path}: no column holds captions; columns found: {', '.join(map(str, found))}; "
            "say which one with --caption-column NAME"
        )
    own = {word: name for word in OWN_COLUMNS if (name := _first(found, (word,))) not in (None, image, *captions)}
    return _Columns(image or "image", tuple(captions), {word: name for word, name in own.items() if name})


def _named(found: Sequence[str], wanted: str | None, option: str, path: Path) -> str | None:
    if wanted is None or not found:
        return None
    name = _first(found, (wanted,))
    if name is None:
        raise CollectionError(f"{path}: {option} {wanted} is not there; columns found: {', '.join(map(str, found))}")
    return name


def _first(found: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for word in wanted for name in found if _matches(name, (word,))), None)


def _matches(name: str, words: Sequence[str | None]) -> bool:
    return str(name).strip().lower() in [str(word).strip().lower() for word in words]


def _record(row: Row, number: int, folder: Path, columns: _Columns) -> Record | Skipped:
    value = row.get(columns.image)
    if not isinstance(value, str) or not value.strip():
        return Skipped("", f"the column {columns.image} is empty", number)
    column = next((name for name in columns.captions if row.get(name) is not None), None)
    captions = _captions(row[column]) if column is not None else ()
    if captions is None:
        return Skipped(value, f"the column {column} holds no text", number)
    image = _locate(folder, value)
    if image is None:
        return Skipped(value, "no such file", number)
    own = {word: _word(row.get(name)) for word, name in columns.own.items()}
    used = {columns.image, column, *columns.own.values()}
    return Record(
        image_id=own.get("id") or _image_id(image, folder),
        image=image,
        captions=captions,
        split=normal_split(own.get("split")),
        group=own.get("group"),
        burst=own.get("burst"),
        columns={key: item for key, item in row.items() if key not in used and _is_plain(item)},
        rows=(number,),
    )


def _merge(first: Record, second: Record) -> Record:
    new = tuple(caption for caption in second.captions if caption not in first.captions)
    return replace(
        first,
        captions=first.captions + new,
        split=first.split or second.split,
        group=first.group or second.group,
        burst=first.burst or second.burst,
        columns={**second.columns, **first.columns},
        rows=first.rows + second.rows,
    )


def _captions(value: Any) -> tuple[str, ...] | None:
    """One caption or a list of them; blank ones are none. None where the value is no text at all."""
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        return None
    return tuple(dict.fromkeys(item for item in items if item.strip()))


def _locate(folder: Path, value: str) -> Path | None:
    """The picture that a cell means: as written, trimmed, with Windows' separators, in the other Unicode form."""
    spellings = [value, value.strip(), PureWindowsPath(value.strip()).as_posix()]
    spellings += [unicodedata.normalize(form, spellings[-1]) for form in ("NFC", "NFD")]
    for spelling in dict.fromkeys(spellings):
        try:
            candidate = (folder / spelling).expanduser()
            if candidate.exists():
                return Path(os.path.abspath(candidate))
        except (OSError, ValueError, RuntimeError):  # over-long names, NUL bytes, an unknown ~user
            continue
    return None


def _image_id(image: Path, folder: Path) -> str:
    base = Path(os.path.abspath(folder))
    name = image.relative_to(base) if image.is_relative_to(base) else image
    return unicodedata.normalize("NFC", name.as_posix())


def _word(value: Any) -> str | None:
    text = "" if value is None or isinstance(value, (dict, list)) else str(value).strip()
    return text or None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
