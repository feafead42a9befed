"""Hits that are nearly the same picture lie under the best of them. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from densecap_search.embedding.cache import Array
from densecap_search.retrieval.caption_space import unit
from densecap_search.retrieval.hits import Hit
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.vectors import Mask

# Cosine of two vectors without the archive's mean from which on they are of nearly the same picture: by the starter,
# slightly cropped copies reach it, generated scenes of different bursts and different photographs do not (a slow test).
# Without taking off the mean, the border would be another for every model.
NEAR = 0.9
SAME = 0.9999  # of the vectors as they are, in an archive of too few pictures for their mean to say something
DEEPER = 4  # times as many hits are looked at as stacks are asked for


def near_to(vectors: Array, others: Array, mean: Array | None) -> Mask:
    """Which of vectors [N, D] are nearly the same as which of others [M, D], bool [N, M]."""
    near: Mask = _without(vectors, mean) @ _without(others, mean).T >= (SAME if mean is None else NEAR)
    return near


def _without(vectors: Array, mean: Array | None) -> Array:
    return vectors if mean is None else unit(vectors - mean)


def stack(hits: Sequence[Hit], rows: Sequence[Row], vectors: Array, mean: Array | None) -> list[Hit]:
    """Each hit joins the best hit before it that lies under no other and is of the same burst or group, the same file,
    or at least NEAR to it; it is then one of its ``under``. Ranks stay what they are.

    rows and vectors [N, D]: of the hits. mean [D]: of the archive's vectors, or None where it has too few.
    """
    centred, border = _without(vectors, mean), SAME if mean is None else NEAR
    tops = np.empty_like(centred)
    places: list[list[int]] = []  # of each stack, where its hits stand
    by_key: dict[tuple[str, str], int] = {}
    for place, row in enumerate(rows):
        said = (("burst", row.burst), ("group", row.group), ("hash", row.hash))
        keys = [(name, value) for name, value in said if value]
        same = {by_key[key] for key in keys if key in by_key}
        same.update(np.flatnonzero(tops[:len(places)] @ centred[place] >= border).tolist())
        if same:
            places[min(same)].append(place)
            continue
        by_key.update(dict.fromkeys(keys, len(places)))
        tops[len(places)] = centred[place]
        places.append([place])
    return [replace(hits[own[0]], under=tuple(hits[place] for place in own[1:])) for own in places]
