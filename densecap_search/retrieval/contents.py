"""What the files of a collection hold, where an index knows most of them: a stat where nothing has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from densecap_search.collection.image_types import needs
from densecap_search.collection.records import NO_TIME, Content, Record, Skipped
from densecap_search.embedding.content import read_contents, tell_cut
from densecap_search.retrieval.rows import Known, Skip
from densecap_search.talk import Talk


@dataclass(frozen=True)
class Reading:
    """Records whose pictures may be used, and the hashes of their contents, in the same order.

    fresh: contents of files that were read, by image_id. times: (number, size, modified) of those that had not changed.
    skips: files that the index could not use before, and are the same.
    """

    records: list[Record]
    hashes: list[str]
    fresh: Mapping[str, Content]
    times: list[tuple[int, int, int]]
    skipped: list[Skipped]
    skips: list[Skip]
    known: Mapping[str, Known]  # by path

    def content(self, record: Record) -> Content:
        """Of a record, read or known."""
        if record.image_id in self.fresh:
            return self.fresh[record.image_id]
        known = self.known[str(record.image)]
        return Content(known.hash, known.size, known.modified)


def read_changed(records: Sequence[Record], known: Iterable[Known], skips: Sequence[Skip], *, workers: int | None,
                 talk: Talk) -> Reading:
    """Read the files whose size or time of change is not what the index knows."""
    by_path = {row.image: row for row in known}
    bad_paths, bad_hashes = {skip.image: skip for skip in skips}, {skip.hash: skip for skip in skips}
    hashes: list[str | None] = []
    for record in records:
        path = str(record.image)
        before = by_path.get(path) or bad_paths.get(path)
        hashes.append(before.hash if before is not None and _is_same(record, before) else None)
    unread = [record for record, own_hash in zip(records, hashes, strict=True) if own_hash is None]
    read, unreadable = read_contents(unread, talk=talk, workers=workers) if unread else ([], [])
    tell_cut(read, talk)
    fresh = {record.image_id: record.content for record in read if record.content is not None}
    good, good_hashes, still_bad, skipped = [], [], [], list(unreadable)
    for record, own_hash in zip(records, hashes, strict=True):
        if own_hash is None:
            content = fresh.get(record.image_id)
            own_hash = content.hash if content else None
        if own_hash in bad_hashes:
            skip = bad_hashes[own_hash]
            skipped.append(Skipped(str(record.image), skip.reason))
            still_bad.append(_still(skip, record, fresh.get(record.image_id)))
        elif own_hash is not None:
            good.append(record)
            good_hashes.append(own_hash)
    return Reading(good, good_hashes, fresh, _times(read, fresh, by_path), skipped, still_bad, by_path)


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


def _times(records: Sequence[Record], fresh: Mapping[str, Content], by_path: Mapping[str, Known]
           ) -> list[tuple[int, int, int]]:
    times = []
    for record in records:
        content, before = fresh.get(record.image_id), by_path.get(str(record.image))
        if content and before and before.hash == content.hash and content.modified != NO_TIME:
            times.append((before.number, content.size, content.modified))
    return times
