from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers import one_bit_png, write_dng
from PIL import Image, ImageCms

from densecap_search.collection import image_types
from densecap_search.collection.image_types import IMAGE_SUFFIXES, NOT_PICTURES
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
    assert reasons["bomb.png"] == ("30000×20000 pixels are more than the limit of 178,956,970: decoded they take "
                                   "1.7 GiB of memory; --max-pixels raises it")
    assert reasons["folder.jpg"] == "a folder, not a picture"
    assert reasons["missing.jpg"] == "no such file"


def test_the_size_limit_can_be_set(tmp_path: Path):
    half_red().save(tmp_path / "x.png")
    assert isinstance(open_image(tmp_path / "x.png", max_pixels=64 * 32), Image.Image)
    assert isinstance(open_image(tmp_path / "x.png", max_pixels=64 * 32 - 1), Skipped)


def test_every_type_that_pillow_reads_is_a_picture_or_left_out_for_a_reason():
    Image.init()
    read = {suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN}
    assert read - IMAGE_SUFFIXES <= set(NOT_PICTURES)
    assert IMAGE_SUFFIXES.isdisjoint(NOT_PICTURES)


@pytest.mark.parametrize("suffix", [
    "apng", "avif", "bmp", "dds", "gif", "icns", "ico", "jp2", "jpg", "pcx", "png", "ppm", "qoi", "sgi", "tga", "tiff", "webp",
    "heic", "jxl",
])
def test_a_picture_of_every_type_opens_as_it_was_written(tmp_path: Path, suffix: str):
    image_types.register_plugins()
    half_red(64, 64).save(tmp_path / f"x.{suffix}")
    found = pixels(open_image(tmp_path / f"x.{suffix}"))
    assert found.shape[0] == found.shape[1]
    quarter = len(found) // 4
    assert np.abs(found[:, :quarter] - RED).max() < 40
    assert np.abs(found[:, -quarter:] - BLUE).max() < 40


@pytest.mark.parametrize("suffix", ["dng", "NEF"])
def test_sensor_data_is_developed_and_not_its_stamp_sized_preview(tmp_path: Path, suffix: str):
    write_dng(tmp_path / f"x.{suffix}", 400, 200)
    found = pixels(open_image(tmp_path / f"x.{suffix}"))
    assert found.shape == (200, 400, 3)
    assert found[:, :190, 0].mean() > 2 * found[:, :190, 2].mean()  # red on the left
    assert found[:, 210:, 2].mean() > 2 * found[:, 210:, 0].mean()  # blue on the right
    small = open_image(tmp_path / f"x.{suffix}", min_side=50)
    assert pixels(small).shape == (100, 200, 3)
    too_large = open_image(tmp_path / f"x.{suffix}", max_pixels=400 * 200 - 1)
    assert isinstance(too_large, Skipped)
    assert too_large.reason.startswith("400×200 pixels are more than the limit of 79,999")


def test_damaged_sensor_data_is_a_reason(tmp_path: Path):
    (tmp_path / "x.cr2").write_bytes(b"II*\0" + b"\0" * 500)
    result = open_image(tmp_path / "x.cr2")
    assert isinstance(result, Skipped)
    assert result.reason.startswith("damaged picture, or of a camera that LibRaw does not know (")


WITHOUT_EXTRAS = """
import sys
sys.modules |= {name: None for name in ("pillow_heif", "pillow_jxl", "rawpy")}
from pathlib import Path
from densecap_search.collection.images import open_image
from densecap_search.collection.readers import read_collection
folder = Path(sys.argv[1])
for record in read_collection(folder).records:
    print(record.image.name, "|", getattr(open_image(record.image), "reason", "opened"))
"""


def test_without_an_extra_a_file_is_counted_and_the_extra_is_named(tmp_path: Path):
    image_types.register_plugins()
    for suffix in ("heic", "jxl", "avif"):
        half_red().save(tmp_path / f"x.{suffix}")
    write_dng(tmp_path / "x.dng", 64, 64)
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, tmp_path], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == [
        "x.avif | opened",
        "x.dng | needs the extra `raw` (pip install 'densecap-search[raw]')",
        "x.heic | needs the extra `heic` (pip install 'densecap-search[heic]')",
        "x.jxl | needs the extra `jxl` (pip install 'densecap-search[jxl]')",
    ]


def test_the_first_page_of_a_scan_is_taken(tmp_path: Path):
    pages = [Image.new("RGB", (8, 8), RED), Image.new("RGB", (16, 16), BLUE)]
    pages[0].save(tmp_path / "x.tiff", save_all=True, append_images=pages[1:])
    found = pixels(open_image(tmp_path / "x.tiff"))
    assert found.shape == (8, 8, 3)
    assert (found == RED).all()


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_a_16_bit_grey_scan_looks_like_its_8_bit_twin(tmp_path: Path, suffix: str):
    grey = np.asarray(Image.effect_mandelbrot((90, 60), (-2, -1.5, 1, 1.5), 50))
    Image.fromarray(grey).save(tmp_path / f"8.{suffix}")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / f"16.{suffix}")
    twins = [pixels(open_image(tmp_path / f"{bits}.{suffix}")) for bits in (8, 16)]
    assert np.abs(twins[0] - twins[1]).max() <= 1


@pytest.mark.parametrize(("values", "expected"), [
    ([0.0, 0.5, 1.0], [0, 128, 255]),          # the usual range of floats
    ([0.0, 100.0, 255.0], [0, 100, 255]),      # that of 8 bits
    ([-1000.0, 0.0, 1000.0], [0, 128, 255]),   # heights: their own
    ([float("nan"), 0.0, 1.0], [0, 0, 255]),
    ([700.0, 700.0, 700.0], [0, 0, 0]),        # one value has no range
])
def test_float_scans_are_scaled_by_the_range_that_holds_them(tmp_path: Path, values: list[float], expected: list[int]):
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "x.tiff")
    assert np.abs(pixels(open_image(tmp_path / "x.tiff"))[0, :, 0] - expected).max() <= 1


OPEN_ALL = """
import sys
from pathlib import Path
from densecap_search.collection.images import open_image
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, getattr(open_image(path, min_side=224), "reason", "opened"))
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the most memory that was used on Linux only")
def test_a_gigantic_picture_costs_a_line_and_the_others_open_in_little_memory(tmp_path: Path):
    for number in range(10):
        half_red().save(tmp_path / f"{number}.png")
    one_bit_png(tmp_path / "3.png", 30000, 20000)
    done = subprocess.run([sys.executable, "-c", OPEN_ALL, tmp_path], capture_output=True, text=True, check=True)
    *lines, kilobytes = done.stdout.splitlines()
    assert [line for line in lines if not line.endswith(" opened")] == [
        "3.png 30000×20000 pixels are more than the limit of 178,956,970: decoded they take 1.7 GiB of memory; --max-pixels raises it"]
    assert len(lines) == 10
    assert int(kilobytes) < 300_000
