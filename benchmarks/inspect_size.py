"""How long `densecap inspect` takes on a large collection, and how much memory, beside merely hashing the files.

Every picture is a different JPEG of 256 × 192 pixels (cuts of a few drawn scenes, with noise), so that no decoding is
saved by the cache; one in a hundred is a copy, one in a hundred a smaller copy, one in a thousand is cut short.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import report
from PIL import Image

SIZE = (256, 192)
THINGS = ("boat", "lighthouse", "gull", "hill", "house", "window", "net", "barrel", "stone", "rope", "dog", "fence")
COLOURS = ("red", "grey", "white", "old", "wet", "low", "wooden", "warm", "blue", "green", "small", "wide")


def make(folder: Path, count: int) -> Path:
    """A table and its pictures."""
    generator, words = np.random.default_rng(0), random.Random(0)
    (folder / "pictures").mkdir()
    table = folder / "table.jsonl"
    with table.open("w", encoding="utf-8") as file:
        for number in range(count):
            path = folder / "pictures" / f"{number:06d}.jpg"
            before = path.with_name(f"{number - 1:06d}.jpg")
            if number % 100 == 50:
                path.write_bytes(before.read_bytes())
            elif number % 100 == 51:
                Image.open(before).resize((160, 120)).save(path, quality=70)
            else:
                coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
                coarse.resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=85)
            if number % 1000 == 77:
                path.write_bytes(path.read_bytes()[:2000])
            caption = " ".join(f"a {words.choice(COLOURS)} {words.choice(THINGS)}," for _ in range(40))
            row = {"image": f"pictures/{path.name}", "caption": caption,
                   "split": ("train", "train", "train", "val", "test")[number % 5]}
            file.write(json.dumps(row) + "\n")
    return table


def inspect(table: Path) -> dict[str, Any]:
    """Seconds of hashing, of the inspection and of a second one with a full cache; peak memory in MiB."""
    from densecap_search.collection.readers import read_collection
    from densecap_search.embedding.content import read_contents
    from densecap_search.inspection.inspect import as_json
    from densecap_search.inspection.inspect import inspect as gather
    from densecap_search.inspection.page import inspection_page
    from densecap_search.inspection.pictures import look_at_pictures

    seconds, at = {}, time.perf_counter()
    records = read_collection(table).records
    seconds["hashing"] = -time.perf_counter()
    read_contents(records)
    seconds["hashing"] += time.perf_counter()
    idle = _peak()
    for name in ("inspection", "again"):
        at = time.perf_counter()
        collection = read_collection(table)
        found = gather(collection, look_at_pictures(collection.records))
        json.dumps(as_json(found)), inspection_page(found)
        seconds[name] = time.perf_counter() - at
    return {"pictures": len(records), "seconds": seconds, "peak_mib": _peak(), "peak_of_hashing_mib": idle,
            "findings": {finding.kind: finding.count for finding in found.findings}}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)  # the measured half, in a process of its own
    options = parser.parse_args()
    if options.table:
        print(json.dumps(inspect(options.table)))
        return
    with tempfile.TemporaryDirectory() as folder:
        table = make(Path(folder), options.pictures)
        bytes_each = sum(path.stat().st_size for path in table.parent.glob("pictures/*")) / options.pictures
        done = subprocess.run([sys.executable, __file__, "--table", table], check=True, text=True,
                              stdout=subprocess.PIPE, env={**os.environ, "DENSECAP_CACHE": f"{folder}/cache"})
    found = json.loads(done.stdout)
    seconds, count = found["seconds"], found["pictures"]
    rate = count / seconds["inspection"]
    ratio, again = (seconds[name] / seconds["hashing"] for name in ("inspection", "again"))
    report(f"{count} JPEGs of {SIZE[0]} × {SIZE[1]} ({bytes_each / 1024:.1f} KiB) inspected without a model, with page "
           f"and JSON, in {seconds['inspection']:.0f} s: {rate:.0f} pictures/s, {ratio:.1f} times as long as hashing "
           f"the files; again with the cache {again:.1f} times; peak memory {found['peak_mib']:.0f} MiB (before it "
           f"{found['peak_of_hashing_mib']:.0f}); {os.cpu_count()} cores",
           {"benchmark": "inspect_size", **found, "ratio_to_hashing": ratio, "ratio_again": again,
            "cores": os.cpu_count()})


if __name__ == "__main__":
    main()
