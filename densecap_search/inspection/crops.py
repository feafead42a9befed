"""Which pictures were cut out of another picture of the same collection.

Two pictures that a model finds alike are compared pixel by pixel: the smaller view is laid over the larger one at
every place and at scales from SMALLEST to 1 of its width or height, and counts as a part of it where the grey levels
correlate. The model only says which pairs are worth the look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from densecap_search.collection.images import use_image
from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import ahead, read_contents
from densecap_search.embedding.neighbours import nearest
from densecap_search.embedding.towers import embed_images
from densecap_search.model.encoder import DualEncoder
from densecap_search.talk import SILENT, Talk

CANDIDATES = 5  # nearest pictures of each that are looked at
ALIKE = 0.55  # least cosine of a candidate
MOST = 5000  # pairs that are compared, the most alike first
SMALLEST = 0.4  # of the whole's width and height that a part must have
WHOLE = 0.97  # of both: more is a resized copy, which its difference hash tells
SURE = 0.95  # least correlation of grey levels
COARSE, FINE = 40, 96  # pixels of the longer side of the whole, at first and to be sure
STEP = 1.03  # between scales that are tried at first
_FLAT = 2.0  # grey levels: a part that varies less correlates with every smooth place


@dataclass(frozen=True)
class Crop:
    """whole, part: numbers of records; share: of the whole's area that the part shows; correlation: 0 to 1."""

    whole: int
    part: int
    share: float
    correlation: float


def look_for_crops(records: Sequence[Record], encoder: DualEncoder, *, talk: Talk = SILENT) -> list[Crop]:
    """Encode the pictures that are not in the cache yet, and find those that are parts of others."""
    read, _ = read_contents(records, talk=talk)
    pictures, _ = embed_images(encoder, read, talk=talk)
    return find_crops(records, pictures.image_ids, pictures.vectors, talk=talk)


def find_crops(records: Sequence[Record], image_ids: Sequence[str], vectors: Array, *, talk: Talk = SILENT
               ) -> list[Crop]:
    """Parts of other pictures, largest share first. vectors: [N, D] unit rows of ``image_ids``, which name records."""
    if len(image_ids) < 2:
        return []
    rows = {record.image_id: row for row, record in enumerate(records)}
    pairs = _candidates(vectors)
    wanted = sorted({place for pair in pairs for place in pair})
    opened = ahead(lambda place: use_image(records[rows[image_ids[place]]].image, _grey, min_side=FINE), wanted, None)
    grey = {place: picture for place, picture in zip(wanted, opened, strict=True) if not isinstance(picture, Skipped)}
    crops = []
    for first, second in talk.each(pairs, "comparing", len(pairs), "pairs"):
        if first in grey and second in grey and (fit := _part(grey[first], grey[second])):
            inner, share, correlation = fit
            whole, part = (first, second) if inner else (second, first)
            crops.append(Crop(rows[image_ids[whole]], rows[image_ids[part]], share, correlation))
    return sorted(crops, key=lambda crop: (-crop.share, crop.whole, crop.part))


def _candidates(vectors: Array) -> list[tuple[int, int]]:
    near = nearest(vectors, CANDIDATES)
    cosines = np.einsum("nd,nkd->nk", vectors, vectors[near])
    pairs = {(min(row, other), max(row, other)): cosine
             for row, (others, values) in enumerate(zip(near.tolist(), cosines.tolist(), strict=True))
             for other, cosine in zip(others, values, strict=True) if cosine >= ALIKE}
    return sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:MOST]


def _grey(image: Image.Image) -> Image.Image:
    image = image.convert("L")
    image.thumbnail((4 * FINE, 4 * FINE), reducing_gap=3.0)
    return image


def _part(first: Image.Image, second: Image.Image) -> tuple[bool, float, float] | None:
    """(whether the second is a part of the first and not the other way round, its share, how well it fits)."""
    best: tuple[bool, float, float] | None = None
    for inner, whole, part in ((True, first, second), (False, second, first)):
        scale, fit = max(_fits(whole, part, COARSE, _scales()), key=lambda one: one[1], default=(0.0, 0.0))
        if fit < SURE - 0.1 or (best is not None and fit <= best[2]):
            continue
        around = [scale * STEP ** (step / 6) for step in range(-9, 10)]
        scale, fit = max(_fits(whole, part, FINE, around), key=lambda one: one[1], default=(0.0, 0.0))
        width, height = _cover(whole, part, scale)
        if fit >= SURE and min(width, height) < WHOLE and (best is None or fit > best[2]):
            best = inner, width * height, fit
    return best


def _scales() -> list[float]:
    count = int(np.log(1 / SMALLEST) / np.log(STEP)) + 1
    return [SMALLEST * STEP ** step for step in range(count)] + [1.0]


def _cover(whole: Image.Image, part: Image.Image, scale: float) -> tuple[float, float]:
    """Shares of the whole's width and height that the part covers, where the larger of both is ``scale``."""
    width, height = part.width / whole.width, part.height / whole.height
    return scale * width / max(width, height), scale * height / max(width, height)


def _fits(whole: Image.Image, part: Image.Image, side: int, scales: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Each scale with the part's best correlation at any place of the whole, whose longer side has ``side`` pixels."""
    zoom = side / max(whole.size)
    size = max(round(whole.width * zoom), 1), max(round(whole.height * zoom), 1)
    ground = np.asarray(whole.resize(size, Image.Resampling.BOX), np.float32)
    for scale in scales:
        width, height = (round(share * pixels) for share, pixels in zip(_cover(whole, part, scale), size, strict=True))
        if SMALLEST * min(size) / 2 <= min(width, height) and width <= size[0] and height <= size[1]:
            small = part.resize((width, height), Image.Resampling.BOX)
            yield scale, _correlation(ground, np.asarray(small, np.float32))


def _correlation(ground: Any, part: Any) -> float:
    """Largest Pearson correlation of ``part`` [h, w] with a window of ``ground`` [H, W]; 0 where nothing varies."""
    part = part - part.mean()
    norm = float(np.sqrt((part ** 2).mean()))
    if norm < _FLAT:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(ground, part.shape)
    products = np.einsum("yxij,ij->yx", windows, part, optimize=True) / part.size
    spread = np.sqrt(np.maximum(_window_means(ground ** 2, part.shape) - _window_means(ground, part.shape) ** 2, 0))
    return float(np.where(spread < _FLAT, 0, products / np.maximum(spread * norm, 1e-9)).max())


def _window_means(ground: Any, shape: tuple[int, int]) -> Any:
    sums = np.pad(ground.astype(np.float64), ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    high, wide = shape
    inside = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    return inside / (high * wide)
