"""What an update of a large index costs beside reading the collection, a stat of every file, and encoding.

    python benchmarks/update_size.py                         1,000,000 pictures, of which 100 are new and 100 are gone
    python benchmarks/update_size.py --count 100000 --folder DIR    keeps the index, and takes it up again

The pictures do not exist: a stat is taken to say that nothing has changed, and an encoder to answer at once.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import report

from densecap_search.collection.records import Collection, Content, Record
from densecap_search.config import ModelConfig
from densecap_search.retrieval import contents, update
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.changes import folder_of, signature
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_folder import is_index
from densecap_search.retrieval.manifest import Manifest, Origin
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.update import Wanted, bring_up_to_date
from densecap_search.retrieval.vectors import BLOCK
from densecap_search.retrieval.writing import write_new

DIM, CHANGED = 64, 100
MODEL = ModelConfig("drawn")


def record(number: int) -> Record:
    name = f"{number // 1000:04d}/{number:07d}.jpg"
    return Record(name, Path("/drawn") / name, (f"picture {number} of a tram in the rain before a brick house",),
                  columns={"year": 1900 + number % 120, "place": f"place {number % 500}"},
                  content=Content(f"{number:032x}", 1000, 1_600_000_000_000_000_000))


def unit_rows(count: int) -> np.ndarray:
    rows = np.random.default_rng(count).standard_normal((count, DIM), np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make(folder: Path, count: int) -> None:
    manifest = Manifest(MODEL, "f", "fp32", DIM, 0, 0, "flat", "flat", 0, "", (), (Origin("drawn", "/drawn", ""),))
    blocks = ((list(map(row, range(start, min(start + BLOCK, count)))), unit_rows(min(BLOCK, count - start)))
              for start in range(0, count, BLOCK))
    write_new(folder, manifest, blocks, lambda rows, vectors, alive: Asked(vectors.take(np.arange(10)), "pictures"))


def row(number: int) -> Row:
    own = record(number)
    assert own.content is not None
    return Row(-1, "drawn", own.image_id, str(own.image), own.captions, own.content.hash, own.content.size,
               own.content.modified, signature(own), folder=folder_of(own, "/drawn"), columns=own.columns)


def embedded(encoder: Any, records: list[Record], **_: Any) -> tuple[Any, list[Any]]:
    ids = [record.image_id for record in records]
    return SimpleNamespace(image_ids=ids, vectors=unit_rows(len(ids)), encoded=0), []


def changed(records: tuple[Record, ...], folder: Path) -> float:
    """Seconds of an update, encoding and stats left out."""
    encoder: Any = SimpleNamespace(fingerprint=lambda: "f", image_precision="fp32", dim=DIM, max_pixels=None)
    contents._is_same = lambda record, before: True
    update.embed_images = embedded
    collection = Collection("drawn", records, ())
    started = time.process_time()
    bring_up_to_date(collection, lambda: encoder, MODEL, folder, Wanted(place=Path("/drawn")))
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "index"
        folder.mkdir(parents=True, exist_ok=True)
        if not is_index(folder):
            make(folder, args.count)
        ids = {known.image_id for known in load_index(folder).rows.known()}
        first = min(int(name[5:12]) for name in ids)
        records = tuple(replace(record(number), content=None) if record(number).image_id in ids else record(number)
                        for number in range(first, first + args.count))
        del ids
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        profile = cProfile.Profile()
        if args.profile:
            profile.enable()
        unchanged = changed(records, folder)
        more = (*records[CHANGED:], *(record(first + args.count + place) for place in range(CHANGED)))
        seconds = changed(more, folder)
        if args.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("cumulative").print_stats(35)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{args.count} pictures: {unchanged:.2f} s of CPU where nothing has changed, {seconds:.2f} s for {CHANGED} "
          f"new and {CHANGED} gone; {grown:.0f} MB of memory at most beside the collection")
    report(f"update of {args.count}", {"unchanged": unchanged, "changed": seconds, "megabytes": grown})


if __name__ == "__main__":
    main()
