"""What came first instead: the queries that went wrong, with both pictures and both captions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.evaluation.metrics import Ranks
from densecap_search.evaluation.pairs import Pairs

SHOWN = 20


@dataclass(frozen=True)
class Confusion:
    """One query that found something wrong first.

    wanted, found: image_id of the right picture, and of the one that came first (or whose caption did); their
    captions; and how alike these are, by cosine under the model.
    """

    query: int  # its number, from 1
    rank: float
    wanted: str
    found: str
    wanted_score: float
    found_score: float
    wanted_caption: str
    found_caption: str  # empty where a picture without captions came first
    caption_cosine: float | None
    wanted_image: str
    found_image: str

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return asdict(self)


def text_confusions(pairs: Pairs, ranks: Ranks, limit: int = SHOWN) -> list[Confusion]:
    """Captions that found a wrong picture first, worst first; of that picture the caption most like the query."""
    captions_of = _captions_of(pairs)
    confusions = []
    for query in _worst(ranks, limit):
        right, first = int(pairs.owner[query]), int(ranks.first[query])
        cosines = pairs.text[captions_of[first]] @ pairs.text[query]
        nearest = int(captions_of[first][cosines.argmax()]) if len(cosines) else None
        confusions.append(_confusion(pairs, ranks, query, right, first, query, nearest))
    return confusions


def image_confusions(pairs: Pairs, ranks: Ranks, limit: int = SHOWN) -> list[Confusion]:
    """Pictures that found a wrong caption first, worst first."""
    return [_confusion(pairs, ranks, query, query, int(pairs.owner[ranks.first[query]]), int(ranks.right[query]),
                       int(ranks.first[query])) for query in _worst(ranks, limit)]


def _worst(ranks: Ranks, limit: int) -> list[int]:
    """Queries with a rank above 1: the highest rank first, then the largest gap of scores."""
    gap = ranks.first_score - ranks.right_score
    order = np.lexsort((-gap, -ranks.rank))
    return [int(query) for query in order[:limit] if ranks.rank[query] > 1]


def _captions_of(pairs: Pairs) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    borders = np.cumsum(np.bincount(pairs.owner, minlength=len(pairs.records)))
    return np.split(np.arange(len(pairs.captions)), borders[:-1])


def _confusion(pairs: Pairs, ranks: Ranks, query: int, right: int, first: int, right_caption: int,
               first_caption: int | None) -> Confusion:
    wanted, instead = pairs.records[right], pairs.records[first]
    cosine = None if first_caption is None else float(pairs.text[right_caption] @ pairs.text[first_caption])
    return Confusion(
        query + 1, float(ranks.rank[query]), wanted.image_id, instead.image_id, float(ranks.right_score[query]),
        float(ranks.first_score[query]), pairs.captions[right_caption],
        "" if first_caption is None else pairs.captions[first_caption], cosine, str(wanted.image), str(instead.image),
    )
