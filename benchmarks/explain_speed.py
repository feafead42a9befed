"""Why 20 hits were found: the sentences of a caption of a hundred words, their percentiles and the words in common.

Draws an archive of 320 pictures (or takes an index), searches by captions of it, and explains the 20 best hits of each.
Prints milliseconds beside those of the search itself, with the starter.

    python benchmarks/explain_speed.py
    python benchmarks/explain_speed.py indexes/mine
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measure import in_turns, machine, quartiles, report
from page_load import captions_of, draw_index

from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import open_searcher

HITS, CAPTIONS, ROUNDS = 20, 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="?", type=Path, help="Default: 320 generated pictures.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index = given.index or draw_index(Path(folder))
        searcher = open_searcher(index, device="cpu")
        asked = [Query(caption) for caption in captions_of(index)[:CAPTIONS]]
        numbers = [[hit.number for hit in searcher.find([query], HITS)[0][0]] for query in asked]
        runs = {"search": lambda: [searcher.find([query], HITS) for query in asked],
                "explain": lambda: [searcher.explain(*both) for both in zip(asked, numbers, strict=True)]}
        milliseconds = {name: [1000 * value / len(asked) for value in quartiles(seconds)]
                        for name, seconds in in_turns(runs, ROUNDS).items()}
        parts = sum(len(searcher.explain(query, own).parts) for query, own in zip(asked, numbers, strict=True))
        words = sum(len(query.caption.split()) for query in asked)
    low, middle, high = milliseconds["explain"]
    report(f"{HITS} hits explained by {parts / len(asked):.1f} sentences, {words / len(asked):.0f} words: "
           f"{middle:.0f} ms ({low:.0f} to {high:.0f}); the search took {milliseconds['search'][1]:.0f} ms",
           {"explain_speed": milliseconds, "machine": machine()})


if __name__ == "__main__":
    main()
