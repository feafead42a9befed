from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from densecap_search.collection.images import open_image, refuse_cut
from densecap_search.collection.mended import may_be_cut, rows_decoded
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.embedding.content import read_contents
from densecap_search.errors import CollectionError
from densecap_search.talk import Talk


def noise(height: int = 320, width: int = 96) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["text", "international text", "many texts", "profile"])
def test_a_png_whose_text_or_profile_unpacks_to_megabytes_is_a_whole_picture(kind: str, tmp_path: Path):
    info, more = PngImagePlugin.PngInfo(), {}
    if kind == "text":
        info.add_text("parameters", "x" * 3_000_000, zip=True)
    elif kind == "international text":
        info.add_itxt("parameters", "ü" * 3_000_000, zip=True)
    elif kind == "many texts":
        for number in range(80):
            info.add_text(f"k{number}", "x" * 1_000_000, zip=True)
    else:
        more = {"icc_profile": bytes(3_000_000)}
    image = noise()
    image.save(tmp_path / "a.png", pnginfo=info, **more)
    opened = open_image(tmp_path / "a.png")
    assert not isinstance(opened, Skipped)
    assert np.array_equal(np.asarray(opened), np.asarray(image))


def jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_lacks_its_last_bytes_is_the_picture_but_for_the_end(mode: str, progressive: bool, tmp_path: Path):
    data = jpeg(noise().convert(mode), progressive=progressive)
    (tmp_path / "whole.jpg").write_bytes(data)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) * 98 // 100])
    whole, cut = open_image(tmp_path / "whole.jpg"), open_image(tmp_path / "cut.jpg")
    assert not isinstance(cut, Skipped)
    assert cut.size == (96, 320)
    if not progressive:  # the first 290 of 320 rows are there to the last bit
        assert np.array_equal(np.asarray(cut)[:290], np.asarray(whole)[:290])
    assert (may_be_cut(tmp_path / "whole.jpg"), may_be_cut(tmp_path / "cut.jpg")) == (False, True)


def test_strict_refuses_a_cut_jpeg_by_name(tmp_path: Path):
    data = jpeg(noise())
    (tmp_path / "whole.jpg").write_bytes(data)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) * 98 // 100])
    refuse_cut([tmp_path / "whole.jpg"])
    with pytest.raises(CollectionError, match=r"1 pictures lack their last bytes \(.*cut\.jpg\)"):
        refuse_cut([tmp_path / "whole.jpg", tmp_path / "cut.jpg"])


@pytest.mark.parametrize("min_side", [None, 16])
def test_a_jpeg_of_which_more_than_a_twentieth_is_missing_is_damaged(min_side: int | None, tmp_path: Path):
    data = jpeg(noise())
    for share in (50, 90):
        (tmp_path / "cut.jpg").write_bytes(data[: len(data) * share // 100])
        found = open_image(tmp_path / "cut.jpg", min_side=min_side)
        assert isinstance(found, Skipped)
        assert found.reason.startswith("damaged picture (image file is truncated")


def test_rows_are_decoded_up_to_the_grey_that_libjpeg_fills_in():
    image = Image.new("RGB", (8, 20), (128, 128, 128))
    assert rows_decoded(image) == 0
    image.putpixel((3, 11), (0, 0, 0))
    assert rows_decoded(image) == 12


def test_what_stands_behind_a_jpegs_end_does_not_make_it_cut(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(jpeg(noise()) + bytes(5000))
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    assert not may_be_cut(tmp_path / "a.jpg")
    assert not may_be_cut(tmp_path / "b.png")
    assert not may_be_cut(tmp_path / "gone.jpg")


def test_cut_jpegs_are_told_when_they_are_read(tmp_path: Path):
    data = jpeg(noise())
    (tmp_path / "whole.jpg").write_bytes(data)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) * 98 // 100])
    said: list[str] = []
    records, _ = read_contents(read_collection(tmp_path).records, talk=Talk(say=said.append))
    read_contents(records, talk=Talk(say=said.append))  # known, and not said again
    assert said == [f"JPEGs that lack their last bytes and are taken as viewers show them: 1, the first "
                    f"{tmp_path / 'cut.jpg'}; --strict refuses them"]
