"""Seconds from the shell to the answer: `search` with the starter and a run folder, errors, `--help`.

"with torch" is the same caption in a file of queries, which is read by the whole model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from index_speed import make_pictures
from measure import in_turns, machine, quartiles, report

from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import save_encoder
from densecap_search.model.loading import load_encoder

LIMITS = {"help": 0.25, "wrong argument": 0.5, "no index": 0.5, "search, starter": 1.5, "search, ViT-B/32 run": 2.5,
          "search with torch, starter": 4.0}  # seconds, the goals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["DENSECAP_CACHE"] = str(Path(work) / "cache")
        make_pictures(Path(work) / "pictures", (64, 48), 12)
        save_encoder(load_encoder(ModelConfig("ViT-B-32", pretrained="random"), device="cpu"), Path(work) / "run")
        index, of_run, queries = f"{work}/index", f"{work}/index-of-run", f"{work}/queries.txt"
        Path(queries).write_text(CAPTION, encoding="utf-8")
        for model, folder in (("starter", index), (f"{work}/run", of_run)):
            subprocess.run([*COMMAND, "index", f"{work}/pictures", "--model", model, "-o", folder], check=True,
                           capture_output=True)

        def command(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run([*COMMAND, *words], capture_output=True, check=False)

        seconds = in_turns({
            "help": command("--help"), "wrong argument": command("search", index),
            "no index": command("search", work, "a"),
            "search, starter": command("search", index, CAPTION),
            "search, ViT-B/32 run": command("search", of_run, CAPTION),
            "search with torch, starter": command("search", index, "--queries", queries),
            "import torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
            "import open_clip": lambda: subprocess.run([sys.executable, "-c", "import open_clip"], check=True),
        }, options.rounds)
    found = {name: [round(value, 3) for value in quartiles(values)] for name, values in seconds.items()}
    report("\n".join(f"{name}: {row[1]:.2f} s" + (f" (goal {LIMITS[name]} s)" if name in LIMITS else "")
                     for name, row in found.items()),
           {"benchmark": "start", "seconds": found, "machine": machine()})


CAPTION = "a red boat before a lighthouse"
COMMAND = (sys.executable, "-m", "densecap_search")

if __name__ == "__main__":
    main()
