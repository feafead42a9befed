"""Rows on the disk, keyed by what they were made from: tower outputs, outlines of pictures."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from densecap_search.files import atomic_path, write_text

Array = npt.NDArray[np.float32]
FLUSH_ROWS = 512  # rows computed between two writes of the cache: what a kill can lose


class RowCache:
    """Rows of one tower on the disk, by key. Parts are written whole under new names, so that several
    processes may share a cache and a kill loses at most the part in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: dict[str, tuple[Array, int]] = {}
        self._new: list[tuple[str, Array]] = []
        for names in sorted(folder.glob("*.keys")):
            self._read(names)

    def __contains__(self, key: str) -> bool:
        return key in self._place

    def __getitem__(self, key: str) -> Array:
        part, row = self._place[key]
        values: Array = part[row]
        return values

    def add(self, keys: Sequence[str], rows: Array) -> None:
        """Remember rows; they reach the disk every FLUSH_ROWS and at :meth:`flush`."""
        for row, key in enumerate(keys):
            self._place[key] = (rows, row)
            self._new.append((key, rows[row]))
        if len(self._new) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is new; the keys last, for a part without keys is not read."""
        if not self._new:
            return
        keys, rows = zip(*self._new, strict=True)
        part = self._folder / f"{uuid.uuid4().hex}.npy"
        try:
            with atomic_path(part) as temporary, temporary.open("wb") as file:
                np.save(file, np.stack(rows), allow_pickle=False)
            write_text(part.with_suffix(".keys"), "\n".join(keys))
        except OSError:
            part.unlink(missing_ok=True)  # a full or read-only disk costs speed, not the run
            for key in keys:
                self._place.pop(key, None)
        else:
            self._read(part.with_suffix(".keys"))  # the file in place of the memory
        self._new = []

    def _read(self, names: Path) -> None:
        try:
            stamps = [path.stat() for path in (names, names.with_suffix(".npy"))]
            self._place.update(_read_part(names, tuple((stamp.st_mtime_ns, stamp.st_size) for stamp in stamps)))
        except (OSError, ValueError):
            return  # a damaged part is as good as none: its rows are computed again


@lru_cache(maxsize=4096)  # training asks after every epoch
def _read_part(names: Path, stamp: tuple[tuple[int, int], ...]) -> dict[str, tuple[Array, int]]:
    """Key → where its row is. stamp: time and size of both files, by which a part is the same as before."""
    del stamp
    rows = np.load(names.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
    keys = names.read_text(encoding="utf-8").split("\n")
    if len(keys) != len(rows):
        raise ValueError(f"{names} has {len(keys)} keys for {len(rows)} rows")
    return {key: (rows, row) for row, key in enumerate(keys)}

