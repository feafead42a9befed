"""What a collection is made of. Checked where it is made, so that nobody downstream needs to doubt it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from densecap_search.errors import CollectionError
from densecap_search.files import hash_text

NO_TIME = -1  # in place of a file's time of change, where it must be read again to know that it has not changed


@dataclass(frozen=True)
class Content:
    """What a file held when it was read: a hash of its bytes, its size in bytes, its time of change in nanoseconds (or
    NO_TIME)."""

    hash: str
    size: int
    modified: int


@dataclass(frozen=True)
class Record:
    """One picture and everything its owner said about it.

    captions: as written, in their order; empty means that it can be indexed but not trained on.
    group: pictures that share it are the same picture; never each other's negatives.
    burst: near-duplicates that are different pictures; kept on one side of a split, and negatives.
    rows: the input rows (from 1) that it was made of.
    content: of the picture, once it has been read (:func:`embedding.content.read_contents`).
    """

    image_id: str
    image: Path
    captions: tuple[str, ...] = ()
    split: str | None = None
    group: str | None = None
    burst: str | None = None
    columns: Mapping[str, str | int | float] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    content: Content | None = None

    @property
    def hash(self) -> str:
        """Of the picture's bytes."""
        if self.content is None:
            raise AssertionError(f"{self.image} has not been read yet")
        return self.content.hash


@dataclass(frozen=True)
class Skipped:
    """A picture or row that was left out, and why.

    row: counts from 1; None where a file was the input. folder: a folder that could not be read; what lies below it is
    unknown, not gone.
    """

    path: str
    reason: str
    row: int | None = None
    folder: bool = False

    def __str__(self) -> str:
        place = f"row {self.row}: " if self.row is not None else ""
        return f"{place}{self.path}: {self.reason}" if self.path else f"{place}{self.reason}"


@dataclass(frozen=True)
class Collection:
    """Pictures with captions; image_ids are unique, and no input row is named twice.

    format: how it was read, a key of READERS; format_reason: what told so, and how it was read, in a phrase.
    notes: what a user should know of how it was read, a phrase each.
    """

    name: str
    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...] = ()
    format: str = ""
    format_reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        first: dict[str, Record] = {}
        for record in self.records:
            twin = first.setdefault(record.image_id, record)
            if twin is not record:
                raise CollectionError(
                    f"{self.name}: the id {record.image_id!r} names two pictures, {twin.image} and {record.image}; "
                    "give each picture its own id"
                )
        rows = [row for record in self.records for row in record.rows]
        rows += [skip.row for skip in self.skipped if skip.row is not None]
        if len(rows) != len(set(rows)):
            raise AssertionError(f"{self.name}: an input row is named twice")

    def __len__(self) -> int:
        return len(self.records)

    @property
    def captioned(self) -> tuple[Record, ...]:
        """The records that can be trained on."""
        return tuple(record for record in self.records if record.captions)

    def fingerprint(self) -> str:
        """A hash of ids, captions and splits: what a report needs to say which collection it saw."""
        lines = sorted(
            hash_text(record.image_id, record.split or "", *record.captions) for record in self.records
        )
        return hash_text(*lines)
