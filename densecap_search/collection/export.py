"""A collection written again in a plain format that :func:`read_collection` reads back unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Collection, Record
from densecap_search.errors import CollectionError
from densecap_search.files import atomic_file


def export_jsonl(collection: Collection, path: Path) -> None:
    """One JSON object a record; picture paths relative to the file where that is possible."""
    if path.suffix.lower() != ".jsonl":
        raise CollectionError(f"cannot export to {path}: the name must end in .jsonl")
    folder = Path(os.path.abspath(path.parent))
    with atomic_file(path) as file:
        for record in collection.records:
            file.write((json.dumps(_row(record, folder), ensure_ascii=False) + "\n").encode("utf-8"))


def _row(record: Record, folder: Path) -> dict[str, Any]:
    captions: dict[str, Any] = (
        {"caption": record.captions[0]} if len(record.captions) == 1 else {"captions": list(record.captions)}
    )
    own = {"id": record.image_id, "split": record.split, "group": record.group, "burst": record.burst}
    return {
        "image": _relative(record.image, folder),
        **captions,
        **{key: value for key, value in own.items() if value is not None},
        # a column called like one of ours (a second `text`, say) would be read back as that
        **{key: value for key, value in record.columns.items() if key.lower() not in _TAKEN},
    }


_TAKEN = {"image", "caption", "captions", "id", "split", "group", "burst"}


def _relative(image: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(image, folder)).as_posix()
    except ValueError:  # another drive on Windows
        return image.as_posix()
