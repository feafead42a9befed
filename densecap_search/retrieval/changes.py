"""What an update of an index has to do: what is new, moved, described anew or gone. Nothing here opens a file."""

from __future__ import annotations

import hashlib
import marshal
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from densecap_search.collection.records import Record, Skipped
from densecap_search.errors import IndexFolderError
from densecap_search.retrieval.rows import Known

ALLOWED_GONE, ALLOWED_SHARE = 10, 0.1  # more than both, and an archive is partly missing rather than tidied


@dataclass(frozen=True)
class Changes:
    """How a collection differs from what an index has of it.

    kept: pictures as they were, with the ``unseen``: numbers of those whose folder could not be read. restated: the
    same content with another place, name, caption or column: it keeps its number and its vector, and ``moved`` counts
    those with another path. copied: content that the index has under another number. new: to be encoded. gone: numbers
    that are removed, of which ``lost`` have neither their name nor their content in the collection. before: pictures
    that the index had; recurring: those whose content is still there. vanished: contents that are not. said: of all
    that the records say but for their contents, whatever their order.
    """

    kept: int
    restated: tuple[tuple[int, Record], ...]
    moved: int
    copied: tuple[tuple[int, Record], ...]
    new: tuple[Record, ...]
    gone: tuple[int, ...]
    lost: int
    before: int
    recurring: int
    vanished: int
    unseen: tuple[int, ...] = ()
    said: str = ""

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.restated or self.copied or self.new or self.gone)

    def __str__(self) -> str:
        return (f"{len(self.new)} to encode, {self.kept} unchanged, {self.moved} moved or renamed, "
                f"{len(self.restated) - self.moved} described anew, {len(self.copied)} copies of known pictures, "
                f"{len(self.gone)} removed or replaced")


def plan_update(old: Sequence[Known], records: Sequence[Record], hashes: Sequence[str],
                elsewhere: Mapping[str, int] | None = None, closed: Sequence[str] = (),
                before: Sequence[Known | None] | None = None) -> Changes:
    """Compare what an index knows of a collection with the collection as it is.

    hashes: of the records' contents. elsewhere: content → number, of other collections in the index. closed: absolute
    paths of folders that could not be read; pictures below them are kept as they were. before: of each record what the
    index knows of its path, where that has been looked up. A picture is first known by its id, then by its content.
    """
    said = list(map(signature, records))
    pairs, matched, strangers = _by_id(old, records, hashes, before or [None] * len(records))
    restated = [(known.number, records[place]) for place, known in pairs if known.signature != said[place]]
    moved = sum(known.image != str(records[place].image) for place, known in pairs if known.signature != said[place])
    kept = len(pairs) - len(restated)
    unseen = _unseen(old, closed, {record.image_id for record in records}) if closed else set()
    matched |= unseen
    left = [known for known in old if known.number not in matched] if len(matched) < len(old) else []
    free: dict[str, list[int]] = {}
    for known in reversed(left):
        free.setdefault(known.hash, []).append(known.number)
    asked = {hashes[place] for place in strangers}
    number_of = {**(elsewhere or {}), **{known.hash: known.number for known in old if known.hash in asked}} if asked \
        else {}
    new: list[Record] = []
    copied: list[tuple[int, Record]] = []
    for place in strangers:
        record, content = records[place], hashes[place]
        if free.get(content):
            number = free[content].pop()
            matched.add(number)
            restated.append((number, record))
            moved += 1
        elif content in number_of:
            copied.append((number_of[content], record))
        else:
            new.append(record)
    missing = [known for known in left if known.number not in matched]
    contents, ids = {known.hash for known in missing}, {known.image_id for known in missing}
    contents &= {content for content in hashes if content in contents} if missing else set()
    ids &= {record.image_id for record in records if record.image_id in ids} if missing else set()
    return Changes(kept + len(unseen), tuple(restated), moved, tuple(copied), tuple(new),
                   gone=tuple(known.number for known in missing),
                   lost=sum(known.image_id not in ids and known.hash not in contents for known in missing),
                   before=len(old), recurring=len(old) - sum(known.hash not in contents for known in missing),
                   vanished=len({known.hash for known in missing} - contents), unseen=tuple(sorted(unseen)),
                   said=_sum(said))


def _by_id(old: Sequence[Known], records: Sequence[Record], hashes: Sequence[str], before: Sequence[Known | None]
           ) -> tuple[list[tuple[int, Known]], set[int], list[int]]:
    """Places of the records that have the id and the content of a known picture, each with it; the numbers of these;
    places of the other records. Nearly all are known by their path, so only the rest is looked up."""
    pairs: list[tuple[int, Known]] = []
    rest: list[int] = []
    for place, (record, content, known) in enumerate(zip(records, hashes, before, strict=True)):
        if known is not None and known.image_id == record.image_id and known.hash == content:
            pairs.append((place, known))
        else:
            rest.append(place)
    matched = {known.number for _, known in pairs}
    if not rest:
        return pairs, matched, []
    by_id = {known.image_id: known for known in old if known.number not in matched}
    strangers: list[int] = []
    for place in rest:
        known = by_id.get(records[place].image_id)
        if known is not None and known.hash == hashes[place]:
            pairs.append((place, known))
            matched.add(known.number)
        else:
            strangers.append(place)
    return pairs, matched, strangers


def _sum(signatures: Sequence[bytes]) -> str:
    """Of all signatures, whatever their order."""
    return f"{int(np.frombuffer(b''.join(signatures), '<u8').sum(dtype=np.uint64)):016x}"


def closed_folders(skipped: Sequence[Skipped]) -> list[str]:
    """Absolute paths of the folders that could not be read."""
    return [os.path.abspath(skip.path) for skip in skipped if skip.folder]


def _unseen(old: Sequence[Known], closed: Sequence[str], ids: Set[str]) -> set[int]:
    """Numbers of pictures below closed folders, but for those whose id is another picture's now."""
    below = tuple(folder.rstrip(os.sep) + os.sep for folder in closed)
    return {known.number for known in old if known.image.startswith(below) and known.image_id not in ids}


def refuse_losses(changes: Changes, folder: Path, collection: str, origin: str) -> None:
    """Raise IndexFolderError where an archive looks partly missing, or the collection is another one."""
    if 2 * changes.recurring < changes.before:
        raise IndexFolderError(
            f"{folder} holds {changes.before} pictures of {origin}, and only {changes.recurring} of them are in "
            f"{collection}: add it beside them with --add, index it into another folder with -o, or replace them with "
            "--prune")
    if changes.lost > ALLOWED_GONE and changes.lost > ALLOWED_SHARE * changes.before:
        raise IndexFolderError(
            f"{changes.lost} of the {changes.before} pictures that {folder} holds of {origin} are missing in "
            f"{collection}; if a disk or folder is not there, bring it back, and if they are gone for good, say so "
            "with --prune")


def signature(record: Record) -> bytes:
    """Eight bytes of all that a record says but for its content; equal where nothing has changed."""
    said = (str(record.image), record.captions, record.split, record.group, record.burst, *record.columns.items())
    return hashlib.blake2b(marshal.dumps(said, 2), digest_size=8).digest()  # version 2: equal values, equal bytes


def folder_of(record: Record, root: str | None) -> str:
    """Where a picture lies in its collection, ``.`` for the top; an absolute path where it lies outside.

    root: the folder of the collection.
    """
    image = str(record.image)
    if image.endswith(os.sep + record.image_id.replace("/", os.sep)):
        return str(PurePosixPath(record.image_id).parent)
    folder = str(record.image.parent)
    if root and (folder == root or folder.startswith(root.rstrip(os.sep) + os.sep)):
        return Path(folder).relative_to(root).as_posix()
    return folder
