"""A basket of pictures as CSV, JSON lines, a ZIP with the originals or a contact sheet, written as it is sent."""

from __future__ import annotations

import base64
import csv
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from densecap_search import __version__
from densecap_search.collection.records import Skipped
from densecap_search.pages.html import render_parts
from densecap_search.retrieval.rows import Row
from densecap_search.ui.gallery import Gallery
from densecap_search.ui.live import Shown

FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8", "zip": "application/zip",
           "html": "text/html; charset=utf-8"}
COLUMNS = ("image_id", "image", "caption", "score", "query")


def kept_rows(items: Sequence[dict[str, Any]], shown: Shown) -> list[tuple[dict[str, Any], Row]]:
    """Items with what the index knows of their pictures; what it has no more is left out."""
    return [(item, row) for item in items if (row := shown.row(item["picture"])) is not None]


def table_of(kept: Sequence[tuple[dict[str, Any], Row]], shown: Shown, absolute: bool) -> list[dict[str, Any]]:
    """A line for each item: query and score of the item, the picture's path and caption."""
    return [
        {"image_id": row.image_id, "image": shown.path(row.image, absolute), "caption": "\n".join(row.captions),
         "score": item.get("score"), "query": item.get("query", "")}
        for item, row in kept
    ]


def as_csv(table: Sequence[dict[str, Any]]) -> str:
    """With a header; captions exactly as they are written."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def as_jsonl(table: Sequence[dict[str, Any]]) -> str:
    """An object a line, as ``densecap`` reads it."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table)


def as_zip(table: Sequence[dict[str, Any]], rows: Sequence[Row], gallery: Gallery) -> Iterator[bytes]:
    """The originals as they were indexed, and captions.jsonl that names them; nothing is held beyond a picture."""
    out = _Stream()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        packed = []
        for number, (line, row) in enumerate(zip(table, rows, strict=True), start=1):
            original = gallery.original(row)
            if isinstance(original, Skipped):
                packed.append({**line, "image": "", "missing": original.reason})
                continue
            path, _ = original
            name = f"{number:04d}-{_plain(PurePath(row.image).stem)}{_plain(path.suffix.lower())}"
            archive.write(path, f"images/{name}")
            packed.append({**line, "image": f"images/{name}"})
            yield out.taken()
        archive.writestr("captions.jsonl", as_jsonl(packed))
    yield out.taken()


def as_sheet(table: Sequence[dict[str, Any]], rows: Sequence[Row], gallery: Gallery) -> Iterator[bytes]:
    """A page of small copies with their captions that needs nothing else, and that prints on A4."""

    def cards() -> Iterator[dict[str, Any]]:
        for line, row in zip(table, rows, strict=True):
            copy = gallery.copy(row, "small")
            if isinstance(copy, Skipped):
                yield {**line, "picture": "", "missing": copy.reason}
            else:
                yield {**line, "picture": f"data:image/jpeg;base64,{base64.b64encode(copy.read_bytes()).decode()}"}

    values = {"title": f"{len(table)} pictures", "version": __version__, "cards": cards()}
    return (part.encode() for part in render_parts("contact_sheet.html", values))


def _plain(name: str) -> str:
    """A file name that every system takes."""
    return "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in name)[:100]


class _Stream(io.RawIOBase):
    """Takes what zipfile writes; it cannot go back, so zipfile does not try to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
