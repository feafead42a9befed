from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from densecap_search.collection.images import open_image
from densecap_search.collection.records import Skipped

RED, BLUE = (254, 0, 0), (0, 0, 254)


def half_red(width: int = 64, height: int = 32) -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", (width, height), BLUE)
    image.paste(RED, (0, 0, width // 2, height))
    return image


def pixels(result: Image.Image | Skipped) -> np.ndarray:
    assert isinstance(result, Image.Image), result
    assert result.mode == "RGB"
    return np.asarray(result).astype(int)


# for each EXIF orientation, what must be done to an upright picture to store it so
STORED = {
    1: (), 2: (Image.Transpose.FLIP_LEFT_RIGHT,), 3: (Image.Transpose.ROTATE_180,), 4: (Image.Transpose.FLIP_TOP_BOTTOM,),
    5: (Image.Transpose.TRANSPOSE,), 6: (Image.Transpose.ROTATE_90,), 7: (Image.Transpose.TRANSVERSE,),
    8: (Image.Transpose.ROTATE_270,),
}


@pytest.mark.parametrize("orientation", STORED)
def test_every_exif_orientation_comes_out_upright(tmp_path: Path, orientation: int):
    image = half_red()
    for step in STORED[orientation]:
        image = image.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.jpg", quality=100, subsampling=0, exif=exif)
    found = pixels(open_image(tmp_path / "x.jpg"))
    assert found.shape == (32, 64, 3)
    assert np.abs(found[:, :28] - RED).max() < 12
    assert np.abs(found[:, 36:] - BLUE).max() < 12


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_over_white(tmp_path: Path, mode: str):
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    if mode == "P":
        image = image.quantize(4)
    image.convert(mode).save(tmp_path / "x.png")
    found = pixels(open_image(tmp_path / "x.png"))
    assert (found[:, :4] == 0).all()
    assert (found[:, 4:] == 255).all()


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str):
    ramp = np.tile(np.linspace(0, 65535, 256).astype(np.uint16), (4, 1))
    Image.fromarray(ramp).save(tmp_path / f"x.{suffix}")
    found = pixels(open_image(tmp_path / f"x.{suffix}"))
    assert np.abs(found[0, :, 0] - np.arange(256)).max() <= 1


def test_float_tiff_is_scaled(tmp_path: Path):
    Image.fromarray(np.tile(np.linspace(0, 1, 256, dtype=np.float32), (4, 1))).save(tmp_path / "x.tiff")
    found = pixels(open_image(tmp_path / "x.tiff"))
    assert np.abs(found[0, :, 0] - np.arange(256)).max() <= 1


def test_cmyk_is_converted(tmp_path: Path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "x.jpg", quality=100)
    found = pixels(open_image(tmp_path / "x.jpg"))
    assert found[..., 0].min() > 245
    assert found[..., 1:].max() < 10


def test_lab_goes_through_its_profile(tmp_path: Path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    image = ImageCms.profileToProfile(Image.new("RGB", (8, 8), (200, 40, 60)), srgb, lab, outputMode="LAB")
    assert image is not None
    image.save(tmp_path / "x.tiff", icc_profile=profile)
    assert np.abs(pixels(open_image(tmp_path / "x.tiff")) - (200, 40, 60)).max() <= 4


def test_the_first_frame_of_an_animation_is_taken(tmp_path: Path):
    frames = [Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), BLUE)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert np.abs(pixels(open_image(tmp_path / "x.gif")) - RED).max() < 8


def test_a_reduced_decode_shows_the_same(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "x.jpg", quality=95)
    full, reduced = open_image(tmp_path / "x.jpg"), open_image(tmp_path / "x.jpg", min_side=100)
    assert isinstance(full, Image.Image)
    assert isinstance(reduced, Image.Image)
    assert min(reduced.size) >= 200
    assert min(reduced.size) < 1200
    a, b = (np.asarray(i.resize((133, 100), Image.Resampling.BICUBIC)).astype(float) for i in (full, reduced))
    assert np.abs(a - b).mean() < 2


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds almost nothing."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_whatever_is_wrong_becomes_a_reason(tmp_path: Path):
    buffer = io.BytesIO()
    half_red(200, 200).save(buffer, "JPEG")
    files = {
        "empty.jpg": b"", "page.jpg": b"<html><body>404</body></html>", "cut.jpg": buffer.getvalue()[: buffer.tell() * 6 // 10],
        "bomb.png": png_header(30000, 20000),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.jpg").mkdir()
    reasons = {}
    for name in [*files, "folder.jpg", "missing.jpg"]:
        result = open_image(tmp_path / name)
        assert isinstance(result, Skipped), name
        assert result.path == str(tmp_path / name)
        reasons[name] = result.reason
    assert reasons["empty.jpg"] == "empty file"
    assert reasons["page.jpg"] == "not a picture that Pillow can read"
    assert reasons["cut.jpg"].startswith("damaged picture (image file is truncated")
    assert reasons["bomb.png"] == "30000×20000 pixels are more than the limit of 178,956,970"
    assert reasons["folder.jpg"] == "a folder, not a picture"
    assert reasons["missing.jpg"] == "no such file"


def test_the_size_limit_can_be_set(tmp_path: Path):
    half_red().save(tmp_path / "x.png")
    assert isinstance(open_image(tmp_path / "x.png", max_pixels=64 * 32), Image.Image)
    assert isinstance(open_image(tmp_path / "x.png", max_pixels=64 * 32 - 1), Skipped)
