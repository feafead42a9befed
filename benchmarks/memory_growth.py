"""Peak memory of encoding pictures for an index, a picture: processes of their own with few and with many pictures.

Vectors and what is known of each picture are counted too: they are 1 KB and about 1 KB a picture with the starter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from index_speed import make_pictures
from measure import report


def peak(folder: Path, count: int) -> dict[str, float]:
    """Of this process, after encoding the first pictures of a folder: MiB at most, and page faults a picture."""
    import torch

    from densecap_search.cli.memory import keep_freed_memory
    from densecap_search.collection.records import Record
    from densecap_search.config import ModelConfig
    from densecap_search.embedding.content import read_contents
    from densecap_search.embedding.towers import embed_images
    from densecap_search.model.loading import load_encoder

    keep_freed_memory()
    torch.manual_seed(0)
    encoder = load_encoder(ModelConfig("starter"), device="cpu")
    records, _ = read_contents([Record(str(number), folder / f"{number}.jpg", ()) for number in range(count)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    embed_images(encoder, records)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"mib": usage.ru_maxrss / 1024, "faults_a_picture": (usage.ru_minflt - before) / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--many", type=int, default=5000)
    parser.add_argument("--peak", nargs=2, metavar=("FOLDER", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak(Path(options.peak[0]), int(options.peak[1]))))
        return
    found = {}
    with tempfile.TemporaryDirectory() as work:
        make_pictures(Path(work) / "pictures", (250, 190), options.many)
        for count in (options.few, options.many):
            environment = {**os.environ, "DENSECAP_CACHE": str(Path(work) / f"cache-{count}")}
            done = subprocess.run([sys.executable, __file__, "--peak", str(Path(work) / "pictures"), str(count)],
                                  capture_output=True, text=True, check=True, env=environment)
            found[count] = json.loads(done.stdout)
    kib = 1024 * (found[options.many]["mib"] - found[options.few]["mib"]) / (options.many - options.few)
    report(f"Peak memory grows by {kib:.1f} KiB a picture from {options.few} to {options.many} pictures "
           f"({found[options.few]['mib']:.0f} → {found[options.many]['mib']:.0f} MiB)",
           {"benchmark": "memory_growth", "kib_a_picture": kib, "runs": found})


if __name__ == "__main__":
    main()
