"""Train, validation and test: taken from the table or made, never through a burst or a group."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from densecap_search.collection.captions import caption_key
from densecap_search.collection.records import Collection, Record
from densecap_search.errors import CollectionError
from densecap_search.files import hash_text

SPLITS = ("train", "val", "test")
_SPLIT_WORDS = {"validation": "val", "valid": "val", "dev": "val", "training": "train", "testing": "test"}


@dataclass(frozen=True)
class Splits:
    """The captioned records of a collection by what they are for; ``made`` says whether we chose."""

    train: tuple[Record, ...]
    val: tuple[Record, ...]
    test: tuple[Record, ...]
    made: str  # "from the table", "val taken from train" or "made"


def normal_split(word: str | None) -> str | None:
    """The three common names for the splits, whatever the table calls them; other names stay."""
    if word is None or not word.strip():
        return None
    word = word.strip().lower()
    return _SPLIT_WORDS.get(word, word)


def most_held_out(splits: Iterable[str]) -> str | None:
    """Of what the rows of one picture say: test before val before any other name before train; None of nothing."""
    rank = {"train": 0, "val": 2, "test": 3}
    return max(splits, key=lambda split: rank.get(split, 1), default=None)


def split_collection(
    collection: Collection, *, val_share: float, test_share: float, seed: int,
) -> Splits:
    """Split the captioned records.

    A split column is used as it is (rows without a value are training rows); where it names no val, val is
    taken from train. Without a column val and test are set aside by whole units: records that a group, a
    burst, an identical caption or, of records that were read, identical content hold together.
    """
    records = collection.captioned
    if not records:
        raise CollectionError(f"{collection.name} has no picture with a caption: nothing to train on")
    named: dict[str, list[Record]] = {}
    for record in records:
        named.setdefault(record.split or "train", []).append(record)
    if set(named) == {"train"} and all(record.split is None for record in records):
        train, val, test = _set_aside(records, [0.0, val_share, test_share], seed)
        return Splits(train, val, test, "made")
    if "train" not in named:
        raise CollectionError(f"{collection.name} has no split named train; it has {', '.join(sorted(named))}; "
                              "--set data.use_split=false makes new splits of all")
    train, val, test = (tuple(named.get(name, ())) for name in ("train", "val", "test"))
    if val:
        return Splits(train, val, test, "from the table")
    train, val, _ = _set_aside(train, [0.0, val_share, 0.0], seed)
    return Splits(train, val, test, "val taken from train")


def folds(records: Sequence[Record], count: int, seed: int) -> tuple[tuple[Record, ...], ...]:
    """As many equal parts, none through a burst, a group, an identical caption or identical content."""
    return _set_aside(records, [1 / count] * count, seed)


def select_splits(collection: Collection, names: Sequence[str], chosen: Mapping[str, str] | None = None
                  ) -> tuple[Record, ...]:
    """The captioned records of the named splits; ``all`` takes everything.

    chosen: image_id → split, from the run that took or made them: it knows what it was trained on, so it goes before
    the table, which may have been changed since, or ignored (data.use_split).
    """
    records = collection.captioned
    if "all" in names:
        return records
    own = [(chosen or {}).get(record.image_id, record.split) for record in records]
    wanted = {normal_split(name) for name in names}
    selected = tuple(record for record, split in zip(records, own, strict=True) if split in wanted)
    missing = sorted(str(name) for name in wanted - set(own))
    if missing:
        present = Counter(split for split in own if split)
        listing = ", ".join(f"{name} ({count})" for name, count in sorted(present.items())) or "none"
        raise CollectionError(
            f"{collection.name} has no split named {', '.join(missing)}; splits here: {listing}; "
            "--split all takes every picture, and a run folder (--model RUN) brings the splits it was trained with"
        )
    return selected


def take_fraction(records: Sequence[Record], fraction: float, seed: int) -> tuple[Record, ...]:
    """So large a share of the records, at least one, drawn by seed; a smaller share lies within a larger one."""
    order = sorted(range(len(records)), key=lambda row: hash_text(f"{seed}/{records[row].image_id}"))
    kept = sorted(order[: max(1, math.ceil(fraction * len(records) - 1e-9))])
    return tuple(records[row] for row in kept)


def group_numbers(records: Sequence[Record], same_caption: Callable[[str], str] = caption_key) -> list[int]:
    """A number a record; equal numbers are the same picture or the same caption, never negatives.

    same_caption: a caption → what makes it the same as another; its tokens within the window, for instance.
    """
    return _components(records, ("group", "caption", "picture"), same_caption)


def picture_numbers(records: Sequence[Record]) -> list[int]:
    """A number a record; equal numbers are the same picture: the same content, or the same group."""
    return _components(records, ("group", "picture"))


def sides(records: Sequence[Record]) -> list[int]:
    """A number a record; equal numbers must be on one side of a split: the same picture, or of one burst."""
    return _components(records, ("group", "picture", "burst"))


def _set_aside(records: Sequence[Record], shares: Sequence[float], seed: int) -> tuple[tuple[Record, ...], ...]:
    """Whole units, drawn at random, until each share is reached; the first part gets what is left.

    A unit goes where it overshoots least, and the first part is never left empty.
    """
    numbers = _components(records, ("group", "caption", "picture", "burst"))
    units: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        units.setdefault(number, []).append(row)
    order = sorted(units.values(), key=lambda unit: records[unit[0]].image_id)
    random.Random(seed).shuffle(order)
    parts: list[list[int]] = [[] for _ in shares]
    for unit in order[1:]:
        wanting = [
            part for part, share in enumerate(shares)
            if part and share and len(parts[part]) + len(unit) / 2 <= max(1.0, share * len(records))
        ]
        parts[wanting[0] if wanting else 0].extend(unit)
    parts[0].extend(order[0])
    return tuple(tuple(records[row] for row in sorted(part)) for part in parts)


def _components(records: Sequence[Record], by: Sequence[str],
                same_caption: Callable[[str], str] = caption_key) -> list[int]:
    """Connected components (union–find) of records that share any of the named properties."""
    parent = list(range(len(records)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    seen: dict[tuple[str, str], int] = {}
    for row, record in enumerate(records):
        for key in _keys(record, by, same_caption):
            other = seen.setdefault(key, row)
            low, high = sorted((root(row), root(other)))
            parent[high] = low
    return [root(row) for row in range(len(records))]


def _keys(record: Record, by: Sequence[str], same_caption: Callable[[str], str]) -> Iterable[tuple[str, str]]:
    if "group" in by and record.group:
        yield "group", record.group
    if "burst" in by and record.burst:
        yield "burst", record.burst
    if "caption" in by:
        for caption in record.captions:
            yield "caption", same_caption(caption)
    if "picture" in by and record.content is not None:
        yield "picture", record.content.hash
