"""Indexes of format 1 (a faiss file, vectors and JSON lines in each generation) become the present one; nothing is
encoded."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.errors import IndexFolderError
from densecap_search.files import HASH_BYTES, hash_file
from densecap_search.locks import locked
from densecap_search.retrieval.index_folder import VECTORS, current_place, next_number, publish, written
from densecap_search.retrieval.manifest import Manifest, Origin, VectorFile, damaged, parse_model
from densecap_search.retrieval.rows import Row, create_rows
from densecap_search.retrieval.vectors import BLOCK, vector_writer
from densecap_search.talk import Talk

_VECTORS, _IMAGES = "vectors.npy", "images.jsonl"
_LINE = 1_000_000  # characters of one picture's line
DOUBT = ("vectors made by a model of --interpolate auto in that version may be wrong: `densecap index … --rebuild` "
         "encodes anew")


def migrate(folder: Path, place: Path, values: Mapping[str, Any], talk: Talk) -> Path:
    """Write the next generation from one of format 1, and return its folder; the old one is kept for --undo.

    values: of its manifest. Approximations are built by the next `densecap index`; until then all is searched exactly.
    """
    with locked(folder, "densecap, bringing the index to its present format", wait=60):
        if current_place(folder) != place:  # another process was faster
            return current_place(folder)
        vectors = _read_vectors(place, values)
        lines = list(_read_images(place, values))
        if len(lines) != len(vectors):
            raise damaged(place / _IMAGES, f"it names {len(lines)} pictures of {len(vectors)}")
        number = next_number(folder)
        manifest = _manifest(place, values, number)
        with written(folder), vector_writer(folder / VECTORS) as writer:
            (folder / manifest.rows).unlink(missing_ok=True)
            create_rows(folder / manifest.rows, number, lines)
            for start in range(0, len(vectors), BLOCK):
                writer.add(vectors[start:start + BLOCK])
            files = (VectorFile(writer.finish(), writer.count),)
            count = writer.count
            made = publish(folder, replace(manifest, vectors=files, total=count, count=count), np.empty(0, np.int64))
    talk.say(f"{folder} was brought from index format 1 to 2, nothing was encoded; {DOUBT}")
    return made


def _manifest(place: Path, values: Mapping[str, Any], number: int) -> Manifest:
    """All but the vectors."""
    collection, path = values.get("collection"), place / "manifest.json"
    if not isinstance(collection, dict):
        raise damaged(path, "it lacks its collection")
    fingerprint, precision, kind = (values.get(name) for name in ("fingerprint", "precision", "index_type"))
    if not (isinstance(fingerprint, str) and isinstance(precision, str) and isinstance(kind, str)):
        raise damaged(path, "it lacks its fingerprint, precision or type")
    libraries = values.get("libraries")
    return Manifest(
        model=parse_model(values, place), dim=int(values["dim"]), total=0, count=0, number=number,
        rows=f"rows-{number:06d}.db", vectors=(), fingerprint=fingerprint, precision=precision, index_type=kind,
        asked_type=kind,
        origins=(Origin(str(collection.get("name", "")), "", str(collection.get("fingerprint", ""))),),
        libraries={str(k): str(v) for k, v in libraries.items()} if isinstance(libraries, dict) else {})


def _read_vectors(place: Path, values: Mapping[str, Any]) -> Any:
    path = place / _VECTORS
    _check_hash(path, values, hash_file(path))
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise damaged(path, "it is no array") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32 or vectors.shape[1] != values.get("dim"):
        raise damaged(path, "it holds no vectors of the width in its manifest")
    return vectors


def _read_images(place: Path, values: Mapping[str, Any]) -> Iterator[Row]:
    path = place / _IMAGES
    data = path.read_bytes()
    _check_hash(path, values, hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest())
    source = str((values.get("collection") or {}).get("name", ""))
    for number, line in enumerate(io.StringIO(data.decode("utf-8", "replace"), newline="\n")):
        try:
            row = json.loads(line[:_LINE])
            yield Row(number, source, str(row["image_id"]), str(row["image"]),
                      tuple(str(text) for text in row["captions"]), str(row["hash"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(path, f"line {number + 1} names no picture") from error


def _check_hash(path: Path, values: Mapping[str, Any], actual: str) -> None:
    files = values.get("files")
    wanted = files.get(path.name) if isinstance(files, dict) else None
    if wanted is None or actual != wanted:
        raise IndexFolderError(f"{path} is damaged: it is not the file that its manifest describes; build the index "
                               "again with `densecap index … --rebuild`")
