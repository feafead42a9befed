"""Seconds from the shell to the answer: `search` with the starter, a wrong argument, no index, `--help`."""

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

LIMITS = {"help": 0.25, "wrong argument": 0.5, "no index": 0.5, "search": 4.0}  # seconds, the goals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["DENSECAP_CACHE"] = str(Path(work) / "cache")
        make_pictures(Path(work) / "pictures", (64, 48), 12)
        index = f"{work}/index"
        subprocess.run([*COMMAND, "index", f"{work}/pictures", "--model", "starter", "-o", index], check=True,
                       capture_output=True)

        def command(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run([*COMMAND, *words], capture_output=True, check=False)

        seconds = in_turns({
            "help": command("--help"), "wrong argument": command("search", index),
            "no index": command("search", work, "a"),
            "search": command("search", index, "a red boat before a lighthouse"),
            "import torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
            "import open_clip": lambda: subprocess.run([sys.executable, "-c", "import open_clip"], check=True),
        }, options.rounds)
    found = {name: [round(value, 3) for value in quartiles(values)] for name, values in seconds.items()}
    report("\n".join(f"{name}: {row[1]:.2f} s" + (f" (goal {LIMITS[name]} s)" if name in LIMITS else "")
                     for name, row in found.items()),
           {"benchmark": "start", "seconds": found, "machine": machine()})


COMMAND = (sys.executable, "-m", "densecap_search")

if __name__ == "__main__":
    main()
