"""Rows that a tower made, by the keys of what they were made from: found in the cache, or computed and put there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from densecap_search.embedding.cache import Array, RowCache
from densecap_search.errors import ModelError
from densecap_search.files import cache_folder
from densecap_search.model.text_encoder import TextEncoder, Tower
from densecap_search.talk import Talk

HEAD_BLOCK = 1024  # tower outputs that go through a head at once, and are held beside what is kept of them


def check_finite(vectors: Array, names: Sequence[str]) -> None:
    """Refuse vectors that a broken model made, naming the first."""
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if broken.size:
        raise ModelError(f"the model returns vectors that are not finite for {broken.size} inputs, the first is "
                         f"{names[broken[0]]!r}; its weights are damaged or its precision is too low")


@dataclass(frozen=True)
class Computed:
    """A batch that went through a tower: numbers of the inputs that could be read, their outputs, inputs tried."""

    numbers: list[int]
    outputs: Array
    tried: int


@contextmanager
def _row_cache(encoder: TextEncoder, tower: Tower, cached: bool) -> Iterator[RowCache | None]:
    if not cached:
        yield None
        return
    cache = RowCache(cache_folder() / "towers-2" / encoder.tower_fingerprint(tower))
    try:
        yield cache
    finally:
        cache.flush()


def find_rows(
    encoder: TextEncoder, tower: Tower, keys: Sequence[str],
    compute: Callable[[Sequence[int]], Iterator[Computed]], keep: Callable[[Array], Array], cached: bool, talk: Talk,
) -> tuple[dict[int, Array], int]:
    """Input number → row, for all that could be computed or found; and how many were computed.

    keep: tower outputs [b, W] → the rows that are held of them [b, …].
    """
    rows: dict[int, Array] = {}
    waiting: dict[int, Array] = {}  # until there are enough for a pass through a head

    def settle() -> None:
        if waiting:
            rows.update(zip(waiting, keep(np.stack(list(waiting.values()))), strict=True))
            waiting.clear()

    encoded = 0
    first: dict[str, int] = {}
    with _row_cache(encoder, tower, cached) as cache:
        for number, key in enumerate(keys):
            if cache is not None and key in cache:
                waiting[number] = cache[key]
                if len(waiting) == HEAD_BLOCK:
                    settle()
            else:
                first.setdefault(key, number)
        missing = list(first.values())
        unit = "pictures" if tower == "image" else "captions"
        with talk.progress(f"encoding {unit}", len(missing), unit) if missing else _no_progress() as advance:
            for batch in compute(missing):
                waiting.update(zip(batch.numbers, batch.outputs, strict=True))
                if len(waiting) >= HEAD_BLOCK:
                    settle()
                if cache is not None and np.isfinite(batch.outputs).all():
                    cache.add([keys[number] for number in batch.numbers], batch.outputs)
                encoded += len(batch.numbers)
                advance(batch.tried)
        settle()
    for number, key in enumerate(keys):  # the same content twice is computed once
        if number not in rows and first[key] in rows:
            rows[number] = rows[first[key]]
    return rows, encoded


@contextmanager
def _no_progress() -> Iterator[Callable[[int], None]]:
    yield lambda steps: None


def stack(rows: Sequence[Array]) -> Array:
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def blocks(items: Any, size: int) -> Iterator[Any]:
    return (items[start:start + size] for start in range(0, len(items), size))
