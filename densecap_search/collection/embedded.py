"""The caption that a picture file carries itself: XMP dc:description, IPTC 2:120, EXIF.

Pillow finds the blocks; what is left to us is the charset, which cameras and programs name wrongly or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageFile, IptcImagePlugin

from densecap_search.collection.captions import is_placeholder
from densecap_search.collection.images import DECODING_ERRORS, exif_of, opened_to_read_of
from densecap_search.collection.text_files import utf_8_or_cp1252, utf_16
from densecap_search.collection.xmp import read_xmp

_XMP, _DESCRIPTION, _EXIF_IFD, _USER_COMMENT = 700, 270, 0x8769, 0x9286  # TIFF tags
_IPTC_CAPTION = (2, 120)


def embedded_caption(path: Path) -> str | None:
    """The first with text of XMP dc:description (x-default), IPTC 2:120, EXIF ImageDescription and UserComment.

    What a camera writes into every picture (`OLYMPUS DIGITAL CAMERA`) is no caption. None also for files that
    cannot be opened: whoever opens them next says why.
    """
    try:
        with opened_to_read_of(path) as image:
            for read in (_from_xmp, _from_iptc, _from_description, _from_comment):
                text = _tried(read, image)
                if text and not is_placeholder(text):
                    return text
    except DECODING_ERRORS:
        pass
    return None


def _tried(read: Callable[[Image.Image], str | None], image: Image.Image) -> str | None:
    try:
        text = read(image)
    except DECODING_ERRORS:
        return None  # a damaged block; the next one may be whole
    text = (text or "").strip("\0").rstrip()
    return text if text.strip() else None


def _from_xmp(image: Image.Image) -> str | None:
    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or exif_of(image).get(_XMP)
    if not packet:
        return None
    return read_xmp(packet)[0]


def _from_iptc(image: Image.Image) -> str | None:
    assert isinstance(image, ImageFile.ImageFile)  # as all that was opened
    field = (IptcImagePlugin.getiptcinfo(image) or {}).get(_IPTC_CAPTION)
    data = field[0] if isinstance(field, list) and field else field
    return utf_8_or_cp1252(data) if isinstance(data, bytes) else None


def _from_description(image: Image.Image) -> str | None:
    text = exif_of(image).get(_DESCRIPTION)
    # Pillow reads the field as Latin-1, whatever was written
    return utf_8_or_cp1252(text.encode("latin-1", "replace")) if isinstance(text, str) else None


def _from_comment(image: Image.Image) -> str | None:
    exif = exif_of(image)
    data = exif.get_ifd(_EXIF_IFD).get(_USER_COMMENT)
    if not isinstance(data, bytes):
        return None
    charset, body = data[:8], data[8:]
    if charset == b"UNICODE\0":
        order = "utf-16-le" if exif.endian == "<" else "utf-16-be"
        text = body.decode(utf_16(body) or order, "replace")
    elif charset == b"JIS\0\0\0\0\0":
        text = body.decode("iso2022_jp" if b"\x1b" in body else "shift_jis", "replace")
    else:
        text = utf_8_or_cp1252((body if charset in (b"ASCII\0\0\0", bytes(8)) else data).rstrip(b"\0"))
    readable = all(letter.isprintable() or letter in "\n\r\t" for letter in text.strip("\0"))
    return text if readable else None  # makers also keep binary notes here
