"""The folders below a folder, and the pictures in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from densecap_search.collection.image_types import IMAGE_SUFFIXES
from densecap_search.collection.left_out import NO_MEDIA, left_out
from densecap_search.collection.records import Skipped
from densecap_search.files import open_file

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


def walk(folder: Path, *, hidden: bool = False, exclude: Sequence[str] = (), left: list[str] | None = None
         ) -> Iterator[tuple[Path, list[str]] | Skipped]:
    """Every folder once, with its sorted file names; folders that cannot be read are skipped with the reason.

    Links are followed, but never back to where we have been. hidden: also what begins with a dot, what systems
    add (:data:`SYSTEM_FOLDERS`), and what .nomedia hides. exclude: patterns, beside those of the folder's ignore file.
    left: gets the files and folders that these left out.
    """
    seen = set()
    errors: list[OSError] = []
    left = [] if left is None else left
    excluded = left_out(folder, exclude)
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
        if NO_MEDIA in names and not hidden and Path(place) != folder:
            left.append(place)
            folders.clear()
            continue
        out = {name for name in folders if excluded(f"{place}/{name}/")}
        out |= {name for name in names if excluded(f"{place}/{name}")}
        left += (f"{place}/{name}" for name in sorted(out))
        folders[:] = sorted(name for name in folders if name not in out and (hidden or not _is_hidden(name)))
        yield Path(place), sorted(name for name in names if name not in out and _is_wanted(place, name, hidden))
    yield from _told(errors)


def find_images(folder: Path, *, hidden: bool = False, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """The pictures below a folder, sorted, without hidden files and the folders that systems add."""
    for entry in walk(folder, hidden=hidden, exclude=exclude):
        if not isinstance(entry, Skipped):
            place, names = entry
            yield from (place / name for name in names if is_picture(name))


def _told(errors: list[OSError]) -> Iterator[Skipped]:
    while errors:
        error = errors.pop(0)
        yield Skipped(str(error.filename), f"cannot read this folder: {error.strerror}", folder=True)


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
        with open_file(Path(place, name)) as file:
            return file.read(4) != _APPLE_DOUBLE
    except OSError:
        return True  # named with its reason when it is opened
