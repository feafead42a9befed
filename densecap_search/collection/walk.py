"""The pictures below a folder, and which text file belongs to which."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePath

from densecap_search.collection.image_types import IMAGE_SUFFIXES
from densecap_search.collection.records import Skipped

# What file systems, network drives and desktops put between photographs, in lower case.
SYSTEM_FOLDERS = frozenset((
    "@eadir", "@recycle", "@recently-snapshot", "@tmp", "#recycle", "#snapshot", "$recycle.bin", "recycler",
    "system volume information", "__macosx", "lost+found",
))
_OURS = frozenset(("CURRENT", "model.json"))  # an index or a run: its pictures are not the user's
_APPLE_DOUBLE = b"\x00\x05\x16\x07"  # `._IMG.JPG`: what a Mac keeps beside IMG.JPG, never a picture


def is_picture(name: str) -> bool:
    """Whether a file name ends as pictures do, in any case."""
    return PurePath(name).suffix.lower() in IMAGE_SUFFIXES


def walk(folder: Path, *, hidden: bool = False) -> Iterator[tuple[Path, list[str]] | Skipped]:
    """Every folder once, with its sorted file names; folders that cannot be read are skipped with the reason.

    Links are followed, but never back to where we have been. hidden: also what begins with a dot and what systems
    add (:data:`SYSTEM_FOLDERS`).
    """
    seen = set()
    errors: list[OSError] = []
    for place, folders, names in os.walk(folder, followlinks=True, onerror=errors.append):
        try:
            status = Path(place).stat()
        except OSError as error:  # removed in the meantime, or a path longer than the system takes
            errors.append(error)
            folders.clear()
            continue
        finally:
            yield from _told(errors)
        if (status.st_dev, status.st_ino) in seen or _OURS & set(names):
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(folders if hidden else (name for name in folders if not _is_hidden(name)))
        yield Path(place), sorted(name for name in names if _is_wanted(place, name, hidden))
    yield from _told(errors)


def find_images(folder: Path, *, hidden: bool = False) -> Iterator[Path]:
    """The pictures below a folder, sorted, without hidden files and the folders that systems add."""
    for found in walk(folder, hidden=hidden):
        if not isinstance(found, Skipped):
            place, names = found
            yield from (place / name for name in names if is_picture(name))


def pair_side_files(names: list[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Pictures of one folder with their text files (or None), and the text files that belong to none.

    `a.jpg.txt` belongs to `a.jpg` before `a.txt` does; in whichever Unicode form a name came (Macs decompose letters).
    """
    texts: dict[str, str] = {}
    for name in sorted(names):  # of `a.TXT` and `a.txt` the latter, which comes later, is kept
        path = PurePath(name)
        if path.suffix.lower() == ".txt":
            texts[unicodedata.normalize("NFC", path.stem)] = name
    pairs = []
    for name in filter(is_picture, names):
        whole = unicodedata.normalize("NFC", name)
        pairs.append((name, texts.get(whole) or texts.get(PurePath(whole).stem)))
    used = {text for _, text in pairs}
    return pairs, [text for text in texts.values() if text not in used]


def _told(errors: list[OSError]) -> Iterator[Skipped]:
    while errors:
        error = errors.pop(0)
        yield Skipped(str(error.filename), f"cannot read this folder: {error.strerror}")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def _is_wanted(place: str, name: str, hidden: bool) -> bool:
    if not name.startswith("."):
        return True
    if not hidden:
        return False
    if not name.startswith("._"):
        return True
    try:
        with Path(place, name).open("rb") as file:
            return file.read(4) != _APPLE_DOUBLE
    except OSError:
        return True  # named with its reason when it is opened
