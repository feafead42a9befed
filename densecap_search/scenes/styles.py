"""What becomes of a drawn scene: STYLES is the one place for the next look of an archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

GRAIN = 6.0  # standard deviation in grey levels, of 255


def plain(picture: Image.Image, rng: Random) -> Image.Image:
    """The picture as it was drawn."""
    return picture


def faded(picture: Image.Image, rng: Random) -> Image.Image:
    """A faded paper print, scanned: pale and yellowed, soft, grainy, a little crooked."""
    turned = picture.rotate(rng.uniform(-3, 3), Image.Resampling.BICUBIC, fillcolor="#d8cfb8")
    pale = ImageEnhance.Contrast(ImageEnhance.Color(turned).enhance(0.7)).enhance(0.85)
    yellowed = ImageOps.colorize(pale.convert("L"), "#2b2318", "#f4e8c8", mid="#9a8b6c")
    soft = Image.blend(pale, yellowed, 0.2).filter(ImageFilter.GaussianBlur(1.0))
    values = np.asarray(soft, np.float32)
    grain = np.random.default_rng(rng.getrandbits(32)).normal(0.0, GRAIN, (*values.shape[:2], 1))
    return Image.fromarray(np.clip(values + grain, 0, 255).astype(np.uint8))


STYLES: Mapping[str, Callable[[Image.Image, Random], Image.Image]] = {"plain": plain, "faded": faded}
