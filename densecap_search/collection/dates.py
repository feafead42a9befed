"""When a picture was taken, by its EXIF block."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import ExifTags

from densecap_search.collection.images import DECODING_ERRORS, exif_of, opened_to_read_of

_DATE = re.compile(r"(\d{4})[:\-/](\d\d)[:\-/](\d\d)(?:[ T](\d\d:\d\d:\d\d))?")


def date_taken(path: Path) -> str | None:
    """``2019-05-31 14:03:59``, or the day alone: of DateTimeOriginal, DateTimeDigitized, DateTime the first.

    Nothing is decoded. None also for files that cannot be opened.
    """
    try:
        with opened_to_read_of(path) as image:
            exif = exif_of(image)
            inner = exif.get_ifd(ExifTags.IFD.Exif)
            values = (inner.get(ExifTags.Base.DateTimeOriginal), inner.get(ExifTags.Base.DateTimeDigitized),
                      exif.get(ExifTags.Base.DateTime))
            return next((date for value in values if (date := _date(value))), None)
    except DECODING_ERRORS:
        return None


def _date(value: object) -> str | None:
    match = _DATE.match(value.strip()) if isinstance(value, str) else None
    if match is None or match[1] == "0000":  # what cameras without a clock write
        return None
    return f"{match[1]}-{match[2]}-{match[3]}" + (f" {match[4]}" if match[4] else "")
