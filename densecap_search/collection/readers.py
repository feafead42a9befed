"""A user's folder or file becomes a Collection. READERS is the one place for the next format.

A reader turns a path into rows: mappings as they stand in the file, each with its number, or a Skipped where
a row cannot be read. Everything after that (which column is what, where the picture lies, which rows are one
picture) is the same for all formats and happens in :mod:`rows`. A folder that holds one table is that table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from densecap_search.collection import (
    annotation_tools,
    columnar,
    conversations,
    datasets,
    delimited,
    feedback,
    folders,
    json_tables,
    webdataset,
)
from densecap_search.collection.corrections import with_corrections
from densecap_search.collection.left_out import left_out
from densecap_search.collection.places import file_number, usual_folders
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.rows import image_id, make_records
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.tables_within import Part, may_be_tables, parts_of, tell_unread
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import find_images
from densecap_search.config import BY_CONTENT, Reading
from densecap_search.errors import CollectionError, DensecapError
from densecap_search.files import cache_folder

__all__ = ["READERS", "Format", "decode", "find_images", "read_collection", "recognise"]


@dataclass(frozen=True)
class Format:
    """How a format is told by its content, and read.

    recognise: why a source is of this format, in a phrase, or None. image_folders: where pictures may also lie, from
    the file's folder, beside the usual ones. of: whether it is a file or a folder that is read.
    """

    recognise: Callable[[Source], str | None]
    read: Callable[[Source], Rows]
    image_folders: tuple[str, ...] = ()
    of: str = "file"


_COCO_FOLDERS = ("images", "train2017", "val2017", "train2014", "val2014", "../images", "../train2017", "../val2017",
                 "../train2014", "../val2014")

# From the most particular to the most general: the first that recognises a source reads it.
READERS: Mapping[str, Format] = {
    "parquet": Format(columnar.is_parquet, columnar.read_columnar),
    "arrow": Format(columnar.is_arrow, columnar.read_columnar),
    "excel": Format(columnar.is_excel, columnar.read_excel),
    "webdataset": Format(webdataset.is_webdataset, webdataset.read_webdataset, of="either"),
    "imagefolder": Format(folders.is_imagefolder, folders.read_imagefolder, of="folder"),
    "dci": Format(datasets.is_dci, datasets.read_dci, ("photos", "images", "../photos", "../images"), of="folder"),
    "urban1k": Format(folders.is_twins, folders.read_twins, of="folder"),
    "folder": Format(folders.is_folder, folders.read_folder, of="folder"),
    "embedded": Format(folders.is_embedded, folders.read_embedded, of="folder"),
    "coco": Format(datasets.is_coco, datasets.read_coco, _COCO_FOLDERS),
    "karpathy": Format(datasets.is_karpathy, datasets.read_karpathy, _COCO_FOLDERS),
    "docci": Format(datasets.is_docci, datasets.read_docci, ("images", "../images")),
    "goal": Format(datasets.is_goal, datasets.read_goal, ("images", "photos", "../images", "../photos")),
    feedback.FORMAT: Format(feedback.is_feedback, feedback.read_feedback),
    "sharegpt4v": Format(conversations.is_conversations, conversations.read_conversations,
                         ("images", "data", "../data", "../images")),
    "vg-paragraphs": Format(datasets.is_vg_paragraphs, datasets.read_vg_paragraphs),
    "localized-narratives": Format(datasets.is_localized_narratives, datasets.read_localized_narratives),
    "label-studio": Format(annotation_tools.is_label_studio, annotation_tools.read_label_studio),
    "cvat": Format(annotation_tools.is_cvat, annotation_tools.read_cvat),
    "captions-by-name": Format(json_tables.is_captions_by_name, json_tables.read_captions_by_name),
    "json": Format(json_tables.is_json, json_tables.read_json),
    "jsonl": Format(json_tables.is_jsonl, json_tables.read_jsonl),
    "flickr-tokens": Format(delimited.is_tokens, delimited.read_tokens),
    "csv": Format(delimited.is_csv, delimited.read_csv),
}
_OTHER_NAMES = {"tsv": "csv", "twins": "urban1k", "narratives": "localized-narratives", "structxlip": "goal",
                "messages": "sharegpt4v", "conversations": "sharegpt4v", "sharegpt": "sharegpt4v", "xlsx": "excel"}
_ANY_PICTURES = ("folder", "embedded")  # what a folder is where nothing else is known of it


def read_collection(path: Path, reading: Reading = BY_CONTENT) -> Collection:
    """Read a folder of pictures or a file that names them; which format it is its content says, or ``reading``.

    Relative picture paths are looked up beside the table and in the usual folders there, or in ``reading.images``;
    those that are nowhere by their names below. Rows of one picture become one record, their captions in the order of
    the rows. Rows that cannot be used are in ``skipped``, with the reason.
    """
    path = path.expanduser()
    if not path.exists():
        raise CollectionError(f"{path} does not exist; give a folder of pictures or a CSV, TSV, JSONL or JSON table")
    source = Source(path, reading)
    kind, reason = (_known(reading.format), "as asked for") if reading.format else recognise(source)
    if path.is_dir() and (READERS[kind].of == "file" or (kind in _ANY_PICTURES and not reading.format)):
        within = _table_within(source, kind if reading.format else None)
        if within is not None:
            return within
        if READERS[kind].of == "file":
            raise CollectionError(f"{path} holds no table of the format {kind} that names pictures there; "
                                  "give the file itself, or choose another --format")
    return _read(source, kind, reason)


def recognise(source: Source) -> tuple[str, str]:
    """The format of a source and, in a phrase, what it was told by."""
    reasons = ((name, kind.recognise(source)) for name, kind in READERS.items())
    return next((name, reason) for name, reason in reasons if reason is not None)


def _known(format: str) -> str:
    name = format.strip().lower().replace("_", "-")
    name = _OTHER_NAMES.get(name, name)
    if name not in READERS:
        raise CollectionError(f"unknown format {format!r}; known formats: {', '.join(READERS)}")
    return name


def _read(source: Source, kind: str, reason: str) -> Collection:
    """A source in one format."""
    try:
        rows = list(READERS[kind].read(source))
    except OSError as error:
        raise CollectionError(f"cannot read {source.path}: {error.strerror or error}") from error
    except CollectionError as error:
        others = recognise(source) if source.reading.format and not source.path.is_dir() else (kind, "")
        if others[0] in (kind, "csv"):
            raise
        raise CollectionError(f"{error} (by its content it is of the format {others[0]}: {others[1]})") from error
    records, skipped = _records(rows, source, source.folder, kind)
    if source.path.is_dir():
        records = _with_the_unnamed(records, source) if kind == "imagefolder" else records
        tell_unread(source, kind)
    return _collection(source, records, skipped, kind, reason)


def _records(rows: Rows, source: Source, folder: Path, kind: str) -> tuple[list[Record], list[Skipped]]:
    """Rows of a table that lies in a folder, as records; pictures are found by name below the source's folder."""
    reading = source.reading
    given = [Path(place).expanduser() for place in reading.images]
    missing = next((place for place in given if not place.is_dir()), None)
    if missing is not None:
        raise CollectionError(f"--images {missing} is not a folder")
    known = [folder / name for name in READERS[kind].image_folders]
    usual = [] if given or READERS[kind].of == "folder" else [*usual_folders(folder), *usual_folders(source.folder)]

    def pictures() -> Iterator[Path]:
        for place in given or [source.folder]:
            yield from find_images(place, hidden=reading.hidden, exclude=reading.exclude)

    places = dict.fromkeys([folder, *given, *known, *usual])
    return make_records(list(rows), source.path, list(places), reading, pictures, source.notes,
                        left_out(source.folder, reading.exclude))


def _table_within(source: Source, kind: str | None) -> Collection | None:
    """The collection of the one table that a folder holds, or of one in several parts; None where there is none.

    A file is the folder's table if at least half of its rows name pictures there and have captions.
    """
    tried = (_tried(path, source, kind) for path in may_be_tables(source))
    parts = parts_of([part for part in tried if part is not None], source)
    if parts is None:
        return None
    rows: list[tuple[int, Row | Skipped]] = []
    for part in parts:
        rows += part.numbered(before=max((number for number, _ in rows), default=0))
        source.done.add(part.source.path)
        source.notes.extend(note for note in part.notes if note not in source.notes)
    records, skipped = _records(rows, source, parts[0].source.folder, parts[0].kind)
    records = _with_the_unnamed(records, source)
    tell_unread(source, parts[0].kind)
    names = ", ".join(os.path.relpath(part.source.path, source.path) for part in parts[:4]) + ", …" * (len(parts) > 4)
    return _collection(source, records, skipped, parts[0].kind, f"{names} in the folder")


def _tried(path: Path, source: Source, kind: str | None) -> Part | None:
    """A file as a table of the folder, if it is one."""
    own = Source(path, replace(source.reading, format=None))
    try:
        name, _ = recognise(own)
        if READERS[name].of == "folder" or kind not in (None, name):
            return None
        rows = tuple(READERS[name].read(own))
        trial = replace(source, notes=[])
        records, _ = _records(rows, trial, path.parent, name)
    except (DensecapError, OSError):
        return None
    held = (os.path.abspath(source.path), os.path.abspath(cache_folder()), *map(os.path.abspath, source.reading.images))
    named = {row for record in records if record.captions and str(record.image).startswith(held) for row in record.rows}
    return Part(own, name, rows, tuple(own.notes)) if 2 * len(named) >= len(rows) > 0 else None


def _collection(source: Source, records: Sequence[Record], skipped: Sequence[Skipped], kind: str, reason: str
                ) -> Collection:
    whole = source.path.resolve()
    name = whole.name if whole.is_dir() else f"{whole.parent.name}/{whole.name}"
    collection = Collection(name, tuple(records), tuple(skipped), kind, "; ".join([reason, *source.notes]),
                            tuple(source.notes))
    corrections = source.reading.corrections
    return collection if corrections is None else with_corrections(collection, Path(corrections).expanduser())


def _with_the_unnamed(records: list[Record], source: Source) -> list[Record]:
    """The records of a table, and the pictures beside it that it does not name, without captions."""
    named = {file_number(str(record.image)) for record in records}
    ids = {record.image_id for record in records}
    others = []
    for found in source.pictures:
        if not isinstance(found, Skipped) and (number := file_number(str(found[0]))) not in named:
            named.add(number)
            others.append(found[0])
    if not others:
        return records
    source.notes.append(f"{len(others)} pictures there are not named, so they have no caption")
    root = os.path.abspath(source.path)
    for path in others:
        own = image_id(os.path.abspath(path), root, root)
        records.append(Record(own if own not in ids else os.path.abspath(path), Path(os.path.abspath(path))))
    return records
