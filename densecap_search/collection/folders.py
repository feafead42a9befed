"""Folders of pictures: text files beside them, captions within them, metadata files, twin folders."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

from densecap_search.collection.embedded import embedded_caption
from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.splits import normal_split
from densecap_search.collection.tables import read_csv, read_jsonl, read_parquet
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError

_METADATA = {"metadata.jsonl": read_jsonl, "metadata.csv": read_csv, "metadata.parquet": read_parquet}
_TWINS = tuple((image, caption) for image in ("image", "images") for caption in ("caption", "captions"))


def is_folder(source: Source) -> str | None:
    """Any folder with a text file beside a picture, or without pictures."""
    if not source.path.is_dir():
        return None
    pairs = [pair for pair in source.pictures if not isinstance(pair, Skipped)]
    count = sum(side is not None for _, side in pairs)
    return f"{count} of {len(pairs)} pictures have a text file beside them" if count or not pairs else None


def read_folder(source: Source) -> Rows:
    """Pictures and, beside each, an optional text file with the same stem."""
    _needs_folder(source)
    number = 0
    for found in source.pictures:
        if isinstance(found, Skipped):
            yield number, found
            continue
        number += 1
        yield number, _with_side_file(source.path, *found, number)
    if source.lone_texts:
        names = ", ".join(path.relative_to(source.path).as_posix() for path in source.lone_texts[:3])
        source.notes.append(f"{len(source.lone_texts)} text files belong to no picture ({names})")
    _tell_tables(source)


def _with_side_file(folder: Path, image: Path, side: Path | None, number: int) -> Row | Skipped:
    row: dict[str, Any] = {"image": image.relative_to(folder).as_posix()}
    if side is None:
        return row
    try:
        return {**row, "caption": decode(side.read_bytes()).removesuffix("\n").removesuffix("\r")}
    except OSError as error:
        return Skipped(row["image"], f"cannot read its caption file: {error.strerror}", number)


def _tell_tables(source: Source) -> None:
    tables = [name for name in source.names if name.lower().endswith((".csv", ".tsv", ".jsonl", ".parquet", ".tar"))]
    if tables:
        source.notes.append(f"{', '.join(tables[:3])} in the folder {'are' if len(tables) > 1 else 'is'} not read; "
                            "give the file itself to read it")


def is_embedded(source: Source) -> str | None:
    """What is left of folders: pictures, and not one text file beside them."""
    return "pictures without text files beside them" if source.path.is_dir() else None


def read_embedded(source: Source) -> Rows:
    """Pictures, and the caption that lies in each file: XMP, IPTC or EXIF."""
    _needs_folder(source)
    number = held = 0
    for found in source.pictures:
        if isinstance(found, Skipped):
            yield number, found
            continue
        number += 1
        caption = embedded_caption(found[0])
        held += caption is not None
        yield number, {"image": found[0].relative_to(source.path).as_posix(), "caption": caption}
    source.notes.append(f"{held} of {number} hold a caption in the file")
    _tell_tables(source)


def is_imagefolder(source: Source) -> str | None:
    """Hugging Face's layout: metadata with a column file_name, in the folder or in those of its splits."""
    places = [path.relative_to(source.path).as_posix() for path in _metadata_files(source)]
    return f"{', '.join(places)} beside the pictures" if places else None


def read_imagefolder(source: Source) -> Rows:
    """Every metadata file's rows; those in train/, validation/ and test/ take their split from the folder."""
    files = _metadata_files(source)
    if not files:
        raise CollectionError(f"{source.path} holds no metadata.jsonl, .csv or .parquet with a column file_name; "
                              "choose another --format")
    reading = replace(source.reading, image_column="file_name")
    before = number = 0
    for file in files:
        before += number
        number = 0
        inside = file.parent.relative_to(source.path).as_posix()
        split = normal_split(inside.split("/")[0]) if inside != "." else None
        for number, row in _METADATA[file.name](replace(source, path=file, reading=reading, notes=[])):
            if isinstance(row, Skipped):
                yield before + number, replace(row, row=before + number)
                continue
            name = row.get("file_name")
            is_below = inside != "." and isinstance(name, str) and name.strip()
            moved = {"file_name": f"{inside}/{name}"} if is_below else {}
            named = {"split": split} if split in ("train", "val", "test") and not row.get("split") else {}
            yield before + number, {**row, **moved, **named}


def _metadata_files(source: Source) -> list[Path]:
    """One a folder: of the folder itself, or of the folders in it."""
    if not source.path.is_dir():
        return []
    places = [source.path, *(source.path / name for name in source.names
                             if (source.reading.hidden or not name.startswith(".")) and (source.path / name).is_dir())]
    found = (next((place / name for name in _METADATA if _names_files(place / name)), None) for place in places)
    files = [file for file in found if file is not None]
    return files[:1] if files and files[0].parent == source.path else files


def _names_files(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix == ".parquet":
        return True
    source = Source(path)
    return "file_name" in (source.first if path.suffix == ".jsonl" else source.text.split("\n", 1)[0])


def is_twins(source: Source) -> str | None:
    """Urban-1k's layout: image/ and caption/."""
    twins = _twins(source)
    return f"the folders {twins[0]}/ and {twins[1]}/" if twins else None


def read_twins(source: Source) -> Rows:
    """Pictures of one folder, captions of the other, same stems."""
    twins = _twins(source)
    if twins is None:
        raise CollectionError(f"{source.path} has no folders image/ and caption/; choose another --format")
    number = 0
    for found in Source(source.path / twins[0], source.reading).pictures:
        if isinstance(found, Skipped):
            yield number, found
            continue
        number += 1
        inside = found[0].relative_to(source.path / twins[0])
        yield number, _with_side_file(source.path, found[0], _twin(source.path / twins[1] / inside), number)


def _twin(place: Path) -> Path | None:
    stems = dict.fromkeys(unicodedata.normalize(form, place.stem) for form in ("NFC", "NFD"))
    candidates = (place.with_name(stem + suffix) for stem in (place.stem, *stems) for suffix in (".txt", ".TXT"))
    return next((path for path in candidates if path.is_file()), None)


def _twins(source: Source) -> tuple[str, str] | None:
    if not source.path.is_dir() or any(is_picture(name) for name in source.names):
        return None
    lower = {name.lower(): name for name in source.names if (source.path / name).is_dir()}
    pairs = ((lower[image], lower[caption]) for image, caption in _TWINS if image in lower and caption in lower)
    return next((pair for pair in pairs if _has_texts(source.path / pair[1])), None)


def _has_texts(folder: Path) -> bool:
    return any(name.lower().endswith(".txt") for name in Source(folder).names)


def _needs_folder(source: Source) -> None:
    if not source.path.is_dir():
        raise CollectionError(f"{source.path} is a file; this format is a folder of pictures")
