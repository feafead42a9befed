"""What the files of a collection hold: content hashes, and work done ahead by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from densecap_search.collection.records import Record, Skipped
from densecap_search.files import hash_file
from densecap_search.talk import SILENT, Talk


def default_workers() -> int:
    """Threads that decode pictures: one a core, at most 8."""
    return min(8, os.cpu_count() or 1)


def ahead(work: Callable[[Any], Any], items: Iterable[Any], workers: int | None, window: int = 64) -> Iterator[Any]:
    """``map`` in threads, in order, at most ``window`` items ahead of whoever reads; 0 workers: no threads.

    Threads and not processes: Pillow decodes without the interpreter's lock, nothing must be pickled, and
    nothing outlives the run.
    """
    count = default_workers() if workers is None else workers
    if count == 0:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(count) as pool:
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


def hash_images(records: Sequence[Record], *, talk: Talk = SILENT, workers: int | None = None
                ) -> tuple[dict[str, str], list[Skipped]]:
    """image_id → content hash; files that cannot be read are skipped."""
    hashes: dict[str, str] = {}
    skipped: list[Skipped] = []

    def read(record: Record) -> str | Skipped:
        try:
            return hash_file(record.image)
        except OSError as error:
            return Skipped(str(record.image), error.strerror or type(error).__name__)

    found = ahead(read, records, workers)
    for record, result in zip(records, talk.each(found, "reading", len(records), "pictures"), strict=True):
        if isinstance(result, Skipped):
            skipped.append(result)
        else:
            hashes[record.image_id] = result
    return hashes, skipped

