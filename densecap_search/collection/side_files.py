"""Files beside a picture that speak of it: text, XMP, JSON; which belongs to which, and what they say.

Google Takeout: `IMG.jpg.json`, since 2024 `IMG.jpg.supplemental-metadata.json`, cut where the whole name would be
longer than 51 characters; `IMG(1).jpg` has `IMG.jpg(1).json`; `IMG-edited.jpg` has that of `IMG.jpg`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

from densecap_search.collection.text_files import CAPTION_BYTES, decode, parse_json
from densecap_search.collection.walk import is_picture
from densecap_search.collection.xmp import Columns, read_xmp
from densecap_search.files import read_bytes

ENDINGS = (".caption", ".txt", ".xmp", ".json")  # the first that has a caption gives it
TEXTS = (".caption", ".txt")
_CUT = 42  # characters of the name of a JSON file, without ending and number, from which on Takeout may have cut it
_ADDED = "supplemental-metadata"
_EDITED = re.compile(r"(?i)[-_ ](edited|bearbeitet|modifié|editado|modificato|bewerkt|edytowane|redigerad)$")
_CAPTIONS = ("caption", "captions", "description", "text")  # of JSON
_NOT_COLUMNS = ("image", "id", "file_name", "filename", "imagePath", "imageData", "url")


@dataclass(frozen=True)
class Said:
    """What the files beside a picture say. kind: the ending of the one that has the caption, "" where none has."""

    captions: tuple[str, ...] = ()
    kind: str = ""
    columns: Mapping[str, str | int | float] | None = None
    error: str | None = None  # why a file cannot be read
    read: tuple[str, ...] = ()  # the files that were understood


def pair(names: Iterable[str]) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """Pictures of one folder with the files that speak of them, as ENDINGS order them, and the files of no picture.

    `a.jpg.txt` belongs to `a.jpg` before `a.txt` does; in whichever Unicode form a name came (Macs decompose letters).
    """
    names = sorted(names)
    pictures = [name for name in names if is_picture(name)]
    others = [name for name in names if not is_picture(name)]
    sides: dict[str, dict[str, str]] = {ending: {} for ending in ENDINGS}
    for name in others:  # of `a.TXT` and `a.txt` the latter, which comes later, is kept
        ending = PurePath(name).suffix.lower()
        if ending in sides:
            sides[ending][_picture_of(name) if ending == ".json" else _composed(PurePath(name).stem)] = name
    pairs = [(name, tuple(side for ending in ENDINGS if (side := _side(name, sides[ending], ending == ".json"))))
             for name in pictures]
    used = {side for _, own in pairs for side in own}
    return pairs, [name for name in others if name not in used]


def read(picture: Path, sides: Iterable[Path]) -> Said:
    """The caption of the first side file that has one, and the columns of all of them."""
    captions: tuple[str, ...] = ()
    columns: Columns = {}
    kind, done = "", []
    for side in sides:
        ending = side.suffix.lower()
        try:
            data = read_bytes(side, CAPTION_BYTES)
        except OSError as error:
            return Said(error=f"cannot read its caption file: {error.strerror}")
        if ending in TEXTS and captions:
            continue  # of a second text file nothing is read
        texts, more = _said(ending, data)
        if not texts and not more:
            continue
        done.append(side.name)
        columns = {**more, **columns}
        if not captions and any(text.strip() for text in texts):
            captions, kind = texts, ending
    return Said(captions, kind, columns, read=tuple(done))


def _said(ending: str, data: bytes) -> tuple[tuple[str, ...], Columns]:
    """Captions and columns of one file; nothing of one that is none of these."""
    if ending in TEXTS:
        return (decode(data).removesuffix("\n").removesuffix("\r"),), {}
    if ending == ".xmp":
        text, columns = read_xmp(data)
        return ((text,) if text else ()), columns
    item = _object(data)
    if item is None:
        return (), {}
    return _takeout(item) if _is_takeout(item) else _plain(item)


def _side(picture: str, own: Mapping[str, str], is_json: bool) -> str | None:
    name = _composed(picture)
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    side = own.get(name) or own.get(stem)
    if side or not is_json:
        return side
    plain = _EDITED.sub("", stem)
    if plain != stem and plain + suffix in own:
        return own[plain + suffix]
    cut = [key for key, file in own.items() if len(PurePath(file).stem) >= _CUT and name.startswith(key)]
    return own[max(cut, key=len)] if cut else None


def _picture_of(name: str) -> str:
    """The name of the picture that a JSON file is named after, as far as it is there."""
    match = re.fullmatch(r"(.*?)(\(\d+\))?", _composed(PurePath(name).stem), re.DOTALL)
    assert match  # it matches everything
    base, number = match[1], match[2] or ""
    head, dot, tail = base.rpartition(".")
    if dot and head and (tail.lower() == _ADDED or (len(base) >= _CUT and _ADDED.startswith(tail.lower()))):
        base = head
    path = PurePath(base)
    return f"{path.stem}{number}{path.suffix}" if number and is_picture(base) else base + number


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        item = parse_json(decode(data))
    except ValueError:
        return None
    return item if isinstance(item, dict) else None


def _is_takeout(item: Mapping[str, Any]) -> bool:
    return "title" in item and any(key in item for key in ("photoTakenTime", "creationTime", "geoData"))


def _takeout(item: Mapping[str, Any]) -> tuple[tuple[str, ...], Columns]:
    """Google's description; when and where the picture was taken (0, 0 is what it writes for nowhere)."""
    text = item.get("description")
    columns: Columns = {}
    taken, place = item.get("photoTakenTime"), item.get("geoData")
    if isinstance(taken, dict) and (date := _date(taken.get("timestamp"))):
        columns["date"] = date
    if isinstance(place, dict):
        north, east = (place.get(word) for word in ("latitude", "longitude"))
        if isinstance(north, (int, float)) and isinstance(east, (int, float)) and (north or east):
            columns |= {"latitude": north, "longitude": east}
    return ((text,) if isinstance(text, str) and text.strip() else ()), columns


def _date(timestamp: Any) -> str | None:
    try:
        return datetime.fromtimestamp(int(timestamp), timezone.utc).isoformat().replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _plain(item: Mapping[str, Any]) -> tuple[tuple[str, ...], Columns]:
    """The caption of any other object, and its plain values as columns; nothing of one without a caption."""
    for key in _CAPTIONS:
        value = item.get(key)
        texts = tuple(text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))
        if any(text.strip() for text in texts):
            columns = {name: value for name, value in item.items() if name not in (*_CAPTIONS, *_NOT_COLUMNS)
                       and isinstance(value, (str, int, float)) and not isinstance(value, bool)}
            return texts, columns
    return (), {}
