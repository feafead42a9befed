"""The review of a page: which captions fit their pictures least, looked for in the background."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from densecap_search.errors import DensecapError
from densecap_search.retrieval.hits import Hit
from densecap_search.ui.live import Shown
from densecap_search.workflows.background import Background
from densecap_search.workflows.review import Review, review

Stage = Literal["none", "looking", "done"]


@dataclass
class Reviewing:
    """One at a time. folder: of the index. problem: why the last one did not come to its end, in a sentence."""

    folder: Path
    stage: Stage = "none"
    work: Background | None = None
    found: Review | None = None
    problem: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin to look. Errors: DensecapError where one looks already."""
        with self._lock:
            if self.stage == "looking":
                raise DensecapError("the captions are being looked at already; wait a moment")
            self.stage, self.problem, self.found = "looking", "", None
            self.work = Background.start(review, self.folder, then=self._ended)

    def hits(self, shown: Shown) -> list[Hit]:
        """What was found, the worst first, of pictures that the index still has. Errors: DensecapError where nothing
        was looked for."""
        if self.found is None:
            raise DensecapError("nothing has been looked for yet")
        numbers = [pair.number for pair in self.found.pairs]
        if self.found.generation != shown.generation:
            raise DensecapError("the index is another one by now; look again")
        rows = shown.index.rows.many(numbers)
        return [Hit(rank, pair.cosine, row.image_id, row.image, pair.caption, row.number)
                for rank, (pair, row) in enumerate(zip(self.found.pairs, rows, strict=True), start=1)]

    def close(self) -> None:
        """The server ends: so does what it began."""
        if self.work is not None and self.work.ended is None:
            self.work.stop()

    def _ended(self, work: Background) -> None:
        with self._lock:
            self.found = work.result if work.ended == "done" else None
            self.stage = "done" if self.found is not None else "none"
            self.problem = work.said if work.ended == "failed" else ""


def sentence(found: Review) -> str:
    """What was found, in words."""
    if not found.captioned:
        return "No picture has a caption."
    sample = "" if found.looked_at == found.captioned else f" (a sample of {found.captioned:,})"
    text = f"{found.looked_at:,} pictures with captions were looked at{sample}. "
    if not found.can_tell:
        return text + ("The model does not know them well enough to tell which captions are wrong; the least fitting "
                       "first.")
    return text + (f"{found.wrong:,} captions fit their pictures no better than another picture's would; "
                   "the least fitting first.")
