"""Every picture file opened once, small: which are broken, which are the same, what they look like in outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from densecap_search.collection.images import DECODER_VERSION, MAX_PIXELS, not_a_picture, use_image
from densecap_search.collection.perceptual import SIDE, difference_hash
from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import RowCache
from densecap_search.embedding.content import ahead
from densecap_search.files import cache_folder, hash_file
from densecap_search.talk import SILENT, Talk


@dataclass(frozen=True)
class Pictures:
    """What the files of some records hold, by image_id.

    hashes: content hashes, of what can be opened. codes: 64-bit difference hashes, of those that are not blank, that is
    nearly of one colour. broken: what cannot be opened, named by image_id, with reasons.
    """

    hashes: Mapping[str, str]
    codes: Mapping[str, int]
    blank: tuple[str, ...]
    broken: tuple[Skipped, ...]


def look_at_pictures(records: Sequence[Record], *, max_pixels: int | None = None, workers: int | None = None,
                     talk: Talk = SILENT) -> Pictures:
    """Read, hash and decode every picture, JPEGs at a fraction of their size; what is known by content is only hashed.

    max_pixels: larger pictures count as broken; None: MAX_PIXELS. Memory: a picture a thread, and about 200 bytes a
    record.
    """
    limit = max_pixels or MAX_PIXELS
    cache = RowCache(cache_folder() / "perceptual" / f"dhash-{DECODER_VERSION}-{limit}")

    def look(record: Record) -> tuple[str, Any] | Skipped:
        broken = not_a_picture(record.image)
        if broken is not None:
            return broken
        try:
            content = hash_file(record.image)
        except OSError as error:
            return Skipped(str(record.image), error.strerror or type(error).__name__)
        if content in cache:
            return content, cache[content]
        code = use_image(record.image, difference_hash, min_side=SIDE, max_pixels=limit)
        return code if isinstance(code, Skipped) else (content, _row(code))

    hashes: dict[str, str] = {}
    codes: dict[str, int] = {}
    blank, broken = [], []
    looked = ahead(look, records, workers, window=256)
    for record, found in zip(records, talk.each(looked, "opening", len(records), "pictures"), strict=True):
        if isinstance(found, Skipped):
            broken.append(Skipped(record.image_id, found.reason))
            continue
        content, row = found
        hashes[record.image_id] = content
        if content not in cache:
            cache.add([content], row[None])
        if row[0]:
            codes[record.image_id] = int(row[1])
        else:
            blank.append(record.image_id)
    cache.flush()
    return Pictures(hashes, codes, tuple(blank), tuple(broken))


def _row(code: int | None) -> Any:
    """What is cached of a picture, uint64 [2]: whether it has an outline, and its difference hash."""
    return np.array([code is not None, code or 0], dtype=np.uint64)
