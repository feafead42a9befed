"""Text as people's files have it: UTF-8 with or without a mark, UTF-16, or Windows-1252, told apart by content."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from densecap_search.files import open_file

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WINDOW = 1 << 12  # bytes that tell UTF-16 from the rest
CAPTION_BYTES = 1 << 26  # of a file beside a picture: more is no caption
TABLE_BYTES = 1 << 32  # of a file that must be in memory as a whole
_LINE_BYTES = 1 << 28  # of a line of a table


def decode(data: bytes) -> str:
    """Text of UTF-8 with or without a mark, UTF-16 with one or where it is plain, else Windows-1252."""
    wide = utf_16(data[:_WINDOW])
    if wide:
        return data.decode(wide, "replace")
    return utf_8_or_cp1252(data.removeprefix(b"\xef\xbb\xbf"))


def utf_8_or_cp1252(data: bytes) -> str:
    """UTF-8 where it is that; letters with accents in Windows-1252 or Latin-1 practically never are.

    Half characters (three bytes each, as programs write them that think in UTF-16, and as we do) are taken too, and two
    that are halves of one are that one.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def utf_16(start: bytes) -> str | None:
    """The codec of a text that is UTF-16 by its mark, or plainly so without: every other byte is zero."""
    if start.startswith(_UTF_16_MARKS):
        return "utf-16"
    pairs = len(start) // 2
    if pairs < 2:
        return None
    even, odd = (start[offset:2 * pairs:2].count(0) for offset in (0, 1))
    if even == 0 and odd > 0.6 * pairs:
        return "utf-16-le"
    return "utf-16-be" if odd == 0 and even > 0.6 * pairs else None


def text_lines(path: Path) -> Iterator[str]:
    r"""The lines of a file, one in memory at a time, their ends kept; only \n ends one (captions hold U+2028, CSV \r).

    UTF-8 and Windows-1252 are told apart line by line: tables are often put together from both.
    """
    with open_file(path) as file:
        wide = utf_16(file.read(_WINDOW))
        file.seek(0)
        if wide is None:
            mark = b"\xef\xbb\xbf"
            while line := file.readline(_LINE_BYTES):
                if len(line) == _LINE_BYTES:
                    raise OSError(errno.EFBIG, f"a line of more than {_LINE_BYTES / 1e6:,.0f} MB", str(path))
                yield utf_8_or_cp1252(line.removeprefix(mark))
                mark = b""
            return
    with io.TextIOWrapper(open_file(path), encoding=wide, errors="replace", newline="\n") as text:
        yield from text


def parse_json(text: str) -> Any:
    """The value of a JSON text. Errors: ValueError with one line."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
