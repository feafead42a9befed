"""Where the picture lies that a cell names: at its path from a known folder, else by its name below the table's."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from densecap_search.collection.walk import is_picture
from densecap_search.files import is_file, is_folder

# Folders in which people keep the pictures of a table, in lower case: `images`, `Images`, `flickr30k_images`, …
_USUAL = re.compile(r"(.*[_\- ])?(images?|imgs?|pictures?|pics|photos?|jpe?gs?|dataset)")
_OF_TABLES = re.compile(r"annotations?|captions?|labels?|metadata|meta|tables?|csv|json", re.IGNORECASE)
_UPLOADED = re.compile(r"[0-9a-f]{8}-")  # what Label Studio puts before the name of an uploaded file


class Located(NamedTuple):
    """The folder in which a cell was looked up, the picture's path, and a number that links to one file share."""

    folder: str
    image: str
    file: int


Listing = Callable[[str], dict[str, str]]  # a folder → its names by their composed form


def is_address(value: object) -> bool:
    """Whether a cell holds an address of the web."""
    return isinstance(value, str) and value.strip().lower().startswith(("http://", "https://"))


def usual_folders(folder: Path) -> list[Path]:
    """The folders beside a table in which pictures usually lie; of a folder of tables, those beside it too."""
    places = [folder, folder.parent] if _OF_TABLES.fullmatch(folder.name) else [folder]
    return [Path(entry.path) for place in places for entry in _entries(place)
            if _USUAL.fullmatch(entry.name.lower()) and is_folder(Path(entry.path))]


def locate(values: Iterable[str], folders: Sequence[Path], pictures: Callable[[], Iterable[Path]]
           ) -> tuple[dict[str, Located | str], Counter[str]]:
    """Each value → where its picture is, or why it has none; and how many lay in each folder or were found by name.

    folders: looked into in turn, the table's own first. pictures: all that may be meant where no folder has a value;
    asked for once, and only then. A picture that is found by its name belongs to one value alone.
    """
    places = [os.path.abspath(folder) for folder in folders]
    listing = lru_cache(maxsize=64)(_in_folder)
    located: dict[str, Located | str] = {}
    for value in dict.fromkeys(values):
        tried = ((place, _at(place, value, listing)) for place in places)
        located[value] = next((Located(place, *image) for place, image in tried if image is not None), "")
    ways = Counter(place.folder for place in located.values() if not isinstance(place, str))
    missing = [value for value, place in located.items() if place == ""]
    if missing:
        taken = {place.image for place in located.values() if not isinstance(place, str)}
        for value, image in _by_name(missing, pictures(), taken).items():
            located[value] = Located(places[0], image, file_number(image)) if Path(image).is_absolute() else image
            ways["by name"] += Path(image).is_absolute()
    return located, ways


def _by_name(values: Sequence[str], pictures: Iterable[Path], taken: set[str]) -> dict[str, str]:
    """Each value → the one picture whose path ends most like it, or why there is none."""
    by_name: dict[str, list[str]] = {}
    by_stem: dict[str, list[str]] = {}
    for picture in pictures:
        name = _plain(picture.name)
        by_name.setdefault(name, []).append(os.path.abspath(picture))
        by_stem.setdefault(_plain(picture.stem), []).append(os.path.abspath(picture))
    named = {value: _best(value, by_name, by_stem) for value in values}
    owners = Counter(image for image in named.values() if os.path.isabs(image))  # noqa: PTH117
    alone = {value: image for value, image in named.items() if not os.path.isabs(image)}  # noqa: PTH117
    for value, image in named.items():
        if value not in alone:
            clash = owners[image] > 1 or image in taken
            alone[value] = "no such file, and the only one of this name is another row's" if clash else image
    return alone


def _best(value: str, by_name: dict[str, list[str]], by_stem: dict[str, list[str]]) -> str:
    for parts in _named(value):
        own = by_name.get(_plain(parts[-1])) or ([] if is_picture(parts[-1]) else by_stem.get(_plain(parts[-1]), []))
        if not own:
            continue
        scores = [_common(parts[:-1], PurePosixPath(path).parts[:-1]) for path in own]
        best = [path for path, score in zip(own, scores, strict=True) if score == max(scores)]
        if len(best) == 1:
            return best[0]
        return f"{len(best)} pictures have this name: {', '.join(best[:3])}"
    return "an address, not a file" if is_address(value) else "no such file"


def _named(value: str) -> Iterator[tuple[str, ...]]:
    """The parts of the paths that a cell may stand for: itself, what an address names, an upload's own name."""
    text = value.strip()
    query = dict(part.partition("=")[::2] for part in text.partition("?")[2].split("&"))
    if "d" in query:  # Label Studio's local files
        text = unquote(query["d"])
    elif is_address(text):
        text = unquote(urlsplit(text).path) if _is_split(text) else text
    parts = tuple(part for part in PureWindowsPath(text).as_posix().split("/") if part not in ("", "."))
    if parts:
        yield parts
        if _UPLOADED.match(parts[-1]):
            yield (*parts[:-1], _UPLOADED.sub("", parts[-1], count=1))


def _is_split(text: str) -> bool:
    try:
        urlsplit(text)
    except ValueError:
        return False
    return True


def _common(parts: Sequence[str], others: Sequence[str]) -> int:
    """How many parts two paths share at their ends."""
    count = 0
    for part, other in zip(reversed(parts), reversed(others), strict=False):
        if _plain(part) != _plain(other):
            break
        count += 1
    return count


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def file_number(image: str) -> int:
    """The same number for all paths, hard links and symbolic ones, to one file."""
    try:
        return _number_of(os.stat(image), image)  # noqa: PTH116
    except (OSError, ValueError):
        return hash(image)


def _number_of(status: os.stat_result, image: str) -> int:
    """With size and time, for some network disks number files anew; of those that number none, the path's."""
    if not status.st_ino:
        return hash(image)
    return hash((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


def _at(folder: str, value: str, listing: Listing) -> tuple[str, int] | None:
    """The file at a path, and its number: as written, trimmed, with Windows' separators, in the other Unicode form of
    any part."""
    for spelling in _spellings(value):
        try:  # os.path, not pathlib: a table may have millions of rows
            place = os.path.abspath(os.path.join(folder, os.path.expanduser(spelling)))  # noqa: PTH111, PTH118
            status = os.stat(place)  # noqa: PTH116
            if stat.S_ISREG(status.st_mode):
                return place, _number_of(status, place)
        except (OSError, ValueError):  # over-long names, NUL bytes, half characters
            continue
    other = None if value.isascii() else _in_any_form(folder, value, listing)
    return None if other is None else (other, file_number(other))


def _spellings(value: str) -> Iterator[str]:
    yield value
    tried = {value}
    plain = PureWindowsPath(value.strip()).as_posix()
    for spelling in (value.strip(), plain, *(unicodedata.normalize(form, plain) for form in ("NFC", "NFD"))):
        if spelling not in tried:
            tried.add(spelling)
            yield spelling


def _in_any_form(folder: str, value: str, listing: Listing) -> str | None:
    """The file whose path has the same letters, part by part: disks hold folders in one form, files in another."""
    path = PurePosixPath(PureWindowsPath(value.strip()).as_posix())
    place = path.anchor or folder
    for part in path.parts[1 if path.anchor else 0:]:
        name = part if part in (".", "..") else listing(place).get(unicodedata.normalize("NFC", part))
        if name is None:
            return None
        place = os.path.join(place, name)  # noqa: PTH118
    return os.path.abspath(place) if is_file(Path(place)) else None


def _in_folder(place: str) -> dict[str, str]:
    return {unicodedata.normalize("NFC", entry.name): entry.name for entry in _entries(Path(place))}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (OSError, ValueError):
        return []
