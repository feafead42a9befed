"""One way to open a picture, for training, indexing and display: upright, RGB, 8 bits, or a reason why not."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from densecap_search.collection.image_types import RAW_SUFFIXES, needs, register_plugins
from densecap_search.collection.records import Skipped

MAX_PIXELS = 178_956_970  # 0.5 GiB as RGB: larger pictures are left out with a reason
DECODER_VERSION = 1  # raise it when open_image returns other pixels: caches are keyed by it

# Pillow's decoders raise any of these on damaged files; each means only that this file is damaged.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, TypeError, KeyError, IndexError,
                   AttributeError, MemoryError, RuntimeError, ImageCms.PyCMSError)

# open_image applies its own limit and reason; Pillow's warning and error at other sizes would only add noise.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of every odd EXIF tag in a picture that it then opens well; an archive has thousands of them.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def open_image(path: Path, *, min_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image | Skipped:
    """The picture as a person sees it, or why it cannot be had.

    Returns an RGB image: turned upright by its EXIF orientation, transparency over white, CMYK through its
    profile, 16-bit greys scaled (not clipped) to 8 bits, the first frame of an animation.
    min_side: the shorter side that is needed, in pixels; JPEGs are then decoded at a fraction of their size
    that keeps at least twice as much. max_pixels: larger pictures are skipped.
    """
    register_plugins()
    try:
        size = path.stat().st_size
        if path.is_dir():
            return Skipped(str(path), "a folder, not a picture")
        if size == 0:
            return Skipped(str(path), "empty file")
        if path.suffix.lower() in RAW_SUFFIXES:
            return _open_raw(path, min_side, max_pixels)
        with Image.open(path) as image:
            width, height = image.size
            if width * height > max_pixels:
                return _too_large(path, width, height, max_pixels)
            if min_side and image.format == "JPEG":
                image.draft(None, _draft_size(image.size, 2 * min_side))
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        return Skipped(str(path), "no such file")
    except UnidentifiedImageError:
        return Skipped(str(path), needs(path) or "not a picture that Pillow can read")
    except PermissionError:
        return Skipped(str(path), "no permission to read it")
    except DECODING_ERRORS as error:
        return Skipped(str(path), f"damaged picture ({' '.join(str(error).split()) or type(error).__name__})")


def _too_large(path: Path, width: int, height: int, max_pixels: int) -> Skipped:
    return Skipped(str(path), f"{width}×{height} pixels are more than the limit of {max_pixels:,}: decoded they take "
                              f"{width * height * 3 / 2**30:.1f} GiB of memory; --max-pixels raises it")


def _open_raw(path: Path, min_side: int | None, max_pixels: int) -> Image.Image | Skipped:
    """Sensor data developed by LibRaw with the camera's white balance; it turns them upright itself."""
    try:
        import rawpy
    except ImportError:
        return Skipped(str(path), str(needs(path)))
    try:
        with rawpy.imread(str(path)) as raw:
            width, height = raw.sizes.width, raw.sizes.height
            if width * height > max_pixels:
                return _too_large(path, width, height, max_pixels)
            half = bool(min_side) and min(width, height) >= 4 * int(min_side or 0)  # quick, and twice what is needed
            return Image.fromarray(raw.postprocess(use_camera_wb=True, output_bps=8, half_size=half))
    except rawpy.LibRawError as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return Skipped(str(path), f"damaged picture, or of a camera that LibRaw does not know ({reason})")


def _draft_size(size: tuple[int, int], min_side: int) -> tuple[int, int]:
    scale = min_side / min(size)
    return (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode in ("CMYK", "LAB") and image.info.get("icc_profile"):
        image = _through_profile(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _grey_to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _through_profile(image: Image.Image) -> Image.Image:
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"]))
        converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        return image  # a broken profile: Pillow's plain conversion is still a picture
    assert converted is not None  # only None when asked to work in place
    return converted


def _grey_to_8_bits(image: Image.Image) -> Image.Image:
    """16-bit, 32-bit and float greys, by their range: Pillow's own convert clips them to white."""
    values = np.asarray(image)
    blocks = np.array_split(values, max(1, values.size >> 22))  # a scan in float64 would take gigabytes
    low, high = _grey_range(blocks, image.mode == "F")
    grey = np.empty(values.shape, np.uint8)
    at = 0
    for block in blocks:
        scaled = np.nan_to_num((block.astype(np.float64) - low) * (255.0 / (high - low)), nan=0.0, posinf=255.0,
                               neginf=0.0)
        grey[at:at + len(block)] = np.clip(np.rint(scaled), 0, 255)
        at += len(block)
    return Image.fromarray(grey)


def _grey_range(blocks: Sequence[npt.NDArray[Any]], is_float: bool) -> tuple[float, float]:
    """What becomes black and what white: the usual range that holds the values, or else their own."""
    finite = [values for block in blocks if (values := block[np.isfinite(block)]).size]
    least = min((float(values.min()) for values in finite), default=0.0)
    most = max((float(values.max()) for values in finite), default=0.0)
    if is_float:
        low, high = (0.0, 1.0) if finite and least >= 0 and most <= 1 else (0.0, 255.0)
    else:
        low, high = 0.0, 65535.0 if most > 255 else 255.0
    if finite and (least < low or most > high):
        return least, max(most, least + 1)  # a scan of one value has no range of its own
    return low, high
