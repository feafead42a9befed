"""Small copies of indexed pictures, kept by content, and the originals; plain Python without gradio."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.files import atomic_path, cache_folder, hash_file
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.rows import Row

SIDES = {"small": 384, "large": 1600, "full": 8192}  # longer side in pixels: in the grid, looked at, in place of an
# original that browsers cannot show
COPIES_BYTES = 2 << 30  # of all copies together; beyond it the oldest are removed, and made again when asked for
SHOWN_BY_BROWSERS = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp"}


@dataclass(frozen=True)
class Gallery:
    """Where the copies are kept. own: whether the folder belongs to this index alone."""

    folder: Path
    own: bool = True

    @classmethod
    def of(cls, index: ImageIndex) -> Gallery:
        """In the index folder, or in the cache where that cannot be written."""
        folder = index.thumbnails()
        own = os.access(folder if folder.exists() else index.folder, os.W_OK)
        if not own:
            folder = cache_folder() / "thumbnails"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder.resolve(), own)

    def copy(self, row: Row, size: str) -> Path | Skipped:
        """A JPEG of the picture, upright, at most SIDES[size] pixels long, made once; or why there is none."""
        side = SIDES[size]
        path = self.folder / f"{row.hash}-{side}.jpg"
        if path.exists():
            return path
        problem = changed(row)
        if problem:
            return Skipped(row.image_id, problem)
        # no limit: it has been indexed, so its size was wanted
        image = open_image(Path(row.image), min_side=side, max_pixels=sys.maxsize)
        if isinstance(image, Skipped):
            return Skipped(row.image_id, image.reason)
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        problem = changed(row)  # again: it may have been replaced while it was opened
        if problem:
            return Skipped(row.image_id, problem)
        with atomic_path(path) as temporary:
            image.save(temporary, "JPEG", quality=85)
        return path

    def original(self, row: Row) -> tuple[Path, str] | Skipped:
        """The picture's own file and its media type; a copy where browsers cannot show it; or why there is none."""
        problem = changed(row)
        if problem:
            return Skipped(row.image_id, problem)
        try:
            with Image.open(row.image) as image:
                kind = SHOWN_BY_BROWSERS.get(image.format or "")
        except (OSError, ValueError, SyntaxError):
            kind = None
        if kind:
            return Path(row.image), kind
        made = self.copy(row, "full")
        return made if isinstance(made, Skipped) else (made, "image/jpeg")

    def tidy(self, index: ImageIndex, most_bytes: int = COPIES_BYTES) -> int:
        """Remove copies of pictures that the index no longer has, then the oldest beyond a size; how many went."""
        kept = {content for content, in index.rows.query("SELECT hash FROM pictures")}
        copies: list[Path] = []
        gone: list[Path] = []
        for path in self.folder.glob("*-*.jpg"):
            stale = self.own and path.name.partition("-")[0] not in kept
            (gone if stale else copies).append(path)
        dated = sorted(((path.stat().st_mtime, path.stat().st_size, path) for path in copies if path.is_file()),
                       reverse=True)
        total = 0
        for _, size, path in dated:
            total += size
            if total > most_bytes:
                gone.append(path)
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)


def is_missing(image: str) -> bool:
    """Whether a picture's file is no longer where it was indexed."""
    try:
        return not stat.S_ISREG(os.stat(image).st_mode)  # noqa: PTH116 (once for every hit)
    except (OSError, ValueError):
        return True


def changed(row: Row) -> str:
    """Why a file is not the picture that was indexed; empty if it is."""
    if is_missing(row.image):
        return "the file is no longer where it was indexed"
    try:
        if hash_file(Path(row.image)) != row.hash:
            return "the file has changed since it was indexed"
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    return ""
