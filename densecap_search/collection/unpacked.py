"""Pictures out of files that hold many (tar shards, Parquet): taken out once, into the cache.

Everything that opens pictures opens files, so these become files: under $DENSECAP_CACHE, in a folder named by the
content that they came from, under numbers instead of their names (which may be anything, `../` included).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows
from densecap_search.errors import CollectionError
from densecap_search.files import cache_folder, hash_file, json_lines, temporary_folder

_ROWS = "rows.jsonl"
_VERSION = 2  # of how files are taken apart: raise it when the rows become others


def unpacked_rows(file: Path, before: int, take_out: Callable[[Path, Path], Iterator[Row]], notes: list[str]) -> Rows:
    """The rows of a file whose pictures lie in the cache, made where they are not there; numbers begin after before.

    take_out: from a file and a folder to rows: with `image` (a name in the folder) and `id`; or a `reason` why there is
    none, its `name`, and whether it `counts` as a row; or a `note`. Ids become FILE/ID.
    """
    folder, number = _unpacked(file, take_out), before
    for line in (folder / _ROWS).read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        row: dict[str, Any] = json.loads(line)
        if "note" in row and "image" not in row:
            notes.append(f"{file.name}: {row['note']}")
        elif "reason" in row and "image" not in row:
            number += row["counts"]
            yield number, Skipped(f"{file.name}/{row['name']}", row["reason"], number if row["counts"] else None)
        else:
            number += 1
            yield number, {**row, "image": str(folder / row["image"]), "id": f"{file.name}/{row['id']}"}


def _unpacked(file: Path, take_out: Callable[[Path, Path], Iterator[Row]]) -> Path:
    try:
        folder = cache_folder() / "webdataset" / f"{hash_file(file)}-{_VERSION}"
        if (folder / _ROWS).is_file():
            return folder
        with temporary_folder(folder.parent, "unpacking") as temporary:
            with (temporary / _ROWS).open("w", encoding="utf-8") as rows:
                for row in take_out(file, temporary):
                    rows.write(json_lines([row]))
            if not folder.exists():  # another process may have been first
                temporary.rename(folder)
        return folder
    except OSError as error:
        raise CollectionError(f"cannot take the pictures out of {file}: {error.strerror or error}; they go to "
                              f"{cache_folder()}, which DENSECAP_CACHE can place elsewhere") from error
