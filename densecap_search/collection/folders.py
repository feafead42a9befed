"""Folders of pictures: text files beside them, captions within them, metadata files, twin folders."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from densecap_search import files
from densecap_search.collection import side_files
from densecap_search.collection.columnar import read_columnar
from densecap_search.collection.delimited import read_csv
from densecap_search.collection.embedded import embedded_caption
from densecap_search.collection.json_tables import read_jsonl
from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Rows, Source
from densecap_search.collection.splits import SPLITS, normal_split
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError

_METADATA = {"metadata.jsonl": read_jsonl, "metadata.csv": read_csv, "metadata.parquet": read_columnar}
_IMAGES = ("image", "images", "img", "imgs", "pictures", "photos")
_TEXTS = ("caption", "captions", "text", "texts", "txt", "descriptions")


def is_folder(source: Source) -> str | None:
    """Any folder with a side file beside a picture, or without pictures."""
    if not source.path.is_dir():
        return None
    pairs = [pair for pair in source.pictures if not isinstance(pair, Skipped)]
    count = sum(bool(sides) for _, sides in pairs)
    return f"{count} of {len(pairs)} pictures have a side file" if count or not pairs else None


def read_folder(source: Source) -> Rows:
    """Pictures and what the files beside each say of it; where they have no caption, what is in the picture file.

    Of several side files the first with a caption gives it: .caption, .txt, .xmp, .json.
    """
    _needs_folder(source)
    number, kinds = 0, Counter[str]()
    for entry in source.pictures:
        if isinstance(entry, Skipped):
            yield number, entry
            continue
        number += 1
        image, sides = entry
        said = side_files.read(image, sides)
        row: dict[str, Any] = {**(said.columns or {}), "image": image.relative_to(source.path).as_posix()}
        if said.error is not None:
            yield number, Skipped(row["image"], said.error, number)
            continue
        source.done.update(image.parent / name for name in said.read)
        captions = said.captions or tuple(filter(None, [embedded_caption(image)]))
        kinds.update([f"{said.kind} files" if said.kind else "the picture files"] * bool(captions))
        yield number, {**row, "captions": list(captions)}
    _tell_kinds(kinds, source)


def _tell_kinds(kinds: Counter[str], source: Source) -> None:
    """Where captions are from, and the rule, as soon as there are two ways."""
    if len(kinds) > 1:
        shown = ", ".join(f"{count} from {kind}" for kind, count in kinds.most_common())
        source.notes.append(f"captions: {shown}; of several places the first counts: .caption, .txt, .xmp, .json, the "
                            "picture file")
    elif kinds and ".txt files" not in kinds:
        source.notes.append(f"captions from {next(iter(kinds))}")


def is_embedded(source: Source) -> str | None:
    """What is left of folders: pictures, and not one side file beside them."""
    return "pictures without side files" if source.path.is_dir() else None


def read_embedded(source: Source) -> Rows:
    """Pictures, and the caption that lies in each file: XMP, IPTC or EXIF."""
    _needs_folder(source)
    number = held = 0
    for entry in source.pictures:
        if isinstance(entry, Skipped):
            yield number, entry
            continue
        number += 1
        caption = embedded_caption(entry[0])
        held += caption is not None
        yield number, {"image": entry[0].relative_to(source.path).as_posix(), "caption": caption}
    source.notes.append(f"{held} of {number} hold a caption in the file")


def is_imagefolder(source: Source) -> str | None:
    """Hugging Face's layout: metadata with a column file_name, in the folder or in those of its splits."""
    places = [path.relative_to(source.path).as_posix() for path in _metadata_files(source)]
    return f"{', '.join(places)} beside the pictures" if places else None


def read_imagefolder(source: Source) -> Rows:
    """Every metadata file's rows; those in train/, validation/ and test/ take their split from the folder."""
    tables = _metadata_files(source)
    if not tables:
        raise CollectionError(f"{source.path} holds no metadata.jsonl, .csv or .parquet with a column file_name; "
                              "choose another --format")
    source.done.update(tables)
    reading = replace(source.reading, image_column="file_name")
    before = number = 0
    for file in tables:
        before += number
        number = 0
        inside = file.parent.relative_to(source.path).as_posix()
        split = next((word for part in inside.split("/") if (word := normal_split(part)) in SPLITS), None)
        for number, row in _METADATA[file.name](replace(source, path=file, reading=reading)):
            if isinstance(row, Skipped):
                yield before + number, replace(row, row=before + number)
                continue
            name = row.get("file_name")
            is_below = inside != "." and isinstance(name, str) and name.strip()
            moved = {"file_name": f"{inside}/{name}"} if is_below else {}
            named = {"split": split} if split and not row.get("split") else {}
            yield before + number, {**row, **moved, **named}


def _metadata_files(source: Source) -> list[Path]:
    """One a folder: of the folder itself; else of those in it, or in its data/."""
    if not source.path.is_dir():
        return []
    for root in (source.path, source.path / "data"):
        places = [root, *_folders_in(root, source.reading.hidden)] if files.is_folder(root) else []
        in_each = (next((place / name for name in _METADATA if _names_files(place / name)), None) for place in places)
        tables = [file for file in in_each if file is not None]
        if tables:
            return tables[:1] if tables[0].parent == root else tables
    return []


def _folders_in(root: Path, hidden: bool) -> list[Path]:
    return [root / name for name in Source(root).names_if_readable
            if (hidden or not name.startswith(".")) and files.is_folder(root / name)]


def _names_files(path: Path) -> bool:
    if not files.is_file(path):
        return False
    if path.suffix == ".parquet":
        return True
    source = Source(path)
    return "file_name" in (source.first if path.suffix == ".jsonl" else source.text.split("\n", 1)[0])


def is_twins(source: Source) -> str | None:
    """Urban-1k's layout: image/ and caption/, or images/ and text/ and the like."""
    twins = _twins(source)
    return f"the folders {twins[0]}/ and {twins[1]}/" if twins else None


def read_twins(source: Source) -> Rows:
    """Pictures of one folder, captions of the other, same stems."""
    twins = _twins(source)
    if twins is None:
        raise CollectionError(f"{source.path} has no folders image/ and caption/; choose another --format")
    number = 0
    for entry in Source(source.path / twins[0], source.reading).pictures:
        if isinstance(entry, Skipped):
            yield number, entry
            continue
        number += 1
        image = entry[0].relative_to(source.path).as_posix()
        side = _twin(source.path / twins[1] / entry[0].relative_to(source.path / twins[0]))
        said = side_files.read(entry[0], [side] if side else [])
        source.done.update([side] if side else [])
        yield number, (Skipped(image, said.error, number) if said.error is not None
                       else {"image": image, "captions": list(said.captions)})


def _twin(place: Path) -> Path | None:
    stems = dict.fromkeys(unicodedata.normalize(form, place.stem) for form in ("NFC", "NFD"))
    endings = [spelling for ending in side_files.TEXTS for spelling in (ending, ending.upper())]
    candidates = (place.with_name(stem + suffix) for stem in (place.stem, place.name, *stems) for suffix in endings)
    return next((path for path in candidates if files.is_file(path)), None)


def _twins(source: Source) -> tuple[str, str] | None:
    if not source.path.is_dir() or any(is_picture(name) for name in source.names):
        return None
    lower = {name.lower(): name for name in source.names if files.is_folder(source.path / name)}
    pairs = ((lower[image], lower[text]) for image in _IMAGES for text in _TEXTS if image in lower and text in lower)
    return next((pair for pair in pairs if _has_texts(source.path / pair[1])), None)


def _has_texts(folder: Path) -> bool:
    return any(name.lower().endswith(side_files.TEXTS)
               for place in (folder, *_folders_in(folder, False)[:1]) for name in Source(place).names_if_readable)


def _needs_folder(source: Source) -> None:
    if not source.path.is_dir():
        raise CollectionError(f"{source.path} is a file; this format is a folder of pictures")
