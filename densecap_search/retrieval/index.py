"""ImageIndex: picture vectors on the disk, searched by faiss. The only module that imports faiss.

An index folder holds generations. A new one is written whole beside the old one and then named in CURRENT by one
rename, so a reader sees the old or the new one; the one before stays for readers that have just opened it.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from densecap_search.config import ModelConfig
from densecap_search.embedding.cache import Array
from densecap_search.errors import IndexFolderError, IndexMismatch
from densecap_search.files import hash_file, write_json, write_text

if TYPE_CHECKING:
    from densecap_search.embedding.towers import Embeddings

FORMAT = 1
CURRENT, FAISS, VECTORS, IMAGES, MANIFEST = "CURRENT", "index.faiss", "vectors.npy", "images.jsonl", "manifest.json"
KEPT_GENERATIONS = 2
HNSW_LINKS, HNSW_BUILD, HNSW_SEARCH = 32, 200, 128  # neighbours of a node; candidates kept while building, searching


def _flat(vectors: Array) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _hnsw(vectors: Array) -> Any:
    """A graph: much faster for very many pictures, and it may miss some. Source: Malkov and Yashunin 2016."""
    index = faiss.IndexHNSWFlat(vectors.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = HNSW_BUILD, HNSW_SEARCH
    index.add(vectors)
    return index


INDEX_TYPES: Mapping[str, Callable[[Array], Any]] = {"flat": _flat, "hnsw": _hnsw}
EXACT_TYPES = frozenset({"flat"})


@dataclass(frozen=True)
class Entry:
    """What the index knows of a picture beside its vector."""

    image_id: str
    image: str  # absolute path
    captions: tuple[str, ...]
    hash: str


@dataclass(frozen=True)
class Manifest:
    """How an index was made; every reader checks it.

    model: how to load the encoder. fingerprint: of that encoder. precision and
    libraries are recorded and are no part of the match.
    """

    model: ModelConfig
    fingerprint: str
    precision: str
    dim: int
    count: int
    index_type: str
    collection: dict[str, str]
    libraries: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {**asdict(self), "model": self.model.settings()}


@dataclass(frozen=True)
class ImageIndex:
    """Vectors of pictures that can be searched; row r of the faiss index is entry r."""

    folder: Path
    manifest: Manifest
    entries: tuple[Entry, ...]
    faiss_index: Any
    generation: Path | None = None  # where it was read from; None while it is only in memory

    def search(self, queries: Array, k: int) -> list[list[tuple[int, float]]]:
        """For each query [D], up to k pairs (row, cosine), best first; equal scores in the order of rows.

        The first 5 of 50 are the same as a search for 5, even where copies of a picture tie at the border (of the
        types that are exact).
        """
        if queries.ndim != 2 or queries.shape[1] != self.manifest.dim:
            raise IndexMismatch(f"{self.folder} holds vectors of {self.manifest.dim} numbers; "
                                f"the query has {queries.shape[-1]}: another model made it")
        k = min(k, len(self.entries))
        if k < 1:
            return [[] for _ in queries]
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = self.faiss_index.search(queries, min(k + 1, len(self.entries)))
        return [self._in_order(queries[number], scores[number], rows[number], k) for number in range(len(queries))]

    def _in_order(self, query: Array, scores: Array, rows: Any, k: int) -> list[tuple[int, float]]:
        # FAISS pads short results with -1
        found = [(int(row), float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]
        exact = self.manifest.index_type in EXACT_TYPES
        if exact and len(found) > k and found[k][1] == found[k - 1][1]:  # a tie at the border: fetch all of it
            border = np.nextafter(np.float32(found[k][1]), np.float32(-2))
            _, tied_scores, tied = self.faiss_index.range_search(query[None], float(border))
            found = [(int(row), float(score)) for row, score in zip(tied, tied_scores, strict=True)]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]

    def vectors(self) -> Array:
        """All vectors of this generation, float32 [N, D], read-only."""
        if self.generation is None:
            raise AssertionError("an index in memory has no file of vectors")
        path = self.generation / VECTORS
        if hash_file(path) != self.manifest.files[VECTORS]:
            raise IndexFolderError(f"{path} is damaged: it is not the file that its manifest describes")
        values: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return values

    def thumbnails(self) -> Path:
        """Where small copies of the pictures may be kept."""
        return self.folder / "thumbnails"

    def check_encoder(self, name: str, fingerprint: str) -> None:
        """Refuse an encoder that did not make these vectors."""
        if fingerprint != self.manifest.fingerprint:
            a = f"{self.manifest.model.name} [{self.manifest.fingerprint[:8]}]"
            raise IndexMismatch(f"{self.folder} was built by {a}; you asked for {name} [{fingerprint[:8]}]. "
                                f"Rebuild with `densecap index …` or pass --model {self.manifest.model.name}.")


def build_index(embeddings: Embeddings, kind: str, folder: Path, entries: Sequence[Entry], manifest: Mapping[str, Any]
                ) -> ImageIndex:
    """An index in memory; :func:`save_index` makes it last."""
    made = Manifest(
        **manifest, dim=int(embeddings.vectors.shape[1]), count=len(entries), index_type=kind,
        libraries={name: version(name) for name in ("faiss-cpu", "torch", "open_clip_torch", "numpy", "pillow")},
    )
    return ImageIndex(folder, made, tuple(entries), INDEX_TYPES[kind](embeddings.vectors))


def save_index(index: ImageIndex, vectors: Array) -> ImageIndex:
    """Write a new generation and make it the current one; the index is returned as it will be loaded."""
    try:
        (index.folder / "thumbnails").mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".gen-", dir=index.folder))
    except OSError as error:
        raise IndexFolderError(f"cannot write the index {index.folder}: {error.strerror or error}") from error
    try:
        (work / FAISS).write_bytes(faiss.serialize_index(index.faiss_index).tobytes())
        with (work / VECTORS).open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
        lines = [json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in index.entries]
        (work / IMAGES).write_bytes("".join(lines).encode("utf-8"))
        files = {name: hash_file(work / name) for name in (FAISS, VECTORS, IMAGES)}
        manifest = replace(index.manifest, files=files)
        write_json(work / MANIFEST, manifest.as_json())
        work.chmod(0o755)
        name = _place(work, index.folder)
        write_text(index.folder / CURRENT, name + "\n")
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise IndexFolderError(f"cannot write the index {index.folder}: {error.strerror or error}; "
                               "the index that was there is untouched") from error
    for old in _generations(index.folder)[:-KEPT_GENERATIONS]:
        shutil.rmtree(index.folder / old, ignore_errors=True)
    return ImageIndex(index.folder, manifest, index.entries, index.faiss_index, index.folder / name)


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index."""
    return (folder / CURRENT).is_file()


def load_index(folder: Path) -> ImageIndex:
    """The current generation of an index folder, checked against its manifest."""
    if not is_index(folder):
        raise IndexFolderError(f"{folder} is not an index (no file {CURRENT}); make one with `densecap index`")
    for attempt in range(3):  # the generation may be replaced while it is read; then CURRENT names the next
        place = folder / (folder / CURRENT).read_text(encoding="utf-8").strip()
        try:
            return _load_generation(folder, place)
        except FileNotFoundError as error:
            if attempt == 2:
                raise IndexFolderError(f"{place} is not whole ({error.filename} is missing); "
                                       "build it again with `densecap index`") from error
    raise AssertionError("unreachable")


def _load_generation(folder: Path, place: Path) -> ImageIndex:
    manifest = _manifest(place)
    data = {name: (place / name).read_bytes() for name in (FAISS, IMAGES)}
    for name in data:
        if hash_file(place / name) != manifest.files[name]:
            raise IndexFolderError(f"{place / name} is damaged: it is not the file that its manifest describes; "
                                   "build the index again with `densecap index`")
    try:
        faiss_index = faiss.deserialize_index(np.frombuffer(data[FAISS], dtype=np.uint8))
    except RuntimeError as error:
        wrote = manifest.libraries.get("faiss-cpu")
        raise IndexFolderError(f"{place / FAISS} was written by faiss {wrote} and cannot be read by faiss "
                               f"{faiss.__version__}; update faiss-cpu or build the index again") from error
    rows = [json.loads(line) for line in io.StringIO(data[IMAGES].decode("utf-8"), newline="\n")]
    entries = tuple(Entry(**{**row, "captions": tuple(row["captions"])}) for row in rows)
    if not len(entries) == faiss_index.ntotal == manifest.count:
        raise IndexFolderError(f"{place} is damaged: {len(entries)} pictures, {faiss_index.ntotal} vectors, "
                               f"{manifest.count} in the manifest; build the index again")
    return ImageIndex(folder, manifest, entries, faiss_index, place)


def _manifest(place: Path) -> Manifest:
    try:
        values = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if values.get("format", 0) > FORMAT:
            raise IndexFolderError(f"{place} was written by a newer version of densecap (index format "
                                   f"{values['format']}, this reads {FORMAT}); update densecap-search")
        return Manifest(**{**values, "model": ModelConfig.of(values["model"], str(place / MANIFEST))})
    except (json.JSONDecodeError, TypeError) as error:
        raise IndexFolderError(f"{place / MANIFEST} is damaged ({error}); build the index again") from error


def _place(work: Path, folder: Path) -> str:
    """Give a finished generation the next number; another writer may take it first."""
    number = max((int(name[4:]) for name in _generations(folder)), default=0)
    while True:
        number += 1
        name = f"gen-{number:06d}"
        if (folder / name).exists():
            continue
        work.rename(folder / name)
        return name


def _generations(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("gen-[0-9]*") if path.name[4:].isdigit())
