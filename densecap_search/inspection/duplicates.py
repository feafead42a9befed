"""Which pictures and captions are the same, or nearly. Rows are numbers of records."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from densecap_search.collection.records import Record
from densecap_search.embedding.neighbours import near_codes
from densecap_search.inspection.pictures import Pictures
from densecap_search.model.segments import Ints

NEAR_BITS = 4  # of 64: what resizing, recompression and small retouches change


@dataclass(frozen=True)
class Near:
    """Rows that are nearly the same. groups: what hangs together through such pairs, largest first.

    pairs: (row, closest other row, how far), each pair once, closest first.
    """

    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int, float], ...]


def same(keys: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """Rows that share a key, for each key that several have, largest first. keys: for each row, what it has."""
    rows: dict[Hashable, list[int]] = {}
    for row, own in enumerate(keys):
        for key in set(own):
            rows.setdefault(key, []).append(row)
    return sorted((group for group in rows.values() if len(group) > 1), key=lambda group: (-len(group), group))


def near(count: int, neighbours: Iterable[tuple[int, Any, Any]], *, larger_is_closer: bool = False) -> Near:
    """Groups and closest pairs out of a range search over ``count`` rows: (row, other rows, their distances)."""
    parent = np.arange(count)
    closest: dict[tuple[int, int], float] = {}
    for row, others, values in neighbours:
        best = int(values.argmax() if larger_is_closer else values.argmin())
        other = int(others[best])
        closest[min(row, other), max(row, other)] = float(values[best])
        touched = np.append(others, row)
        roots = np.unique(_roots(parent, touched))
        parent[roots] = parent[touched] = roots[0]
    roots = _roots(parent, np.arange(count))
    sign = -1 if larger_is_closer else 1
    pairs = sorted(((a, b, value) for (a, b), value in closest.items()), key=lambda pair: (sign * pair[2], pair[:2]))
    return Near(tuple(tuple(group) for group in same([[int(root)] for root in roots])), tuple(pairs))


def near_pictures(records: Sequence[Record], pictures: Pictures) -> Near:
    """Different pictures whose difference hashes are at most NEAR_BITS apart; a copied file counts once."""
    rows: dict[int, list[int]] = {}
    seen = set()
    for row, record in enumerate(records):
        if record.image_id in pictures.codes and pictures.hashes[record.image_id] not in seen:
            seen.add(pictures.hashes[record.image_id])
            rows.setdefault(pictures.codes[record.image_id], []).append(row)
    first = np.array([members[0] for members in rows.values()], np.int64)

    def neighbours() -> Iterator[tuple[int, Any, Any]]:
        for members in rows.values():  # a chain, or a thousand frames of a still scene were a million pairs
            for row, other in zip(members[1:], members[:-1], strict=True):
                yield row, np.array([other]), np.array([0])
        for place, others, bits in near_codes(np.array(list(rows), np.uint64), NEAR_BITS):
            yield int(first[place]), first[others], bits

    return near(len(records), neighbours())


def mirror_pictures(records: Sequence[Record], codes: Mapping[str, int], mirrored: Mapping[str, int]
                    ) -> list[tuple[int, int]]:
    """Rows of pictures of which one looks like the other turned left to right, and not like it as it is."""
    rows = [row for row, record in enumerate(records) if record.image_id in codes and record.image_id in mirrored]
    both = [codes[records[row].image_id] for row in rows] + [mirrored[records[row].image_id] for row in rows]
    mirrored_pairs = set()
    for place, others, _ in near_codes(np.array(both, np.uint64), NEAR_BITS):
        for other in others.tolist():
            first, second = sorted((place % len(rows), other % len(rows)))
            turned = (place < len(rows)) != (other < len(rows))
            if turned and (both[first] ^ both[second]).bit_count() > NEAR_BITS:
                mirrored_pairs.add((rows[first], rows[second]))
    return sorted(pair for pair in mirrored_pairs if pair[0] != pair[1])


def normal_caption(caption: str) -> str:
    """What two captions share that differ only in case, spaces, punctuation or the Unicode form of letters."""
    folded = unicodedata.normalize("NFKC", caption).casefold().translate(_letters)
    return " ".join(folded.split()) or caption.strip()


class _Letters(dict[int, int]):
    """Punctuation, separators and control characters → a space; marks stay: in many scripts they are vowels."""

    def __missing__(self, code: int) -> int:
        self[code] = 32 if unicodedata.category(chr(code))[0] in "PZC" else code
        return self[code]


_letters = _Letters()


def _roots(parent: Ints, rows: Ints) -> Ints:
    roots = parent[rows]
    while not np.array_equal(above := parent[roots], roots):
        roots = above
    return roots
