"""A hash that stays nearly the same when a picture is resized, recompressed or slightly retouched."""

from __future__ import annotations

import numpy as np
from PIL import Image

SIDE = 9  # pixels across that the hash looks at: what open_image must keep
BLANK = 8  # grey levels: a picture whose 9 × 8 means differ by less has no outline to compare


def difference_hash(image: Image.Image) -> int | None:
    """64 bits, row by row: whether each of 9 × 8 mean grey levels is darker than its right neighbour.

    None where the picture is nearly of one colour: its bits would be noise, and all such pictures "the same".
    Source: N. Krawetz, "Kind of Like That", 2013 (dHash). Six lines here rather than the package imagehash, which
    brings scipy and PyWavelets for hashes that we do not use; a test compares with its values.
    """
    levels = np.asarray(image.convert("L").resize((SIDE, SIDE - 1), Image.Resampling.LANCZOS), dtype=np.int16)
    if levels.max() - levels.min() < BLANK:
        return None
    return int.from_bytes(np.packbits(levels[:, 1:] > levels[:, :-1]).tobytes(), "big")
