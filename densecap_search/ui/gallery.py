"""Hit → what the page shows. Small copies instead of originals; plain Python without gradio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

from PIL import Image, ImageDraw

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped
from densecap_search.embedding.content import default_workers
from densecap_search.files import atomic_path, cache_folder
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.searcher import Hit

SMALL, LARGE = 384, 1600  # longer side in pixels: in the grid, and of the picture that was clicked
LABEL_LETTERS = 160


@dataclass(frozen=True)
class Gallery:
    """Where the page's pictures are kept, and the content hash under which each indexed picture is."""

    folder: Path
    hashes: Mapping[str, str]

    @classmethod
    def of(cls, index: ImageIndex) -> Gallery:
        """In the index folder, or in the cache where that cannot be written."""
        folder = index.thumbnails()
        if not os.access(folder if folder.exists() else index.folder, os.W_OK):
            folder = cache_folder() / "thumbnails"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder.resolve(), {row.image_id: row.hash for row in index.rows})

    def items(self, hits: Sequence[Hit]) -> list[tuple[str, str]]:
        """(path of a small copy, label) for each hit, in their order."""
        with ThreadPoolExecutor(default_workers()) as pool:
            paths = list(pool.map(lambda hit: self.copy(hit, SMALL), hits))
        return [(str(path), label(hit)) for path, hit in zip(paths, hits, strict=True)]

    def copy(self, hit: Hit, side: int) -> Path:
        """A JPEG of the picture, upright, at most side pixels long; made once."""
        path = self.folder / f"{self.hashes[hit.image_id]}-{side}.jpg"
        if path.exists():
            return path
        # no limit: it has been indexed, so its size was wanted
        image = open_image(Path(hit.image), min_side=side, max_pixels=sys.maxsize)
        if isinstance(image, Skipped):
            image = _placeholder(image.reason)
            path = path.with_name(f"{path.stem}-missing.jpg")  # not the place of the picture, should it come back
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        with atomic_path(path) as temporary:
            image.save(temporary, "JPEG", quality=85)
        return path


def label(hit: Hit) -> str:
    """Score, file name and the beginning of the caption."""
    caption = " ".join(hit.caption.split())
    if len(caption) > LABEL_LETTERS:
        caption = caption[: LABEL_LETTERS - 1].rstrip() + "…"
    return f"{hit.score:.3f} · {PurePath(hit.image).name}" + (f"\n{caption}" if caption else "")


def details(hit: Hit) -> str:
    """Everything about one hit, as Markdown; what users wrote is quoted, not interpreted."""
    caption = "\n".join(f"    {line}" for line in (hit.caption or "(no caption)").splitlines())
    return f"**{hit.rank}. score {hit.score:.4f}**\n\n    {hit.image}\n\n{caption}"


def _placeholder(reason: str) -> Image.Image:
    image = Image.new("RGB", (SMALL, SMALL * 3 // 4), "#dddddd")
    ImageDraw.Draw(image).text((16, 16), f"cannot be shown:\n{reason}", fill="#555555")
    return image
