"""Which files are pictures, and what must be installed to open the less common ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock

from PIL import Image

# Sensor data of cameras. Many of them are TIFF files within, of which Pillow would take a stamp-sized preview.
RAW_SUFFIXES = frozenset(
    f".{name}" for name in (
        "3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "fff", "iiq", "kdc", "mef", "mos", "mrw", "nef", "nrw",
        "orf", "pef", "raf", "rw2", "rwl", "sr2", "srf", "srw", "x3f",
    )
)
HEIC_SUFFIXES = frozenset({".heic", ".heics", ".heif", ".heifs", ".hif"})
JXL_SUFFIXES = frozenset({".jxl"})
IMAGE_SUFFIXES = RAW_SUFFIXES | HEIC_SUFFIXES | JXL_SUFFIXES | frozenset(
    f".{name}" for name in (
        "apng", "avif", "avifs", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "fit", "fits", "flc", "fli", "ftc",
        "ftu", "gbr", "gif", "icb", "icns", "ico", "j2c", "j2k", "jfif", "jp2", "jpc", "jpe", "jpeg", "jpf", "jpg",
        "jpx", "mpo", "msp", "pbm", "pcd", "pcx", "pfm", "pgm", "png", "pnm", "ppm", "psd", "pxr", "qoi", "ras", "rgb",
        "rgba", "sgi", "tga", "tif", "tiff", "vda", "webp", "xbm", "xpm",
    )
)
# Endings that Pillow claims and that are left alone.
NOT_PICTURES: Mapping[str, str] = {
    **dict.fromkeys((".bufr", ".grib", ".h5", ".hdf"), "measurements, of which Pillow knows no more than the name"),
    **dict.fromkeys((".mpeg", ".mpg"), "films, which Pillow does not decode"),
    **dict.fromkeys((".eps", ".ps"), "programs for printers: showing one runs Ghostscript"),
    **dict.fromkeys((".emf", ".wmf"), "drawings that only Windows renders"),
    **dict.fromkeys((".im", ".iim", ".vst"), "mostly files of other programs that share the ending"),
}

# The same by Pillow's names: a file's ending says nothing about its content.
_LEFT_ALONE = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})

_PLUGINS = (("pillow_heif", "register_heif_opener"), ("pillow_jxl", None))  # module, and what to call; None: importing
_registered = False
_lock = Lock()  # pictures are opened by threads, and the first must not be asked before its opener is there


def register_plugins() -> None:
    """Teach Pillow the formats of the extras that are installed."""
    global _registered
    with _lock:
        if _registered:
            return
        for module, function in _PLUGINS:
            try:
                plugin = importlib.import_module(module)
            except ImportError:
                continue  # the skip reason then names the extra
            if function is not None:
                getattr(plugin, function)()
        _registered = True


@lru_cache(maxsize=1)
def picture_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, once the plugins are registered."""
    Image.preinit()  # the usual ones are tried first
    Image.init()
    return tuple(name for name in Image.ID if name not in _LEFT_ALONE)


def needs(path: Path) -> str | None:
    """What a file of this ending needs that is not here, in words; None where Pillow should have read it."""
    suffix = path.suffix.lower()
    for suffixes, extra, module in ((HEIC_SUFFIXES, "heic", "pillow_heif"), (JXL_SUFFIXES, "jxl", "pillow_jxl"),
                                    (RAW_SUFFIXES, "raw", "rawpy")):
        if suffix in suffixes and not _installed(module):
            return f"needs the extra `{extra}` (pip install 'densecap-search[{extra}]')"
    if suffix in (".avif", ".avifs") and not _pillow_has("avif"):
        return "needs a Pillow that reads AVIF (pip install -U pillow)"
    return None


def _installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _pillow_has(feature: str) -> bool:
    from PIL import features

    return bool(features.check(feature))
