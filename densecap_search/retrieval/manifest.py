"""What a generation of an index says of itself, checked value by value: an index may come from anywhere."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from densecap_search import __version__
from densecap_search.config import ModelConfig
from densecap_search.errors import DensecapError, IndexFolderError, NewerIndex
from densecap_search.files import hash_text, write_json

FORMAT = 2
MANIFEST = "manifest.json"
_VECTORS, _ROWS = re.compile(r"[0-9a-f]{32}\.f32"), re.compile(r"rows-[0-9]{6,12}\.db")
_FAISS, _BODY = re.compile(r"[0-9a-f]{32}\.faiss"), re.compile(r"[0-9]{6,12}")


@dataclass(frozen=True)
class VectorFile:
    """A file of vectors, named by a hash of its bytes."""

    name: str
    count: int


@dataclass(frozen=True)
class Approximation:
    """A faiss index of the first ``covered`` vectors, named by a hash of its bytes; the others are searched exactly.
    Where a store holds the vectors it is the store's own index, of all of them, and has no file.

    effort: how much of it is searched, in the unit of its type. recall: the share of the exact first ten that it
    finds, with ``queries`` captions or, where there are none, pictures as queries; None where it was not measured.
    """

    kind: str
    name: str
    size: int
    covered: int
    effort: int
    recall: float | None = None
    queries: str = ""


@dataclass(frozen=True)
class Origin:
    """A collection that is in an index. place: where it was read. fingerprint: of all that its records say. prefix: of
    its pictures' ids, none for the first."""

    name: str
    place: str
    fingerprint: str
    prefix: str = ""


@dataclass(frozen=True)
class StoredIn:
    """A store that holds the vectors in place of files. place: as --store names it, without a token. owner: a name
    that only this index has; body: of :mod:`stores`."""

    place: str
    owner: str
    body: str = ""


@dataclass(frozen=True)
class Manifest:
    """How a generation was made; every reader checks it.

    model: how to load the encoder, and fingerprint: of that encoder. stamp: of the model's files, by which an update
    sees that they are as they were. precision and libraries are recorded and are no part of the match.
    total: vectors in the files; count: those of them that have not been removed.
    """

    model: ModelConfig
    fingerprint: str
    precision: str
    dim: int
    total: int
    count: int
    index_type: str
    asked_type: str  # or "auto", which chooses again as the index grows
    number: int
    rows: str
    vectors: tuple[VectorFile, ...]
    origins: tuple[Origin, ...]
    approximation: Approximation | None = None
    store: StoredIn | None = None
    stamp: str = ""
    reason: str = ""  # why this index type
    libraries: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {**asdict(self), "model": self.model.settings()}

    def files(self) -> list[str]:
        """Names of the files that this generation shares with others, but for its rows."""
        made = [self.approximation.name] if self.approximation and self.store is None else []
        return [*(file.name for file in self.vectors), *made]


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Into the folder of a generation."""
    write_json(folder / MANIFEST, manifest.as_json())


def read_values(place: Path) -> dict[str, Any]:
    """The mapping in a generation's manifest of whatever format.

    Errors: FileNotFoundError; IndexFolderError where it is damaged or newer than this program.
    """
    path = place / MANIFEST
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, "it is no JSON") from error
    if not isinstance(values, dict):
        raise damaged(path, "it is not a mapping")
    version = values.get("format")
    if not isinstance(version, int) or isinstance(version, bool):
        raise damaged(path, "it names no format")
    if version > FORMAT:
        raise NewerIndex(f"{place} was written by a newer version of densecap (index format {version}, this reads "
                         f"{FORMAT}); update densecap-search")
    return values


def parse_manifest(values: Mapping[str, Any], place: Path) -> Manifest:
    """A mapping of the present format → Manifest. Errors: IndexFolderError."""
    path, model = place / MANIFEST, parse_model(values, place)
    try:
        manifest: Manifest = _as(Manifest, {**values, "model": None}, "", {"model": model})
    except ValueError as error:
        raise damaged(path, str(error)) from error
    _check(manifest, path)
    return manifest


def parse_model(values: Mapping[str, Any], place: Path) -> ModelConfig:
    """How to load the encoder, of a manifest of whatever format. Errors: IndexFolderError."""
    path = place / MANIFEST
    if not isinstance(values.get("model"), dict):
        raise damaged(path, "model is not a mapping")
    try:
        return ModelConfig.of(values["model"], str(path))
    except DensecapError as error:
        raise damaged(path, str(error)) from error


def stamp_of(model: ModelConfig) -> str:
    """Of the files of a model: names, sizes and times."""
    parts = [__version__]
    for name in (model.name, model.pretrained):
        path = Path(name or "")
        files = sorted(path.iterdir()) if name and path.is_dir() else [path] if name and path.is_file() else []
        for file in files:
            status = file.stat()
            parts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hash_text(*parts)


def damaged(path: Path, why: str) -> IndexFolderError:
    """The one sentence about a file of an index that is not what it should be."""
    return IndexFolderError(f"{path} is damaged ({why}); build the index again with `densecap index … --rebuild`")


def _check(manifest: Manifest, path: Path) -> None:
    """What becomes a path is a plain file name of ours, and the numbers agree."""
    names = [(_VECTORS, file.name) for file in manifest.vectors] + [(_ROWS, manifest.rows)]
    if manifest.store is not None:
        names += [(_BODY, manifest.store.body)]
    elif manifest.approximation:
        names += [(_FAISS, manifest.approximation.name)]
    for pattern, name in names:
        if not pattern.fullmatch(name):
            raise damaged(path, f"{name!r} is not a name that an index gives a file")
    counts = [file.count for file in manifest.vectors] if manifest.store is None else [manifest.total]
    if manifest.dim < 1 or min(counts, default=0) < 0 or not 0 <= manifest.count <= manifest.total == sum(counts):
        raise damaged(path, f"it counts {manifest.count} pictures, {manifest.total} vectors of {manifest.dim} numbers, "
                            f"and {sum(counts)} in its files")
    if manifest.approximation and not 0 <= manifest.approximation.covered <= manifest.total:
        raise damaged(path, f"its faiss file covers {manifest.approximation.covered} of {manifest.total} vectors")


def _as(kind: Any, value: Any, name: str, given: Mapping[str, Any] | None = None) -> Any:
    """A JSON value as a type of ours: dataclasses, tuples of one type, mappings of texts, unions with None, scalars.

    given: fields of a dataclass that are made already. Errors: ValueError that names the key.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _as(next(part for part in parts if part is not type(None)), value, name)
    if dataclasses.is_dataclass(kind):
        return _as_dataclass(typing.cast(type, kind), value, name, given or {})
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} is not a list")
        return tuple(_as(parts[0], item, f"{name}[{place}]") for place, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ValueError(f"{name} is not a mapping of texts")
        return dict(value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not {kind.__name__}")
    return value


def _as_dataclass(kind: type, value: Any, name: str, given: Mapping[str, Any]) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a mapping")
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    below = f"{name}." if name else ""
    if unknown := sorted(set(value) - set(fields)):
        raise ValueError(f"unknown key {below}{unknown[0]}")
    for key, item in fields.items():
        if key not in value and item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{below}{key} is missing")
    return kind(**{key: given[key] if key in given else _as(hints[key], item, below + key)
                   for key, item in value.items()})
