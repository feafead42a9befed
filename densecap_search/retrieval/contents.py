"""What the files of a collection hold, where an index knows most of them: a stat where nothing has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from densecap_search.collection.image_types import needs
from densecap_search.collection.records import NO_TIME, Content, Record, Skipped
from densecap_search.embedding.content import read_contents
from densecap_search.retrieval.rows import Known, Skip
from densecap_search.talk import Talk

NEAR = 1000  # rows among which the next record's is looked for before all are put into a table


@dataclass(frozen=True)
class Reading:
    """Records whose pictures may be used, and in the same order the hashes of their contents, and what the index knows
    of their paths, None where nothing.

    fresh: contents of files that were read, by image_id. times: (number, size, modified) of those that had not changed.
    skips: files that the index could not use before, and are the same.
    """

    records: list[Record]
    hashes: list[str]
    before: list[Known | None]
    fresh: Mapping[str, Content]
    times: list[tuple[int, int, int]]
    skipped: list[Skipped]
    skips: list[Skip]

    def content(self, record: Record) -> Content:
        """Of a record, read or known."""
        if record.image_id in self.fresh:
            return self.fresh[record.image_id]
        known = self._known[str(record.image)]
        return Content(known.hash, known.size, known.modified)

    @cached_property
    def _known(self) -> dict[str, Known]:
        return {known.image: known for known in self.before if known is not None}


def read_changed(records: Sequence[Record], known: Sequence[Known], skips: Sequence[Skip], *, workers: int | None,
                 talk: Talk) -> Reading:
    """Read the files whose size or time of change is not what the index knows."""
    befores = known_of(records, known)
    bad_paths, bad_hashes = {skip.image: skip for skip in skips}, {skip.hash: skip for skip in skips}
    hashes: list[str | None] = []
    for record, row in zip(records, befores, strict=True):
        before = row or (bad_paths.get(str(record.image)) if bad_paths else None)
        hashes.append(before.hash if before is not None and _is_same(record, before) else None)
    unread = [(records[place], befores[place]) for place, own_hash in enumerate(hashes) if own_hash is None]
    read, unreadable = ([], []) if not unread else read_contents([record for record, _ in unread], talk=talk,
                                                                 workers=workers)
    fresh = {record.image_id: record.content for record in read if record.content is not None}
    times = _times(unread, fresh)
    made = Reading([], [], [], fresh, times, list(unreadable), [])
    for record, own_hash, row in zip(records, hashes, befores, strict=True):
        if own_hash is None:
            content = fresh.get(record.image_id)
            own_hash = content.hash if content else None
        if own_hash in bad_hashes:
            skip = bad_hashes[own_hash]
            made.skipped.append(Skipped(str(record.image), skip.reason))
            made.skips.append(_still(skip, record, fresh.get(record.image_id)))
        elif own_hash is not None:
            made.records.append(record)
            made.hashes.append(own_hash)
            made.before.append(row)
    return made


def known_of(records: Sequence[Record], known: Sequence[Known]) -> list[Known | None]:
    """What an index knows of each record's path. Both mostly stand in the same order, so that no table need be made of
    a million paths."""
    passed: dict[str, Known] = {}  # rows before ``at`` that were no record's when they were passed
    own: list[Known | None] = []
    at = 0
    for record in records:
        path = str(record.image)
        if at < len(known) and known[at].image != path and path not in passed:
            near = range(at, min(at + NEAR, len(known)))
            found = next((place for place in near if known[place].image == path), len(known))
            passed.update((row.image, row) for row in known[at:found])
            at = found
        if at < len(known) and known[at].image == path:
            own.append(known[at])
            at += 1
        else:
            own.append(passed.get(path))
    return own


def new_skips(skipped: Iterable[Skipped], contents: Mapping[str, Content], under: str) -> list[Skip]:
    """To be remembered, by path; not those that another package would open."""
    return [Skip(skip.path, content.hash, content.size, content.modified, skip.reason, under) for skip in skipped
            if (content := contents.get(skip.path)) is not None and not needs(Path(skip.path))]


def _still(skip: Skip, record: Record, content: Content | None) -> Skip:
    if content is None:
        return skip._replace(image=str(record.image))
    return skip._replace(image=str(record.image), size=content.size, modified=content.modified)


def _is_same(record: Record, before: Known | Skip) -> bool:
    try:
        status = record.image.stat()
    except OSError:
        return False  # told by whoever reads it
    return before.modified == status.st_mtime_ns and before.size == status.st_size


def _times(unread: Iterable[tuple[Record, Known | None]], fresh: Mapping[str, Content]) -> list[tuple[int, int, int]]:
    times = []
    for record, before in unread:
        content = fresh.get(record.image_id)
        if content and before and before.hash == content.hash and content.modified != NO_TIME:
            times.append((before.number, content.size, content.modified))
    return times
