"""A user's folder or file becomes a Collection. READERS is the one place for the next format.

A reader turns a path into rows: mappings as they stand in the file, each with its number, or a Skipped where
a row cannot be read. Everything after that (which column is what, where the picture lies, which rows are one
picture) is the same for all formats and happens in :mod:`rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from densecap_search.collection import datasets, folders, tables, webdataset
from densecap_search.collection.records import Collection
from densecap_search.collection.rows import make_records
from densecap_search.collection.source import Rows, Source
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import find_images
from densecap_search.config import BY_CONTENT, Reading
from densecap_search.errors import CollectionError

__all__ = ["READERS", "Format", "decode", "find_images", "read_collection", "recognise"]


@dataclass(frozen=True)
class Format:
    """How a format is told by its content, and read.

    recognise: why a source is of this format, in a phrase, or None. image_folders: where pictures may also lie, from
    the file's folder.
    """

    recognise: Callable[[Source], str | None]
    read: Callable[[Source], Rows]
    image_folders: tuple[str, ...] = ()


_COCO_FOLDERS = ("images", "train2017", "val2017", "train2014", "val2014", "../images", "../train2017", "../val2017",
                 "../train2014", "../val2014")

# From the most particular to the most general: the first that recognises a source reads it.
READERS: Mapping[str, Format] = {
    "parquet": Format(tables.is_parquet, tables.read_parquet, ("images",)),
    "webdataset": Format(webdataset.is_webdataset, webdataset.read_webdataset),
    "imagefolder": Format(folders.is_imagefolder, folders.read_imagefolder),
    "dci": Format(datasets.is_dci, datasets.read_dci, ("photos", "images", "../photos", "../images")),
    "urban1k": Format(folders.is_twins, folders.read_twins),
    "folder": Format(folders.is_folder, folders.read_folder),
    "embedded": Format(folders.is_embedded, folders.read_embedded),
    "coco": Format(datasets.is_coco, datasets.read_coco, _COCO_FOLDERS),
    "karpathy": Format(datasets.is_karpathy, datasets.read_karpathy, _COCO_FOLDERS),
    "docci": Format(datasets.is_docci, datasets.read_docci, ("images", "../images")),
    "goal": Format(datasets.is_goal, datasets.read_goal, ("images", "photos", "../images", "../photos")),
    "sharegpt4v": Format(datasets.is_sharegpt4v, datasets.read_sharegpt4v, ("images", "data", "../data", "../images")),
    "vg-paragraphs": Format(datasets.is_vg_paragraphs, datasets.read_vg_paragraphs),
    "localized-narratives": Format(datasets.is_localized_narratives, datasets.read_localized_narratives),
    "json": Format(tables.is_json, tables.read_json),
    "jsonl": Format(tables.is_jsonl, tables.read_jsonl),
    "csv": Format(tables.is_csv, tables.read_csv),
}
_OTHER_NAMES = {"tsv": "csv", "twins": "urban1k", "narratives": "localized-narratives", "structxlip": "goal"}


def read_collection(path: Path, reading: Reading = BY_CONTENT) -> Collection:
    """Read a folder of pictures or a file that names them; which format it is its content says, or ``reading``.

    Relative picture paths are looked up beside the table. Rows of one picture become one record, their
    captions in the order of the rows. Rows that cannot be used are in ``skipped``, with the reason.
    """
    path = path.expanduser()
    if not path.exists():
        raise CollectionError(f"{path} does not exist; give a folder of pictures or a CSV, TSV, JSONL or JSON table")
    source = Source(path, reading)
    kind, reason = (_known(reading.format), "as asked for") if reading.format else recognise(source)
    if path.is_dir() and READERS[kind].read.__module__ == tables.__name__:
        raise CollectionError(f"{path} is a folder, and {kind} is a format of files; choose another --format")
    try:
        rows = list(READERS[kind].read(source))
    except OSError as error:
        raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
    places = [source.folder, *(source.folder / name for name in READERS[kind].image_folders)]
    records, skipped = make_records(rows, path, places, reading)
    whole = path.resolve()
    name = whole.name if whole.is_dir() else f"{whole.parent.name}/{whole.name}"
    return Collection(name, tuple(records), tuple(skipped), kind, "; ".join([reason, *source.notes]))


def recognise(source: Source) -> tuple[str, str]:
    """The format of a source and, in a phrase, what it was told by."""
    found = ((name, kind.recognise(source)) for name, kind in READERS.items())
    return next((name, reason) for name, reason in found if reason is not None)


def _known(format: str) -> str:
    name = format.strip().lower().replace("_", "-")
    name = _OTHER_NAMES.get(name, name)
    if name not in READERS:
        raise CollectionError(f"unknown format {format!r}; known formats: {', '.join(READERS)}")
    return name
