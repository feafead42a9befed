"""One way to open a picture, for training, indexing and display: upright, RGB, 8 bits, or a reason why not."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from densecap_search.collection.records import Skipped

MAX_PIXELS = 178_956_970  # 0.5 GiB as RGB: larger pictures are left out with a reason
DECODER_VERSION = 1  # raise it when open_image returns other pixels: caches are keyed by it

IMAGE_SUFFIXES = frozenset(
    f".{name}" for name in (
        "jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "dib", "tif", "tiff", "webp", "avif", "heic", "heif", "hif",
        "jxl", "jp2", "j2k", "ppm", "pgm", "pbm", "pnm", "tga", "dng", "psd",
    )
)
_NEEDS_EXTRA = {
    ".heic": "the extra `heic` (pip install 'densecap-search[heic]')",
    ".heif": "the extra `heic` (pip install 'densecap-search[heic]')",
    ".hif": "the extra `heic` (pip install 'densecap-search[heic]')",
    ".jxl": "a JPEG XL plug-in for Pillow (pip install pillow-jxl-plugin)",
    ".dng": "conversion of the raw file to TIFF or JPEG",
}

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
        with Image.open(path) as image:
            width, height = image.size
            if width * height > max_pixels:
                return Skipped(str(path), f"{width}×{height} pixels are more than the limit of {max_pixels:,}")
            if min_side and image.format == "JPEG":
                image.draft(None, _draft_size(image.size, 2 * min_side))
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        return Skipped(str(path), "no such file")
    except UnidentifiedImageError:
        return Skipped(str(path), _unidentified(path))
    except PermissionError:
        return Skipped(str(path), "no permission to read it")
    except DECODING_ERRORS as error:
        return Skipped(str(path), f"damaged picture ({' '.join(str(error).split()) or type(error).__name__})")


_plugins_registered = False


def register_plugins() -> None:
    """Let Pillow open HEIC where the extra is there; once is enough."""
    global _plugins_registered
    if _plugins_registered:
        return
    _plugins_registered = True
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return  # the skip reason then names the extra
    register_heif_opener()


def _unidentified(path: Path) -> str:
    extra = _NEEDS_EXTRA.get(path.suffix.lower())
    return f"needs {extra}" if extra else "not a picture that Pillow can read"


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
    values = np.asarray(image, dtype=np.float64)
    finite = values[np.isfinite(values)]
    if image.mode == "F":
        low, high = (0.0, 1.0) if finite.size and finite.min() >= 0 and finite.max() <= 1 else (0.0, 255.0)
    else:
        low, high = 0.0, 65535.0 if finite.size and finite.max() > 255 else 255.0
    if finite.size and (finite.min() < low or finite.max() > high):
        low, high = float(finite.min()), float(finite.max())
    scaled = np.nan_to_num((values - low) * (255.0 / (high - low)), nan=0.0, posinf=255.0, neginf=0.0)
    return Image.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8), mode="L")
