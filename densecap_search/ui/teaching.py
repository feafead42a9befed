"""What people teach through the page: which picture was meant, and what a caption should say.

It is kept beside the index, on the server's machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from densecap_search.collection.corrections import (
    Correction,
    corrected,
    corrections_file,
    keep_correction,
    read_corrections,
)
from densecap_search.collection.feedback import Answer, feedback_file, keep_answer
from densecap_search.errors import DensecapError
from densecap_search.retrieval.rows import Row
from densecap_search.ui.finding import check_caption
from densecap_search.ui.live import Shown


@dataclass
class Teaching:
    """folder: of the index, beside which answers and corrections are kept."""

    folder: Path
    _read: tuple[tuple[int, int], Mapping[str, tuple[Correction, ...]]] = ((0, 0), {})  # which file, what it held

    @property
    def feedback(self) -> Path:
        """The file of answers."""
        return feedback_file(self.folder)

    def keep(self, shown: Shown, query: str, answer: Literal["this", "none", "undo"], picture: str | None,
             rank: int | None, hits: int) -> None:
        """Append what somebody said of the hits of a query. picture: as the page names it; rank, hits: where, of how
        many.
        """
        row = shown.row(picture) if picture else None
        if picture and row is None:
            raise DensecapError("the index has no such picture; search again")
        if (answer == "this" and row is None) or (answer == "none" and row is not None):
            raise DensecapError('"this" names a picture, and "none" names none')
        said = Answer(check_caption(query), answer, _now(),
                      str(self.folder.resolve() / shown.generation), shown.searcher.encoder.name,
                      shown.index.manifest.fingerprint, rank=rank, shown=hits)
        if row is not None:
            said = replace(said, image_id=row.image_id, image=row.image, hash=row.hash)
        keep_answer(self.feedback, said)

    def captions(self, row: Row) -> tuple[str, ...]:
        """The captions of a picture as they were corrected."""
        return corrected(row.captions, self._corrections().get(row.image, ()))

    def correct(self, row: Row, before: str, after: str) -> tuple[str, ...]:
        """Put a caption in place of another one ("": one more; in place of it "": none), and what there is then."""
        now = self.captions(row)
        if before and before not in now:
            raise DensecapError("the picture has no such caption any more; open it again")
        if not before and not after.strip():
            raise DensecapError("write the caption that the picture is to have")
        keep_correction(corrections_file(self.folder),
                        Correction(row.image, before, after if after.strip() else "", _now()))
        return self.captions(row)

    def _corrections(self) -> Mapping[str, tuple[Correction, ...]]:
        """Read again where the file has changed."""
        try:
            status = corrections_file(self.folder).stat()
        except OSError:
            return {}
        which = (status.st_mtime_ns, status.st_size)
        if which != self._read[0]:
            self._read = which, read_corrections(corrections_file(self.folder))
        return self._read[1]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
