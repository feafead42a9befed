"""What the files of a collection hold: content hashes, and work done ahead by threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from densecap_search.collection.images import cut_short, not_a_picture
from densecap_search.collection.records import NO_TIME, Collection, Content, Record, Skipped
from densecap_search.files import hash_file
from densecap_search.talk import SILENT, Talk

RACY = 2_000_000_000  # nanoseconds: a file changed just before it was read may change again within a tick of its clock


def default_workers() -> int:
    """Threads that decode pictures: one a core, at most 8."""
    return min(8, os.cpu_count() or 1)


def ahead(work: Callable[[Any], Any], items: Iterable[Any], workers: int | None, window: int = 64,
          begin: Callable[[], None] | None = None) -> Iterator[Any]:
    """``map`` in threads, in order, at most ``window`` items ahead of whoever reads; 0 workers: no threads.

    begin: what each thread does first.

    Threads and not processes: Pillow decodes without the interpreter's lock, nothing must be pickled, and
    nothing outlives the run.
    """
    count = default_workers() if workers is None else workers
    if count == 0:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(count, initializer=begin) as pool:
        pending: deque[Future[Any]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= window:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def read_contents(records: Sequence[Record], *, talk: Talk = SILENT, workers: int | None = None
                  ) -> tuple[list[Record], list[Skipped]]:
    """The records whose pictures can be read, each with its content, and the reasons of the others.

    A record that carries its content already is not read again. Of those that are read it is said how many pictures
    lack their end.
    """
    read: list[Record] = []
    skipped: list[Skipped] = []
    results = ahead(_with_content, records, workers)
    for result in talk.each(results, "reading", len(records), "pictures"):
        (skipped if isinstance(result, Skipped) else read).append(result)
    known = {record.image_id for record in records if record.content is not None}
    _tell_cut([record.image for record in read if record.image_id not in known], talk)
    return read, skipped


def _with_content(record: Record) -> Record | Skipped:
    if record.content is not None:
        return record
    broken = not_a_picture(record.image)  # a table may name any file: what is no picture is not read
    if broken is not None:
        return broken
    try:
        return replace(record, content=content_of(record.image))
    except OSError as error:
        return Skipped(str(record.image), error.strerror or type(error).__name__)


def _tell_cut(paths: Sequence[Path], talk: Talk) -> None:
    cut = cut_short(paths)
    if cut:
        talk.say(f"JPEGs that lack their last bytes and are taken as viewers show them: {len(cut)}, the first "
                 f"{cut[0]}; --strict refuses them")


def content_of(path: Path) -> Content:
    """What a file holds now. Its time is NO_TIME where it changed so lately that another change may not show in it."""
    before, started = path.stat(), time.time_ns()
    lately = before.st_mtime_ns >= started - RACY
    return Content(hash_file(path), before.st_size, NO_TIME if lately else before.st_mtime_ns)


def changed_since(path: Path, content: Content) -> Skipped | None:
    """None where a file is still what was read of it; called after it was decoded, so that what has been made of it
    is never kept under the hash of what it held before."""
    try:
        status = path.stat()
        same_time = (status.st_size, status.st_mtime_ns) == (content.size, content.modified)
        if same_time or hash_file(path) == content.hash:
            return None
    except OSError as error:
        return Skipped(str(path), error.strerror or type(error).__name__)
    return Skipped(str(path), "the file has changed since it was read; run the command again")


def with_contents(collection: Collection, records: Sequence[Record] | None = None, *, talk: Talk = SILENT,
                  workers: int | None = None) -> Collection:
    """The same collection, some of its records read; those that cannot be read stay as they were.

    records: which; None: the captioned ones.
    """
    read, _ = read_contents(collection.captioned if records is None else records, talk=talk, workers=workers)
    by_id = {record.image_id: record for record in read}
    return replace(collection, records=tuple(by_id.get(record.image_id, record) for record in collection.records))
