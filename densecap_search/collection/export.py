"""A collection written again in a plain format that :func:`read_collection` reads back unchanged."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from densecap_search.collection.images import not_a_picture
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection, Record, Skipped
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import SYSTEM_FOLDERS, is_picture
from densecap_search.errors import CollectionError
from densecap_search.files import (
    atomic_file,
    cache_folder,
    csv_text,
    json_lines,
    open_file,
    temporary_folder,
    write_text,
)

_TAKEN = {"image", "file_name", "caption", "captions", "id", "split", "group", "burst"}
_OTHER_FILES = (".json", ".jsonlines", ".tsv", ".txt", ".parquet", ".arrow", ".tar", ".zip", ".gz", ".xls", ".xlsx",
                ".ods", ".html", ".md", ".yaml", ".db")  # asked for as a file, not a folder


def export_collection(collection: Collection, path: Path, *, inside: Path | None = None) -> list[Skipped]:
    """Write a .jsonl or .csv table, or a folder with copies of the pictures; what was left out of it.

    inside: the folder in which all pictures that are copied must lie (those taken out of shards aside): a table may
    name any file of this machine. None: anywhere.
    """
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        export_jsonl(collection, path)
    elif suffix == ".csv":
        export_csv(collection, path)
    elif suffix in _OTHER_FILES:
        raise CollectionError(f"cannot export to {path}: the name must end in .jsonl or .csv, or be that of a folder")
    else:
        return export_folder(collection, path, inside=inside)
    return []


def export_jsonl(collection: Collection, path: Path) -> None:
    """One JSON object a record; picture paths relative to the file where that is possible."""
    if path.suffix.lower() != ".jsonl":
        raise CollectionError(f"cannot export to {path}: the name must end in .jsonl")
    folder = Path(os.path.abspath(path.parent))
    with atomic_file(path) as file:
        for record in collection.records:
            file.write(json_lines([{"image": _relative(record.image, folder), **_row(record)}]).encode())


def export_csv(collection: Collection, path: Path) -> None:
    """A row a caption, one row where there is none; quoted as RFC 4180 says, UTF-8. Numbers come back as text.

    Half a character, which UTF-8 has no bytes for, is written as the three that our readers take it back from.
    """
    folder = Path(os.path.abspath(path.parent))
    rows = [_row(record) for record in collection.records]
    names = dict.fromkeys(key for row in rows for key in row if key not in ("caption", "captions"))
    lines = ([_relative(record.image, folder), caption, *(row.get(name, "") for name in names)]
             for record, row in zip(collection.records, rows, strict=True) for caption in record.captions or [""])
    write_text(path, csv_text(["image", "caption", *names], lines, quote_all=True))


def export_folder(collection: Collection, path: Path, *, inside: Path | None = None) -> list[Skipped]:
    """Copies of the pictures, a text file beside each that has one caption, and metadata.jsonl where needed.

    Files that do not open as pictures are not copied; they are returned with the reasons. inside: as above.
    It is needed where the text files alone would be read as another collection: several captions a picture, splits,
    groups, columns, ids that are no file names. Where it is there, it is what is read.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CollectionError(f"cannot export to {path}: it is not an empty folder; choose another name")
    outside = _outside(collection.records, inside) if inside else []
    if outside:
        raise CollectionError(f"{len(outside)} of {len(collection)} pictures lie outside {inside}, the first is "
                              f"{outside[0]}; --outside copies them too")
    checked = [(record, not_a_picture(record.image)) for record in collection.records]
    broken = [reason for _, reason in checked if reason is not None]
    collection = replace(collection, records=tuple(record for record, reason in checked if reason is None))
    if not collection.records:
        raise CollectionError(f"nothing to export to {path}: no file of {collection.name} opens as a picture; the "
                              f"first: {broken[0] if broken else 'there is none'}")
    with temporary_folder(path.parent, path.name) as temporary:
        names = [_copy(record, name, temporary) for record, name in zip(
            collection.records, _file_names(collection.records), strict=True)]
        if not _reads_as(collection, temporary):
            with (temporary / "metadata.jsonl").open("wb") as file:
                for record, name in zip(collection.records, names, strict=True):
                    file.write(json_lines([{"file_name": name, **_row(record)}]).encode())
        temporary.chmod(0o755)
        if path.exists():
            path.rmdir()
        temporary.rename(path)
    return broken


def _outside(records: Sequence[Record], folder: Path) -> list[Path]:
    """The pictures that lie, once links are followed, neither below a folder nor where shards are unpacked."""
    places = (folder.resolve(), (cache_folder() / "webdataset").resolve())
    return [record.image for record in records
            if not any(record.image.resolve().is_relative_to(place) for place in places)]


def _copy(record: Record, name: str, folder: Path) -> str:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_file(record.image) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    side = target.with_suffix(".txt")
    if len(record.captions) == 1 and not side.exists():
        data = (record.captions[0] + "\n").encode("utf-8", "surrogatepass")
        if decode(data).removesuffix("\n") == record.captions[0]:
            side.write_bytes(data)
    return name


def _file_names(records: Sequence[Record]) -> Iterator[str]:
    """A path for each picture below one folder: its id where that is one, else its name; no two alike on any disk."""
    taken: set[str] = set()
    for record in records:
        wanted = PurePosixPath(record.image_id)
        if wanted.is_absolute() or not is_picture(wanted.name) or any(map(_is_odd, wanted.parts)):
            wanted = PurePosixPath(record.image.name.lstrip("."))
        name, count = wanted, 1
        while _key(name) in taken:
            count += 1
            name = wanted.with_name(f"{wanted.stem}-{count}{wanted.suffix}")
        taken.add(_key(name))
        yield name.as_posix()


def _is_odd(part: str) -> bool:
    return part.startswith(".") or part.lower() in SYSTEM_FOLDERS or "\\" in part or ":" in part


def _key(name: PurePosixPath) -> str:
    return unicodedata.normalize("NFC", name.as_posix()).casefold()


def _reads_as(collection: Collection, folder: Path) -> bool:
    """Whether the folder is read as the same collection without help."""
    try:
        written = {record.image_id: _content(record) for record in read_collection(folder).records}
    except CollectionError:
        return False
    return written == {record.image_id: _content(record) for record in collection.records}


def _content(record: Record) -> tuple[Any, ...]:
    return record.captions, record.split, record.group, record.burst, dict(record.columns)


def _row(record: Record) -> dict[str, Any]:
    captions: dict[str, Any] = (
        {"caption": record.captions[0]} if len(record.captions) == 1 else {"captions": list(record.captions)}
    )
    own = {"id": record.image_id, "split": record.split, "group": record.group, "burst": record.burst}
    return {
        **captions,
        **{key: value for key, value in own.items() if value is not None},
        # a column called like one of ours (a second `text`, say) would be read back as that
        **{key: value for key, value in record.columns.items() if key.strip().lower() not in _TAKEN},
    }


def _relative(image: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(image, folder)).as_posix()
    except ValueError:  # another drive on Windows
        return image.as_posix()
