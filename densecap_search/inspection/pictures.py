"""Every picture file opened once, small: which are broken, which are the same, what they look like in outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from densecap_search.collection.images import (
    DECODER_VERSION,
    DECODING_ERRORS,
    MAX_PIXELS,
    not_a_picture,
    opened,
    use_image,
)
from densecap_search.collection.mended import CUT
from densecap_search.collection.perceptual import SIDE, difference_hash
from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import RowCache
from densecap_search.embedding.content import ahead, changed_since, content_of
from densecap_search.files import cache_folder
from densecap_search.talk import SILENT, Talk

SMALL, STRIP = 32, 5.0  # pixels of the shorter side; length by width
_OUTLINE, _CUT = 1, 2  # flags of what is cached


@dataclass(frozen=True)
class Pictures:
    """What the files of some records hold, by image_id.

    hashes: content hashes, of what can be opened. codes: 64-bit difference hashes, of those that are not blank, that is
    nearly of one colour. broken: what cannot be opened, named by image_id, with reasons. mirrored: the codes of these
    pictures turned left to right. cut: JPEGs that lack their end. small: with a side below SMALL pixels; strips: more
    than STRIP times as long as wide.
    """

    hashes: Mapping[str, str]
    codes: Mapping[str, int]
    blank: tuple[str, ...]
    broken: tuple[Skipped, ...]
    mirrored: Mapping[str, int] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    strips: tuple[str, ...] = ()


def look_at_pictures(records: Sequence[Record], *, max_pixels: int | None = None, workers: int | None = None,
                     talk: Talk = SILENT) -> Pictures:
    """Read, hash and decode every picture, JPEGs at a fraction of their size; what is known by content is only hashed.

    max_pixels: larger pictures count as broken; None: MAX_PIXELS. Memory: a picture a thread, and about 200 bytes a
    record.
    """
    limit = max_pixels or MAX_PIXELS
    cache = RowCache(cache_folder() / "perceptual" / f"look-{DECODER_VERSION}-{limit}")

    def look(record: Record) -> tuple[str, Any] | Skipped:
        broken = not_a_picture(record.image)
        if broken is not None:
            return broken
        try:
            content = record.content or content_of(record.image)
        except OSError as error:
            return Skipped(str(record.image), error.strerror or type(error).__name__)
        if content.hash in cache:
            return content.hash, cache[content.hash]
        seen = use_image(record.image, _outlines, min_side=SIDE, max_pixels=limit)
        if isinstance(seen, Skipped):
            return seen
        row = _row(*seen, _size(record.image))
        return changed_since(record.image, content) or (content.hash, row)

    hashes: dict[str, str] = {}
    codes: dict[str, int] = {}
    blank, broken = [], []
    mirrored: dict[str, int] = {}
    cut, small, strips = [], [], []
    looked = ahead(look, records, workers, window=256)
    for record, look_of in zip(records, talk.each(looked, "opening", len(records), "pictures"), strict=True):
        if isinstance(look_of, Skipped):
            broken.append(Skipped(record.image_id, look_of.reason))
            continue
        content, row = look_of
        hashes[record.image_id] = content
        if content not in cache:
            cache.add([content], row[None])
        flags, code, mirror, size = (int(value) for value in row)
        if flags & _OUTLINE:
            codes[record.image_id], mirrored[record.image_id] = code, mirror
        else:
            blank.append(record.image_id)
        width, height = size >> 32, size & 0xFFFFFFFF
        cut += [record.image_id] * bool(flags & _CUT)
        small += [record.image_id] * (0 < min(width, height) < SMALL)
        strips += [record.image_id] * (max(width, height) > STRIP * min(width, height) > 0)
    cache.flush()
    return Pictures(hashes, codes, tuple(blank), tuple(broken), mirrored, tuple(cut), tuple(small), tuple(strips))


def _outlines(image: Image.Image) -> tuple[int | None, int | None, bool]:
    """The difference hash of a picture and of its mirror image, and whether it lacks its end."""
    return difference_hash(image), difference_hash(ImageOps.mirror(image)), CUT in image.info


def _size(path: Path) -> tuple[int, int]:
    """Width and height as the file says; 0, 0 of sensor data, which Pillow does not open."""
    try:
        with opened(path) as image:
            return image.size
    except DECODING_ERRORS:
        return 0, 0


def _row(code: int | None, mirror: int | None, cut: bool, size: tuple[int, int]) -> Any:
    """What is cached of a picture, uint64 [4]: flags, difference hash, that of its mirror image, width and height."""
    flags = _OUTLINE * (code is not None and mirror is not None) + _CUT * cut
    return np.array([flags, code or 0, mirror or 0, (size[0] << 32) + size[1]], dtype=np.uint64)
