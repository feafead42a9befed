"""The difference hash: worked by hand, against imagehash, and what it survives."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from densecap_search.collection.perceptual import difference_hash


def noise(seed: int, size: tuple[int, int] = (20, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def bits_apart(first: int | None, second: int | None) -> int:
    assert first is not None
    assert second is not None
    return (first ^ second).bit_count()


# imagehash.dhash of ImageHash 4.3.2 on the same pictures
@pytest.mark.parametrize(("seed", "expected"), [(0, "155ab5a644df1a5a"), (1, "458654353a329353"), (2, "52742454cc26196d")])
def test_the_hash_is_that_of_the_imagehash_package(seed: int, expected: str):
    assert f"{difference_hash(noise(seed)):016x}" == expected


def test_a_picture_that_brightens_to_the_right_has_all_bits_and_its_mirror_none():
    ramp = Image.fromarray(np.tile(np.arange(0, 180, 20, dtype=np.uint8), (8, 1)))
    assert difference_hash(ramp) == 2**64 - 1
    assert difference_hash(ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 0


def test_a_resized_and_recompressed_copy_stays_within_four_bits_and_another_picture_does_not():
    picture = noise(3, (12, 16)).resize((320, 240), Image.Resampling.BICUBIC)
    data = io.BytesIO()
    picture.resize((120, 90)).save(data, "JPEG", quality=50)
    assert bits_apart(difference_hash(picture), difference_hash(Image.open(data))) <= 4
    other = noise(4, (12, 16)).resize((320, 240), Image.Resampling.BICUBIC)
    assert bits_apart(difference_hash(picture), difference_hash(other)) > 4


def test_a_picture_of_one_colour_has_no_hash():
    assert difference_hash(Image.new("RGB", (50, 40), (250, 250, 250))) is None
