"""How large the cache is, and emptying it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from densecap_search.files import cache_folder, sweep

# What is kept → its folder in the cache. All but the last are made again by whoever misses them.
PARTS = {
    "towers": "what towers made of pictures and captions, a folder a model",
    "queries": "text towers in the form in which search reads them without torch, one a model",
    "trials": "which precision is quickest here, one a model",
    "perceptual": "outlines of pictures",
    "thumbnails": "small copies for the page",
    "webdataset": "pictures out of shards, to which indexes point",
}
CLEARED = {"towers": ("towers", "queries", "trials"), "pictures": ("perceptual", "thumbnails"), "all": tuple(PARTS)}


@dataclass(frozen=True)
class Size:
    """A part of the cache: bytes and files, and the days since its newest file was written."""

    part: str
    folder: Path
    bytes: int
    files: int
    age: float


def cache_sizes() -> list[Size]:
    """Every part that is there; of the towers every model apart, largest first."""
    root = cache_folder()
    places = [(part, place) for part in PARTS if part != "towers" for place in [root / part] if place.is_dir()]
    places += [("towers", place) for place in _folders(root / "towers")]
    sizes = [_size(part, place) for part, place in places]
    return sorted(sizes, key=lambda size: -size.bytes)


def clear_cache(what: str, *, older: float = 0.0, model: str | None = None) -> int:
    """Remove parts of the cache; returns the bytes that are gone.

    what: a key of CLEARED. older: only files last written so many days ago. model: of the towers only folders whose
    name, the fingerprint of a tower, begins so.
    """
    gone = 0
    for size in cache_sizes():
        of_model = size.part == "towers" and size.folder.name.startswith(model or "")
        if size.part not in CLEARED[what] or (model and not of_model):
            continue
        if not older:
            shutil.rmtree(size.folder, ignore_errors=True)
            gone += size.bytes - (_size(size.part, size.folder).bytes if size.folder.exists() else 0)
            continue
        sweep(size.folder)
        gone += _remove_old(size, time.time() - older * 86400)
    return gone


def _remove_old(size: Size, before: float) -> int:
    """Unpacked shards go as a whole, for half of one would be taken for all of it."""
    places = _folders(size.folder) if size.part == "webdataset" else list(_files(size.folder))
    gone = 0
    for place in places:
        entry = _size(size.part, place)
        with suppress(OSError):
            if place.stat().st_mtime < before:
                if place.is_dir():
                    shutil.rmtree(place)
                else:
                    place.unlink()
                gone += entry.bytes
    return gone


def _size(part: str, place: Path) -> Size:
    total, count, newest = 0, 0, 0.0
    for file in _files(place):
        with suppress(OSError):
            status = file.stat()
            total, count, newest = total + status.st_size, count + 1, max(newest, status.st_mtime)
    return Size(part, place, total, count, (time.time() - newest) / 86400 if count else 0.0)


def _files(place: Path) -> Iterator[Path]:
    return (path for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file())


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
