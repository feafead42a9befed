"""Where in a picture a sentence fits: the cosine with each part of it that the image tower tells apart. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from densecap_search.embedding.cache import Array

Box = tuple[float, float, float, float]  # left, top, right, bottom, in shares of a picture's width and height


@dataclass(frozen=True)
class Heat:
    """values [rows, columns]: 0 where the sentence fits least in this picture, 1 where it fits most. box: which part of
    the picture they cover, for a tower may see only its middle; beyond 0 and 1 where it sees a border around it."""

    values: Array
    box: Box


def heat(patches: Array, sentence: Array, box: Box) -> Heat:
    """patches [rows, columns, D] and the sentence [D]: unit vectors of the shared space."""
    cosines = patches @ sentence
    low, high = float(cosines.min()), float(cosines.max())
    values = (cosines - low) / (high - low) if high - low > 1e-6 else np.zeros_like(cosines)
    return Heat(values.astype(np.float32), box)


def seen(size: tuple[int, int], shape: tuple[int, int], resize_mode: str) -> Box:
    """The part of a picture of (width, height) that a tower sees, whose input has the shape (rows, columns).

    resize_mode: open_clip's word for how the picture was brought there.
    """
    width, height = size
    if resize_mode == "squash":
        return 0.0, 0.0, 1.0, 1.0
    choose = max if resize_mode == "longest" else min
    ratio = shape[1] / shape[0]
    across, down = choose(width, height * ratio) / width, choose(height, width / ratio) / height
    return (1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2
