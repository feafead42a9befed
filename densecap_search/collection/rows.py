"""Rows as they stand in a file become records: which column is what, where the picture lies, which rows are one."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from densecap_search.collection.records import Record, Skipped
from densecap_search.collection.source import Row
from densecap_search.collection.splits import normal_split
from densecap_search.config import Reading
from densecap_search.errors import CollectionError

IMAGE_COLUMNS = ("image", "filename", "file_name", "filepath", "path", "original_filename", "image_file")
CAPTION_COLUMNS = ("caption", "captions", "text", "description", "title", "original_caption")
OWN_COLUMNS = ("id", "split", "group", "burst")


@dataclass(frozen=True)
class _Columns:
    """The names, as the file spells them, of the columns that mean something to us."""

    image: str
    captions: tuple[str, ...]  # the first that a row has is the row's
    own: Mapping[str, str]  # our word → the file's


def matches(name: str, words: Sequence[str | None]) -> bool:
    """Whether a column is called one of these, whatever its case and the blanks around it."""
    return str(name).strip().lower() in [str(word).strip().lower() for word in words]


def make_records(
    rows: Sequence[tuple[int, Row | Skipped]], path: Path, folders: Sequence[Path],
    reading: Reading,
) -> tuple[list[Record], list[Skipped]]:
    """Records in the order of their first rows, and what was left out.

    folders: where relative picture paths are looked up, in turn, the table's own first.
    """
    columns = _columns([row for _, row in rows if not isinstance(row, Skipped)], path, reading)
    places = [os.path.abspath(folder) for folder in folders]
    skipped: list[Skipped] = []
    records: dict[Path, Record] = {}
    for number, row in rows:
        record = row if isinstance(row, Skipped) else _record(row, number, places, columns)
        if isinstance(record, Skipped):
            skipped.append(record)
        elif twin := records.get(record.image):
            records[record.image] = _merge(twin, record)
        else:
            records[record.image] = record
    return list(records.values()), skipped


def _columns(rows: Sequence[Row], path: Path, reading: Reading) -> _Columns:
    found = list(dict.fromkeys(key for row in rows for key in row))
    image = _named(found, reading.image_column, "--image-column", path) or _first(found, IMAGE_COLUMNS)
    named = [_named(found, name, "--caption-column", path) for name in reading.caption_column]
    known = [_first(found, (word,)) for word in CAPTION_COLUMNS]
    captions = [name for name in (named or known) if name is not None]
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
    return next((name for word in wanted for name in found if matches(name, (word,))), None)


def _record(row: Row, number: int, folders: Sequence[str], columns: _Columns) -> Record | Skipped:
    value = row.get(columns.image)
    if isinstance(value, (dict, bytes)):
        return Skipped("", f"the column {columns.image} holds pictures, not their names; write them to files", number)
    if not isinstance(value, str) or not value.strip():
        return Skipped("", f"the column {columns.image} is empty", number)
    column = next((name for name in columns.captions if row.get(name) is not None), None)
    captions = _captions(row[column]) if column is not None else ()
    if captions is None:
        return Skipped(value, f"the column {column} holds no text", number)
    found = next(((place, image) for place in folders if (image := _locate(place, value)) is not None), None)
    if found is None:
        return Skipped(value, "no such file", number)
    place, image = found
    own = {word: _word(row.get(name)) for word, name in columns.own.items()}
    used = {columns.image, column, *columns.own.values()}
    return Record(
        image_id=own.get("id") or _image_id(image, folders[0], place),
        image=Path(image),
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


def _locate(folder: str, value: str) -> str | None:
    """The file that a cell means: as written, trimmed, with Windows' separators, in the other Unicode form."""
    for spelling in _spellings(value):
        try:  # os.path, not pathlib: a table may have millions of rows
            place = os.path.abspath(os.path.join(folder, os.path.expanduser(spelling)))  # noqa: PTH111, PTH118
            if not stat.S_ISDIR(os.stat(place).st_mode):  # noqa: PTH116
                return place
        except (OSError, ValueError):  # over-long names, NUL bytes, half characters
            continue
    return None


def _spellings(value: str) -> Iterator[str]:
    yield value
    tried = {value}
    plain = PureWindowsPath(value.strip()).as_posix()
    for spelling in (value.strip(), plain, *(unicodedata.normalize(form, plain) for form in ("NFC", "NFD"))):
        if spelling not in tried:
            tried.add(spelling)
            yield spelling


def _image_id(image: str, folder: str, place: str) -> str:
    """The path from the table's folder; else from the folder above the place where it was looked up; else whole."""
    bases = [folder] if place == folder else [folder, str(Path(place).parent)]
    inside = next((base for base in bases if image.startswith(base.rstrip(os.sep) + os.sep)), None)
    name = image if inside is None else image[len(inside.rstrip(os.sep)) + 1:]
    return unicodedata.normalize("NFC", name.replace(os.sep, "/"))


def _word(value: Any) -> str | None:
    text = "" if value is None or isinstance(value, (dict, list)) else str(value).strip()
    return text or None


def _is_plain(value: Any) -> bool:
    """Whether a column can hold it; an empty text is no value, as an empty cell is none."""
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""
