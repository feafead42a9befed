"""An index as a table for other programs: ids, pictures, captions, vectors; as Parquet, or as NumPy and JSON Lines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.config import PUBLISHED_AS
from densecap_search.embedding.cache import Array
from densecap_search.errors import ConfigError, DensecapError, MissingPackage
from densecap_search.files import check_writable, json_lines, write_text
from densecap_search.model.checkpoint import is_run
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.rows import Row

BLOCK = 4096  # pictures in memory at once
TABLE, VECTORS, ROWS = "index.parquet", "vectors.npy", "rows.jsonl"


def publish_index(source: Path, folder: Path, name: str) -> int:
    """Write the live pictures of an index into a new folder; returns how many. name: a key of INDEX_FORMATS."""
    if not source.exists():
        raise DensecapError(f"there is no folder {source}; name an index folder")
    if is_run(source):
        raise ConfigError(f"{source} is a run, and --as {name} is for an index; publish it with --as "
                          f"{', '.join(PUBLISHED_AS)}, or make an index of pictures with `densecap index`")
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise DensecapError(f"{folder} is not empty; name a new folder with -o")
    index = load_index(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        INDEX_FORMATS[name](index, made)
        write_text(made / "README.md", _card(index, folder.name, name))
        if folder.exists():
            folder.rmdir()
        made.replace(folder)
    return len(index)


def _blocks(index: ImageIndex) -> Iterator[tuple[list[Row], Array]]:
    for start in range(0, len(index), BLOCK):
        numbers = index.numbers[start:start + BLOCK]
        yield index.rows.many(numbers.tolist()), index.stored.take(numbers)


def _described(row: Row) -> dict[str, Any]:
    return {"image_id": row.image_id, "image": row.image, "captions": list(row.captions), "hash": row.hash}


def write_npy(index: ImageIndex, folder: Path) -> None:
    """vectors.npy, float32 [N, D], and rows.jsonl, whose line r describes its row r."""
    vectors = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=np.float32,
                                        shape=(len(index), index.manifest.dim))
    at = 0
    with (folder / ROWS).open("w", encoding="utf-8", newline="\n") as file:
        for rows, values in _blocks(index):
            vectors[at:at + len(rows)] = values
            at += len(rows)
            file.write(json_lines(_described(row) for row in rows))
    vectors.flush()


def write_parquet(index: ImageIndex, folder: Path) -> None:
    """index.parquet: image_id, image, captions, hash, vector (a list of D float32)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackage("--as parquet needs the package pyarrow; "
                             "pip install 'densecap-search[parquet]'") from error
    dim = index.manifest.dim
    schema = pyarrow.schema({
        "image_id": pyarrow.string(), "image": pyarrow.string(), "captions": pyarrow.list_(pyarrow.string()),
        "hash": pyarrow.string(), "vector": pyarrow.list_(pyarrow.float32(), dim)})
    with pyarrow.parquet.ParquetWriter(folder / TABLE, schema) as writer:
        for rows, values in _blocks(index):
            columns: dict[str, Any] = {name: [_described(row)[name] for row in rows] for name in schema.names[:-1]}
            flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1), pyarrow.float32())
            columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(flat, dim)
            writer.write_table(pyarrow.table(columns, schema))


INDEX_FORMATS: Mapping[str, Callable[[ImageIndex, Path], None]] = {"parquet": write_parquet, "npy": write_npy}

_USAGE = {
    "parquet": 'import pandas\ntable = pandas.read_parquet("FOLDER/index.parquet")\n'
               "vectors = numpy.stack(table.vector)  # unit rows: vectors @ query is the cosine",
    "npy": 'vectors = numpy.load("FOLDER/vectors.npy", mmap_mode="r")  # unit rows: vectors @ query is the cosine\n'
           'rows = [json.loads(line) for line in open("FOLDER/rows.jsonl", encoding="utf-8")]',
}


def _card(index: ImageIndex, title: str, name: str) -> str:
    manifest = index.manifest
    return (f"# {title}\n\n{len(index)} pictures as vectors of {manifest.dim} numbers of length 1, made by "
            f"{manifest.model.name} (fingerprint {manifest.fingerprint}, {manifest.precision}); a query is encoded by "
            f"the same model.\n\n```python\n{_USAGE[name].replace('FOLDER', title)}\n```\n")
