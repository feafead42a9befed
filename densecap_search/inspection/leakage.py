"""What a table's splits share: a test picture that was trained on makes every figure too good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from densecap_search.collection.captions import caption_key
from densecap_search.collection.records import Record
from densecap_search.embedding.neighbours import near_codes
from densecap_search.inspection.duplicates import NEAR_BITS, normal_caption
from densecap_search.inspection.pictures import Pictures

ORDER = ("train", "val", "test")
Crossing = dict[tuple[int, str], int]  # (row, an earlier split) → a row of that split which is the same


@dataclass(frozen=True)
class Leak:
    """count: records of ``later`` that have a twin in ``earlier``; twins: (row of later, row of earlier).

    kind: a word of KINDS.
    """

    kind: str
    earlier: str
    later: str
    count: int
    twins: tuple[tuple[int, int], ...]


KINDS = ("same picture", "nearly the same picture", "same caption", "nearly the same caption", "same group",
         "same burst")


def find_leaks(records: Sequence[Record], pictures: Pictures | None) -> tuple[Leak, ...] | None:
    """Leaks between the splits of a table, for every kind and pair of splits; None where there is no split column.

    records: captioned ones; without a word they are training rows, as for ``finetune``.
    """
    if all(record.split is None for record in records):
        return None
    splits = [record.split or "train" for record in records]
    crossings: dict[str, Crossing] = {}
    if pictures is not None:
        content = [[pictures.hashes[r.image_id]] if r.image_id in pictures.hashes else [] for r in records]
        crossings["same picture"] = _by_key(splits, content)
        alike = _by_outline(splits, records, pictures.codes)
        exact = crossings["same picture"]
        crossings["nearly the same picture"] = {key: twin for key, twin in alike.items() if key not in exact}
    crossings["same caption"] = _by_key(splits, [map(caption_key, record.captions) for record in records])
    nearly = _by_key(splits, [map(normal_caption, record.captions) for record in records])
    crossings["nearly the same caption"] = {key: twin for key, twin in nearly.items()
                                            if key not in crossings["same caption"]}
    crossings["same group"] = _by_key(splits, [[record.group] if record.group else [] for record in records])
    crossings["same burst"] = _by_key(splits, [[record.burst] if record.burst else [] for record in records])
    return tuple(leak for kind in KINDS for leak in _count(kind, splits, crossings.get(kind, {})))


def _earlier(splits: Iterable[str], than: str) -> list[str]:
    """Those of the splits that come before one: train before val before test before others by name."""
    def place(split: str) -> tuple[int, str]:
        return (ORDER.index(split), "") if split in ORDER else (len(ORDER), split)
    return sorted((split for split in splits if place(split) < place(than)), key=place)


def _by_key(splits: Sequence[str], keys: Sequence[Iterable[str]]) -> Crossing:
    """Rows that share any of their keys with a row of an earlier split."""
    held = [set(own) for own in keys]
    first: dict[str, dict[str, int]] = {}
    for row, own in enumerate(held):
        for key in own:
            first.setdefault(key, {}).setdefault(splits[row], row)
    crossing: Crossing = {}
    for row, own in enumerate(held):
        for key in sorted(own):
            for split in _earlier(first[key], splits[row]) if len(first[key]) > 1 else ():
                crossing.setdefault((row, split), first[key][split])
    return crossing


def _by_outline(splits: Sequence[str], records: Sequence[Record], codes: Mapping[str, int]) -> Crossing:
    """Rows whose difference hash is at most NEAR_BITS from one in an earlier split: the closest of them.

    Rows of one split and one hash are looked up once, or a thousand frames of a still scene were a million pairs.
    """
    members: dict[tuple[int, str], list[int]] = {}
    for row, record in enumerate(records):
        if record.image_id in codes:
            members.setdefault((codes[record.image_id], splits[row]), []).append(row)
    keys, rows = list(members), list(members.values())
    crossing: Crossing = {}
    for place, others, bits in near_codes(np.array([code for code, _ in keys], np.uint64), NEAR_BITS):
        own = keys[place][1]
        closest: dict[str, int] = {}
        for other in others[np.argsort(bits, kind="stable")].tolist():
            closest.setdefault(keys[other][1], other)
        for split in _earlier(closest, own):
            crossing.update({(row, split): rows[closest[split]][0] for row in rows[place]})
    return crossing


def _count(kind: str, splits: Sequence[str], crossing: Crossing) -> list[Leak]:
    twins: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for (row, earlier), twin in sorted(crossing.items()):
        twins.setdefault((splits[row], earlier), []).append((row, twin))
    return [Leak(kind, earlier, later, len(pairs), tuple(pairs)) for (later, earlier), pairs in twins.items()]
