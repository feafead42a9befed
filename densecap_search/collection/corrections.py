"""Captions that somebody corrected on the page: a file beside the index, from which they are put in place of what the
collection says. The collection's own files stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from densecap_search.collection.page_lines import file_beside, is_line, keep_line
from densecap_search.collection.records import Collection
from densecap_search.collection.text_files import parse_json, text_lines
from densecap_search.errors import CollectionError

FORMAT = "corrections"
MOST_BYTES = 256 << 20  # of a file of corrections


@dataclass(frozen=True)
class Correction:
    """Of the picture at a path: a caption, "" for one more, and what stands in its place, "" for nothing."""

    image: str
    before: str
    after: str
    time: str = ""


def corrections_file(index: Path) -> Path:
    """Where the corrections made on the page of an index are kept: beside its folder."""
    return file_beside(index, FORMAT)


def keep_correction(path: Path, correction: Correction) -> None:
    """Append a correction, whole or not at all."""
    keep_line(path, FORMAT, asdict(correction), most_bytes=MOST_BYTES)


def read_corrections(path: Path) -> dict[str, tuple[Correction, ...]]:
    """The corrections of a file by path of their picture, in their order; lines that are none are left out."""
    by_image: dict[str, list[Correction]] = {}
    try:
        for line in text_lines(path):
            correction = _correction(line)
            if correction is not None:
                by_image.setdefault(correction.image, []).append(correction)
    except OSError as error:
        raise CollectionError(f"cannot read the corrections {path}: {error.strerror}") from error
    return {image: tuple(own) for image, own in by_image.items()}


def corrected(captions: Sequence[str], corrections: Iterable[Correction]) -> tuple[str, ...]:
    """Captions with their corrections, in turn; one of a caption that is not there changes nothing."""
    now = list(captions)
    for one in corrections:
        if not one.before and one.after not in now:
            now.append(one.after)
        now = [one.after if caption == one.before else caption for caption in now]
    return tuple(dict.fromkeys(caption for caption in now if caption.strip()))


def with_corrections(collection: Collection, path: Path) -> Collection:
    """The collection with the corrections of a file, and a note that says how many pictures they changed."""
    by_image = read_corrections(path)
    if not by_image and path.stat().st_size:
        raise CollectionError(f"{path} holds no corrections; the page of an index keeps them beside it, in "
                              "INDEX.corrections.jsonl")
    records = tuple(
        replace(record, captions=corrected(record.captions, by_image.get(os.path.abspath(record.image), ())))
        for record in collection.records)
    changed = sum(new.captions != old.captions for new, old in zip(records, collection.records, strict=True))
    idle = len(by_image) - changed
    note = f"captions of {changed} pictures corrected by {path.name}" + (
        f"; {idle} more are as they should be, or others than were corrected, or not here" if idle else "")
    return replace(collection, records=records, notes=(*collection.notes, note))


def _correction(line: str) -> Correction | None:
    try:
        row: Any = parse_json(line)
    except ValueError:
        return None
    if not is_line(FORMAT, row):
        return None
    values = [value for name in ("image", "before", "after") if isinstance(value := row.get(name), str)]
    return Correction(*values) if len(values) == 3 else None
