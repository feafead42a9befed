"""A row for every query: what it was, where its right answer stands under each model, and what came first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.evaluation.evaluate import Report
from densecap_search.evaluation.pairs import Pairs
from densecap_search.files import csv_text, write_text


def per_query_rows(reports: Sequence[Report]) -> Iterator[dict[str, Any]]:
    """Both directions of every report: the queries of text_to_image are captions, those of image_to_text pictures.

    first is the image_id that came first (of image_to_text: the picture whose caption did), first_score and
    right_score are cosines, ties the wrong answers that score the same as the right one.
    """
    for report in reports:
        pairs = report.pairs
        if pairs is None:
            raise AssertionError("this report has been read, not measured: it has no queries")
        for direction, measured in report.directions().items():
            ranks = measured.ranks
            for query in range(measured.queries):
                caption, image_id, first = _names(pairs, direction, query, int(ranks.first[query]))
                yield {
                    "model": report.model, "direction": direction, "query": query + 1,
                    "image_id": image_id, "caption": caption, "rank": f"{ranks.rank[query]:g}",
                    "ties": int(ranks.ties[query]), "first": first,
                    "first_score": f"{ranks.first_score[query]:.6f}", "right_score": f"{ranks.right_score[query]:.6f}",
                }


def write_per_query(path: Path, reports: Sequence[Report]) -> None:
    """A CSV file of :func:`per_query_rows`, in one step."""
    rows = list(per_query_rows(reports))
    write_text(path, csv_text(list(rows[0]), (list(row.values()) for row in rows)))


def _names(pairs: Pairs, direction: str, query: int, first: int) -> tuple[str, str, str]:
    """The query's caption, its picture, and the picture that came first."""
    if direction == "text_to_image":
        return pairs.captions[query], pairs.records[pairs.owner[query]].image_id, pairs.records[first].image_id
    own = pairs.records[query]
    return "\n".join(own.captions), own.image_id, pairs.records[int(np.asarray(pairs.owner)[first])].image_id
