"""What an archive of very many pictures needs: machine-hours, disk, memory and machines, from figures measured here.

    python benchmarks/plan.py                                     1,000,000,000 pictures, the starter, two minutes
    python benchmarks/plan.py --pictures 50000000 --model ViT-B-16 --cores 64 --memory 256 --encoded 1500

Encoding, rows and types of index are measured on this machine, on little; the plan multiplies. What is measured
elsewhere can be given: --encoded pictures a second of one machine, such as a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from index import Drawn, blocks
from measure import machine, report

from densecap_search.config import ModelConfig
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_types import INDEX_TYPES, fill
from densecap_search.retrieval.manifest import Manifest, Origin
from densecap_search.retrieval.milvus import versions_of
from densecap_search.retrieval.writing import write_new

CAPTION = "A tram stands in the rain before a brick house; two people with umbrellas wait at the left. " * 3
MEMORY_SHARE = 0.7  # of a machine's memory that an index may take
TYPES = ("hnsw", "ivfpq")


@dataclass(frozen=True)
class Measured:
    """encoded, rows, sent: pictures a second of this machine: through the towers, into files with their rows, made
    ready for Milvus by one process. row, message: bytes of a picture's row in SQLite, and of all that goes to Milvus.
    built, size: by type of index, pictures a second that are put into a small one, and bytes of memory a picture.
    """

    threads: int
    dim: int
    encoded: float
    rows: float
    row: float
    sent: float
    message: float
    built: dict[str, float]
    size: dict[str, float]


def encoding(model: str, count: int) -> tuple[float, int]:
    """Pictures a second that are read, decoded and encoded, and the width of a vector."""
    from densecap_search.collection.records import Record
    from densecap_search.embedding.content import read_contents
    from densecap_search.embedding.towers import embed_images
    from densecap_search.model.loading import load_encoder
    from densecap_search.scenes.archive import make_scenes

    encoder = load_encoder(ModelConfig(model))
    with tempfile.TemporaryDirectory() as scratch:
        make_scenes(Path(scratch) / "pictures", bursts=max(4, count // 4))
        paths = sorted(path for path in (Path(scratch) / "pictures").rglob("*") if path.suffix in (".png", ".jpg"))
        records = [Record(path.name, path) for path in paths]
        os.environ["DENSECAP_CACHE"] = str(Path(scratch) / "cache")
        embed_images(encoder, read_contents(records[:8])[0])
        started = time.perf_counter()
        embed_images(encoder, read_contents(records[8:])[0])
        return (len(records) - 8) / (time.perf_counter() - started), encoder.dim


def measure(dim: int, encoded: float, vectors: int) -> Measured:
    drawn = Drawn(dim)
    made = [([replace(row, captions=(CAPTION,), columns={"year": 1990, "place": "Lyon"}) for row in rows], block)
            for rows, block in blocks(drawn, vectors)]
    manifest = Manifest(ModelConfig("drawn"), "", "fp32", dim, 0, 0, "flat", "flat", 0, "", (),
                        (Origin("drawn", "", ""),))
    with tempfile.TemporaryDirectory() as scratch:
        rows_seconds = seconds_of(lambda: write_new(Path(scratch), manifest, made, lambda rows, stored, alive: Asked(
            stored.take(np.arange(10)), "pictures")))
        index = load_index(Path(scratch))
        some, block = made[0][0][:1000], made[0][1][:1000]
        sent_seconds = seconds_of(lambda: versions_of(some, block, 1))
        sent = [{**version, "vector": []} for version in versions_of(some, block, 1)]
        message = len(json.dumps(sent)) / len(some) + 4 * dim
        built = {}
        for kind in TYPES:
            empty = INDEX_TYPES[kind].start
            assert empty is not None
            stored: Any = index.stored
            trained = empty(stored)  # once, with a sample, however many pictures there are
            built[kind] = vectors / seconds_of(lambda trained=trained, stored=stored: fill(trained, stored))
        row = index.rows.path.stat().st_size / vectors
    return Measured(torch.get_num_threads(), dim, encoded, vectors / rows_seconds, row, len(some) / sent_seconds,
                    message, built, {kind: INDEX_TYPES[kind].memory(dim) for kind in TYPES})


def seconds_of(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def plan(measured: Measured, pictures: int, memory: float) -> list[str]:
    """memory: gigabytes of one machine that searches."""
    def hours(rate: float) -> str:
        return f"{pictures / rate / 3600:,.0f} machine-hours"

    lines = [
        f"{pictures:,} pictures, vectors of {measured.dim} numbers, machines as this one with {measured.threads} thread"
        f"{'s' if measured.threads > 1 else ''}:",
        f"  encoding at {measured.encoded:,.0f} a second: {hours(measured.encoded)}; 100 such machines: "
        f"{pictures / measured.encoded / 360_000 / 24:,.1f} days",
        f"  vectors: {pictures * measured.dim * 4 / 1e9:,.0f} GB on the disk",
        f"  rows with a caption of {len(CAPTION)} letters: {pictures * measured.row / 1e9:,.0f} GB of SQLite, written "
        f"with the vectors at {measured.rows:,.0f} a second: {hours(measured.rows)}",
        f"  in Milvus: {pictures * measured.message / 1e9:,.0f} GB before it compresses and indexes, made ready at "
        f"{measured.sent:,.0f} a second by one process: {hours(measured.sent)}",
    ]
    for kind in TYPES:
        size = pictures * measured.size[kind] / 1e9
        shards = math.ceil(size / (memory * MEMORY_SHARE))
        built = measured.built[kind]
        lines.append(f"  {kind}: {measured.size[kind]:,.0f} bytes a picture, {size:,.0f} GB of memory, {shards} x "
                     f"{memory:,.0f} GB; filled at {built:,.0f} a second: {hours(built)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1_000_000_000)
    parser.add_argument("--memory", type=float, default=128.0, help="gigabytes of a machine that searches")
    parser.add_argument("--model", default="starter")
    parser.add_argument("--encoded", type=float, help="pictures a second of one other machine")
    parser.add_argument("--dim", type=int, help="numbers of a vector, with --encoded")
    parser.add_argument("--sample", type=int, default=256, help="pictures that are encoded to measure it")
    parser.add_argument("--vectors", type=int, default=50_000, help="of which indexes are built to measure them")
    args = parser.parse_args()
    encoded, dim = (args.encoded, args.dim) if args.encoded and args.dim else encoding(args.model, args.sample)
    measured = measure(dim, args.encoded or encoded, args.vectors)
    print("\n".join(plan(measured, args.pictures, args.memory)))
    report(f"measured with {args.sample} pictures and {args.vectors} vectors", {**asdict(measured), **machine()})


if __name__ == "__main__":
    main()
