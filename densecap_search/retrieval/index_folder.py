"""An index on the disk: generations, of which CURRENT names the live one, and the files that they share.

    CURRENT  gen-000003/{manifest.json,dead.npy}  rows-000001.db  vectors/{HASH.f32,HASH.faiss}  thumbnails/

A new generation is written whole and then named in CURRENT by one rename, so a reader sees the old or the new one. The
one before is kept for readers that have just opened it, and for --undo.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from densecap_search.config import ModelConfig
from densecap_search.errors import IndexFolderError
from densecap_search.files import sweep, temporary_folder, write_text
from densecap_search.retrieval.manifest import (
    FORMAT,
    Manifest,
    damaged,
    parse_manifest,
    parse_model,
    read_values,
    write_manifest,
)
from densecap_search.retrieval.vectors import Numbers

CURRENT, DEAD, VECTORS, THUMBNAILS = "CURRENT", "dead.npy", "vectors", "thumbnails"
_GENERATION = re.compile(r"gen-([0-9]{1,12})")


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index."""
    return (folder / CURRENT).is_file()


def current_place(folder: Path) -> Path:
    """The folder of the live generation. Errors: IndexFolderError where there is none."""
    if not is_index(folder):
        raise IndexFolderError(f"{folder} is not an index (no file {CURRENT}); make one with `densecap index`")
    name = (folder / CURRENT).read_bytes()[:100].decode("utf-8", "replace").strip()
    if not _GENERATION.fullmatch(name):
        raise damaged(folder / CURRENT, f"it names {name!r}, which is no generation")
    return folder / name


def generation_name(number: int) -> str:
    """Of a generation's folder."""
    return f"gen-{number:06d}"


def generation_number(place: Path) -> int:
    """Of a generation's folder."""
    match = _GENERATION.fullmatch(place.name)
    assert match is not None
    return int(match[1])


def next_number(folder: Path) -> int:
    """A number that no generation in the folder has had."""
    return max((generation_number(place) for place in _generations(folder)), default=0) + 1


def read_model(folder: Path) -> ModelConfig:
    """Which encoder made the live generation, of whatever format."""
    place = current_place(folder)
    with whole(place):
        return parse_model(read_values(place), place)


def read_precision(folder: Path) -> str | None:
    """In which precision pictures went through the tower when the live generation was made; None without an index."""
    if not is_index(folder):
        return None
    place = current_place(folder)
    with whole(place):
        precision = read_values(place).get("precision")
    return precision if isinstance(precision, str) else None


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz file, of which nothing is unpickled. Errors: ValueError, KeyError, OSError where it is
    damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (BadZipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is cut or changed: {error}") from error


@contextmanager
def whole(place: Path) -> Iterator[None]:
    """A file that is missing from a generation, as a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise IndexFolderError(f"{place} is not whole ({error.filename} is missing); build it again with "
                               "`densecap index … --rebuild`") from error


def read_dead(place: Path, manifest: Manifest) -> Numbers:
    """The numbers that have been removed, ascending, int64."""
    try:
        dead = np.load(place / DEAD, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise damaged(place / DEAD, "it is no array") from error
    good = dead.dtype == np.int64 and dead.ndim == 1 and len(dead) == manifest.total - manifest.count
    if not good or (len(dead) and not (dead[0] >= 0 and dead[-1] < manifest.total and (np.diff(dead) > 0).all())):
        raise damaged(place / DEAD, "it does not fit its manifest")
    return np.asarray(dead, dtype=np.int64)


def publish(folder: Path, manifest: Manifest, dead: Numbers) -> Path:
    """Write a generation whose rows and vectors are on the disk, make it the live one, and return its folder."""
    kept = current_place(folder) if is_index(folder) else None
    place = folder / generation_name(manifest.number)
    with temporary_folder(folder, place.name) as work:
        write_manifest(manifest, work)
        with (work / DEAD).open("wb") as file:
            np.save(file, dead, allow_pickle=False)
        work.chmod(0o755)
        work.rename(place)
    write_text(folder / CURRENT, place.name + "\n")
    _sweep(folder, [place, *([kept] if kept else [])])
    return place


def undo(folder: Path) -> Path:
    """Make the generation before the live one the live one again, and return its folder."""
    current = current_place(folder)
    earlier = [place for place in _generations(folder) if generation_number(place) < generation_number(current)]
    if not earlier:
        raise IndexFolderError(f"{folder} keeps no generation before {current.name}: there is nothing to undo")
    place = max(earlier, key=generation_number)
    write_text(folder / CURRENT, place.name + "\n")
    return place


def sweep_leftovers(folder: Path) -> None:
    """Remove what killed updates left and marked as ours; what a living process still writes stays."""
    sweep(folder)
    sweep(folder / VECTORS)


def kept_manifests(folder: Path) -> list[Manifest]:
    """Of all generations that are there and can be read."""
    manifests = []
    for place in _generations(folder):
        with suppress(IndexFolderError, OSError):
            values = read_values(place)
            if values["format"] == FORMAT:
                manifests.append(parse_manifest(values, place))
    return manifests


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """What the system says while an index is written, as a sentence."""
    try:
        yield
    except OSError as error:
        raise IndexFolderError(f"cannot write the index {folder}: {error.strerror or error}; what was there is "
                               "untouched") from error


def _sweep(folder: Path, kept: list[Path]) -> None:
    """Remove other generations, and files that none of those kept names."""
    used: set[str] = set()
    for place in kept:
        with suppress(IndexFolderError, OSError):  # damaged: it was replaced for that
            values = read_values(place)
            if values["format"] == FORMAT:
                manifest = parse_manifest(values, place)
                used.update((*manifest.files(), manifest.rows))
    for place in _generations(folder):
        if place not in kept:
            shutil.rmtree(place, ignore_errors=True)
    for path in [*(folder / VECTORS).glob("*.f32"), *(folder / VECTORS).glob("*.faiss"), *folder.glob("rows-*.db*")]:
        if path.name not in used and path.name.removesuffix("-wal").removesuffix("-shm") not in used:
            path.unlink(missing_ok=True)
    sweep_leftovers(folder)


def _generations(folder: Path) -> list[Path]:
    return [place for place in folder.glob("gen-*") if _GENERATION.fullmatch(place.name)]
