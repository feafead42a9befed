"""One way to open a picture, for training, indexing and display: upright, RGB, 8 bits, or a reason why not."""

from __future__ import annotations

import ctypes
import errno
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from densecap_search.collection.image_types import RAW_SUFFIXES, needs, picture_formats, register_plugins
from densecap_search.collection.mended import CUT, completed, may_be_cut, without_pixels, without_text
from densecap_search.collection.records import Skipped
from densecap_search.errors import CollectionError
from densecap_search.files import is_file, open_file, read_bytes

T = TypeVar("T")
MAX_PIXELS = 178_956_970  # 0.5 GiB as RGB: larger pictures are left out with a reason
DECODER_VERSION = 1  # raise it when open_image returns other pixels: caches are keyed by it
_BAND_PIXELS = 1 << 22
_LEAST_READ = 1 << 28  # bytes of a file that is opened once more, however few pixels are allowed
_RAW_BYTES = 14  # a pixel, while LibRaw develops it: the mosaic, four channels of 16 bits, and the result

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
    Where threads open many pictures, use :func:`use_image`, which bounds what they hold together.
    """
    return use_image(path, lambda image: image, min_side=min_side, max_pixels=max_pixels)


def use_image(path: Path, use: Callable[[Image.Image], T], *, min_side: int | None = None,
              max_pixels: int = MAX_PIXELS) -> T | Skipped:
    """What ``use`` makes of :func:`open_image`'s picture, or why that cannot be had.

    Until ``use`` returns, the picture counts among :data:`IN_FLIGHT`: of large ones only so many are in memory at once
    as fit, whatever the number of threads. ``use`` opens no other picture and keeps none.
    """
    with ExitStack() as held:
        return _used(path, use, min_side, max_pixels, held)  # the picture is gone before its memory counts as free


def _used(path: Path, use: Callable[[Image.Image], T], min_side: int | None, max_pixels: int, held: ExitStack
          ) -> T | Skipped:
    image = _decoded(path, min_side, max_pixels, held)
    return image if isinstance(image, Skipped) else use(image)


def _decoded(path: Path, min_side: int | None, max_pixels: int, held: ExitStack) -> Image.Image | Skipped:
    """held: gets the reservation of the picture's memory."""
    try:
        if path.suffix.lower() in RAW_SUFFIXES:
            with open_file(path):  # whether it is a file
                return _open_raw(path, min_side, max_pixels)
        with opened(path) as image:
            width, height = image.size
            if width * height > max_pixels:
                return _too_large(path, width, height, max_pixels)
            if min_side and image.format == "JPEG":
                image.draft(None, _draft_size(image.size, 2 * min_side))
            held.enter_context(IN_FLIGHT.reserved(_bytes_of(image)))
            return _to_rgb(image)
    except DECODING_ERRORS as error:
        mended = _mended(path, error, min_side, max_pixels)
        return mended if mended is not None else Skipped(str(path), _reason(path, error))


def _mended(path: Path, error: Exception, min_side: int | None, max_pixels: int) -> Image.Image | None:
    """What Pillow refuses while decoding and viewers show: a PNG with megabytes of text, a JPEG without its end."""
    if not _is_wordy(error) and "truncated" not in str(error):
        return None
    try:
        data = read_bytes(path, max(_LEAST_READ, 4 * max_pixels))
        if _is_wordy(error):
            plain = without_text(data)
            return None if plain is None else _to_rgb(open_stream(io.BytesIO(plain)))
        image = completed(data, open_stream, (2 * min_side, 2 * min_side) if min_side else None)
        return None if image is None else _to_rgb(image)
    except DECODING_ERRORS:
        return None


def _is_wordy(error: Exception) -> bool:
    """Whether Pillow refused a PNG for its texts or its colour profile."""
    return "PngImagePlugin" in str(error) or "text chunks" in str(error)


def cut_short(paths: Iterable[Path]) -> list[Path]:
    """The JPEGs which lack their last bytes; :func:`open_image` takes them as viewers do."""
    return [path for path in paths if may_be_cut(path) and _lacks_its_end(path)]


def refuse_cut(paths: Iterable[Path]) -> None:
    """An error that names the JPEGs which lack their last bytes, if any do."""
    cut = cut_short(paths)
    if cut:
        raise CollectionError(f"{len(cut)} pictures lack their last bytes ({', '.join(map(str, cut[:3]))}); "
                              "mend them, or go on without --strict")


def _lacks_its_end(path: Path) -> bool:
    image = open_image(path)
    return not isinstance(image, Skipped) and CUT in image.info


def not_a_picture(path: Path) -> Skipped | None:
    """Why a file is no picture, by its beginning; None where it opens as one. Nothing is decoded."""
    try:
        if path.suffix.lower() in RAW_SUFFIXES:
            with open_file(path):
                return _raw_reason(path)
        with opened(path):
            return None
    except DECODING_ERRORS as error:
        return Skipped(str(path), _reason(path, error))


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A picture file as Pillow opens it, nothing decoded yet. Errors: any of DECODING_ERRORS."""
    with open_file(path) as file, _whatever_it_says(file) as image:
        yield image


@contextmanager
def opened_to_read_of(path: Path) -> Iterator[Image.Image]:
    """As :func:`opened`, for what is written beside the pixels: those of a PNG are left out."""
    with open_file(path) as file:
        said = without_pixels(file)
        file.seek(0)
        with _whatever_it_says(file if said is None else io.BytesIO(said)) as image:
            yield image


def exif_of(image: Image.Image) -> Image.Exif:
    """A picture's EXIF block; Pillow would decode a PNG that has none to look for it."""
    return image.getexif() if image.format != "PNG" or "exif" in image.info else Image.Exif()


def _whatever_it_says(file: IO[bytes]) -> Image.Image:
    """As :func:`open_stream`; where Pillow refuses a PNG for what is written in it, without that."""
    try:
        return open_stream(file)
    except ValueError as error:
        if not _is_wordy(error):
            raise
        file.seek(0)
        plain = without_text(file.read(4 * MAX_PIXELS))
        if plain is None:
            raise
        return open_stream(io.BytesIO(plain))


def open_stream(file: IO[bytes]) -> Image.Image:
    """The same of bytes. Formats whose reading would start another program (EPS: Ghostscript) are not among them."""
    register_plugins()
    return Image.open(file, formats=picture_formats())


class Reserve:
    """Bytes that threads may hold together; one alone may take more than there are."""

    def __init__(self, total: int) -> None:
        self._total, self._held = total, 0
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Wait until so many bytes are free, or nobody holds any, and hold them for the length of the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + count <= self._total)
            self._held += count
        try:
            yield
        finally:
            if count >= _GIVEN_BACK:
                _give_back()
            with self._changed:
                self._held -= count
                self._changed.notify_all()


IN_FLIGHT = Reserve(1 << 30)  # of decoded pictures
_GIVEN_BACK = 1 << 27  # bytes of a picture from which on its memory is given back to the system


def _give_back() -> None:
    """glibc keeps what a thread frees for that thread: of each that decoded a large picture, the size of one."""
    if sys.platform.startswith("linux") and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _bytes_of(image: Image.Image) -> int:
    """What Pillow needs for a picture: 4 bytes a pixel (1 of greys and palettes), and 4 for its RGB where that is
    another; turned ones are there twice for a moment."""
    width, height = image.size
    own = 1 if image.mode in ("1", "L", "P") else 4
    turned = "exif" in image.info  # may be; getexif would decode a PNG to look for it
    return width * height * (own * (1 + turned) + 4 * (image.mode != "RGB"))


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a picture"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, UnidentifiedImageError):
        empty = is_file(path) and path.stat().st_size == 0
        return "empty file" if empty else needs(path) or "not a picture that Pillow can read"
    if isinstance(error, OSError) and error.errno == errno.EINVAL and error.strerror:
        return error.strerror  # a pipe or a device
    return f"damaged picture ({' '.join(str(error).split()) or type(error).__name__})"


def _too_large(path: Path, width: int, height: int, max_pixels: int) -> Skipped:
    return Skipped(str(path), f"{width}×{height} pixels are more than the limit of {max_pixels:,}: decoded they take "
                              f"{width * height * 3 / 2**30:.1f} GiB of memory; --max-pixels raises it")


def _raw_reason(path: Path) -> Skipped | None:
    opened_raw = _with_raw(path, lambda raw: None)
    return opened_raw if isinstance(opened_raw, Skipped) else None


def _open_raw(path: Path, min_side: int | None, max_pixels: int) -> Image.Image | Skipped:
    """Sensor data developed by LibRaw with the camera's white balance; it turns them upright itself."""

    def develop(raw: Any) -> Image.Image | Skipped:
        width, height = raw.sizes.width, raw.sizes.height
        if width * height > max_pixels:
            return _too_large(path, width, height, max_pixels)
        half = bool(min_side) and min(width, height) >= 4 * int(min_side or 0)  # quick, and twice what is needed
        with IN_FLIGHT.reserved(width * height * _RAW_BYTES):
            return Image.fromarray(raw.postprocess(use_camera_wb=True, output_bps=8, half_size=half))

    return _with_raw(path, develop)


def _with_raw(path: Path, use: Callable[[Any], T]) -> T | Skipped:
    try:
        import rawpy
    except ImportError:
        return Skipped(str(path), str(needs(path)))
    try:
        with rawpy.imread(str(path)) as raw:
            return use(raw)
    except rawpy.LibRawError as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return Skipped(str(path), f"damaged picture, or of a camera that LibRaw does not know ({reason})")


def _draft_size(size: tuple[int, int], min_side: int) -> tuple[int, int]:
    scale = min_side / min(size)
    return (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))


def _to_rgb(image: Image.Image) -> Image.Image:
    """Upright and RGB; no copy that is not needed, for a picture may take most of the memory there is."""
    ImageOps.exif_transpose(image, in_place=True)
    image.load()
    if image.mode in ("CMYK", "LAB") and image.info.get("icc_profile"):
        image = _through_profile(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _grey_to_8_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _over_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    """In bands, so that beside the picture and the result there is little."""
    whole = Image.new("RGB", image.size)
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        whole.paste(Image.alpha_composite(Image.new("RGBA", band.size, "white"), band).convert("RGB"), (0, top))
    return whole


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
