"""Pictures that Pillow refuses and viewers show: PNGs with much text in them, JPEGs that lack their last bytes."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

_PNG = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")  # no pixels; Pillow refuses a picture whose texts unpack to over 1 MB
_MOST_SAID = 1 << 24  # bytes of a PNG that are not its pixels
_END_OF_JPEG = b"\xff\xd9"
_TAIL = 1 << 16  # bytes in which a JPEG's end is looked for: programs write behind it
_DECODED = 0.95  # of its rows, from which on a cut JPEG is a picture
_GREY = (126, 130)  # what libjpeg fills in is 128, give or take rounding
CUT = "cut short"  # key of the info of a picture that lacks its end


def without_text(data: bytes) -> bytes | None:
    """A PNG without its texts and its colour profile; None where it is none.

    Source: PNG specification, third edition, 5: a chunk is a length, a kind, the data and a checksum.
    """
    if not data.startswith(_PNG):
        return None
    return _PNG + b"".join(data[start:end] for kind, start, end in _chunks(data) if kind not in _TEXTS)


def without_pixels(file: IO[bytes]) -> bytes | None:
    """What a PNG says beside its pixels, wherever in the file, as a PNG whose pixels are missing; None of other files.

    Pillow decodes a PNG, all of it, when it is asked for EXIF or for texts that may stand behind the pixels.
    """
    if file.read(len(_PNG)) != _PNG:
        return None
    said, kind = bytearray(_PNG), b""
    while kind != b"IEND" and len(said) < _MOST_SAID and len(header := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", header)
        if kind in (b"IDAT", b"IEND") or length > _MOST_SAID:
            file.seek(length + 4, os.SEEK_CUR)
        else:
            said += header + file.read(length + 4)
    return bytes(said) + b"".join(struct.pack(">I4sI", 0, kind, zlib.crc32(kind)) for kind in (b"IDAT", b"IEND"))


def completed(data: bytes, open_bytes: Callable[[IO[bytes]], Image.Image], draft: tuple[int, int] | None
              ) -> Image.Image | None:
    """A cut JPEG with what libjpeg makes of it, if nearly all of its rows are there; None where they are not.

    draft: the size from which on a fraction of the picture is enough. The picture's info names :data:`CUT`.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    image = open_bytes(io.BytesIO(data + _END_OF_JPEG))
    if draft:
        image.draft(None, draft)
    image.load()
    if rows_decoded(image) < _DECODED * image.height:
        return None
    image.info[CUT] = True
    return image


def rows_decoded(image: Image.Image) -> int:
    """How many rows of a JPEG hold anything: below them is the grey that libjpeg fills in."""
    values = np.asarray(image)
    grey = ((values >= _GREY[0]) & (values <= _GREY[1])).reshape(len(values), -1).all(axis=1)
    return int(np.flatnonzero(~grey).max(initial=-1)) + 1


def may_be_cut(path: Path) -> bool:
    """Whether a JPEG has no end where one should be; cheap, and sure only where it says no."""
    try:
        with path.open("rb") as file:
            if file.read(3) != b"\xff\xd8\xff":
                return False
            file.seek(max(0, path.stat().st_size - _TAIL))
            return _END_OF_JPEG not in file.read(_TAIL)
    except OSError:
        return False


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The kind of each chunk, and from where to where it stands; the last one ends where the file does."""
    at = len(_PNG)
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        yield kind, at, at + 12 + length
        at += 12 + length
